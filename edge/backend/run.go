package backend

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/edge/catalog"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Events takes what a call reports before its outcome. It is called by the
// goroutine that runs the call. An error ends the call: the client does not
// read any more.
type Events interface {
	Progress(*millracev1.Progress) error
	Log(*millracev1.LogMessage) error
	// Close asks for the end of the client's stream while the call goes on.
	Close(*millracev1.CloseStream)
}

// Options are what a request needs besides its message.
type Options struct {
	Trace Trace
	// Instance must serve the call; empty: any instance of the pool.
	Instance string
	// Events takes progress and log messages; it must be set for requests
	// that have them.
	Events Events
	// Carrier returns what the carrier is told about each attempt; nil:
	// nothing.
	Carrier func() []grpc.CallOption
}

func (o *Options) carrier() []grpc.CallOption {
	if o.Carrier == nil {
		return nil
	}
	return o.Carrier()
}

// Outcome is how a request ended: exactly one field is set. R is the pointer
// type of its result.
type Outcome[R any] struct {
	Result     R
	NeedsInput *millracev1.NeedsInput
	Task       *millracev1.TaskHandle
	Failure    *Failure
}

// CallTool runs a tool. The request is the caller's to fill; the call ends
// when ctx does. Here and below, what the principal of the request may not see
// does not exist.
func (b *Backend) CallTool(ctx context.Context, req *millracev1.CallToolRequest, o Options) Outcome[*millracev1.ToolResult] {
	tool, ok := b.Snapshot(ctx, req.GetContext().GetPrincipal()).Tool(req.GetName())
	if !ok {
		return Outcome[*millracev1.ToolResult]{Failure: &Failure{Kind: UnknownTool, Subject: req.GetName()}}
	}
	t := target{
		method: mcp.MethodToolsCall, pool: tool.Pool, subject: req.GetName(), timeout: tool.Timeout,
		repeatable: tool.ReadOnly || tool.Idempotent, caller: req.GetContext(), offers: tool.Offers,
	}
	name, pool := t.subject, t.pool // t itself stays on the stack
	t.find = func() (catalog.Offers, bool) {
		now, ok := b.Snapshot(ctx, req.GetContext().GetPrincipal()).Tool(name)
		if !ok || now.Pool != pool {
			return catalog.Offers{}, false
		}
		req.Name, req.Contract = now.Origin, now.Contract
		return now.Offers, true
	}
	if req.Name = tool.Origin; o.Instance == "" {
		req.Contract = tool.Contract
	} // else it has asked the questions, and ends what it has begun
	// Others may follow a round with answers, who would take it for the end of the
	// call that an instance refuses it: so only those are asked that will not.
	t.exact = req.GetResume() != nil
	return run(ctx, b, t, o, func(ctx context.Context, c millracev1.WorkerServiceClient) (stream[*millracev1.CallToolResponse], error) {
		return c.CallTool(ctx, req, o.carrier()...)
	})
}

// ReadResource reads a resource; it fills in the template that matched.
func (b *Backend) ReadResource(ctx context.Context, req *millracev1.ReadResourceRequest, o Options) Outcome[*millracev1.ResourceResult] {
	s := b.Snapshot(ctx, req.GetContext().GetPrincipal())
	pool, template, ok := s.Resource(req.GetUri())
	if !ok {
		return Outcome[*millracev1.ResourceResult]{Failure: &Failure{Kind: ResourceNotFound, Subject: req.GetUri()}}
	}
	req.UriTemplate = template
	t := target{method: mcp.MethodResourcesRead, pool: pool, subject: req.GetUri(), repeatable: true, caller: req.GetContext(), offers: s.ResourceOffers(req.GetUri(), template)}
	t.find = func() (catalog.Offers, bool) {
		s := b.Snapshot(ctx, req.GetContext().GetPrincipal())
		pool, template, ok := s.Resource(t.subject)
		req.UriTemplate = template
		return s.ResourceOffers(t.subject, template), ok && pool == t.pool
	}
	return run(ctx, b, t, o, func(ctx context.Context, c millracev1.WorkerServiceClient) (stream[*millracev1.ReadResourceResponse], error) {
		return c.ReadResource(ctx, req, o.carrier()...)
	})
}

// GetPrompt fills in a prompt.
func (b *Backend) GetPrompt(ctx context.Context, req *millracev1.GetPromptRequest, o Options) Outcome[*millracev1.PromptResult] {
	prompt, ok := b.Snapshot(ctx, req.GetContext().GetPrincipal()).Prompt(req.GetName())
	if !ok {
		return Outcome[*millracev1.PromptResult]{Failure: &Failure{Kind: UnknownPrompt, Subject: req.GetName()}}
	}
	t := target{method: mcp.MethodPromptsGet, pool: prompt.Pool, subject: req.GetName(), repeatable: true, caller: req.GetContext(), offers: prompt.Offers}
	req.Name = prompt.Origin
	t.find = func() (catalog.Offers, bool) {
		now, ok := b.Snapshot(ctx, req.GetContext().GetPrincipal()).Prompt(t.subject)
		if !ok || now.Pool != t.pool {
			return catalog.Offers{}, false
		}
		req.Name = now.Origin
		return now.Offers, true
	}
	return run(ctx, b, t, o, func(ctx context.Context, c millracev1.WorkerServiceClient) (stream[*millracev1.GetPromptResponse], error) {
		return c.GetPrompt(ctx, req, o.carrier()...)
	})
}

// Complete suggests values for an argument. An argument that its worker does
// not complete has no suggestions, which is no failure.
func (b *Backend) Complete(ctx context.Context, req *millracev1.CompleteRequest, o Options) (*millracev1.CompleteResponse, *Failure) {
	s := b.Snapshot(ctx, req.GetContext().GetPrincipal())
	var t target
	var completed []string
	switch ref := req.GetReference().(type) {
	case *millracev1.CompleteRequest_Prompt:
		prompt, ok := s.Prompt(ref.Prompt)
		if !ok {
			return nil, &Failure{Kind: UnknownPrompt, Subject: ref.Prompt}
		}
		t, completed = target{pool: prompt.Pool, subject: ref.Prompt, offers: prompt.Offers}, prompt.Completed
		ref.Prompt = prompt.Origin
	case *millracev1.CompleteRequest_UriTemplate:
		template, ok := s.Template(ref.UriTemplate)
		if !ok {
			// A client may name a resource instead of its template.
			var name string
			if _, name, ok = s.Resource(ref.UriTemplate); !ok {
				return nil, &Failure{Kind: UnknownTemplate, Subject: ref.UriTemplate}
			}
			if template, ok = s.Template(name); !ok {
				return &millracev1.CompleteResponse{}, nil // a listed resource has no variables
			}
			ref.UriTemplate = name
		}
		t, completed = target{pool: template.Pool, subject: ref.UriTemplate, offers: template.Offers}, template.Completed
	}
	found := false
	for _, name := range completed {
		found = found || name == req.GetArgument()
	}
	if !found {
		return &millracev1.CompleteResponse{}, nil
	}
	t.method = mcp.MethodComplete
	call := b.begin(ctx, b.timeout)
	defer call.end()
	t.caller = req.GetContext()
	client := b.client(t, o)
	resp, err := client.Complete(o.Trace.outgoing(call), req)
	var failure *Failure
	if err != nil {
		failure = t.named(b.failure(call, t.pool, err))
	} else if resp.GetError() != nil {
		failure = t.named(workerFailure(resp.GetError()))
	}
	if b.observe != nil {
		b.observe.Called(ctx, t.called(call, failure))
	}
	if failure != nil {
		return nil, failure
	}
	return resp, nil
}

// target is who serves a request, and what it is about.
type target struct {
	method, pool, subject string
	timeout               time.Duration
	// repeatable: running it twice does no harm.
	repeatable bool
	// caller is who takes turns with others when slots are short.
	caller *millracev1.CallContext
	// find completes the request by the newest catalog, and returns the versions
	// that can serve it; ok is false when nobody does any more.
	find func() (offers catalog.Offers, ok bool)
	// offers are those versions; exact: only those, whatever else there is.
	offers catalog.Offers
	exact  bool
}

// fair says on whose behalf the request is made. Without a session, requests of
// a principal wait in the order in which they came.
func (t target) fair() grpc.CallOption {
	p := t.caller.GetPrincipal()
	principal := ""
	if p != nil {
		principal = p.GetIssuer() + "\x00" + p.GetSubject() // neither holds a NUL
	}
	return bus.Fair(principal, t.caller.GetScope())
}

// fairConn makes calls on behalf of somebody.
type fairConn struct {
	grpc.ClientConnInterface

	fair grpc.CallOption
}

// Invoke makes a unary call.
func (c fairConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, append(opts, c.fair)...)
}

// NewStream starts a streaming call.
func (c fairConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.ClientConnInterface.NewStream(ctx, desc, method, append(opts, c.fair)...)
}

// called is what the observer is told.
func (t target) called(c *call, f *Failure) Called {
	called := Called{Pool: t.pool, Method: t.method, Began: c.began, Failure: f}
	if t.method == mcp.MethodToolsCall {
		called.Tool = t.subject
	}
	return called
}

func (t target) named(f *Failure) *Failure {
	f.Subject = t.subject
	return f
}

// stream and event are what the generated streams and their messages have in
// common.
type stream[E any] interface {
	Recv() (E, error)
}

type event[R any] interface {
	GetProgress() *millracev1.Progress
	GetLog() *millracev1.LogMessage
	GetResult() R
	GetNeedsInput() *millracev1.NeedsInput
	GetError() *millracev1.Error
}

// run makes a call and passes on its events until the outcome. When the worker
// is lost before the client has heard anything, a call that does no harm twice
// is made once more.
func run[E event[R], R comparable](
	ctx context.Context, b *Backend, t target, o Options,
	open func(context.Context, millracev1.WorkerServiceClient) (stream[E], error),
) Outcome[R] {
	call := b.begin(ctx, cmp.Or(t.timeout, b.timeout))
	defer call.end()
	call.own = t.timeout > 0
	outcome, heard := attempt[E, R](b, call, t, o, b.client(t, o), open)
	for n := 0; n < mostMoves && outcome.Failure.hasMoved(t) && o.Instance == ""; n++ {
		if !b.move(call, &t, outcome.Failure, n) {
			break
		}
		outcome, heard = attempt[E, R](b, call, t, o, b.client(t, o), open)
	}
	repeated := false
	if f := outcome.Failure; f != nil && f.Kind == WorkerLost && t.repeatable && !heard {
		b.log.InfoContext(ctx, "worker lost, trying another one", "pool", t.pool)
		repeated = true
		// That nobody takes the second attempt says nothing about the first one.
		if again, _ := attempt[E, R](b, call, t, o, b.client(t, o), open); again.Failure == nil || !again.Failure.nothingRan() {
			outcome = again
		}
	}
	if b.observe != nil {
		called := t.called(call, outcome.Failure)
		called.Repeated, called.NeedsInput = repeated, outcome.NeedsInput != nil
		if result, ok := any(outcome.Result).(*millracev1.ToolResult); ok {
			called.ToolError = result.GetIsError()
		}
		b.observe.Called(ctx, called)
	}
	return outcome
}

// attempt makes a call once. heard reports whether the client has been sent
// anything.
func attempt[E event[R], R comparable](
	b *Backend, call *call, t target, o Options, client millracev1.WorkerServiceClient,
	open func(context.Context, millracev1.WorkerServiceClient) (stream[E], error),
) (outcome Outcome[R], heard bool) {
	fail := func(err error) (Outcome[R], bool) {
		return Outcome[R]{Failure: t.named(b.failure(call, t.pool, err))}, heard
	}
	events, err := open(o.Trace.outgoing(call), client)
	if err != nil {
		return fail(err)
	}
	return receive[E, R](b, call, t, o, events)
}

// receive passes on the events of a call until its outcome.
func receive[E event[R], R comparable](b *Backend, call *call, t target, o Options, events stream[E]) (outcome Outcome[R], heard bool) {
	fail := func(err error) (Outcome[R], bool) {
		return Outcome[R]{Failure: t.named(b.failure(call, t.pool, err))}, heard
	}
	var none R
	for {
		ev, err := events.Recv()
		if err != nil {
			return fail(err)
		}
		if p := ev.GetProgress(); p != nil {
			heard = true
			call.progressed()
			if err := o.Events.Progress(p); err != nil {
				return fail(err)
			}
			continue
		}
		if l := ev.GetLog(); l != nil {
			heard = true
			if err := o.Events.Log(l); err != nil {
				return fail(err)
			}
			continue
		}
		if r := ev.GetResult(); r != none {
			return Outcome[R]{Result: r}, heard
		}
		if n := ev.GetNeedsInput(); n != nil {
			return Outcome[R]{NeedsInput: n}, heard
		}
		if e := ev.GetError(); e != nil {
			return Outcome[R]{Failure: t.named(workerFailure(e))}, heard
		}
		if tool, ok := any(ev).(interface {
			GetTask() *millracev1.TaskHandle
			GetCloseStream() *millracev1.CloseStream
		}); ok {
			if task := tool.GetTask(); task != nil {
				return Outcome[R]{Task: task}, heard
			}
			if c := tool.GetCloseStream(); c != nil {
				o.Events.Close(c)
			}
		}
		// Anything else is an event of a newer worker: not known here, and not
		// the outcome.
	}
}

// failure says in the backend's terms why a call gave no outcome.
func (b *Backend) failure(c *call, pool string, err error) *Failure {
	switch {
	case c.timedOut.Load():
		return b.timeoutOf(c)
	case c.Err() != nil:
		return &Failure{Kind: Cancelled, Cause: context.Cause(c)}
	case errors.Is(err, ErrOver):
		return &Failure{Kind: Moved}
	case errors.Is(err, ErrLost), bus.Reason(err) == bus.ReasonEventsLost:
		b.log.WarnContext(c, "the outcome of a call was lost", "pool", pool)
		return &Failure{Kind: ResultLost}
	case errors.Is(err, io.EOF):
		// A stream that ends well without an outcome is a broken worker.
		b.log.ErrorContext(c, "worker ended a call without an outcome", "pool", pool)
		return &Failure{Kind: Internal}
	}
	reason := bus.Reason(err)
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return b.timeoutOf(c)
	case codes.ResourceExhausted:
		if reason == bus.ReasonOverloaded {
			after, _ := bus.RetryAfter(err)
			return &Failure{Kind: Overloaded, Pool: pool, Limit: LimitSlots, After: after}
		}
		b.log.ErrorContext(c, "message over a limit", "pool", pool, "error", err)
		return tooLarge(err)
	case codes.Unavailable:
		b.log.WarnContext(c, "call not served", "pool", pool, "reason", reason, "error", err)
		switch reason {
		case bus.ReasonNotStarted:
			return &Failure{Kind: Unavailable, Pool: pool, Message: "no worker of the pool " + quote(pool) + " answered; nothing was executed, try again shortly"}
		case bus.ReasonNoResponders:
			return &Failure{Kind: Unavailable, Pool: pool, nobody: true}
		case bus.ReasonGoesOn:
			return &Failure{Kind: Moved}
		case bus.ReasonDisconnected:
			return &Failure{Kind: Unavailable, Message: "the edge has no connection to NATS; nothing was executed, try again shortly"}
		}
		return &Failure{Kind: WorkerLost, Pool: pool}
	case codes.Canceled:
		return &Failure{Kind: WorkerLost, Pool: pool}
	default:
		b.log.ErrorContext(c, "call failed", "pool", pool, "error", err)
		return &Failure{Kind: Internal}
	}
}
