package bustest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

// startHealth serves the health service of grpc-go as it is.
func startHealth(t *testing.T, start Start) (*health.Server, healthpb.HealthClient) {
	t.Helper()
	server := health.NewServer()
	conn := start(t, Setup{Register: func(s reflection.GRPCServer) { healthpb.RegisterHealthServer(s, server) }})
	return server, healthpb.NewHealthClient(conn)
}

func healthCheck(t *testing.T, start Start) {
	t.Helper()
	server, client := startHealth(t, start)
	check := func(service string) healthpb.HealthCheckResponse_ServingStatus {
		t.Helper()
		return Must[*healthpb.HealthCheckResponse](t)(client.Check(Within(t), &healthpb.HealthCheckRequest{Service: service})).GetStatus()
	}
	if got := check(""); got != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("the server is %v", got)
	}
	server.SetServingStatus("a", healthpb.HealthCheckResponse_NOT_SERVING)
	if got := check("a"); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("service a is %v", got)
	}
	_, err := client.Check(Within(t), &healthpb.HealthCheckRequest{Service: "b"})
	WantCode(t, err, codes.NotFound)
}

func healthWatch(t *testing.T, start Start) {
	t.Helper()
	server, client := startHealth(t, start)
	ctx, cancel := context.WithCancel(Within(t))
	defer cancel()
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: "a"})
	if err != nil {
		t.Fatal(err)
	}
	want := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if got := Must[*healthpb.HealthCheckResponse](t)(stream.Recv()).GetStatus(); got != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	want(healthpb.HealthCheckResponse_SERVICE_UNKNOWN)
	for range 3 {
		server.SetServingStatus("a", healthpb.HealthCheckResponse_SERVING)
		want(healthpb.HealthCheckResponse_SERVING)
		server.SetServingStatus("a", healthpb.HealthCheckResponse_NOT_SERVING)
		want(healthpb.HealthCheckResponse_NOT_SERVING)
	}
	cancel()
	_, err = stream.Recv()
	WantCode(t, err, codes.Canceled)
}

func reflectionInfo(t *testing.T, start Start) {
	t.Helper()
	conn := start(t, Setup{Register: func(s reflection.GRPCServer) {
		grpc_testing.RegisterTestServiceServer(s, Service{})
		reflection.Register(s)
	}})
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(Within(t))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(req *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		return Must[*reflectionpb.ServerReflectionResponse](t)(stream.Recv())
	}
	list := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	var names []string
	for _, s := range list.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	slices.Sort(names)
	want := []string{"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection", "grpc.testing.TestService"}
	if !slices.Equal(names, want) {
		t.Errorf("services %q", names)
	}
	file := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: "grpc.testing.TestService",
	}})
	found := false
	for _, b := range file.GetFileDescriptorResponse().GetFileDescriptorProto() {
		var d descriptorpb.FileDescriptorProto
		if err := proto.Unmarshal(b, &d); err != nil {
			t.Fatal(err)
		}
		found = found || strings.HasSuffix(d.GetName(), "test.proto")
	}
	if !found {
		t.Errorf("no descriptor of the service: %v", file)
	}
	nothing := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "no.Such"}})
	if got := codes.Code(nothing.GetErrorResponse().GetErrorCode()); got != codes.NotFound {
		t.Errorf("an unknown symbol: %v", nothing)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, stream)
}

// steps is what happened, in order.
type steps struct {
	mu   sync.Mutex
	list []string
}

func (s *steps) add(step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, step)
}

func (s *steps) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.list
	s.list = nil
	return strings.Join(list, " ")
}

// clientInterceptors: both kinds, chained; they see the call, may change its
// metadata and its options, and see how it ends.
func clientInterceptors(t *testing.T, start Start) {
	t.Helper()
	var seen steps
	unary := func(name string) grpc.UnaryClientInterceptor {
		return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			seen.add(name + ">" + method[strings.LastIndexByte(method, '/')+1:])
			ctx = metadata.AppendToOutgoingContext(ctx, echoHeader, name)
			err := next(ctx, method, req, reply, cc, opts...)
			seen.add(name + "<" + status.Code(err).String())
			return err
		}
	}
	stream := func(name string) grpc.StreamClientInterceptor {
		return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			seen.add(name + ">" + desc.StreamName)
			s, err := next(metadata.AppendToOutgoingContext(ctx, echoHeader, name), desc, cc, method, opts...)
			return &countedStream{ClientStream: s, name: name, seen: &seen}, err
		}
	}
	conn := start(t, Setup{
		Register:     func(s reflection.GRPCServer) { grpc_testing.RegisterTestServiceServer(s, Service{}) },
		ClientUnary:  []grpc.UnaryClientInterceptor{unary("a"), unary("b")},
		ClientStream: []grpc.StreamClientInterceptor{stream("a"), stream("b")},
	})
	client := grpc_testing.NewTestServiceClient(conn)
	var header metadata.MD
	_, err := client.UnaryCall(Within(t), &grpc_testing.SimpleRequest{ResponseStatus: &grpc_testing.EchoStatus{Code: 5}}, grpc.Header(&header))
	WantCode(t, err, codes.NotFound)
	if got := seen.take(); got != "a>UnaryCall b>UnaryCall b<NotFound a<NotFound" {
		t.Errorf("unary: %s", got)
	}
	if got := header.Get(echoHeader); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("header %q", got)
	}
	s, err := client.StreamingOutputCall(Within(t), &grpc_testing.StreamingOutputCallRequest{ResponseParameters: Sizes(1)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := drain(s); err != nil {
		t.Fatal(err)
	}
	if got := seen.take(); got != "a>StreamingOutputCall b>StreamingOutputCall b.send a.send b.recv a.recv b.end a.end" {
		t.Errorf("stream: %s", got)
	}
}

// countedStream notes what passes.
type countedStream struct {
	grpc.ClientStream

	name string
	seen *steps
}

func (s *countedStream) SendMsg(m any) error {
	err := s.ClientStream.SendMsg(m)
	s.seen.add(s.name + ".send")
	return err
}

func (s *countedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.seen.add(s.name + ".recv")
	} else {
		s.seen.add(s.name + ".end")
	}
	return err
}

type ctxKey struct{}

// serverInterceptors: both kinds, chained; the context that they make is that
// of the handler.
func serverInterceptors(t *testing.T, start Start) {
	t.Helper()
	var seen steps
	unary := func(name string) grpc.UnaryServerInterceptor {
		return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			seen.add(name + ">" + info.FullMethod)
			resp, err := next(context.WithValue(ctx, ctxKey{}, name), req)
			seen.add(name + "<" + status.Code(err).String())
			return resp, err
		}
	}
	stream := func(name string) grpc.StreamServerInterceptor {
		return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			seen.add(name + ">" + info.FullMethod)
			err := next(srv, ss)
			seen.add(name + "<" + status.Code(err).String())
			return err
		}
	}
	conn := start(t, Setup{
		Register: func(s reflection.GRPCServer) {
			grpc_testing.RegisterTestServiceServer(s, FuncService{Unary: func(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
				name, _ := ctx.Value(ctxKey{}).(string)
				return &grpc_testing.SimpleResponse{Username: name}, nil
			}})
		},
		ServerUnary:  []grpc.UnaryServerInterceptor{unary("a"), unary("b")},
		ServerStream: []grpc.StreamServerInterceptor{stream("a"), stream("b")},
	})
	client := grpc_testing.NewTestServiceClient(conn)
	resp := Must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(Within(t), &grpc_testing.SimpleRequest{}))
	const name = grpc_testing.TestService_UnaryCall_FullMethodName
	if got := seen.take(); got != "a>"+name+" b>"+name+" b<OK a<OK" || resp.GetUsername() != "b" {
		t.Errorf("unary: %s, value %q", got, resp.GetUsername())
	}
	s, err := client.StreamingOutputCall(Within(t), &grpc_testing.StreamingOutputCallRequest{ResponseStatus: &grpc_testing.EchoStatus{Code: 5}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Recv()
	WantCode(t, err, codes.NotFound)
	const output = grpc_testing.TestService_StreamingOutputCall_FullMethodName
	if got := seen.take(); got != "a>"+output+" b>"+output+" b<NotFound a<NotFound" {
		t.Errorf("stream: %s", got)
	}
}

// interceptorRefuses: an interceptor that does not go on decides the call.
func interceptorRefuses(t *testing.T, start Start) {
	t.Helper()
	no := status.Error(codes.PermissionDenied, "no")
	conn := start(t, Setup{
		Register: func(s reflection.GRPCServer) { grpc_testing.RegisterTestServiceServer(s, Service{}) },
		ServerUnary: []grpc.UnaryServerInterceptor{func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
			return nil, no
		}},
		ServerStream: []grpc.StreamServerInterceptor{func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
			return no
		}},
		ClientStream: []grpc.StreamClientInterceptor{func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if desc.ClientStreams && !desc.ServerStreams {
				return nil, no
			}
			return next(ctx, desc, cc, method, opts...)
		}},
	})
	client := grpc_testing.NewTestServiceClient(conn)
	_, err := client.EmptyCall(Within(t), &grpc_testing.Empty{})
	WantCode(t, err, codes.PermissionDenied)
	_, err = client.StreamingInputCall(Within(t))
	WantCode(t, err, codes.PermissionDenied)
	bidi, err := client.FullDuplexCall(Within(t))
	if err != nil {
		t.Fatal(err)
	}
	_, err = bidi.Recv()
	WantCode(t, err, codes.PermissionDenied)
}
