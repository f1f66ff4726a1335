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

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// service serves the calls of a worker. Each method sends exactly one outcome,
// or returns a status when the call was over before there was one.
type service struct {
	millracev1.UnimplementedWorkerServiceServer
	w *Worker
}

// request is what the requests of all methods have.
type request interface {
	GetContext() *millracev1.CallContext
	GetMeta() []byte
	GetResume() *millracev1.Resume
}

// CallTool implements millracev1.WorkerServiceServer.
func (s *service) CallTool(req *millracev1.CallToolRequest, stream grpc.ServerStreamingServer[millracev1.CallToolResponse]) error {
	t := s.w.tool(req.GetName())
	if t == nil || !admits(req.GetContext(), t.entry.GetScopes()) {
		return stream.Send(toolError(&millracev1.Error{Kind: millracev1.Error_KIND_UNKNOWN_TOOL}))
	}
	if !t.keeps(req) {
		return stream.Send(toolError(&millracev1.Error{Kind: millracev1.Error_KIND_OTHER_CONTRACT}))
	}
	leave, err := t.enter(stream.Context())
	if err != nil {
		return err
	}
	defer leave()
	call := s.w.newCall(stream.Context(), MethodCallTool, t.name, req)
	call.args, call.onceOnly = rawOrNil(req.GetArguments()), t.onceOnly
	call.sink = toolStream{stream}
	var result *millracev1.ToolResult
	call.serve = func(ctx context.Context) (err error) {
		result, err = t.run(ctx, s.w.codec, call)
		return err
	}
	var out outcome
	defer func() { out.rescue(s.w, call, func(e *millracev1.Error) { _ = stream.Send(toolError(e)) }) }()
	err = s.w.handle(call)
	if err != nil && call.ctx.Err() == nil && !outspoken(err) {
		result, err = errorResult(err).encode(s.w.codec, nil)
	}
	if out = s.w.settle(call, err, result == nil); out.failed != nil {
		return stream.Send(toolError(out.failed))
	} else if out.asks != nil {
		return stream.Send(&millracev1.CallToolResponse{Event: &millracev1.CallToolResponse_NeedsInput{NeedsInput: out.asks}})
	} else if out.over != nil {
		return out.over
	}
	return stream.Send(&millracev1.CallToolResponse{Event: &millracev1.CallToolResponse_Result{Result: result}})
}

// ReadResource implements millracev1.WorkerServiceServer.
func (s *service) ReadResource(req *millracev1.ReadResourceRequest, stream grpc.ServerStreamingServer[millracev1.ReadResourceResponse]) error {
	found := s.w.reader(req.GetUri(), req.GetUriTemplate())
	if found.read == nil || !admits(req.GetContext(), found.scopes) {
		return stream.Send(resourceError(&millracev1.Error{Kind: millracev1.Error_KIND_RESOURCE_NOT_FOUND}))
	}
	call := s.w.newCall(stream.Context(), MethodReadResource, req.GetUri(), req)
	call.template = found.template
	call.sink = resourceStream{stream}
	var result *millracev1.ResourceResult
	call.serve = func(ctx context.Context) error {
		contents, err := found.read(ctx, call, found.req)
		if err == nil {
			result, err = contents.encode(found.req.URI, found.mimeType)
		}
		return err
	}
	var out outcome
	defer func() { out.rescue(s.w, call, func(e *millracev1.Error) { _ = stream.Send(resourceError(e)) }) }()
	err := s.w.handle(call)
	if out = s.w.settle(call, err, result == nil); out.failed != nil {
		return stream.Send(resourceError(out.failed))
	} else if out.asks != nil {
		return stream.Send(&millracev1.ReadResourceResponse{Event: &millracev1.ReadResourceResponse_NeedsInput{NeedsInput: out.asks}})
	} else if out.over != nil {
		return out.over
	}
	return stream.Send(&millracev1.ReadResourceResponse{Event: &millracev1.ReadResourceResponse_Result{Result: result}})
}

// GetPrompt implements millracev1.WorkerServiceServer.
func (s *service) GetPrompt(req *millracev1.GetPromptRequest, stream grpc.ServerStreamingServer[millracev1.GetPromptResponse]) error {
	p := s.w.prompt(req.GetName())
	if p == nil || !admits(req.GetContext(), p.entry.GetScopes()) {
		return stream.Send(promptError(&millracev1.Error{Kind: millracev1.Error_KIND_UNKNOWN_PROMPT}))
	}
	call := s.w.newCall(stream.Context(), MethodGetPrompt, p.name, req)
	call.args = rawOrNil(req.GetArguments())
	call.sink = promptStream{stream}
	var result *millracev1.PromptResult
	call.serve = func(ctx context.Context) (err error) {
		result, err = p.run(ctx, s.w.codec, call)
		return err
	}
	var out outcome
	defer func() { out.rescue(s.w, call, func(e *millracev1.Error) { _ = stream.Send(promptError(e)) }) }()
	err := s.w.handle(call)
	if out = s.w.settle(call, err, result == nil); out.failed != nil {
		return stream.Send(promptError(out.failed))
	} else if out.asks != nil {
		return stream.Send(&millracev1.GetPromptResponse{Event: &millracev1.GetPromptResponse_NeedsInput{NeedsInput: out.asks}})
	} else if out.over != nil {
		return out.over
	}
	return stream.Send(&millracev1.GetPromptResponse{Event: &millracev1.GetPromptResponse_Result{Result: result}})
}

// Complete implements millracev1.WorkerServiceServer.
func (s *service) Complete(ctx context.Context, req *millracev1.CompleteRequest) (*millracev1.CompleteResponse, error) {
	name, complete, failed := s.w.completer(req)
	if failed != nil {
		return &millracev1.CompleteResponse{Error: failed}, nil
	}
	if complete == nil {
		return &millracev1.CompleteResponse{}, nil
	}
	call := s.w.newCall(ctx, MethodComplete, name, nil)
	call.from = req.GetContext()
	var result *millracev1.CompleteResponse
	call.serve = func(ctx context.Context) error {
		found, err := complete(ctx, call, CompleteRequest{Argument: req.GetArgument(), Value: req.GetValue(), Known: req.GetKnown()})
		if err == nil {
			result = found.encode()
		}
		return err
	}
	out := s.w.settle(call, s.w.handle(call), result == nil)
	if out.failed != nil {
		return &millracev1.CompleteResponse{Error: out.failed}, nil
	}
	return result, out.over
}

type toolStream struct {
	grpc.ServerStreamingServer[millracev1.CallToolResponse]
}

func (s toolStream) progress(p *millracev1.Progress) error {
	return s.Send(&millracev1.CallToolResponse{Event: &millracev1.CallToolResponse_Progress{Progress: p}})
}

func (s toolStream) log(m *millracev1.LogMessage) error {
	return s.Send(&millracev1.CallToolResponse{Event: &millracev1.CallToolResponse_Log{Log: m}})
}

type resourceStream struct {
	grpc.ServerStreamingServer[millracev1.ReadResourceResponse]
}

func (s resourceStream) progress(p *millracev1.Progress) error {
	return s.Send(&millracev1.ReadResourceResponse{Event: &millracev1.ReadResourceResponse_Progress{Progress: p}})
}

func (s resourceStream) log(m *millracev1.LogMessage) error {
	return s.Send(&millracev1.ReadResourceResponse{Event: &millracev1.ReadResourceResponse_Log{Log: m}})
}

type promptStream struct {
	grpc.ServerStreamingServer[millracev1.GetPromptResponse]
}

func (s promptStream) progress(p *millracev1.Progress) error {
	return s.Send(&millracev1.GetPromptResponse{Event: &millracev1.GetPromptResponse_Progress{Progress: p}})
}

func (s promptStream) log(m *millracev1.LogMessage) error {
	return s.Send(&millracev1.GetPromptResponse{Event: &millracev1.GetPromptResponse_Log{Log: m}})
}

func toolError(e *millracev1.Error) *millracev1.CallToolResponse {
	return &millracev1.CallToolResponse{Event: &millracev1.CallToolResponse_Error{Error: e}}
}

func resourceError(e *millracev1.Error) *millracev1.ReadResourceResponse {
	return &millracev1.ReadResourceResponse{Event: &millracev1.ReadResourceResponse_Error{Error: e}}
}

func promptError(e *millracev1.Error) *millracev1.GetPromptResponse {
	return &millracev1.GetPromptResponse{Event: &millracev1.GetPromptResponse_Error{Error: e}}
}

// newCall returns the call of a request; req may be nil.
func (w *Worker) newCall(ctx context.Context, method Method, name string, req request) *Call {
	call := &Call{w: w, ctx: ctx, method: method, name: name}
	if req != nil {
		call.from, call.meta, call.resume = req.GetContext(), rawOrNil(req.GetMeta()), req.GetResume()
	}
	return call.init()
}

func (w *Worker) tool(name string) *tool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.tools[name]
}

func (w *Worker) prompt(name string) *prompt {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.prompts[name]
}

// found is what reads a URI.
type found struct {
	read     ReadFunc // nil: nothing does
	req      ReadRequest
	template string
	mimeType string
	scopes   []string
}

// reader finds what reads uri. The edge says by which template it came here,
// if any; its manifest may be behind, so the others are tried as well.
func (w *Worker) reader(uri, by string) found {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if r := w.resources[uri]; r != nil {
		return found{read: r.read, req: ReadRequest{URI: uri}, mimeType: r.mimeType, scopes: r.entry.GetScopes()}
	}
	candidates := slices.Sorted(maps.Keys(w.templates))
	if w.templates[by] != nil {
		candidates = append([]string{by}, candidates...)
	}
	for _, name := range candidates {
		t := w.templates[name]
		if vars, ok := t.vars(uri); ok {
			return found{read: t.read, req: ReadRequest{URI: uri, Vars: vars}, template: name, mimeType: t.mimeType, scopes: t.entry.GetScopes()}
		}
	}
	return found{}
}

// completer finds what completes an argument, which is nil if nothing does.
func (w *Worker) completer(req *millracev1.CompleteRequest) (name string, complete CompleteFunc, failed *millracev1.Error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var all map[string]CompleteFunc
	switch {
	case req.GetPrompt() != "":
		name = req.GetPrompt()
		p := w.prompts[name]
		if p == nil || !admits(req.GetContext(), p.entry.GetScopes()) {
			return name, nil, &millracev1.Error{Kind: millracev1.Error_KIND_UNKNOWN_PROMPT}
		}
		all = p.complete
	default:
		name = req.GetUriTemplate()
		t := w.templates[name]
		if t == nil || !admits(req.GetContext(), t.entry.GetScopes()) {
			return name, nil, &millracev1.Error{Kind: millracev1.Error_KIND_RESOURCE_NOT_FOUND}
		}
		all = t.complete
	}
	complete, ok := all[req.GetArgument()]
	if !ok {
		return name, nil, &millracev1.Error{
			Kind:   millracev1.Error_KIND_INVALID_ARGUMENTS,
			Detail: fmt.Sprintf("there is no argument %s (known: %s)", quote(req.GetArgument()), quoteAll(slices.Sorted(maps.Keys(all)))),
		}
	}
	return name, complete, nil
}

// run checks the arguments, runs the handler and writes its result.
func (t *tool) run(ctx context.Context, c *codec, call *Call) (*millracev1.ToolResult, error) {
	args := call.args
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	if err := t.input.validate(args); err != nil {
		return nil, &argumentsError{detail: err.Error()}
	}
	result, err := t.handler(ctx, call, args)
	if err != nil {
		return nil, err
	}
	if result == nil {
		result = &Result{}
	}
	call.failed = result.IsError
	encoded, err := result.encode(c, t.output)
	if fault, ok := errors.AsType[*outputError](err); ok && call.w.cfg.Development {
		// Whoever develops the tool sees it where it shows.
		call.w.log.ErrorContext(call.ctx, "a result breaks the contract of its tool", "pool", call.w.cfg.Pool, "tool", t.name, "error", err)
		call.failed = true
		return errorResult(fault).encode(c, nil)
	} else if ok {
		err = internalf("%v", err)
	}
	return encoded, err
}

// outspoken reports whether err is more than a text for the model.
func outspoken(err error) bool {
	var protocol *ProtocolError
	var arguments *argumentsError
	var capability *MissingCapabilityError
	var internal *internalError
	var pages *URLElicitationRequiredError
	return errors.As(err, &pages) || errors.As(err, &protocol) || errors.As(err, &arguments) || errors.As(err, &capability) ||
		errors.As(err, &internal) || errors.Is(err, ErrNeedsInput)
}

// guard runs f and makes a panic an error.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &internalError{text: fmt.Sprintf("panic: %v", p), stack: debug.Stack()}
		}
	}()
	return f()
}

// outcome is how a call ends without a result. At most one is set.
type outcome struct {
	settled bool
	failed  *millracev1.Error
	asks    *millracev1.NeedsInput
	over    error // a status: nobody waits for an outcome
}

// settle ends the call and says what to send. absent: there is no result.
func (w *Worker) settle(call *Call, err error, absent bool) outcome {
	if !call.end() || err != nil && call.ctx.Err() != nil {
		// Nobody waits for an outcome, and the error is most likely the
		// handler's way to say that it stopped.
		return outcome{settled: true, over: status.FromContextError(call.ctx.Err()).Err()}
	}
	var asks *millracev1.NeedsInput
	if errors.Is(err, ErrNeedsInput) {
		asks, err = call.needsInput()
	} else if err == nil && absent {
		err = internalf("middleware returned no error without a result of the next handler")
	}
	if asks != nil {
		// Whoever gets the answers may be another edge than the one that asks.
		bus.KeepEvents(call.ctx)
	}
	out := outcome{settled: true, asks: asks}
	if pages, ok := errors.AsType[*URLElicitationRequiredError](err); ok {
		out.failed, err = pages.encode(call)
	}
	if err != nil {
		out.failed = w.failure(err, call)
	}
	return out
}

// rescue sends an internal error if the goroutine ends before the call was
// settled: a handler can do that, by runtime.Goexit.
func (o *outcome) rescue(w *Worker, call *Call, send func(*millracev1.Error)) {
	if !o.settled && call.end() {
		send(w.failure(internalf("the handler ended its goroutine"), call))
	}
}

// failure turns an error into what the client may know, and logs the rest.
func (w *Worker) failure(err error, call *Call) *millracev1.Error {
	var arguments *argumentsError
	var protocol *ProtocolError
	var capability *MissingCapabilityError
	var internal *internalError
	switch {
	case errors.As(err, &internal):
	case errors.As(err, &arguments):
		return &millracev1.Error{Kind: millracev1.Error_KIND_INVALID_ARGUMENTS, Detail: validText(arguments.detail)}
	case errors.As(err, &capability):
		return &millracev1.Error{
			Kind:    millracev1.Error_KIND_MISSING_CAPABILITY,
			Message: capability.Error(),
			Data:    requiredCapabilities(capability.Missing),
		}
	case errors.As(err, &protocol):
		custom, bad := protocol.encode(w.codec)
		if bad == nil {
			return custom
		}
		err = bad
	case errors.Is(err, ErrResourceNotFound):
		return &millracev1.Error{Kind: millracev1.Error_KIND_RESOURCE_NOT_FOUND}
	}
	attrs := []any{"pool", w.cfg.Pool, kinds(call.method), call.name, "error", err}
	if errors.As(err, &internal) && internal.stack != nil {
		attrs = append(attrs, "stack", string(internal.stack))
	}
	w.log.ErrorContext(call.ctx, "a call ended with an internal error", attrs...)
	return &millracev1.Error{Kind: millracev1.Error_KIND_INTERNAL}
}

// kinds names what the method is about, for the log.
func kinds(m Method) string {
	switch m {
	case MethodReadResource:
		return "resource"
	case MethodGetPrompt:
		return "prompt"
	case MethodComplete:
		return "completion"
	default:
		return "tool"
	}
}

// The codes of JSON-RPC.
const (
	invalidParamsCode = -32602
	internalCode      = -32603
)

func (e *ProtocolError) encode(c *codec) (*millracev1.Error, error) {
	data, err := c.marshal(e.Data)
	if err != nil {
		return nil, internalf("the data of a protocol error cannot be written: %v", err)
	}
	code := e.Code
	if code == 0 {
		code = internalCode
	}
	return &millracev1.Error{Kind: millracev1.Error_KIND_CUSTOM, Code: code, Message: validText(e.Message), Data: data}, nil
}
