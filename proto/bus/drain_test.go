package bus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
)

// drains waits until the instance takes no more calls, not even to refuse them.
func drains(t *testing.T, s *Server) {
	t.Helper()
	eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.closed
	})
}

// A draining instance notices at once that its connection is lost, and waits for
// the connection only as long as it may: somebody is still to be told.
func TestADrainingInstanceLosesItsConnection(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"in the notice": drainNotice / 2, "later": time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const grace = 10 * time.Second
				ns := startNATS(t)
				service := newWaitService()
				dialer := &faultDialer{ns: ns}
				_, stop := startServer(t, connectThrough(t, dialer), ServerConfig{Grace: grace}, service)
				c := startClient(t, connect(t, ns), ClientConfig{})
				if _, err := grpc_testing.NewTestServiceClient(c.Pool("test")).StreamingOutputCall(within(t), &outputRequest{}); err != nil {
					t.Fatal(err)
				}
				<-service.Started
				began := time.Now()
				stopped := make(chan time.Duration, 1) // once
				go func() {
					stop()
					stopped <- time.Since(began)
				}()
				time.Sleep(after)
				dialer.cut(true)
				if err := <-service.Ended; err != context.Canceled {
					t.Errorf("the handler ended with %v", err)
				}
				if took := time.Since(began); took > max(after, drainNotice) {
					t.Errorf("the handler ended %v after the stop, and the connection was lost %v after", took, after)
				}
				if took := <-stopped; took < grace || took > grace+drainNotice+stuckWait {
					t.Errorf("the instance ended after %v, and its grace is %v", took, grace)
				}
			})
		})
	}
}

// A draining instance that is connected again tells the callers how their calls
// ended, and is gone then.
func TestADrainingInstanceComesBack(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	service := newWaitService()
	dialer := &faultDialer{ns: ns}
	s, stop := startServer(t, connectThrough(t, dialer), ServerConfig{Grace: time.Hour}, service)
	w := startWatcher(t, connect(t, ns), WatcherConfig{})
	c := startClient(t, connect(t, ns), ClientConfig{})
	stream, err := grpc_testing.NewTestServiceClient(c.Pool("test")).StreamingOutputCall(within(t), &outputRequest{ResponseParameters: sizes(1)})
	if err != nil {
		t.Fatal(err)
	}
	must[*outputResponse](t)(stream.Recv())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	drains(t, s)
	dialer.cut(false)
	_, err = stream.Recv() // nothing else tells it, until its deadline
	wantReason(t, err, codes.Unavailable, ReasonFrameLost)
	select {
	case <-stopped:
	case <-within(t).Done():
		t.Fatal("the instance waits for its grace")
	}
	eventually(t, func() bool { return len(w.Members()) == 0 }) // it has said so
}
