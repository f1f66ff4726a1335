package bustest

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// carrierCases are what the interoperability cases leave open.
func carrierCases() []testCase {
	wait := func() grpc_testing.TestServiceServer { return NewWaitService() }
	unary := func(f func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error)) func() grpc_testing.TestServiceServer {
		return func() grpc_testing.TestServiceServer { return FuncService{Unary: f} }
	}
	return []testCase{
		{name: "sizes around chunks", run: func(e env) { wantStream(e, []int32{0, 1, 131000, 131072, 131073, 0, 400000, 0}) }},
		{name: "empty server stream", run: func(e env) { wantStream(e, nil) }},
		{name: "client streaming of large messages", run: clientStreamingLarge},
		{name: "payload unchanged", impl: unary(func(_ context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			return &grpc_testing.SimpleResponse{Payload: req.GetPayload()}, nil
		}), run: payloadUnchanged},
		{name: "many at a time", run: manyAtATime},
		{name: "deadline", impl: wait, run: func(e env) {
			untilDeadline(e, func(ctx context.Context) error {
				stream, err := e.client.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{})
				if err == nil {
					_, err = stream.Recv()
				}
				return err
			})
		}},
		{name: "unary deadline", impl: wait, run: func(e env) {
			untilDeadline(e, func(ctx context.Context) error {
				_, err := e.client.EmptyCall(ctx, &grpc_testing.Empty{})
				return err
			})
		}},
		{name: "cancel ends the handler", impl: wait, run: cancelEndsTheHandler},
		{name: "cancel unary", impl: wait, run: cancelUnary},
		{name: "context that has ended", run: contextThatHasEnded},
		{name: "metadata", run: metadataOfAllKinds},
		{name: "status after messages", run: statusAfterMessages},
		{name: "status details", impl: unary(func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			st, err := status.New(codes.FailedPrecondition, "no").WithDetails(&errdetails.ErrorInfo{Reason: "R", Domain: "d"})
			if err != nil {
				return nil, err
			}
			return nil, st.Err()
		}), run: statusDetails},
		{name: "receive limit", run: func(e env) {
			_, err := e.client.UnaryCall(Within(e), &grpc_testing.SimpleRequest{ResponseSize: 300000}, grpc.MaxCallRecvMsgSize(1000))
			WantCode(e, err, codes.ResourceExhausted)
		}},
		{name: "send limit", run: func(e env) {
			_, err := e.client.UnaryCall(Within(e), &grpc_testing.SimpleRequest{Payload: Body(2000)}, grpc.MaxCallSendMsgSize(1000))
			WantCode(e, err, codes.ResourceExhausted)
		}},
		{name: "plain error", impl: unary(func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			return nil, io.ErrUnexpectedEOF
		}), run: func(e env) {
			_, err := e.client.UnaryCall(Within(e), &grpc_testing.SimpleRequest{})
			WantCode(e, err, codes.Unknown)
		}},
		{name: "handler context", impl: unary(func(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			method, _ := grpc.Method(ctx)
			left := time.Hour
			if d, ok := ctx.Deadline(); ok {
				left = time.Until(d)
			}
			return &grpc_testing.SimpleResponse{Username: method, Hostname: left.Round(time.Minute).String()}, nil
		}), run: handlerContext},
		{name: "send after the end", run: sendAfterTheEnd},
		{name: "on finish", run: onFinish},
	}
}

func clientStreamingLarge(e env) {
	stream, err := e.client.StreamingInputCall(Within(e))
	if err != nil {
		e.Fatal(err)
	}
	total := 0
	for _, n := range []int{0, 300000, 0, 131072, 7} {
		total += n
		if err := stream.Send(&grpc_testing.StreamingInputCallRequest{Payload: Body(n)}); err != nil {
			e.Fatal(err)
		}
	}
	resp := Must[*grpc_testing.StreamingInputCallResponse](e)(stream.CloseAndRecv())
	if int(resp.GetAggregatedPayloadSize()) != total {
		e.Errorf("got %d, want %d", resp.GetAggregatedPayloadSize(), total)
	}
}

func payloadUnchanged(e env) {
	body := make([]byte, 500_000)
	for i := range body {
		body[i] = byte(i * 7 >> 3)
	}
	resp := Must[*grpc_testing.SimpleResponse](e)(e.client.UnaryCall(Within(e), &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: body}}))
	if !bytes.Equal(resp.GetPayload().GetBody(), body) {
		e.Error("the payload changed on the way")
	}
}

func manyAtATime(e env) {
	ctx := Within(e)
	var callers sync.WaitGroup
	for i := range 32 {
		callers.Go(func() {
			n := int32(i * 5000)
			resp, err := e.client.UnaryCall(ctx, &grpc_testing.SimpleRequest{ResponseSize: n})
			if err != nil || len(resp.GetPayload().GetBody()) != int(n) {
				e.Errorf("call %d: %d bytes, %v", i, len(resp.GetPayload().GetBody()), err)
			}
		})
	}
	callers.Wait()
}

// untilDeadline makes calls with a growing deadline until the deadline meets a
// call that runs; on a slow machine the first ones may not get so far.
func untilDeadline(e env, call func(context.Context) error) {
	service := e.impl.(*WaitService)
	for d := 20 * time.Millisecond; ; d *= 2 {
		ctx, cancel := context.WithTimeout(Within(e), d)
		err := call(ctx)
		cancel()
		WantCode(e, err, codes.DeadlineExceeded)
		select {
		case <-service.Started:
			<-service.Ended
			return
		default:
		}
	}
}

func cancelEndsTheHandler(e env) {
	ctx, cancel := context.WithCancel(Within(e))
	defer cancel()
	stream, err := e.client.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{ResponseParameters: Sizes(314)})
	if err != nil {
		e.Fatal(err)
	}
	Must[*grpc_testing.StreamingOutputCallResponse](e)(stream.Recv())
	cancel()
	_, err = stream.Recv()
	WantCode(e, err, codes.Canceled)
	wantCanceled(e)
}

func cancelUnary(e env) {
	ctx, cancel := context.WithCancel(Within(e))
	defer cancel()
	go func() {
		<-e.impl.(*WaitService).Started
		cancel()
	}()
	_, err := e.client.EmptyCall(ctx, &grpc_testing.Empty{})
	WantCode(e, err, codes.Canceled)
	wantCanceled(e)
}

func wantCanceled(e env) {
	e.Helper()
	if err := <-e.impl.(*WaitService).Ended; err != context.Canceled { //nolint:errorlint // a context has exactly this error
		e.Errorf("the handler ended with %v", err)
	}
}

func contextThatHasEnded(e env) {
	ctx, cancel := context.WithCancel(Within(e))
	cancel()
	_, err := e.client.EmptyCall(ctx, &grpc_testing.Empty{})
	WantCode(e, err, codes.Canceled)
	_, err = e.client.FullDuplexCall(ctx)
	WantCode(e, err, codes.Canceled)
}

// metadataOfAllKinds: repeated keys, bytes that are no text, headers and
// trailers of errors.
func metadataOfAllKinds(e env) {
	const raw = "\xab\xab\x00\xff"
	ctx := metadata.AppendToOutgoingContext(Within(e), echoHeader, "first", echoHeader, "second", echoTrailer, raw)
	check := func(header, trailer metadata.MD) {
		e.Helper()
		if got := header.Get(echoHeader); !slices.Equal(got, []string{"first", "second"}) {
			e.Errorf("header %q", got)
		}
		if got := trailer.Get(echoTrailer); !slices.Equal(got, []string{raw}) {
			e.Errorf("trailer %q", got)
		}
	}
	var header, trailer metadata.MD
	Must[*grpc_testing.SimpleResponse](e)(e.client.UnaryCall(ctx, &grpc_testing.SimpleRequest{ResponseSize: 1}, grpc.Header(&header), grpc.Trailer(&trailer)))
	check(header, trailer)

	header, trailer = nil, nil
	_, err := e.client.UnaryCall(ctx, &grpc_testing.SimpleRequest{ResponseStatus: &grpc_testing.EchoStatus{Code: 5}}, grpc.Header(&header), grpc.Trailer(&trailer))
	WantCode(e, err, codes.NotFound)
	check(header, trailer)

	bidi, err := e.client.FullDuplexCall(ctx)
	if err != nil {
		e.Fatal(err)
	}
	header = Must[metadata.MD](e)(bidi.Header())
	if err := bidi.CloseSend(); err != nil {
		e.Fatal(err)
	}
	wantEnd(e, bidi)
	check(header, bidi.Trailer())

	stream, err := e.client.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{ResponseParameters: Sizes(1, 1)}, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil {
		e.Fatal(err)
	}
	if _, err := drain(stream); err != nil {
		e.Fatal(err)
	}
	check(Must[metadata.MD](e)(stream.Header()), stream.Trailer())
	check(header, trailer)
}

func statusAfterMessages(e env) {
	want := &grpc_testing.EchoStatus{Code: int32(codes.Aborted), Message: "enough"}
	stream, err := e.client.StreamingOutputCall(Within(e), &grpc_testing.StreamingOutputCallRequest{ResponseParameters: Sizes(7, 200000), ResponseStatus: want})
	if err != nil {
		e.Fatal(err)
	}
	got, err := drain(stream)
	wantStatus(e, err, want)
	if len(got) != 2 {
		e.Errorf("%d messages before the status", len(got))
	}
}

func statusDetails(e env) {
	_, err := e.client.UnaryCall(Within(e), &grpc_testing.SimpleRequest{})
	WantCode(e, err, codes.FailedPrecondition)
	details := status.Convert(err).Details()
	if len(details) != 1 || details[0].(*errdetails.ErrorInfo).GetReason() != "R" {
		e.Errorf("details %v", details)
	}
}

func handlerContext(e env) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	resp := Must[*grpc_testing.SimpleResponse](e)(e.client.UnaryCall(ctx, &grpc_testing.SimpleRequest{}))
	if resp.GetUsername() != grpc_testing.TestService_UnaryCall_FullMethodName || resp.GetHostname() != "2m0s" {
		e.Errorf("got %v", resp)
	}
}

// sendAfterTheEnd: who sends to a call that is over learns only that, and the
// status from the other side.
func sendAfterTheEnd(e env) {
	stream, err := e.client.FullDuplexCall(Within(e))
	if err != nil {
		e.Fatal(err)
	}
	want := &grpc_testing.EchoStatus{Code: int32(codes.OutOfRange), Message: "over"}
	for err == nil {
		err = stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseStatus: want})
	}
	if err != io.EOF {
		e.Errorf("Send: %v", err)
	}
	_, err = stream.Recv()
	wantStatus(e, err, want)
}

func onFinish(e env) {
	finished := make(chan error, 1)
	option := grpc.OnFinish(func(err error) { finished <- err })
	_, err := e.client.EmptyCall(Within(e), &grpc_testing.Empty{}, option)
	if err != nil || <-finished != nil {
		e.Error("unary")
	}
	stream, err := e.client.StreamingOutputCall(Within(e), &grpc_testing.StreamingOutputCallRequest{ResponseParameters: Sizes(1)}, option)
	if err != nil {
		e.Fatal(err)
	}
	if _, err := drain(stream); err != nil || <-finished != nil {
		e.Error("stream")
	}
	// Nobody reads the end of this one.
	ctx, cancel := context.WithCancel(Within(e))
	if _, err := e.client.FullDuplexCall(ctx, option); err != nil {
		e.Fatal(err)
	}
	cancel()
	WantCode(e, <-finished, codes.Canceled)
}
