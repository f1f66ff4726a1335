// Package workertest runs the tools of a worker within a test, without a bus:
// the same checks of arguments and results, the same outcomes, and the
// progress as it was reported. What needs the bus (slots, draining, lost
// connections) needs a test with a bus.
package workertest

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// Outcome is how a call ended. Exactly one of Result and Error is set.
type Outcome struct {
	// Result of the tool, with its members as JSON.
	Result *millracev1.ToolResult
	// Error that the tool ended with instead of a result.
	Error *millracev1.Error
	// Progress in the order it was reported.
	Progress []*millracev1.Progress
}

// Text returns the text blocks of the result, joined by line feeds.
func (o *Outcome) Text() string {
	var blocks []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(o.Result.GetContent(), &blocks); err != nil {
		return ""
	}
	var texts []string
	for _, block := range blocks {
		if block.Type == "text" {
			texts = append(texts, block.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// Call runs one tool of w and waits for its outcome. args is a
// json.RawMessage, which is passed on as it is, or any value that can be
// marshalled to a JSON object. The call asks for progress and ends with the
// test. The test fails at once when w was put together wrongly or a call ends
// without exactly one outcome. Call must run on the goroutine of the test.
func Call(t testing.TB, w *worker.Worker, tool string, args any) *Outcome {
	t.Helper()
	raw, err := json.Marshal(args)
	if given, ok := args.(json.RawMessage); ok {
		raw, err = given, nil
	}
	if err != nil {
		t.Fatalf("workertest: the arguments cannot be marshalled: %v", err)
	}
	var service registrar
	if err := w.Register(&service); err != nil {
		t.Fatalf("workertest: the worker cannot be run: %v", err)
	}
	stream := &stream{ctx: t.Context(), request: &millracev1.CallToolRequest{
		Context:   &millracev1.CallContext{WantsProgress: true},
		Name:      tool,
		Arguments: raw,
	}}
	if err := service.handle(stream); err != nil {
		t.Fatalf("workertest: %s ended without an outcome: %v", tool, err)
	}
	out, err := stream.outcome()
	if err != nil {
		t.Fatalf("workertest: %s: %v", tool, err)
	}
	return out
}

// registrar keeps the handler of CallTool that a worker registers.
type registrar struct {
	handle func(grpc.ServerStream) error
}

func (r *registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, method := range desc.Streams {
		if method.StreamName == "CallTool" {
			r.handle = func(s grpc.ServerStream) error { return method.Handler(impl, s) }
		}
	}
}

// stream is one call without a carrier.
type stream struct {
	ctx     context.Context
	request *millracev1.CallToolRequest

	mu   sync.Mutex
	sent []*millracev1.CallToolResponse
}

func (s *stream) Context() context.Context     { return s.ctx }
func (s *stream) SetHeader(metadata.MD) error  { return nil }
func (s *stream) SendHeader(metadata.MD) error { return nil }
func (s *stream) SetTrailer(metadata.MD)       {}

func (s *stream) RecvMsg(m any) error {
	proto.Merge(m.(proto.Message), s.request)
	return nil
}

func (s *stream) SendMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, proto.CloneOf(m.(*millracev1.CallToolResponse)))
	return nil
}

func (s *stream) outcome() (*Outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out Outcome
	for i, event := range s.sent {
		last := i == len(s.sent)-1
		switch {
		case event.GetProgress() != nil && !last:
			out.Progress = append(out.Progress, event.GetProgress())
		case event.GetResult() != nil && last:
			out.Result = event.GetResult()
		case event.GetError() != nil && last:
			out.Error = event.GetError()
		default:
			return nil, errors.New("the events do not end with exactly one result or error")
		}
	}
	if len(s.sent) == 0 {
		return nil, errors.New("there was no outcome")
	}
	return &out, nil
}
