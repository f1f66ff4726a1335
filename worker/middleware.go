package worker

import (
	"context"
	"errors"
	"slices"
)

// Handler serves a call; see [Worker.Use]. Its error is the one that the
// handler of the tool, resource, prompt or completion has returned, or says
// why that one was not run.
type Handler func(ctx context.Context, call *Call) error

// Outcome is how a call ends, for logs and metrics.
type Outcome string

// The outcomes.
const (
	// OutcomeResult: with a result.
	OutcomeResult Outcome = "result"
	// OutcomeToolError: with a result of a tool that has isError set.
	OutcomeToolError Outcome = "tool_error"
	// OutcomeNeedsInput: with questions for the client, or pages to visit for
	// its user; the client will call again.
	OutcomeNeedsInput Outcome = "needs_input"
	// OutcomeRefused: with an error that tells the client what is wrong: bad
	// arguments, no such resource, a missing capability, a ProtocolError.
	OutcomeRefused Outcome = "refused"
	// OutcomeInternal: with an internal error, which only the log explains.
	OutcomeInternal Outcome = "internal"
	// OutcomeCancelled: without any, since nobody waits for one any more.
	OutcomeCancelled Outcome = "cancelled"
)

// Outcome returns how the call ends if err is returned. In middleware, err is
// what the next handler has returned.
func (c *Call) Outcome(err error) Outcome {
	switch {
	case err != nil && c.ctx.Err() != nil:
		return OutcomeCancelled
	case err == nil && c.failed:
		return OutcomeToolError
	case err == nil:
		return OutcomeResult
	case errors.Is(err, ErrNeedsInput), needsPages(err):
		return OutcomeNeedsInput
	}
	var arguments *argumentsError
	var protocol *ProtocolError
	var capability *MissingCapabilityError
	var internal *internalError
	switch {
	case errors.As(err, &internal):
		return OutcomeInternal
	case errors.As(err, &arguments), errors.As(err, &protocol), errors.As(err, &capability),
		c.method != MethodCallTool && errors.Is(err, ErrResourceNotFound):
		return OutcomeRefused
	case c.method == MethodCallTool:
		return OutcomeToolError
	default:
		return OutcomeInternal
	}
}

// Use puts middleware around every call of a tool, resource, prompt or
// completion that the worker has. What is added first is outermost: it sees a
// call first and its outcome last. A call passes through the middleware after
// it has a slot and before its arguments are checked; the handler it belongs
// to has returned, and its result was checked, when next returns. A panic of
// the handler is an error of next.
//
// Middleware may pass on a context of its own, return an error in the place of
// calling next, as a check of rights does, or return another error than next.
// What an error means is the same as for the handler: one that is no
// [*ProtocolError] is shown to the model by a tool, and to nobody by the
// others. It must call next at most once.
//
// Use is called before Run.
func (w *Worker) Use(middleware func(next Handler) Handler) {
	w.register(func() error {
		switch {
		case middleware == nil:
			return errors.New("worker: nil middleware")
		case w.running:
			return errors.New("worker: middleware was added after Run was called")
		}
		w.middleware = append(w.middleware, middleware)
		handler := Handler(serve)
		for _, around := range slices.Backward(w.middleware) {
			handler = around(handler)
			if handler == nil {
				return errors.New("worker: middleware returned a nil handler")
			}
		}
		w.handler = handler
		return nil
	})
}

// serve is the end of the chain.
func serve(ctx context.Context, call *Call) error {
	return guard(func() error { return call.serve(ctx) })
}

// handle passes the call through the chain.
func (w *Worker) handle(call *Call) error {
	if err := call.restore(); err != nil {
		return err
	}
	w.mu.RLock()
	handler := w.handler
	w.mu.RUnlock()
	if handler == nil {
		handler = serve
	}
	return call.declined(guard(func() error { return handler(call.ctx, call) }))
}
