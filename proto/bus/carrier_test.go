package bus

import (
	"bytes"
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// carrier runs ordinary stubs over something.
type carrier struct {
	name  string
	start func(t *testing.T, impl grpc_testing.TestServiceServer) grpc_testing.TestServiceClient
}

func carriers() []carrier {
	return []carrier{
		{"bus", func(t *testing.T, impl grpc_testing.TestServiceServer) grpc_testing.TestServiceClient {
			client, _, _ := pair(t, impl)
			return client
		}},
		{"grpc", func(t *testing.T, impl grpc_testing.TestServiceServer) grpc_testing.TestServiceClient {
			listener := bufconn.Listen(1 << 20)
			s := grpc.NewServer()
			grpc_testing.RegisterTestServiceServer(s, impl)
			served := make(chan error, 1)
			go func() { served <- s.Serve(listener) }()
			conn, err := grpc.NewClient("passthrough:///memory",
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
				grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = conn.Close()
				s.Stop()
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
			return grpc_testing.NewTestServiceClient(conn)
		}},
	}
}

// waitService blocks its streams until the context ends and tells when.
type waitService struct {
	testService
	started chan struct{} // a value for each call that waits
	ended   chan error    // why it went on
}

func newWaitService() *waitService {
	return &waitService{started: make(chan struct{}, 16), ended: make(chan error, 16)}
}

func (s *waitService) wait(ctx context.Context) error {
	s.started <- struct{}{}
	<-ctx.Done()
	s.ended <- ctx.Err()
	return status.FromContextError(ctx.Err()).Err()
}

func (s *waitService) EmptyCall(ctx context.Context, _ *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	return nil, s.wait(ctx)
}

func (s *waitService) StreamingOutputCall(req *grpc_testing.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	if err := s.testService.StreamingOutputCall(req, stream); err != nil {
		return err
	}
	return s.wait(stream.Context())
}

// funcService is a service whose unary call is a function.
type funcService struct {
	testService
	unary func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error)
}

func (s funcService) UnaryCall(ctx context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	return s.unary(ctx, req)
}

func sizes(n ...int32) []*grpc_testing.ResponseParameters {
	var p []*grpc_testing.ResponseParameters
	for _, s := range n {
		p = append(p, &grpc_testing.ResponseParameters{Size: s})
	}
	return p
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// untilDeadline makes calls with a growing deadline until the deadline meets a
// call that runs; on a slow machine the first ones may not get so far.
func untilDeadline(t *testing.T, service *waitService, call func(context.Context) error) {
	t.Helper()
	for d := 20 * time.Millisecond; ; d *= 2 {
		ctx, cancel := context.WithTimeout(within(t), d)
		err := call(ctx)
		cancel()
		wantCode(t, err, codes.DeadlineExceeded)
		select {
		case <-service.started:
			<-service.ended
			return
		default:
		}
	}
}

// carrierCases hold for gRPC itself and for the bus.
var carrierCases = []struct {
	name string
	impl func() grpc_testing.TestServiceServer // nil: testService
	run  func(t *testing.T, c grpc_testing.TestServiceClient, impl grpc_testing.TestServiceServer)
}{
	{name: "empty unary", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		must[*grpc_testing.Empty](t)(c.EmptyCall(within(t), &grpc_testing.Empty{}))
	}},
	{name: "large unary", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		resp := must[*grpc_testing.SimpleResponse](t)(c.UnaryCall(within(t), &grpc_testing.SimpleRequest{
			ResponseSize: 314159, Payload: &grpc_testing.Payload{Body: make([]byte, 271828)},
		}))
		if got := len(resp.GetPayload().GetBody()); got != 314159 {
			t.Errorf("got %d bytes", got)
		}
	}},
	{name: "client streaming", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		stream, err := c.StreamingInputCall(within(t))
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for _, n := range []int{27182, 8, 0, 1828, 45904, 300000} {
			total += n
			if err := stream.Send(&grpc_testing.StreamingInputCallRequest{Payload: &grpc_testing.Payload{Body: make([]byte, n)}}); err != nil {
				t.Fatal(err)
			}
		}
		resp := must[*grpc_testing.StreamingInputCallResponse](t)(stream.CloseAndRecv())
		if int(resp.GetAggregatedPayloadSize()) != total {
			t.Errorf("got %d, want %d", resp.GetAggregatedPayloadSize(), total)
		}
	}},
	{name: "server streaming", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		want := []int32{31415, 9, 0, 2653, 58979, 400000, 0}
		stream, err := c.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(want...)})
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for {
			resp, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, int32(len(resp.GetPayload().GetBody())))
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if _, err := stream.Recv(); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
	}},
	{name: "empty server stream", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		stream, err := c.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != io.EOF {
			t.Errorf("got %v", err)
		}
	}},
	{name: "ping pong", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		stream, err := c.FullDuplexCall(within(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int32{31415, 9, 2653, 58979} {
			if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(n)}); err != nil {
				t.Fatal(err)
			}
			resp, err := stream.Recv()
			if err != nil || len(resp.GetPayload().GetBody()) != int(n) {
				t.Fatalf("got %d bytes, %v", len(resp.GetPayload().GetBody()), err)
			}
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != io.EOF {
			t.Errorf("got %v", err)
		}
	}},
	{name: "empty bidi", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		stream, err := c.FullDuplexCall(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != io.EOF {
			t.Errorf("got %v", err)
		}
	}},
	{name: "deadline", impl: func() grpc_testing.TestServiceServer { return newWaitService() },
		run: func(t *testing.T, c grpc_testing.TestServiceClient, impl grpc_testing.TestServiceServer) {
			untilDeadline(t, impl.(*waitService), func(ctx context.Context) error {
				stream, err := c.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{})
				if err == nil {
					_, err = stream.Recv()
				}
				return err
			})
		}},
	{name: "unary deadline", impl: func() grpc_testing.TestServiceServer { return newWaitService() },
		run: func(t *testing.T, c grpc_testing.TestServiceClient, impl grpc_testing.TestServiceServer) {
			untilDeadline(t, impl.(*waitService), func(ctx context.Context) error {
				_, err := c.EmptyCall(ctx, &grpc_testing.Empty{})
				return err
			})
		}},
	{name: "cancel after begin", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		ctx, cancel := context.WithCancel(within(t))
		stream, err := c.StreamingInputCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		_, err = stream.CloseAndRecv()
		wantCode(t, err, codes.Canceled)
	}},
	{name: "cancel after first response", impl: func() grpc_testing.TestServiceServer { return newWaitService() },
		run: func(t *testing.T, c grpc_testing.TestServiceClient, impl grpc_testing.TestServiceServer) {
			ctx, cancel := context.WithCancel(within(t))
			defer cancel()
			stream, err := c.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(314)})
			if err != nil {
				t.Fatal(err)
			}
			must[*grpc_testing.StreamingOutputCallResponse](t)(stream.Recv())
			cancel()
			_, err = stream.Recv()
			wantCode(t, err, codes.Canceled)
			if err := <-impl.(*waitService).ended; err != context.Canceled {
				t.Errorf("the handler ended with %v", err)
			}
		}},
	{name: "cancel unary", impl: func() grpc_testing.TestServiceServer { return newWaitService() },
		run: func(t *testing.T, c grpc_testing.TestServiceClient, impl grpc_testing.TestServiceServer) {
			ctx, cancel := context.WithCancel(within(t))
			defer cancel()
			go func() {
				<-impl.(*waitService).started
				cancel()
			}()
			_, err := c.EmptyCall(ctx, &grpc_testing.Empty{})
			wantCode(t, err, codes.Canceled)
			if err := <-impl.(*waitService).ended; err != context.Canceled {
				t.Errorf("the handler ended with %v", err)
			}
		}},
	{name: "metadata", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		raw := "\xab\xab\x00\xff"
		ctx := metadata.AppendToOutgoingContext(within(t),
			"x-grpc-test-echo-initial", "test_initial_metadata_value", "x-grpc-test-echo-initial", "second",
			"x-grpc-test-echo-trailing-bin", raw)
		check := func(header, trailer metadata.MD) {
			t.Helper()
			if got := header.Get("x-grpc-test-echo-initial"); !slices.Equal(got, []string{"test_initial_metadata_value", "second"}) {
				t.Errorf("header %q", got)
			}
			if got := trailer.Get("x-grpc-test-echo-trailing-bin"); !slices.Equal(got, []string{raw}) {
				t.Errorf("trailer %q", got)
			}
		}
		var header, trailer metadata.MD
		_, err := c.UnaryCall(ctx, &grpc_testing.SimpleRequest{ResponseSize: 1}, grpc.Header(&header), grpc.Trailer(&trailer))
		if err != nil {
			t.Fatal(err)
		}
		check(header, trailer)

		header, trailer = nil, nil
		_, err = c.UnaryCall(ctx, &grpc_testing.SimpleRequest{ResponseStatus: &grpc_testing.EchoStatus{Code: 5}}, grpc.Header(&header), grpc.Trailer(&trailer))
		wantCode(t, err, codes.NotFound)
		check(header, trailer)

		bidi, err := c.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		header = must[metadata.MD](t)(bidi.Header())
		if err := bidi.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := bidi.Recv(); err != io.EOF {
			t.Fatal(err)
		}
		check(header, bidi.Trailer())

		stream, err := c.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(1, 1)}, grpc.Header(&header), grpc.Trailer(&trailer))
		if err != nil {
			t.Fatal(err)
		}
		for err = nil; err == nil; {
			_, err = stream.Recv()
		}
		check(must[metadata.MD](t)(stream.Header()), stream.Trailer())
		check(header, trailer)
	}},
	{name: "status code and message", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		st := &grpc_testing.EchoStatus{Code: 2, Message: "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"}
		check := func(err error) {
			t.Helper()
			if got := status.Convert(err); got.Code() != codes.Unknown || got.Message() != st.GetMessage() {
				t.Errorf("got %v %q", got.Code(), got.Message())
			}
		}
		_, err := c.UnaryCall(within(t), &grpc_testing.SimpleRequest{ResponseStatus: st})
		check(err)
		bidi, err := c.FullDuplexCall(within(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := bidi.Send(&grpc_testing.StreamingOutputCallRequest{ResponseStatus: st}); err != nil {
			t.Fatal(err)
		}
		_, err = bidi.Recv()
		check(err)
		stream, err := c.StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(7), ResponseStatus: st})
		if err != nil {
			t.Fatal(err)
		}
		must[*grpc_testing.StreamingOutputCallResponse](t)(stream.Recv())
		_, err = stream.Recv()
		check(err)
	}},
	{name: "status details", impl: func() grpc_testing.TestServiceServer {
		return funcService{unary: func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			st, err := status.New(codes.FailedPrecondition, "no").WithDetails(&errdetails.ErrorInfo{Reason: "R", Domain: "d"})
			if err != nil {
				return nil, err
			}
			return nil, st.Err()
		}}
	}, run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		_, err := c.UnaryCall(within(t), &grpc_testing.SimpleRequest{})
		wantCode(t, err, codes.FailedPrecondition)
		details := status.Convert(err).Details()
		if len(details) != 1 || details[0].(*errdetails.ErrorInfo).GetReason() != "R" {
			t.Errorf("details %v", details)
		}
	}},
	{name: "unimplemented method", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		_, err := c.UnimplementedCall(within(t), &grpc_testing.Empty{})
		wantCode(t, err, codes.Unimplemented)
	}},
	{name: "receive limit", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		_, err := c.UnaryCall(within(t), &grpc_testing.SimpleRequest{ResponseSize: 300000}, grpc.MaxCallRecvMsgSize(1000))
		wantCode(t, err, codes.ResourceExhausted)
	}},
	{name: "send limit", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		_, err := c.UnaryCall(within(t), &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: make([]byte, 2000)}}, grpc.MaxCallSendMsgSize(1000))
		wantCode(t, err, codes.ResourceExhausted)
	}},
	{name: "plain error", impl: func() grpc_testing.TestServiceServer {
		return funcService{unary: func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			return nil, io.ErrUnexpectedEOF
		}}
	}, run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		_, err := c.UnaryCall(within(t), &grpc_testing.SimpleRequest{})
		wantCode(t, err, codes.Unknown)
	}},
	{name: "handler context", impl: func() grpc_testing.TestServiceServer {
		return funcService{unary: func(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			method, _ := grpc.Method(ctx)
			left := time.Hour
			if d, ok := ctx.Deadline(); ok {
				left = time.Until(d)
			}
			return &grpc_testing.SimpleResponse{Username: method, Hostname: left.Round(time.Minute).String()}, nil
		}}
	}, run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		resp := must[*grpc_testing.SimpleResponse](t)(c.UnaryCall(ctx, &grpc_testing.SimpleRequest{}))
		if resp.GetUsername() != "/grpc.testing.TestService/UnaryCall" || resp.GetHostname() != "2m0s" {
			t.Errorf("got %v", resp)
		}
	}},
	{name: "on finish", run: func(t *testing.T, c grpc_testing.TestServiceClient, _ grpc_testing.TestServiceServer) {
		finished := make(chan error, 1)
		_, err := c.EmptyCall(within(t), &grpc_testing.Empty{}, grpc.OnFinish(func(err error) { finished <- err }))
		if err != nil || <-finished != nil {
			t.Error("unary")
		}
		ctx, cancel := context.WithCancel(within(t))
		if _, err := c.FullDuplexCall(ctx, grpc.OnFinish(func(err error) { finished <- err })); err != nil {
			t.Fatal(err)
		}
		cancel()
		wantCode(t, <-finished, codes.Canceled)
	}},
}

func TestCarriers(t *testing.T) {
	t.Parallel()
	for _, carrier := range carriers() {
		for _, tc := range carrierCases {
			t.Run(carrier.name+"/"+tc.name, func(t *testing.T) {
				t.Parallel()
				var impl grpc_testing.TestServiceServer = testService{}
				if tc.impl != nil {
					impl = tc.impl()
				}
				tc.run(t, carrier.start(t, impl), impl)
			})
		}
	}
}

func TestPayloadsArriveUnchanged(t *testing.T) {
	t.Parallel()
	body := make([]byte, 500_000)
	for i := range body {
		body[i] = byte(i * 7 >> 3)
	}
	client, _, _ := pair(t, funcService{unary: func(_ context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
		return &grpc_testing.SimpleResponse{Payload: req.GetPayload()}, nil
	}})
	resp := must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(within(t), &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: body}}))
	if !bytes.Equal(resp.GetPayload().GetBody(), body) {
		t.Error("the payload changed on the way")
	}
}
