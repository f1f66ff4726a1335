package workertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// stream is one round without a carrier.
type stream struct {
	ctx     context.Context
	request proto.Message

	mu   sync.Mutex
	sent []proto.Message
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
	s.sent = append(s.sent, proto.Clone(m.(proto.Message)))
	return nil
}

// report is what the events of all methods have in common.
type report interface {
	GetProgress() *millracev1.Progress
	GetLog() *millracev1.LogMessage
	GetError() *millracev1.Error
	GetNeedsInput() *millracev1.NeedsInput
}

// collect adds what was sent to out and returns the questions, if the round
// ended with some.
func (s *stream) collect(out *Outcome) (*millracev1.NeedsInput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sent) == 0 {
		return nil, errors.New("there was no outcome")
	}
	for i, event := range s.sent {
		r, ok := event.(report)
		if !ok {
			return nil, fmt.Errorf("an event of type %T", event)
		}
		closed := closesStream(event)
		final := r.GetProgress() == nil && r.GetLog() == nil && !closed
		if final != (i == len(s.sent)-1) {
			return nil, errors.New("the events do not end with exactly one outcome")
		}
		switch {
		case closed:
			out.Closed++
		case r.GetProgress() != nil:
			out.Progress = append(out.Progress, r.GetProgress())
		case r.GetLog() != nil:
			out.Logs = append(out.Logs, r.GetLog())
		case r.GetNeedsInput() != nil:
			return r.GetNeedsInput(), nil
		default:
			out.Error = r.GetError()
		}
		switch e := event.(type) {
		case *millracev1.CallToolResponse:
			out.Result = e.GetResult()
		case *millracev1.ReadResourceResponse:
			out.Contents = e.GetResult()
		case *millracev1.GetPromptResponse:
			out.Prompt = e.GetResult()
		}
	}
	if out.Error == nil && out.Result == nil && out.Contents == nil && out.Prompt == nil {
		return nil, errors.New("the events do not end with a result or error")
	}
	return nil, nil
}

func closesStream(event proto.Message) bool {
	tool, ok := event.(*millracev1.CallToolResponse)
	return ok && tool.GetCloseStream() != nil
}

// byKey orders questions: a map has no order.
func byKey(all []Question) {
	slices.SortFunc(all, func(a, b Question) int { return cmp.Compare(a.Key, b.Key) })
}
