package bustest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// recorder is a stats.Handler that keeps the events of calls.
type recorder struct {
	t     *testing.T
	name  string
	ended chan struct{} // a value for each call that ended; larger than any test needs

	mu     sync.Mutex
	events []stats.RPCStats
	tagged []string // methods
}

func newRecorder(t *testing.T, name string) *recorder {
	t.Helper()
	return &recorder{t: t, name: name, ended: make(chan struct{}, 16)}
}

type tagKey struct{ name string }

// TagRPC marks ctx, so that HandleRPC can tell that it gets the marked one.
func (r *recorder) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tagged = append(r.tagged, info.FullMethodName)
	return context.WithValue(ctx, tagKey{r.name}, info.FullMethodName)
}

// HandleRPC keeps the event.
func (r *recorder) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, ok := event.(*stats.DelayedPickComplete); ok {
		return // of the balancing of connections, which not every carrier has
	}
	if _, ok := ctx.Value(tagKey{r.name}).(string); !ok {
		r.t.Errorf("%T comes with a context that was not tagged", event)
	}
	r.mu.Lock()
	r.events = append(r.events, event)
	r.mu.Unlock()
	if _, ok := event.(*stats.End); ok {
		r.ended <- struct{}{}
	}
}

// TagConn changes nothing.
func (r *recorder) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing: connections belong to the carrier.
func (r *recorder) HandleConn(context.Context, stats.ConnStats) {}

// wait returns the events of a call when it has ended.
func (r *recorder) wait() []stats.RPCStats {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-Within(r.t).Done():
		r.t.Fatalf("%s: no End", r.name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

func kind(event stats.RPCStats) string { return fmt.Sprintf("%T", event)[len("*stats."):] }

// pick returns the kinds of the events that are named, in order.
func pick(events []stats.RPCStats, kinds ...string) []string {
	var got []string
	for _, e := range events {
		if k := kind(e); slices.Contains(kinds, k) {
			got = append(got, k)
		}
	}
	return got
}

// wantKinds demands the events of one side. What comes in and what goes out are
// in order each; how they interleave is left to the carrier.
func wantKinds(t *testing.T, side string, events []stats.RPCStats, out, in []string) {
	t.Helper()
	gotOut := pick(events, "Begin", "OutHeader", "OutPayload", "OutTrailer", "End")
	gotIn := pick(events, "InHeader", "InPayload")
	trailers := pick(events, "InTrailer")
	if !slices.Equal(gotOut, out) {
		t.Errorf("%s: out %v, want %v", side, gotOut, out)
	}
	if !slices.Equal(append(gotIn, trailers...), in) {
		t.Errorf("%s: in %v %v, want %v", side, gotIn, trailers, in)
	}
	if len(events) > 0 && kind(events[len(events)-1]) != "End" {
		t.Errorf("%s: %s is the last event", side, kind(events[len(events)-1]))
	}
}

// find returns the first event of a type, or the zero event.
func find[T stats.RPCStats](events []stats.RPCStats) T {
	for _, e := range events {
		if e, ok := e.(T); ok {
			return e
		}
	}
	var none T
	return none
}

func startStats(t *testing.T, start Start, impl grpc_testing.TestServiceServer) (client, server *recorder, c grpc_testing.TestServiceClient) {
	t.Helper()
	client, server = newRecorder(t, "client"), newRecorder(t, "server")
	conn := start(t, Setup{
		Register:    func(s reflection.GRPCServer) { grpc_testing.RegisterTestServiceServer(s, impl) },
		ClientStats: []stats.Handler{client},
		ServerStats: []stats.Handler{server},
	})
	return client, server, grpc_testing.NewTestServiceClient(conn)
}

// statsEvents: all kinds of calls have the events that gRPC has.
func statsEvents(t *testing.T, start Start) {
	t.Helper()
	client, server, c := startStats(t, start, Service{})
	ctx := metadata.AppendToOutgoingContext(Within(t), echoHeader, "h", echoTrailer, "t")
	stream := func(n int, end ...string) []string { return append(slices.Repeat([]string{"OutPayload"}, n), end...) }

	// Unary, with everything that the events say.
	req := &grpc_testing.SimpleRequest{ResponseSize: 200, Payload: Body(100)}
	resp := Must[*grpc_testing.SimpleResponse](t)(c.UnaryCall(ctx, req))
	got := client.wait()
	wantKinds(t, "unary client", got, []string{"Begin", "OutHeader", "OutPayload", "End"}, []string{"InHeader", "InPayload", "InTrailer"})
	checkClient(t, got, req, resp)
	got = server.wait()
	wantKinds(t, "unary server", got, []string{"Begin", "OutHeader", "OutPayload", "OutTrailer", "End"}, []string{"InHeader", "InPayload"})
	checkServer(t, got, req, resp)

	// An error without a header.
	_, err := c.UnaryCall(Within(t), &grpc_testing.SimpleRequest{ResponseStatus: &grpc_testing.EchoStatus{Code: 5}})
	WantCode(t, err, codes.NotFound)
	got = client.wait()
	wantKinds(t, "error client", got, []string{"Begin", "OutHeader", "OutPayload", "End"}, []string{"InTrailer"})
	WantCode(t, find[*stats.End](got).Error, codes.NotFound)
	got = server.wait()
	wantKinds(t, "error server", got, []string{"Begin", "OutTrailer", "End"}, []string{"InHeader", "InPayload"})
	WantCode(t, find[*stats.End](got).Error, codes.NotFound)

	output, err := c.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{ResponseParameters: Sizes(1, 200000, 3)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := drain(output); err != nil {
		t.Fatal(err)
	}
	got = client.wait()
	wantKinds(t, "server stream client", got, []string{"Begin", "OutHeader", "OutPayload", "End"}, []string{"InHeader", "InPayload", "InPayload", "InPayload", "InTrailer"})
	if b := find[*stats.Begin](got); !b.IsServerStream || b.IsClientStream {
		t.Errorf("server stream: %+v", b)
	}
	got = server.wait()
	wantKinds(t, "server stream server", got, append([]string{"Begin", "OutHeader"}, stream(3, "OutTrailer", "End")...), []string{"InHeader", "InPayload"})
	if b := find[*stats.Begin](got); !b.IsServerStream || b.IsClientStream {
		t.Errorf("server stream: %+v", b)
	}

	input, err := c.StreamingInputCall(Within(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := input.Send(&grpc_testing.StreamingInputCallRequest{Payload: Body(10)}); err != nil {
			t.Fatal(err)
		}
	}
	Must[*grpc_testing.StreamingInputCallResponse](t)(input.CloseAndRecv())
	wantKinds(t, "client stream client", client.wait(), append([]string{"Begin", "OutHeader"}, stream(2, "End")...), []string{"InHeader", "InPayload", "InTrailer"})
	wantKinds(t, "client stream server", server.wait(), []string{"Begin", "OutHeader", "OutPayload", "OutTrailer", "End"}, []string{"InHeader", "InPayload", "InPayload"})

	// A stream with nothing in it.
	bidi, err := c.FullDuplexCall(Within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := bidi.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := bidi.Recv(); err != io.EOF {
		t.Error(err)
	}
	wantKinds(t, "empty client", client.wait(), []string{"Begin", "OutHeader", "End"}, []string{"InTrailer"})
	wantKinds(t, "empty server", server.wait(), []string{"Begin", "OutTrailer", "End"}, []string{"InHeader"})
}

func checkClient(t *testing.T, events []stats.RPCStats, req, resp proto.Message) {
	t.Helper()
	for _, e := range events {
		if !e.IsClient() {
			t.Errorf("client: %+v", e)
		}
	}
	const method = grpc_testing.TestService_UnaryCall_FullMethodName
	if e := find[*stats.Begin](events); e.BeginTime.IsZero() || e.IsClientStream || e.IsServerStream || !e.FailFast {
		t.Errorf("client: %+v", e)
	}
	if e := find[*stats.OutHeader](events); e.FullMethod != method || !slices.Equal(e.Header.Get(echoHeader), []string{"h"}) {
		t.Errorf("client: %+v", e)
	}
	if e := find[*stats.OutPayload](events); !sameMessage(e.Payload, req) || e.Length != proto.Size(req) || e.WireLength < e.Length || e.SentTime.IsZero() {
		t.Errorf("client: %+v", e)
	}
	if e := find[*stats.InHeader](events); !slices.Equal(e.Header.Get(echoHeader), []string{"h"}) {
		t.Errorf("client: %+v", e)
	}
	if e := find[*stats.InPayload](events); !sameMessage(e.Payload, resp) || e.Length != proto.Size(resp) || e.WireLength < e.Length || e.RecvTime.IsZero() {
		t.Errorf("client: %+v", e)
	}
	if e := find[*stats.InTrailer](events); !slices.Equal(e.Trailer.Get(echoTrailer), []string{"t"}) {
		t.Errorf("client: %+v", e)
	}
	if e := find[*stats.End](events); e.Error != nil || e.BeginTime.IsZero() || e.EndTime.Before(e.BeginTime) {
		t.Errorf("client: %+v", e)
	}
}

func checkServer(t *testing.T, events []stats.RPCStats, req, resp proto.Message) {
	t.Helper()
	for _, e := range events {
		if e.IsClient() {
			t.Errorf("server: %+v", e)
		}
	}
	const method = grpc_testing.TestService_UnaryCall_FullMethodName
	if e := find[*stats.InHeader](events); e.FullMethod != method || e.RemoteAddr == nil || e.LocalAddr == nil || !slices.Equal(e.Header.Get(echoHeader), []string{"h"}) {
		t.Errorf("server: %+v", e)
	}
	if e := find[*stats.InPayload](events); !sameMessage(e.Payload, req) || e.Length != proto.Size(req) {
		t.Errorf("server: %+v", e)
	}
	if e := find[*stats.OutHeader](events); !slices.Equal(e.Header.Get(echoHeader), []string{"h"}) {
		t.Errorf("server: %+v", e)
	}
	if e := find[*stats.OutPayload](events); !sameMessage(e.Payload, resp) || e.Length != proto.Size(resp) {
		t.Errorf("server: %+v", e)
	}
	if e := find[*stats.OutTrailer](events); !slices.Equal(e.Trailer.Get(echoTrailer), []string{"t"}) {
		t.Errorf("server: %+v", e)
	}
	if e := find[*stats.End](events); e.Error != nil || e.BeginTime.IsZero() || e.EndTime.Before(e.BeginTime) {
		t.Errorf("server: %+v", e)
	}
}

func sameMessage(got any, want proto.Message) bool {
	m, ok := got.(proto.Message)
	return ok && proto.Equal(m, want)
}

// statsOfACancel: a call that nobody reads to its end has one too.
func statsOfACancel(t *testing.T, start Start) {
	t.Helper()
	service := NewWaitService()
	client, server, c := startStats(t, start, service)
	ctx, cancel := context.WithCancel(Within(t))
	defer cancel()
	stream, err := c.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{ResponseParameters: Sizes(1)})
	if err != nil {
		t.Fatal(err)
	}
	Must[*grpc_testing.StreamingOutputCallResponse](t)(stream.Recv())
	cancel()
	got := client.wait()
	wantKinds(t, "client", got, []string{"Begin", "OutHeader", "OutPayload", "End"}, []string{"InHeader", "InPayload"})
	WantCode(t, find[*stats.End](got).Error, codes.Canceled)
	got = server.wait()
	if out := pick(got, "Begin", "OutHeader", "OutPayload", "OutTrailer", "End"); !slices.Equal(out, []string{"Begin", "OutHeader", "OutPayload", "End"}) {
		t.Errorf("server: out %v", out)
	}
	if code := status.Code(find[*stats.End](got).Error); code != codes.Canceled {
		t.Errorf("server: ended with %v", code)
	}
}

// statsTags: several handlers, each with the context that all have tagged; the
// handler and the metadata have it too.
func statsTags(t *testing.T, start Start) {
	t.Helper()
	first, second := newRecorder(t, "first"), newRecorder(t, "second")
	values := make(chan any, 2) // the handler sends twice
	conn := start(t, Setup{
		Register: func(s reflection.GRPCServer) {
			grpc_testing.RegisterTestServiceServer(s, FuncService{Unary: func(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
				in, _ := metadata.FromIncomingContext(ctx)
				values <- ctx.Value(tagKey{"second"})
				values <- fmt.Sprint(in.Get("from-tag"))
				return &grpc_testing.SimpleResponse{}, nil
			}})
		},
		ClientStats: []stats.Handler{outgoing{}},
		ServerStats: []stats.Handler{first, second},
	})
	Must[*grpc_testing.SimpleResponse](t)(grpc_testing.NewTestServiceClient(conn).UnaryCall(Within(t), &grpc_testing.SimpleRequest{}))
	if got := <-values; got != grpc_testing.TestService_UnaryCall_FullMethodName {
		t.Errorf("the handler has %v", got)
	}
	if got := <-values; got != "[yes]" {
		t.Errorf("metadata of TagRPC: %v", got)
	}
	if a, b := first.wait(), second.wait(); len(a) != len(b) || len(a) == 0 {
		t.Errorf("%d and %d events", len(a), len(b))
	}
}

// outgoing adds metadata in TagRPC, as tracing does.
type outgoing struct{}

func (outgoing) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "from-tag", "yes")
}
func (outgoing) HandleRPC(context.Context, stats.RPCStats)                         {}
func (outgoing) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (outgoing) HandleConn(context.Context, stats.ConnStats)                       {}
