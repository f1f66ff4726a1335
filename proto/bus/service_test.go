package bus

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// testService implements gRPC's own interoperability service.
type testService struct {
	grpc_testing.UnimplementedTestServiceServer
}

// echoMetadata does what the interoperability tests want of metadata.
func echoMetadata(ctx context.Context) (header, trailer metadata.MD) {
	in, _ := metadata.FromIncomingContext(ctx)
	header, trailer = metadata.MD{}, metadata.MD{}
	if v := in.Get("x-grpc-test-echo-initial"); v != nil {
		header.Set("x-grpc-test-echo-initial", v...)
	}
	if v := in.Get("x-grpc-test-echo-trailing-bin"); v != nil {
		trailer.Set("x-grpc-test-echo-trailing-bin", v...)
	}
	return header, trailer
}

func (testService) EmptyCall(context.Context, *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	return &grpc_testing.Empty{}, nil
}

func (testService) UnaryCall(ctx context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	header, trailer := echoMetadata(ctx)
	if err := grpc.SetHeader(ctx, header); err != nil {
		return nil, err
	}
	if err := grpc.SetTrailer(ctx, trailer); err != nil {
		return nil, err
	}
	if st := req.GetResponseStatus(); st.GetCode() != 0 {
		return nil, status.Error(codes.Code(st.GetCode()), st.GetMessage())
	}
	return &grpc_testing.SimpleResponse{Payload: &grpc_testing.Payload{Body: make([]byte, req.GetResponseSize())}}, nil
}

func (testService) StreamingOutputCall(req *grpc_testing.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	header, trailer := echoMetadata(stream.Context())
	if err := stream.SetHeader(header); err != nil {
		return err
	}
	stream.SetTrailer(trailer)
	for _, p := range req.GetResponseParameters() {
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: &grpc_testing.Payload{Body: make([]byte, p.GetSize())}}); err != nil {
			return err
		}
	}
	if st := req.GetResponseStatus(); st.GetCode() != 0 {
		return status.Error(codes.Code(st.GetCode()), st.GetMessage())
	}
	return nil
}

func (testService) StreamingInputCall(stream grpc.ClientStreamingServer[grpc_testing.StreamingInputCallRequest, grpc_testing.StreamingInputCallResponse]) error {
	size := 0
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&grpc_testing.StreamingInputCallResponse{AggregatedPayloadSize: int32(size)})
		}
		if err != nil {
			return err
		}
		size += len(req.GetPayload().GetBody())
	}
}

func (testService) FullDuplexCall(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
	header, trailer := echoMetadata(stream.Context())
	if len(header) > 0 {
		if err := stream.SendHeader(header); err != nil {
			return err
		}
	}
	stream.SetTrailer(trailer)
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if st := req.GetResponseStatus(); st.GetCode() != 0 {
			return status.Error(codes.Code(st.GetCode()), st.GetMessage())
		}
		for _, p := range req.GetResponseParameters() {
			if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: &grpc_testing.Payload{Body: make([]byte, p.GetSize())}}); err != nil {
				return err
			}
		}
	}
}
