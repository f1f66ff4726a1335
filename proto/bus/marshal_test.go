package bus

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
)

// A message that cannot be marshalled costs nothing: neither the window of the
// caller nor the room for events is less after many of them, and the rest of the
// stream goes on.
func TestMessagesThatCannotBeMarshalled(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		size, times    int
		prompt, events bool
	}{
		"that may wait":           {size: 200, times: 2000},
		"that leave at once":      {size: 200, times: 2000, prompt: true},
		"events that may wait":    {size: 5000, times: 2000, events: true},
		"events at once":          {size: 5000, times: 2000, events: true, prompt: true},
		"events in several parts": {size: 300_000, times: 50, events: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				bad := &grpc_testing.SimpleResponse{Username: "\xff" + strings.Repeat("a", tc.size)}
				var s *Server
				room := func() (window int64, events int) {
					call := s.snapshot()[0]
					call.sendMu.Lock()
					defer call.sendMu.Unlock()
					call.mu.Lock()
					defer call.mu.Unlock()
					if call.events != nil {
						events = call.events.left
					}
					return call.out.avail, events
				}
				ns := startNATS(t)
				s, _ = startServer(t, connect(t, ns), ServerConfig{}, outputService{output: func(_ *outputRequest, stream outputServer) error {
					if tc.prompt {
						SendNow(stream.Context())
					}
					window, events := room()
					for i := range tc.times {
						if !SendReady(stream.Context()) {
							t.Errorf("the window is closed after %d messages of which none was sent", i)
							break
						}
						wantCode(t, stream.SendMsg(bad), codes.Internal)
					}
					if gotWindow, gotEvents := room(); gotWindow != window || gotEvents != events {
						t.Errorf("a window of %d and room of %d for events are left of %d and %d", gotWindow, gotEvents, window, events)
					}
					for _, word := range []string{"a", "b", "c"} {
						say(t, stream, word)
					}
					return nil
				}})
				c := startClient(t, connect(t, ns), ClientConfig{})
				var opts []grpc.CallOption
				if tc.events {
					opts = append(opts, Resumable(EventsKey{"s", "t", 1}, nil))
				}
				stream, err := grpc_testing.NewTestServiceClient(c.Pool("test")).StreamingOutputCall(within(t), &outputRequest{}, opts...)
				if err != nil {
					t.Fatal(err)
				}
				got := ""
				for {
					m, err := stream.Recv()
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						t.Fatalf("after %q: %v", got, err)
					}
					got += string(m.GetPayload().GetBody())
				}
				if got != "abc" {
					t.Errorf("the caller got %q", got)
				}
			})
		})
	}
}
