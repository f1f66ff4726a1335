package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/bus/bustest"
	"github.com/millrace/millrace/worker"
)

// onNodes is a system whose NATS is a cluster with sockets, under the real clock.
// Its own worker is not started.
func onNodes(t *testing.T, nodes *bustest.Cluster, n int) *system {
	t.Helper()
	s := &system{t: t, ran: &counter{}, wire: newWire(t)}
	urls := make([]string, n)
	for i := range urls {
		urls[i] = nodes.URL(i)
	}
	s.conn = func(name string) *bus.Conn {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		conn, err := bus.Connect(ctx, bus.ConnConfig{URL: strings.Join(urls, ","), Name: name, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	return s
}

// serveEdge starts the edge of a system without one.
func (s *system) serveEdge(pools ...string) {
	s.t.Helper()
	var err error
	if s.edge, err = New(s.conn("edge"), Config{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		s.t.Fatal(err)
	}
	run(s.t, "edge", s.edge.Run)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.edge.WaitReady(ctx, pools...); err != nil {
		s.t.Fatal(err)
	}
	s.serveHTTP()
}

// readyz is the status of the readiness probe.
func (s *system) readyz() int {
	w := httptest.NewRecorder()
	s.edge.Handler().ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/readyz", nil))
	return w.Code
}

// executions counts the executions of each call by its name.
type executions struct{ by sync.Map }

func (e *executions) add(name string) {
	n, _ := e.by.LoadOrStore(name, new(atomic.Int32))
	n.(*atomic.Int32).Add(1)
}

func (e *executions) of(name string) int32 {
	n, ok := e.by.Load(name)
	if !ok {
		return 0
	}
	return n.(*atomic.Int32).Load()
}

// TestAllNodesOfNATSAreLost: while there is no NATS the edge is not ready and
// says what has become of calls; when it is back, everything goes on, sessions
// included, and nothing was executed twice.
func TestAllNodesOfNATSAreLost(t *testing.T) {
	t.Parallel()
	const size = 3
	nodes := bustest.StartCluster(t, size)
	s := onNodes(t, nodes, size)
	var ran executions
	type in struct {
		Name string `json:"name"`
	}
	for range 2 {
		w := worker.New(worker.Config{Pool: "once", Version: "1.0.0", Logger: slog.New(slog.DiscardHandler)})
		worker.AddTool(w, worker.Tool{Name: "once"}, func(_ context.Context, _ *worker.Call, in in) (string, error) {
			ran.add(in.Name)
			return "ran " + in.Name, nil
		})
		conn := s.conn("worker")
		run(t, "worker", func(ctx context.Context) error { return w.Run(ctx, conn) })
		<-w.Ready()
	}
	s.serveEdge("once")
	session := s.session("2025-11-25", `{}`)

	var outcomes sync.Map // of reason to *atomic.Int32
	count := func(reason string) int32 {
		n, _ := outcomes.LoadOrStore(reason, new(atomic.Int32))
		return n.(*atomic.Int32).Load()
	}
	call := func(name string) {
		got := body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"once","arguments":{"name":"`+name+`"}}}`, mcp.HeaderSessionID+": "+session))
		var a struct {
			Result json.RawMessage `json:"result"`
			Error  *struct {
				Code    int    `json:"code"`
				Message string `json:"message"`
				Data    struct {
					Reason string `json:"reason"`
				} `json:"data"`
			} `json:"error"`
		}
		if err := json.Unmarshal([]byte(got), &a); err != nil {
			t.Errorf("%s: %v: %s", name, err, got)
			return
		}
		reason, n := "", ran.of(name)
		switch {
		case n > 1:
			t.Errorf("%s was executed %d times", name, n)
		case a.Error == nil:
			if n != 1 || !strings.Contains(string(a.Result), "ran "+name) {
				t.Errorf("%s: executed %d times: %s", name, n, got)
			}
		case a.Error.Code != -32603 || a.Error.Data.Reason == "":
			t.Errorf("%s: %s", name, got)
		default:
			reason = a.Error.Data.Reason
			if says := strings.Contains(a.Error.Message, "nothing was executed"); says && n != 0 {
				t.Errorf("%s was executed, and the client is told: %s", name, got)
			}
		}
		count(reason)
		o, _ := outcomes.Load(reason)
		o.(*atomic.Int32).Add(1)
	}
	done := make(chan struct{})
	var callers sync.WaitGroup
	for i := range 6 {
		callers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond):
				}
				call(fmt.Sprintf("%d.%d", i, n))
			}
		})
	}
	eventually(t, "calls are answered", func() bool { return count("") > 100 })
	for i := range size {
		nodes.Kill(i)
	}
	eventually(t, "the edge is not ready", func() bool { return s.readyz() == http.StatusServiceUnavailable })
	down := time.Now()
	refused := count("unavailable")
	eventually(t, "calls are refused", func() bool { return count("unavailable") > refused+10 })
	if got := body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"ping"}`, mcp.HeaderSessionID+": "+session)); !strings.Contains(got, `"result":{}`) {
		t.Errorf("ping without NATS: %s", got)
	}
	eventually(t, "three seconds have passed", func() bool { return time.Since(down) > 3*time.Second })
	if s.readyz() != http.StatusServiceUnavailable {
		t.Error("the edge is ready without NATS")
	}
	for i := range size {
		nodes.Restart(i)
	}
	eventually(t, "the edge is ready again", func() bool { return s.readyz() == http.StatusOK })
	answered := count("")
	eventually(t, "calls are answered again", func() bool { return count("") > answered+100 })
	close(done)
	callers.Wait()
	outcomes.Range(func(reason, n any) bool {
		t.Logf("%q: %d", reason, n.(*atomic.Int32).Load())
		return true
	})
	ran.by.Range(func(name, n any) bool {
		if n := n.(*atomic.Int32).Load(); n != 1 {
			t.Errorf("%v was executed %d times", name, n)
		}
		return true
	})
}

// TestServersWithASmallPayload: messages are cut to what the server takes, from
// the beginning and after a reload.
func TestServersWithASmallPayload(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]int32{"from the beginning": 16 << 10, "after a reload": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := bustest.StartCluster(t, 1, bustest.MaxPayload(payload))
			s := onNodes(t, nodes, 1)
			s.workerConn, s.stopWorker = s.startWorker()
			s.serveEdge("fixture")
			if payload > 256<<10 {
				nodes.SetMaxPayload(0, 256<<10)
			}
			for _, size := range []int{10, 20_000, 300_000, 3_000_000} {
				text := strings.Repeat("x", size)
				got := body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"`+text+`"}}}`))
				if !strings.Contains(got, text) {
					t.Errorf("%d bytes: %.300s", size, got)
				}
			}
		})
	}
}
