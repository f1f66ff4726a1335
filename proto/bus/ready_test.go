package bus

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// A message waits for its reader exactly when SendReady has said so: after a window
// that nobody reads, until half of it is read, or nobody is there to read.
func TestSendReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent int // the handler and the test take turns
		more := make(chan struct{})
		service := outputService{output: func(_ *outputRequest, stream outputServer) error {
			for range more {
				for SendReady(stream.Context()) {
					if err := stream.Send(text(string(make([]byte, 1000)))); err != nil {
						return err
					}
					sent++
				}
			}
			// What does not fit waits.
			return stream.Send(text("the last"))
		}}
		ns := startNATS(t)
		s, _ := startServer(t, connect(t, ns), ServerConfig{}, service)
		c := startClient(t, connect(t, ns), ClientConfig{})
		stream := resumable(t, c, within(t), 1, nil)
		read := func(n int) {
			t.Helper()
			for range n {
				if _, err := stream.Recv(); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
		}
		fill := func() int {
			t.Helper()
			before := sent
			more <- struct{}{}
			synctest.Wait() // if the handler waited for the window, nothing would take the next one
			return sent - before
		}
		window := fill()
		if least := defaultWindow / (1100 + frameCost); window < least || window > defaultWindow/1000 {
			t.Errorf("%d messages went before the window was closed", window)
		}
		if got := fill(); got != 0 {
			t.Errorf("%d messages went through a closed window", got)
		}
		read(window/2 - 1)
		if got := fill(); got != 0 {
			t.Errorf("%d messages went before half of the window was read", got)
		}
		read(2)
		got := fill()
		if got < window/2-1 || got > window/2+2 {
			t.Errorf("%d messages went when half of the window was read", got)
		}
		close(more)
		synctest.Wait()
		calls := s.snapshot()
		if len(calls) != 1 {
			t.Fatalf("%d calls run: the message was to wait", len(calls))
		}
		read(sent - (window/2 + 1))
		if m, err := stream.Recv(); err != nil || string(m.GetPayload().GetBody()) != "the last" {
			t.Errorf("got %v, %v", m, err)
		}
	})
}

// A resumable call whose caller is gone waits for nobody.
func TestSendReadyWithoutACaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		full, gone, told, then := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan bool, 1)
		service := outputService{output: func(_ *outputRequest, stream outputServer) error {
			ctx := stream.Context()
			for SendReady(ctx) {
				if err := stream.Send(text(string(make([]byte, 10_000)))); err != nil {
					return err
				}
			}
			OnSendReady(ctx, func() { close(told) })
			close(full)
			<-gone
			<-told
			then <- SendReady(ctx)
			return nil
		}}
		ns := startNATS(t)
		s, _ := startServer(t, connect(t, ns), ServerConfig{}, service)
		c := startClient(t, connect(t, ns), ClientConfig{})
		resumable(t, c, within(t), 1, nil)
		<-full
		for _, call := range s.snapshot() {
			call.callerGone()
		}
		close(gone)
		if !<-then {
			t.Error("the call is not ready")
		}
		synctest.Wait()
	})
}

// OnSendReady calls the last function once, when half of the window is read, at
// once in an open one, and none after the end of the call.
func TestOnSendReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls [4]atomic.Int32
		register := func(ctx context.Context, i int) { OnSendReady(ctx, func() { calls[i].Add(1) }) }
		goOn := make(chan struct{})
		service := outputService{output: func(_ *outputRequest, stream outputServer) error {
			ctx := stream.Context()
			fill := func() {
				for SendReady(ctx) {
					if err := stream.Send(text(string(make([]byte, 1000)))); err != nil {
						t.Error(err)
					}
				}
			}
			fill()
			register(ctx, 0)
			register(ctx, 1)
			<-goOn
			register(ctx, 2)
			<-goOn
			fill()
			register(ctx, 3)
			return nil
		}}
		ns := startNATS(t)
		startServer(t, connect(t, ns), ServerConfig{}, service)
		c := startClient(t, connect(t, ns), ClientConfig{})
		stream := resumable(t, c, within(t), 1, nil)
		called := func(when string, want ...int32) {
			t.Helper()
			synctest.Wait()
			for i, n := range want {
				if got := calls[i].Load(); got != n {
					t.Errorf("%s: function %d was called %d times, want %d", when, i, got, n)
				}
			}
		}
		called("in a closed window", 0, 0, 0, 0)
		for range defaultWindow / 1000 * 3 / 4 {
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		called("when most of it is read", 0, 1, 0, 0)
		goOn <- struct{}{}
		called("in an open one", 0, 1, 1, 0)
		goOn <- struct{}{}
		for {
			if _, err := stream.Recv(); err != nil {
				break
			}
		}
		called("after the end", 0, 1, 1, 0)
	})
}

// foreignStream is the stream of another carrier.
type foreignStream struct{}

func (foreignStream) Method() string               { return "" }
func (foreignStream) SetHeader(metadata.MD) error  { return nil }
func (foreignStream) SendHeader(metadata.MD) error { return nil }
func (foreignStream) SetTrailer(metadata.MD) error { return nil }

func TestSendReadyElsewhere(t *testing.T) {
	t.Parallel()
	for name, ctx := range map[string]context.Context{
		"no call":         t.Context(),
		"another carrier": grpc.NewContextWithServerTransportStream(t.Context(), foreignStream{}),
	} {
		if !SendReady(ctx) {
			t.Errorf("%s: not ready", name)
		}
	}
}

func BenchmarkSendReady(b *testing.B) {
	ctx := grpc.NewContextWithServerTransportStream(b.Context(), (*transportStream)(&serverCall{out: sender{avail: 1}}))
	b.ReportAllocs()
	for b.Loop() {
		if !SendReady(ctx) {
			b.Fatal("not ready")
		}
	}
}
