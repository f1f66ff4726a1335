package bus

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
)

// callStats tells the stats handlers of one side about one call. Nil, as without
// handlers, it does nothing, so a call without costs a comparison. Its methods
// run on goroutines of the call, never on one that reads from the bus, and
// without a lock.
type callStats struct {
	handlers []stats.Handler
	ctx      context.Context
	client   bool
	began    time.Time
}

// tag returns the context that the handlers have marked, and what tells them.
func tag(ctx context.Context, handlers []stats.Handler, method string, client, failFast bool) (context.Context, *callStats) {
	if len(handlers) == 0 {
		return ctx, nil
	}
	for _, h := range handlers {
		ctx = h.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: method, FailFast: failFast}) //nolint:fatcontext // each marks what the one before has marked
	}
	return ctx, &callStats{handlers: handlers, ctx: ctx, client: client}
}

func (s *callStats) handle(event stats.RPCStats) {
	for _, h := range s.handlers {
		h.HandleRPC(s.ctx, event)
	}
}

func (s *callStats) begin(failFast, clientStreams, serverStreams bool) {
	if s == nil {
		return
	}
	s.began = time.Now()
	s.handle(&stats.Begin{
		Client: s.client, BeginTime: s.began, FailFast: failFast,
		IsClientStream: clientStreams, IsServerStream: serverStreams,
	})
}

func (s *callStats) outHeader(method string, md metadata.MD, local net.Addr) {
	if s == nil {
		return
	}
	e := &stats.OutHeader{Client: s.client, Header: md.Copy()}
	if s.client {
		e.FullMethod, e.LocalAddr = method, local
	}
	s.handle(e)
}

func (s *callStats) inHeader(method string, md metadata.MD, remote, local net.Addr) {
	if s == nil {
		return
	}
	e := &stats.InHeader{Client: s.client, Header: md.Copy(), WireLength: wireLength(md)}
	if !s.client {
		e.FullMethod, e.RemoteAddr, e.LocalAddr = method, remote, local
	}
	s.handle(e)
}

// outPayload and inPayload count a message as the bytes of its payload: chunks
// and their frames are not known where the message is.
func (s *callStats) outPayload(m any, size int) {
	if s == nil {
		return
	}
	s.handle(&stats.OutPayload{
		Client: s.client, Payload: m, Length: size, CompressedLength: size, WireLength: size + frameCost,
		SentTime: time.Now(),
	})
}

func (s *callStats) inPayload(m any, size int) {
	if s == nil {
		return
	}
	s.handle(&stats.InPayload{
		Client: s.client, Payload: m, Length: size, CompressedLength: size, WireLength: size + frameCost,
		RecvTime: time.Now(),
	})
}

func (s *callStats) inTrailer(md metadata.MD) {
	if s == nil {
		return
	}
	s.handle(&stats.InTrailer{Client: s.client, Trailer: md.Copy(), WireLength: wireLength(md)})
}

func (s *callStats) outTrailer(md metadata.MD) {
	if s == nil {
		return
	}
	s.handle(&stats.OutTrailer{Client: s.client, Trailer: md.Copy()})
}

func (s *callStats) end(err error, trailer metadata.MD) {
	if s == nil {
		return
	}
	e := &stats.End{Client: s.client, BeginTime: s.began, EndTime: time.Now(), Error: err}
	if s.client {
		e.Trailer = trailer.Copy() // deprecated, and still what some handlers read
	}
	s.handle(e)
}

func wireLength(md metadata.MD) int {
	n := 0
	for k, values := range md {
		for _, v := range values {
			n += len(k) + len(v)
		}
	}
	return n
}

// The chains make one interceptor of several, the first outermost; nil of none.

func chainUnaryClient(list []grpc.UnaryClientInterceptor) grpc.UnaryClientInterceptor {
	if len(list) < 2 {
		return first(list)
	}
	head, tail := list[0], chainUnaryClient(list[1:])
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return head(ctx, method, req, reply, cc, func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
			return tail(ctx, method, req, reply, cc, invoke, opts...)
		}, opts...)
	}
}

func chainStreamClient(list []grpc.StreamClientInterceptor) grpc.StreamClientInterceptor {
	if len(list) < 2 {
		return first(list)
	}
	head, tail := list[0], chainStreamClient(list[1:])
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return head(ctx, desc, cc, method, func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return tail(ctx, desc, cc, method, stream, opts...)
		}, opts...)
	}
}

func chainUnaryServer(list []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	if len(list) < 2 {
		return first(list)
	}
	head, tail := list[0], chainUnaryServer(list[1:])
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		return head(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			return tail(ctx, req, info, handle)
		})
	}
}

func chainStreamServer(list []grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	if len(list) < 2 {
		return first(list)
	}
	head, tail := list[0], chainStreamServer(list[1:])
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		return head(srv, ss, info, func(srv any, ss grpc.ServerStream) error {
			return tail(srv, ss, info, handle)
		})
	}
}

func first[T any](list []T) T {
	if len(list) == 0 {
		var none T
		return none
	}
	return list[0]
}
