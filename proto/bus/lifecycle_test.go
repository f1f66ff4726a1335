package bus

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/millrace/millrace/proto/localnats"
)

// A rolling update loses nothing: over sockets, where messages are on the way.
func TestRollingUpdateOverSockets(t *testing.T) {
	t.Parallel()
	ns, err := localnats.Start(localnats.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Shutdown)
	open := func() *Conn {
		conn, err := Connect(within(t), ConnConfig{URL: ns.ClientURL(), Logger: newLog(t).logger()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	c := startClient(t, open(), ClientConfig{WaitBudget: 20 * time.Second})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	_, stop := startServer(t, open(), ServerConfig{Grace: 5 * time.Second}, testService{})

	ctx, cancel := context.WithCancel(within(t))
	var calls atomic.Int32
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				if _, err := client.UnaryCall(within(t), &grpc_testing.SimpleRequest{}); err != nil {
					t.Error(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	for range 2 {
		_, next := startServer(t, open(), ServerConfig{Grace: 5 * time.Second}, testService{})
		before := calls.Load()
		eventually(t, func() bool { return calls.Load() > before+20 })
		stop()
		stop = next
		before = calls.Load()
		eventually(t, func() bool { return calls.Load() > before+20 })
	}
	cancel()
	callers.Wait()
}

func TestCallsWaitForTheClient(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	startServer(t, connect(t, ns), ServerConfig{}, testService{})
	c := NewClient(connect(t, ns), ClientConfig{})
	done := make(chan error, 1)
	go func() {
		_, err := grpc_testing.NewTestServiceClient(c.Pool("test")).EmptyCall(within(t), &grpc_testing.Empty{})
		done <- err
	}()
	actor(t, c.Ready(), c.Run)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Calls that wait for a client whose Run fails before it is ready end with it.
func TestCallsDoNotWaitForAClientThatFails(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]string{"no connection": "c", "bad id": "a.b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				conn := connect(t, startNATS(t))
				c := NewClient(conn, ClientConfig{ID: id})
				done := make(chan error, 2) // both calls
				call := func() {
					_, err := grpc_testing.NewTestServiceClient(c.Pool("test")).EmptyCall(within(t), &grpc_testing.Empty{})
					done <- err
				}
				go call()
				synctest.Wait()
				conn.Close()
				began := time.Now()
				if err := c.Run(within(t)); err == nil {
					t.Error("Run has not failed")
				}
				call() // a later one
				for range 2 {
					wantCode(t, <-done, codes.Unavailable)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("they ended after %v", took)
				}
			})
		})
	}
}

func TestDelayQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type fired struct {
			item int
			at   time.Duration
		}
		began := time.Now()
		got := make(chan fired, 100)
		var q delayQueue[int]
		q.init(10*time.Millisecond, func(i int) { got <- fired{i, time.Since(began)} })
		q.add(0)
		time.Sleep(4 * time.Millisecond)
		for i := range 20 {
			q.add(i + 1)
		}
		time.Sleep(time.Second)
		q.add(21)
		time.Sleep(5 * time.Millisecond)
		q.close()
		q.add(22)
		time.Sleep(time.Second)
		close(got)
		n := 0
		for f := range got {
			want := 10 * time.Millisecond
			if f.item > 0 {
				want = 14 * time.Millisecond
			}
			if f.item != n || f.at != want {
				t.Errorf("item %d at %v, want item %d at %v", f.item, f.at, n, want)
			}
			n++
		}
		if n != 21 {
			t.Errorf("%d items fired", n)
		}
	})
}
