// Package methods runs the methods that every revision has: the lists,
// tools/call and resources/read. The eras differ in what surrounds them (the
// handshake or per-request metadata, sessions, HTTP statuses, what a closed
// connection means), and that is theirs.
package methods

import (
	"context"

	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/render"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Runner runs methods. Its fields are set once, before it runs; it is safe for
// concurrent use.
type Runner struct {
	Backend *backend.Backend
	Render  *render.Renderer
	// Calls is shared by the eras: on stdio a cancellation does not say which
	// of the two its request belongs to.
	Calls *exchange.Calls
}

// Client is what an era knows about who sent a request.
type Client struct {
	Revision *mcp.Revision
	// Scope names the session or the connection in which the request's id
	// means something; empty without either.
	Scope string
	// Session is the scope again when tools may keep state under it.
	Session string
	// Outlives: a call goes on when the client's connection is lost.
	Outlives bool
	// Info, Capabilities and Extensions are JSON objects; nil when unknown.
	Info, Capabilities, Extensions []byte
	Principal                      *exchange.Principal
	Trace                          backend.Trace
}

// Reply is how a method ended: exactly one of Result, Error and NeedsInput is
// set.
type Reply struct {
	Result     []byte
	Error      *jsonrpc.Error
	NeedsInput *millracev1.NeedsInput
	// Failure is the reason behind an Error or Result that says a call failed.
	Failure *backend.Failure
}

// Run runs the method of a request; ok is false when it is none of those this
// package has. The call ends when ctx does, unless it outlives its client.
func (r *Runner) Run(ctx context.Context, c Client, m *jsonrpc.Message, out exchange.Stream) (reply Reply, ok bool) {
	switch m.Method {
	case mcp.MethodToolsList:
		return r.list(ctx, c, m, render.Tools), true
	case mcp.MethodResourcesList:
		return r.list(ctx, c, m, render.Resources), true
	case mcp.MethodResourceTemplatesList:
		return r.list(ctx, c, m, render.ResourceTemplates), true
	case mcp.MethodToolsCall:
		return r.callTool(ctx, c, m, out), true
	case mcp.MethodResourcesRead:
		return r.readResource(ctx, c, m, out), true
	default:
		return Reply{}, false
	}
}

func (r *Runner) list(ctx context.Context, c Client, m *jsonrpc.Message, l render.List) Reply {
	page, err := r.Render.ListPage(c.Revision, l, r.Backend.Snapshot(ctx), m.Params.Get("cursor"))
	return Reply{Result: page, Error: err}
}

func (r *Runner) callTool(ctx context.Context, c Client, m *jsonrpc.Message, out exchange.Stream) Reply {
	name, err := mcp.StringParam(m.Params, "name")
	if err != nil {
		return Reply{Error: err}
	}
	arguments, err := mcp.ObjectParam(m.Params, "arguments")
	if err != nil {
		return Reply{Error: err}
	}
	events, err := newEvents(c, m, out)
	if err != nil {
		return Reply{Error: err}
	}
	ctx, stop := r.start(ctx, c, m)
	defer stop()
	outcome := r.Backend.CallTool(ctx, &millracev1.CallToolRequest{
		Context:   c.context(events),
		Name:      name,
		Arguments: arguments,
		Meta:      m.Meta.Raw,
	}, c.Trace, events)
	switch {
	case outcome.Result != nil:
		return Reply{Result: r.Render.ToolResult(c.Revision, outcome.Result)}
	case outcome.NeedsInput != nil:
		return Reply{NeedsInput: outcome.NeedsInput}
	case outcome.Failure != nil:
		return r.failed(c, outcome.Failure)
	default:
		// No client can ask for tasks yet, so a worker has no reason to make
		// one.
		return r.failed(c, &backend.Failure{Kind: backend.Internal})
	}
}

func (r *Runner) readResource(ctx context.Context, c Client, m *jsonrpc.Message, out exchange.Stream) Reply {
	uri, err := mcp.StringParam(m.Params, "uri")
	if err != nil {
		return Reply{Error: err}
	}
	events, err := newEvents(c, m, out)
	if err != nil {
		return Reply{Error: err}
	}
	ctx, stop := r.start(ctx, c, m)
	defer stop()
	outcome := r.Backend.ReadResource(ctx, &millracev1.ReadResourceRequest{
		Context: c.context(events),
		Uri:     uri,
		Meta:    m.Meta.Raw,
	}, c.Trace, events)
	switch {
	case outcome.Result != nil:
		return Reply{Result: r.Render.ResourceResult(c.Revision, outcome.Result)}
	case outcome.NeedsInput != nil:
		return Reply{NeedsInput: outcome.NeedsInput}
	default:
		return r.failed(c, outcome.Failure)
	}
}

// start makes a call cancellable by its client.
func (r *Runner) start(ctx context.Context, c Client, m *jsonrpc.Message) (context.Context, func()) {
	if c.Outlives {
		ctx = context.WithoutCancel(ctx)
	}
	return r.Calls.Start(ctx, c.Scope, m.ID)
}

func (r *Runner) failed(c Client, f *backend.Failure) Reply {
	result, err := r.Render.Failure(c.Revision, f)
	return Reply{Result: result, Error: err, Failure: f}
}

// context is what the worker is told about the caller.
func (c *Client) context(e *events) *millracev1.CallContext {
	cc := &millracev1.CallContext{
		ProtocolVersion:    c.Revision.Date,
		ClientInfo:         c.Info,
		ClientCapabilities: c.Capabilities,
		ClientExtensions:   c.Extensions,
		Scope:              c.Session,
		WantsProgress:      e.token != nil && e.out.Open(),
	}
	if p := c.Principal; p != nil {
		cc.Principal = &millracev1.Principal{Issuer: p.Issuer, Subject: p.Subject, Scopes: p.Scopes}
	}
	return cc
}

// events passes the events of one call on to the client as notifications. It
// is used by one goroutine.
type events struct {
	rev      *mcp.Revision
	token    []byte
	out      exchange.Stream
	outlives bool
}

func newEvents(c Client, m *jsonrpc.Message, out exchange.Stream) (*events, *jsonrpc.Error) {
	token, err := mcp.ProgressToken(m.Meta)
	if err != nil {
		return nil, err
	}
	return &events{c.Revision, token, out, c.Outlives}, nil
}

// Progress sends a progress notification.
func (e *events) Progress(p *millracev1.Progress) error {
	if e.token == nil || !e.out.Open() {
		return nil
	}
	if err := e.out.Send(render.Progress(e.rev, e.token, p)); err != nil && !e.outlives {
		return err
	}
	return nil
}

// Log drops the message: no era declares the logging capability yet.
func (e *events) Log(*millracev1.LogMessage) error { return nil }
