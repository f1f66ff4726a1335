package bus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
)

// A handler that ignores the end of its context ends for its caller, and is seen
// as stalled until it returns.
func TestStalledHandlersAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		release := make(chan struct{})
		service := funcService{Unary: func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			<-release
			return &grpc_testing.SimpleResponse{}, nil
		}}
		s, _ := startServer(t, connect(t, ns), ServerConfig{Slots: 4}, service)
		conn := connect(t, ns)
		w := startWatcher(t, conn, WatcherConfig{})
		c := startClient(t, conn, ClientConfig{Members: w})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		for range 2 {
			ctx, cancel := context.WithTimeout(within(t), 2*time.Second)
			_, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{})
			wantCode(t, err, codes.DeadlineExceeded)
			cancel()
		}
		ctx, cancel := context.WithCancel(within(t))
		go func() { _, _ = client.UnaryCall(ctx, &grpc_testing.SimpleRequest{}) }()
		time.Sleep(time.Second)
		cancel()
		time.Sleep(4 * time.Second)
		if got := s.Stats(); got.Slots != 4 || got.Used != 3 || got.Stalled != 3 {
			t.Errorf("stats %+v", got)
		}
		if got := w.Members(); len(got) != 1 || got[0].Stalled != 3 || got[0].Used != 3 {
			t.Errorf("members %+v", got)
		}
		close(release)
		time.Sleep(4 * time.Second)
		if got := s.Stats(); got.Used != 0 || got.Stalled != 0 {
			t.Errorf("stats %+v", got)
		}
		if got := w.Members(); len(got) != 1 || got[0].Stalled != 0 {
			t.Errorf("members %+v", got)
		}
	})
}
