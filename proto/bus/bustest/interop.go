package bustest

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The sizes that the description of the interoperability tests asks for.
const (
	interopLargeRequest  = 271828
	interopLargeResponse = 314159
)

// interopCases are those of the interoperability tests of the gRPC project that
// are about calls, under their official names: the others are about compression,
// credentials and the balancing of HTTP/2 connections.
func interopCases() []testCase {
	return []testCase{
		{name: "empty_unary", run: emptyUnary},
		{name: "large_unary", run: largeUnary},
		{name: "client_streaming", run: clientStreaming},
		{name: "server_streaming", run: serverStreaming},
		{name: "ping_pong", run: pingPong},
		{name: "empty_stream", run: emptyStream},
		{name: "timeout_on_sleeping_server", run: timeoutOnSleepingServer},
		{name: "cancel_after_begin", run: cancelAfterBegin},
		{name: "cancel_after_first_response", run: cancelAfterFirstResponse},
		{name: "custom_metadata", run: customMetadata},
		{name: "status_code_and_message", run: statusCodeAndMessage},
		{name: "special_status_message", run: specialStatusMessage},
		{name: "unimplemented_method", run: unimplementedMethod},
		{name: "unimplemented_service", run: unimplementedService},
	}
}

func requestSizes() []int    { return []int{27182, 8, 1828, 45904} }
func responseSizes() []int32 { return []int32{31415, 9, 2653, 58979} }

func emptyUnary(e env) {
	Must[*grpc_testing.Empty](e)(e.client.EmptyCall(Within(e), &grpc_testing.Empty{}))
}

func largeUnary(e env) {
	resp := Must[*grpc_testing.SimpleResponse](e)(e.client.UnaryCall(Within(e), &grpc_testing.SimpleRequest{
		ResponseSize: interopLargeResponse, Payload: Body(interopLargeRequest),
	}))
	if got := len(resp.GetPayload().GetBody()); got != interopLargeResponse {
		e.Errorf("got %d bytes", got)
	}
}

func clientStreaming(e env) {
	stream, err := e.client.StreamingInputCall(Within(e))
	if err != nil {
		e.Fatal(err)
	}
	total := 0
	for _, n := range requestSizes() {
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

func serverStreaming(e env) {
	wantStream(e, responseSizes())
}

// wantStream asks for payloads and demands exactly these.
func wantStream(e env, want []int32) {
	e.Helper()
	stream, err := e.client.StreamingOutputCall(Within(e), &grpc_testing.StreamingOutputCallRequest{ResponseParameters: Sizes(want...)})
	if err != nil {
		e.Fatal(err)
	}
	var got []int32
	messages, err := drain(stream)
	if err != nil {
		e.Fatal(err)
	}
	for _, m := range messages {
		got = append(got, int32(len(m.GetPayload().GetBody())))
	}
	if !slices.Equal(got, want) {
		e.Errorf("got %v, want %v", got, want)
	}
	wantEnd(e, stream)
}

func pingPong(e env) {
	stream, err := e.client.FullDuplexCall(Within(e))
	if err != nil {
		e.Fatal(err)
	}
	for i, n := range responseSizes() {
		if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseParameters: Sizes(n), Payload: Body(requestSizes()[i])}); err != nil {
			e.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil || len(resp.GetPayload().GetBody()) != int(n) {
			e.Fatalf("got %d bytes, %v", len(resp.GetPayload().GetBody()), err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		e.Fatal(err)
	}
	wantEnd(e, stream)
}

func emptyStream(e env) {
	stream, err := e.client.FullDuplexCall(Within(e))
	if err != nil {
		e.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		e.Fatal(err)
	}
	wantEnd(e, stream)
}

func timeoutOnSleepingServer(e env) {
	ctx, cancel := context.WithTimeout(Within(e), time.Millisecond)
	defer cancel()
	stream, err := e.client.FullDuplexCall(ctx)
	if err == nil {
		// The call may have ended before: then the status is with Recv.
		_ = stream.Send(&grpc_testing.StreamingOutputCallRequest{Payload: Body(requestSizes()[0])})
		_, err = stream.Recv()
	}
	WantCode(e, err, codes.DeadlineExceeded)
}

func cancelAfterBegin(e env) {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(Within(e), "key1", "value1"))
	stream, err := e.client.StreamingInputCall(ctx)
	if err != nil {
		e.Fatal(err)
	}
	cancel()
	_, err = stream.CloseAndRecv()
	WantCode(e, err, codes.Canceled)
}

func cancelAfterFirstResponse(e env) {
	ctx, cancel := context.WithCancel(Within(e))
	defer cancel()
	stream, err := e.client.FullDuplexCall(ctx)
	if err != nil {
		e.Fatal(err)
	}
	if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseParameters: Sizes(responseSizes()[0]), Payload: Body(requestSizes()[0])}); err != nil {
		e.Fatal(err)
	}
	Must[*grpc_testing.StreamingOutputCallResponse](e)(stream.Recv())
	cancel()
	_, err = stream.Recv()
	WantCode(e, err, codes.Canceled)
}

func customMetadata(e env) {
	const value, raw = "test_initial_metadata_value", "\xab\xab\xab"
	ctx := metadata.AppendToOutgoingContext(Within(e), echoHeader, value, echoTrailer, raw)
	check := func(header, trailer metadata.MD) {
		e.Helper()
		if got := header.Get(echoHeader); !slices.Equal(got, []string{value}) {
			e.Errorf("header %q", got)
		}
		if got := trailer.Get(echoTrailer); !slices.Equal(got, []string{raw}) {
			e.Errorf("trailer %q", got)
		}
	}
	var header, trailer metadata.MD
	resp := Must[*grpc_testing.SimpleResponse](e)(e.client.UnaryCall(ctx,
		&grpc_testing.SimpleRequest{ResponseSize: 1, Payload: Body(1)}, grpc.Header(&header), grpc.Trailer(&trailer)))
	if len(resp.GetPayload().GetBody()) != 1 {
		e.Errorf("got %v", resp)
	}
	check(header, trailer)

	stream, err := e.client.FullDuplexCall(ctx)
	if err != nil {
		e.Fatal(err)
	}
	if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseParameters: Sizes(1), Payload: Body(1)}); err != nil {
		e.Fatal(err)
	}
	header = Must[metadata.MD](e)(stream.Header())
	Must[*grpc_testing.StreamingOutputCallResponse](e)(stream.Recv())
	if err := stream.CloseSend(); err != nil {
		e.Fatal(err)
	}
	wantEnd(e, stream)
	check(header, stream.Trailer())
}

func wantStatus(e env, err error, want *grpc_testing.EchoStatus) {
	e.Helper()
	if got := status.Convert(err); got.Code() != codes.Code(want.GetCode()) || got.Message() != want.GetMessage() {
		e.Errorf("got %v %q", got.Code(), got.Message())
	}
}

func statusCodeAndMessage(e env) {
	want := &grpc_testing.EchoStatus{Code: int32(codes.Unknown), Message: "test status message"}
	_, err := e.client.UnaryCall(Within(e), &grpc_testing.SimpleRequest{ResponseStatus: want})
	wantStatus(e, err, want)
	stream, err := e.client.FullDuplexCall(Within(e))
	if err != nil {
		e.Fatal(err)
	}
	if err := stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseStatus: want}); err != nil {
		e.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		e.Fatal(err)
	}
	_, err = stream.Recv()
	wantStatus(e, err, want)
}

func specialStatusMessage(e env) {
	want := &grpc_testing.EchoStatus{
		Code:    int32(codes.Unknown),
		Message: "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n",
	}
	_, err := e.client.UnaryCall(Within(e), &grpc_testing.SimpleRequest{ResponseStatus: want})
	wantStatus(e, err, want)
}

func unimplementedMethod(e env) {
	// By hand and without a message, as the case is written at its source.
	err := e.conn.Invoke(Within(e), "/grpc.testing.TestService/NotEvenInTheSchema", nil, nil)
	WantCode(e, err, codes.Unimplemented)
	_, err = e.client.UnimplementedCall(Within(e), &grpc_testing.Empty{})
	WantCode(e, err, codes.Unimplemented)
}

func unimplementedService(e env) {
	_, err := grpc_testing.NewUnimplementedServiceClient(e.conn).UnimplementedCall(Within(e), &grpc_testing.Empty{})
	WantCode(e, err, codes.Unimplemented)
}
