package bustest

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The metadata that Service sends back.
const (
	echoHeader  = "x-grpc-test-echo-initial"
	echoTrailer = "x-grpc-test-echo-trailing-bin"
)

// Service implements the TestService of gRPC's interoperability tests as their
// description wants it. The zero value is ready for use.
type Service struct {
	grpc_testing.UnimplementedTestServiceServer
}

// echoMetadata returns what a call sent to have it back.
func echoMetadata(ctx context.Context) (header, trailer metadata.MD) {
	in, _ := metadata.FromIncomingContext(ctx)
	header, trailer = metadata.MD{}, metadata.MD{}
	if v := in.Get(echoHeader); v != nil {
		header.Set(echoHeader, v...)
	}
	if v := in.Get(echoTrailer); v != nil {
		trailer.Set(echoTrailer, v...)
	}
	return header, trailer
}

func echoStatus(st *grpc_testing.EchoStatus) error {
	if st.GetCode() == 0 {
		return nil
	}
	return status.Error(codes.Code(st.GetCode()), st.GetMessage())
}

// EmptyCall answers with nothing.
func (Service) EmptyCall(context.Context, *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	return &grpc_testing.Empty{}, nil
}

// UnaryCall answers with a payload of the size that the request names.
func (Service) UnaryCall(ctx context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	header, trailer := echoMetadata(ctx)
	if err := grpc.SetHeader(ctx, header); err != nil {
		return nil, err
	}
	if err := grpc.SetTrailer(ctx, trailer); err != nil {
		return nil, err
	}
	if err := echoStatus(req.GetResponseStatus()); err != nil {
		return nil, err
	}
	return &grpc_testing.SimpleResponse{Payload: Body(int(req.GetResponseSize()))}, nil
}

// StreamingOutputCall sends a payload of each size that the request names.
func (Service) StreamingOutputCall(req *grpc_testing.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	header, trailer := echoMetadata(stream.Context())
	if err := stream.SetHeader(header); err != nil {
		return err
	}
	stream.SetTrailer(trailer)
	for _, p := range req.GetResponseParameters() {
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: Body(int(p.GetSize()))}); err != nil {
			return err
		}
	}
	return echoStatus(req.GetResponseStatus())
}

// StreamingInputCall answers with the sum of the sizes of all payloads.
func (Service) StreamingInputCall(stream grpc.ClientStreamingServer[grpc_testing.StreamingInputCallRequest, grpc_testing.StreamingInputCallResponse]) error {
	size := 0
	for {
		req, err := stream.Recv()
		if err == io.EOF {
			return stream.SendAndClose(&grpc_testing.StreamingInputCallResponse{AggregatedPayloadSize: int32(size)})
		}
		if err != nil {
			return err
		}
		size += len(req.GetPayload().GetBody())
	}
}

// FullDuplexCall answers each request as StreamingOutputCall does.
func (Service) FullDuplexCall(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
	header, trailer := echoMetadata(stream.Context())
	if len(header) > 0 {
		if err := stream.SendHeader(header); err != nil {
			return err
		}
	}
	stream.SetTrailer(trailer)
	for {
		req, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := echoStatus(req.GetResponseStatus()); err != nil {
			return err
		}
		for _, p := range req.GetResponseParameters() {
			if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: Body(int(p.GetSize()))}); err != nil {
				return err
			}
		}
	}
}

// WaitService blocks EmptyCall, and StreamingOutputCall after its messages,
// until their context ends.
type WaitService struct {
	Service

	// Started has a value for each call that waits, Ended why it went on. The
	// handlers send; each channel holds more than a test makes calls.
	Started chan struct{}
	Ended   chan error
}

// NewWaitService returns a WaitService for up to 16 calls.
func NewWaitService() *WaitService {
	return &WaitService{Started: make(chan struct{}, 16), Ended: make(chan error, 16)}
}

func (s *WaitService) wait(ctx context.Context) error {
	s.Started <- struct{}{}
	<-ctx.Done()
	s.Ended <- ctx.Err()
	return status.FromContextError(ctx.Err()).Err()
}

// EmptyCall waits for the end of ctx.
func (s *WaitService) EmptyCall(ctx context.Context, _ *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	return nil, s.wait(ctx)
}

// StreamingOutputCall sends what Service sends and waits for the end of the
// context.
func (s *WaitService) StreamingOutputCall(req *grpc_testing.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	if err := s.Service.StreamingOutputCall(req, stream); err != nil {
		return err
	}
	return s.wait(stream.Context())
}

// FuncService is a Service whose UnaryCall is a function.
type FuncService struct {
	Service

	Unary func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error)
}

// UnaryCall calls s.Unary.
func (s FuncService) UnaryCall(ctx context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	return s.Unary(ctx, req)
}
