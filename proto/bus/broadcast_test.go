package bus

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
)

// told waits for one piece of news.
func told(t *testing.T, news <-chan string) string {
	t.Helper()
	select {
	case key := <-news:
		return key
	case <-time.After(10 * time.Second):
		t.Fatal("no news")
		return ""
	}
}

func TestBroadcast(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	s, _ := startServer(t, connect(t, ns), ServerConfig{}, funcService{})
	// Keys that would be wildcards or no subjects at all.
	keys := []string{"memo://a", "memo://a ", ">", "*.a", "a\r\nb", "", strings.Repeat("x", 10_000)}
	news := make(chan string, 100)
	var stops []func()
	for range 2 { // clients
		conn := connect(t, ns)
		c := NewClient(conn, ClientConfig{}) // it need not run
		for _, key := range keys {
			stop, err := c.Listen(TopicResourceUpdated, key, func() { news <- key })
			if err != nil {
				t.Fatal(err)
			}
			stops = append(stops, stop)
		}
		if err := conn.NATS().FlushWithContext(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys {
		if err := s.Broadcast(TopicResourceUpdated, key); err != nil {
			t.Fatal(err)
		}
		if one, other := told(t, news), told(t, news); one != key || other != key {
			t.Errorf("%q is heard as %q and %q", key, one, other)
		}
	}
	if err := s.Broadcast("other", keys[0]); err != nil {
		t.Fatal(err)
	}
	for _, stop := range stops[1:] {
		stop()
	}
	for _, key := range keys[1:] {
		if err := s.Broadcast(TopicResourceUpdated, key); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Broadcast(TopicResourceUpdated, keys[0]); err != nil {
		t.Fatal(err)
	}
	if key := told(t, news); key != keys[0] || len(news) != 0 {
		t.Errorf("%q and %d more are heard after the others have stopped", key, len(news))
	}
	stops[0]()
}

func TestBroadcastMistakes(t *testing.T) {
	t.Parallel()
	conn := connect(t, startNATS(t))
	s, c := NewServer(conn, ServerConfig{Pool: "test"}), NewClient(conn, ClientConfig{})
	for _, topic := range []Topic{"", "a.b", ">"} {
		if s.Broadcast(topic, "k") == nil {
			t.Errorf("topic %q is broadcast", topic)
		}
		if _, err := c.Listen(topic, "k", func() {}); err == nil {
			t.Errorf("topic %q is heard", topic)
		}
	}
	if _, err := c.Listen(TopicResourceUpdated, "k", nil); err == nil {
		t.Error("nobody listens")
	}
	conn.Close()
	if s.Broadcast(TopicResourceUpdated, "k") == nil {
		t.Error("a broadcast without a connection")
	}
	if _, err := c.Listen(TopicResourceUpdated, "k", func() {}); err == nil {
		t.Error("listening without a connection")
	}
}

// Admit refuses before anything is accepted, gives the handler its context,
// and hears of the end of every call that it let in.
func TestAdmit(t *testing.T) {
	t.Parallel()
	type key struct{}
	ns := startNATS(t)
	var in, out, refused atomic.Int32
	open := make(chan struct{}) // closed: everything is let in
	admit := func(ctx context.Context, method string, head []byte) (context.Context, func(), string, bool) {
		if method != grpc_testing.TestService_UnaryCall_FullMethodName || len(head) == 0 {
			return ctx, nil, "", true
		}
		select {
		case <-open:
			in.Add(1)
			return context.WithValue(ctx, key{}, "admitted"), func() { out.Add(1) }, "", true
		default:
			refused.Add(1)
			return ctx, nil, "", false
		}
	}
	service := funcService{Unary: func(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
		if ctx.Value(key{}) != "admitted" {
			t.Error("the handler has another context")
		}
		return &grpc_testing.SimpleResponse{}, nil
	}}
	s, stop := startServer(t, connect(t, ns), ServerConfig{Admit: admit, Slots: 1}, service)
	client := grpc_testing.NewTestServiceClient(startClient(t, connect(t, ns), ClientConfig{WaitBudget: -1}).Pool("test"))
	req := &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: []byte("x")}}
	_, err := client.UnaryCall(within(t), req)
	wantReason(t, err, codes.ResourceExhausted, ReasonOverloaded)
	if refused.Load() == 0 || s.load() != 0 {
		t.Errorf("refused %d times, %d calls run", refused.Load(), s.load())
	}
	close(open)
	for range 5 {
		if _, err := client.UnaryCall(within(t), req); err != nil && Reason(err) != ReasonOverloaded { // the slot is free a moment after the answer
			t.Fatal(err)
		}
	}
	stop() // all have ended then
	if in.Load() == 0 || in.Load() != out.Load() {
		t.Errorf("%d calls let in, %d have ended", in.Load(), out.Load())
	}
}
