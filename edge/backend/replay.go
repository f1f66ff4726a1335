package backend

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// ErrOver is the error of a Source whose call was ended by the edge that made it;
// what that edge has said, the Source knows.
var ErrOver = errors.New("backend: the edge has ended the call")

// ErrLost is the error of a Source that has lost what came before the end of the
// call, so that its outcome is unknown.
var ErrLost = errors.New("backend: the outcome of the call was lost")

// Source gives what a worker has sent for a call that was made elsewhere, or by
// an edge that is gone.
type Source interface {
	// Next returns the next event, as the protobuf message of the method's
	// response, waiting for it. The error of the last one is io.EOF, ErrOver, ErrLost
	// or the status with which the call ended.
	Next(ctx context.Context) ([]byte, error)
}

// ReplayTool passes on the events of a tools/call until its outcome. Here and
// below: the call itself is left alone, and there is no deadline but that of ctx.
func (b *Backend) ReplayTool(ctx context.Context, name string, s Source, o Options) Outcome[*millracev1.ToolResult] {
	return replay[*millracev1.CallToolResponse, *millracev1.ToolResult](ctx, b, name, s, o,
		func() *millracev1.CallToolResponse { return &millracev1.CallToolResponse{} })
}

// ReplayResource passes on the events of a resources/read.
func (b *Backend) ReplayResource(ctx context.Context, uri string, s Source, o Options) Outcome[*millracev1.ResourceResult] {
	return replay[*millracev1.ReadResourceResponse, *millracev1.ResourceResult](ctx, b, uri, s, o,
		func() *millracev1.ReadResourceResponse { return &millracev1.ReadResourceResponse{} })
}

// ReplayPrompt passes on the events of a prompts/get.
func (b *Backend) ReplayPrompt(ctx context.Context, name string, s Source, o Options) Outcome[*millracev1.PromptResult] {
	return replay[*millracev1.GetPromptResponse, *millracev1.PromptResult](ctx, b, name, s, o,
		func() *millracev1.GetPromptResponse { return &millracev1.GetPromptResponse{} })
}

// message is an event as a protobuf message.
type message[R any] interface {
	event[R]
	proto.Message
}

func replay[E message[R], R comparable](ctx context.Context, b *Backend, subject string, s Source, o Options, empty func() E) Outcome[R] {
	call := b.begin(ctx, b.ceiling)
	defer call.end()
	outcome, _ := receive[E, R](b, call, target{subject: subject}, o, &replayed[E]{call, s, empty})
	return outcome
}

// replayed is a source as the stream of a call.
type replayed[E proto.Message] struct {
	ctx    context.Context
	source Source
	empty  func() E
}

// Recv returns the next event.
func (r *replayed[E]) Recv() (E, error) {
	ev := r.empty()
	raw, err := r.source.Next(r.ctx)
	if err == nil {
		err = proto.Unmarshal(raw, ev)
	}
	return ev, err
}
