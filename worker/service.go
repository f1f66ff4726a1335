package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// service serves the calls of a worker. Each method sends exactly one outcome,
// or returns a status when the call was over before there was one.
type service struct {
	millracev1.UnimplementedWorkerServiceServer
	w *Worker
}

// CallTool implements millracev1.WorkerServiceServer.
func (s *service) CallTool(req *millracev1.CallToolRequest, stream grpc.ServerStreamingServer[millracev1.CallToolResponse]) error {
	t := s.w.tool(req.GetName())
	if t == nil {
		return stream.Send(toolError(&millracev1.Error{Kind: millracev1.Error_KIND_UNKNOWN_TOOL}))
	}
	ctx := stream.Context()
	call := newCall(ctx, req.GetContext(), req.GetMeta(), func(p *millracev1.Progress) error {
		return stream.Send(&millracev1.CallToolResponse{Event: &millracev1.CallToolResponse_Progress{Progress: p}})
	})
	result, err := guard(func() (*millracev1.ToolResult, error) { return t.run(ctx, s.w.codec, call, req.GetArguments()) })
	if !call.end() || err != nil && ctx.Err() != nil {
		// Nobody waits for an outcome, and the error is most likely the
		// handler's way to say that it stopped.
		return status.FromContextError(ctx.Err()).Err()
	}
	if err != nil {
		return stream.Send(toolError(s.w.outcome(err, "tool", t.name)))
	}
	return stream.Send(&millracev1.CallToolResponse{Event: &millracev1.CallToolResponse_Result{Result: result}})
}

// ReadResource implements millracev1.WorkerServiceServer.
func (s *service) ReadResource(req *millracev1.ReadResourceRequest, stream grpc.ServerStreamingServer[millracev1.ReadResourceResponse]) error {
	read, request, mimeType := s.w.reader(req.GetUri(), req.GetUriTemplate())
	if read == nil {
		return stream.Send(resourceError(&millracev1.Error{Kind: millracev1.Error_KIND_RESOURCE_NOT_FOUND}))
	}
	ctx := stream.Context()
	call := newCall(ctx, req.GetContext(), req.GetMeta(), func(p *millracev1.Progress) error {
		return stream.Send(&millracev1.ReadResourceResponse{Event: &millracev1.ReadResourceResponse_Progress{Progress: p}})
	})
	result, err := guard(func() (*millracev1.ResourceResult, error) {
		contents, err := read(ctx, call, request)
		if err != nil {
			return nil, err
		}
		return contents.encode(request.URI, mimeType)
	})
	if !call.end() || err != nil && ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if err != nil {
		return stream.Send(resourceError(s.w.outcome(err, "resource", request.URI)))
	}
	return stream.Send(&millracev1.ReadResourceResponse{Event: &millracev1.ReadResourceResponse_Result{Result: result}})
}

func toolError(e *millracev1.Error) *millracev1.CallToolResponse {
	return &millracev1.CallToolResponse{Event: &millracev1.CallToolResponse_Error{Error: e}}
}

func resourceError(e *millracev1.Error) *millracev1.ReadResourceResponse {
	return &millracev1.ReadResourceResponse{Event: &millracev1.ReadResourceResponse_Error{Error: e}}
}

func (w *Worker) tool(name string) *tool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.tools[name]
}

// reader finds what reads uri; nil if nothing does. The edge says by which
// template it came here, if any; its manifest may be behind, so the others are
// tried as well.
func (w *Worker) reader(uri, by string) (read ReadFunc, req ReadRequest, mimeType string) {
	req.URI = uri
	w.mu.RLock()
	defer w.mu.RUnlock()
	if r := w.resources[uri]; r != nil {
		return r.read, req, r.mimeType
	}
	candidates := slices.Sorted(maps.Keys(w.templates))
	if w.templates[by] != nil {
		candidates = append([]string{by}, candidates...)
	}
	for _, name := range candidates {
		t := w.templates[name]
		if vars, ok := t.vars(uri); ok {
			req.Vars = vars
			return t.read, req, t.mimeType
		}
	}
	return nil, req, ""
}

// run checks the arguments, runs the handler and writes its result. An error
// of the handler that is for the model becomes a result here.
func (t *tool) run(ctx context.Context, c *codec, call *Call, args json.RawMessage) (*millracev1.ToolResult, error) {
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	if err := t.input.validate(args); err != nil {
		return nil, &argumentsError{detail: err.Error()}
	}
	result, err := t.handler(ctx, call, args)
	if err != nil {
		if ctx.Err() != nil || outspoken(err) {
			return nil, err
		}
		result = errorResult(err)
	}
	if result == nil {
		result = &Result{}
	}
	return result.encode(c, t.output)
}

// outspoken reports whether err is more than a text for the model.
func outspoken(err error) bool {
	var protocol *ProtocolError
	var arguments *argumentsError
	return errors.As(err, &protocol) || errors.As(err, &arguments)
}

// guard runs f and makes a panic an error.
func guard[T any](f func() (T, error)) (result T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &internalError{text: fmt.Sprintf("panic: %v", p), stack: debug.Stack()}
		}
	}()
	return f()
}

// outcome turns an error into what the client may know, and logs the rest.
// kind and name say whose error it is.
func (w *Worker) outcome(err error, kind, name string) *millracev1.Error {
	var arguments *argumentsError
	var protocol *ProtocolError
	switch {
	case errors.As(err, &arguments):
		return &millracev1.Error{Kind: millracev1.Error_KIND_INVALID_ARGUMENTS, Detail: arguments.detail}
	case errors.As(err, &protocol):
		custom, bad := protocol.encode(w.codec)
		if bad == nil {
			return custom
		}
		err = bad
	case errors.Is(err, ErrResourceNotFound):
		return &millracev1.Error{Kind: millracev1.Error_KIND_RESOURCE_NOT_FOUND}
	}
	attrs := []any{"pool", w.cfg.Pool, kind, name, "error", err}
	var internal *internalError
	if errors.As(err, &internal) && internal.stack != nil {
		attrs = append(attrs, "stack", string(internal.stack))
	}
	w.log.Error("a call ended with an internal error", attrs...)
	return &millracev1.Error{Kind: millracev1.Error_KIND_INTERNAL}
}

// internalCode is JSON-RPC's "internal error".
const internalCode = -32603

func (e *ProtocolError) encode(c *codec) (*millracev1.Error, error) {
	data, err := c.marshal(e.Data)
	if err != nil {
		return nil, internalf("the data of a protocol error cannot be written: %v", err)
	}
	code := e.Code
	if code == 0 {
		code = internalCode
	}
	return &millracev1.Error{Kind: millracev1.Error_KIND_CUSTOM, Code: code, Message: e.Message, Data: data}, nil
}
