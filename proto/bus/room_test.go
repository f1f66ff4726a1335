package bus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

// TestRoomForLargeMessages: what does not fit into the window stays at the worker
// until there is room, whose size is asked for once; without room the call ends
// with the reason, and its handler too.
func TestRoomForLargeMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		startServer(t, connect(t, ns), ServerConfig{}, sumService{result: make([]byte, 4<<20)})
		asked := make(chan int, 10) // more than there are
		answer := make(chan error)
		c := startClient(t, connect(t, ns), ClientConfig{Room: func(ctx context.Context, size int) error {
			asked <- size
			select {
			case err := <-answer:
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		type result struct {
			size int
			err  error
		}
		begin := func(ctx context.Context) chan result {
			done := make(chan result, 1) // one result
			go func() {
				resp, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{})
				done <- result{len(resp.GetPayload().GetBody()), err}
			}()
			return done
		}
		held := func() int {
			for _, call := range c.snapshot() {
				call.mu.Lock()
				defer call.mu.Unlock()
				return call.in.part.size
			}
			return -1
		}

		done := begin(within(t))
		if size := <-asked; size < 4<<20 || size > 4<<20+100 {
			t.Errorf("asked for %d", size)
		}
		time.Sleep(time.Second)
		if got, most := held(), defaultWindow+defaultChunk; got <= 0 || got > most {
			t.Errorf("%d bytes are here without room, at most %d may", got, most)
		}
		answer <- nil
		if r := <-done; r.err != nil || r.size != 4<<20 {
			t.Errorf("with room: %d bytes, %v", r.size, r.err)
		}
		if len(asked) > 0 {
			t.Error("asked twice")
		}

		done = begin(within(t))
		<-asked
		answer <- status.Error(codes.ResourceExhausted, "no room")
		if r := <-done; status.Code(r.err) != codes.ResourceExhausted {
			t.Errorf("without room: %v", r.err)
		}

		ctx, cancel := context.WithCancel(within(t))
		done = begin(ctx)
		<-asked
		cancel()
		if r := <-done; status.Code(r.err) != codes.Canceled {
			t.Errorf("cancelled: %v", r.err)
		}
		if n := len(c.snapshot()); n != 0 {
			t.Errorf("%d calls are left", n)
		}
	})
}

// TestRoomWithoutASize: a message that does not say how large it is gets room in
// steps, ahead of what has come.
func TestRoomWithoutASize(t *testing.T) {
	t.Parallel()
	in := inbox{window: 256 << 10, maxMsg: 64 << 20, asks: true}
	in.pop()
	got, steps := 0, 0
	for n := range 100 {
		if got > in.granted+in.window+defaultChunk {
			t.Fatalf("%d bytes are here, and room for %d", got, in.granted)
		}
		if lacks := in.lacks(); lacks > 0 {
			in.grant(lacks)
			steps++
		}
		in.seq = uint64(n)
		if err := in.push(make([]byte, 100<<10), n < 99, 0); err != nil {
			t.Fatal(err)
		}
		got += 100 << 10
	}
	if steps < 9 || steps > 11 {
		t.Errorf("%d times asked for %d bytes", steps, got)
	}
}
