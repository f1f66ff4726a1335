// Package methods runs the methods that every revision has: the lists,
// tools/call, resources/read, prompts/get and completion/complete. The eras
// differ in what surrounds them (the handshake or per-request metadata,
// sessions, HTTP statuses, how input is asked for, what a closed connection
// means), and that is theirs.
package methods

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc"

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
	// LogLevel is the least severe level the client wants; empty: no logs.
	LogLevel string
	// Info, Capabilities and Extensions are JSON objects; nil when unknown.
	Info, Capabilities, Extensions []byte
	Principal                      *exchange.Principal
	Trace                          backend.Trace
}

// Caller is a principal as workers and the catalog know it; nil when there is
// none.
func Caller(p *exchange.Principal) *millracev1.Principal {
	if p == nil {
		return nil
	}
	return &millracev1.Principal{Issuer: p.Issuer, Subject: p.Subject, Scopes: p.Scopes}
}

// owner names a principal in what is good for it alone; empty when there is
// none. The quotes keep issuer and subject apart.
func owner(p *exchange.Principal) string {
	if p == nil {
		return ""
	}
	return strconv.Quote(p.Issuer) + strconv.Quote(p.Subject)
}

// Trace is the trace context of a request. That of the message comes before
// that of the HTTP request, which only names the way here.
func Trace(req *exchange.Request) backend.Trace {
	get := func(key string) string {
		if s, ok := jsonrpc.String(req.Message.Meta.Get(key)); ok {
			return s
		}
		return req.Header.Get(key)
	}
	return backend.Trace{Parent: get(mcp.MetaTraceParent), State: get(mcp.MetaTraceState), Baggage: get(mcp.MetaBaggage)}
}

// Round is a further round of a request that needed input.
type Round struct {
	// Resume carries the answers and the worker's state.
	Resume *millracev1.Resume
	// Instance must serve the round; empty: any.
	Instance string
	// Carrier is backend.Options.Carrier.
	Carrier func() []grpc.CallOption
}

// Reply is how a method ended: exactly one of Result, Error and NeedsInput is
// set.
type Reply struct {
	Result     jsonrpc.Pieces
	Error      *jsonrpc.Error
	NeedsInput *millracev1.NeedsInput
	// Failure is the reason behind an Error or Result that says a call failed.
	Failure *backend.Failure
}

// Start makes a request cancellable by its client and, where it outlives the
// client, independent of ctx. stop must be called when the request has ended.
func (r *Runner) Start(ctx context.Context, c *Client, m *jsonrpc.Message) (_ context.Context, stop func()) {
	if c.Outlives {
		ctx = context.WithoutCancel(ctx)
	}
	return r.Calls.Start(ctx, c.Scope, m.ID)
}

// Run runs the method of a request; ok is false when it is none of those this
// package has. The call ends when ctx does. round is nil in the first round.
func (r *Runner) Run(ctx context.Context, c *Client, m *jsonrpc.Message, out exchange.Stream, round *Round) (reply Reply, ok bool) {
	if round == nil {
		round = &Round{}
	}
	req := request{Runner: r, client: c, m: m, out: out, round: round}
	switch m.Method {
	case mcp.MethodToolsList:
		return req.list(ctx, render.Tools), true
	case mcp.MethodResourcesList:
		return req.list(ctx, render.Resources), true
	case mcp.MethodResourceTemplatesList:
		return req.list(ctx, render.ResourceTemplates), true
	case mcp.MethodPromptsList:
		return req.list(ctx, render.Prompts), true
	case mcp.MethodToolsCall:
		return req.callTool(ctx), true
	case mcp.MethodResourcesRead:
		return req.readResource(ctx), true
	case mcp.MethodPromptsGet:
		return req.getPrompt(ctx), true
	case mcp.MethodComplete:
		return req.complete(ctx), true
	default:
		return Reply{}, false
	}
}

// Replay writes what a worker has sent for a request that was called elsewhere,
// until the outcome of its round: the reply is the one the request would have
// got there. ok is false when the request's method has no events.
func (r *Runner) Replay(ctx context.Context, c *Client, m *jsonrpc.Message, out exchange.Stream, source backend.Source) (reply Reply, ok bool) {
	req := request{Runner: r, client: c, m: m, out: out, round: &Round{}, source: source}
	switch m.Method {
	case mcp.MethodToolsCall:
		return req.callTool(ctx), true
	case mcp.MethodResourcesRead:
		return req.readResource(ctx), true
	case mcp.MethodPromptsGet:
		return req.getPrompt(ctx), true
	default:
		return Reply{}, false
	}
}

// Pool returns the pool whose instances serve a request of Replay; "" if that is
// unknown.
func (r *Runner) Pool(ctx context.Context, c *Client, m *jsonrpc.Message) string {
	s := r.Backend.Snapshot(ctx, Caller(c.Principal))
	pool := ""
	switch m.Method {
	case mcp.MethodToolsCall:
		if name, err := mcp.StringParam(m.Params, "name"); err == nil {
			if tool, ok := s.Tool(name); ok {
				pool = tool.Pool
			}
		}
	case mcp.MethodResourcesRead:
		if uri, err := mcp.StringParam(m.Params, "uri"); err == nil {
			pool, _, _ = s.Resource(uri)
		}
	case mcp.MethodPromptsGet:
		if name, err := mcp.StringParam(m.Params, "name"); err == nil {
			if prompt, ok := s.Prompt(name); ok {
				pool = prompt.Pool
			}
		}
	}
	return pool
}

// Failed is the reply to a request that ended in a failure.
func (r *Runner) Failed(c *Client, m *jsonrpc.Message, f *backend.Failure) Reply {
	result, err := r.Render.Failure(c.Revision, m.Method == mcp.MethodToolsCall, f)
	return Reply{Result: result, Error: err, Failure: f}
}

// request is one round of one request.
type request struct {
	*Runner
	client *Client
	m      *jsonrpc.Message
	out    exchange.Stream
	round  *Round
	// source, when set, has what a worker has sent: nothing is called.
	source backend.Source
}

func (r *request) list(ctx context.Context, l render.List) Reply {
	s := r.Backend.Snapshot(ctx, Caller(r.client.Principal))
	page, err := r.Render.ListPage(r.client.Revision, l, s, owner(r.client.Principal), r.m.Params.Get("cursor"))
	if err != nil {
		return Reply{Error: err}
	}
	return Reply{Result: jsonrpc.Whole(page)}
}

func (r *request) callTool(ctx context.Context) Reply {
	name, arguments, err := r.nameAndArguments()
	if err != nil {
		return Reply{Error: err}
	}
	return withOptions(r, func(cc *millracev1.CallContext, o backend.Options) Reply {
		var outcome backend.Outcome[*millracev1.ToolResult]
		if r.source != nil {
			outcome = r.Backend.ReplayTool(ctx, name, r.source, o)
		} else {
			outcome = r.Backend.CallTool(ctx, &millracev1.CallToolRequest{
				Context: cc, Name: name, Arguments: arguments, Meta: r.m.Meta.Raw, Resume: r.round.Resume,
			}, o)
		}
		return reply(r, outcome, func(res *millracev1.ToolResult) jsonrpc.Pieces { return r.Render.ToolResult(r.client.Revision, res) })
	})
}

func (r *request) readResource(ctx context.Context) Reply {
	uri, err := mcp.StringParam(r.m.Params, "uri")
	if err != nil {
		return Reply{Error: err}
	}
	return withOptions(r, func(cc *millracev1.CallContext, o backend.Options) Reply {
		var outcome backend.Outcome[*millracev1.ResourceResult]
		if r.source != nil {
			outcome = r.Backend.ReplayResource(ctx, uri, r.source, o)
		} else {
			outcome = r.Backend.ReadResource(ctx, &millracev1.ReadResourceRequest{
				Context: cc, Uri: uri, Meta: r.m.Meta.Raw, Resume: r.round.Resume,
			}, o)
		}
		return reply(r, outcome, func(res *millracev1.ResourceResult) jsonrpc.Pieces {
			if r.round.Resume != nil {
				// It depends on answers that are no part of a cache's key
				// (server/utilities/caching, "Cache Key").
				res.TtlMs, res.Public = 0, false
			}
			if r.client.Principal != nil {
				// A shared cache would serve it to callers nobody has checked.
				res.Public = false
			}
			return r.Render.ResourceResult(r.client.Revision, res)
		})
	})
}

func (r *request) getPrompt(ctx context.Context) Reply {
	name, arguments, err := r.nameAndArguments()
	if err != nil {
		return Reply{Error: err}
	}
	return withOptions(r, func(cc *millracev1.CallContext, o backend.Options) Reply {
		var outcome backend.Outcome[*millracev1.PromptResult]
		if r.source != nil {
			outcome = r.Backend.ReplayPrompt(ctx, name, r.source, o)
		} else {
			outcome = r.Backend.GetPrompt(ctx, &millracev1.GetPromptRequest{
				Context: cc, Name: name, Arguments: arguments, Meta: r.m.Meta.Raw, Resume: r.round.Resume,
			}, o)
		}
		return reply(r, outcome, func(res *millracev1.PromptResult) jsonrpc.Pieces {
			return r.Render.PromptResult(r.client.Revision, res)
		})
	})
}

func (r *request) complete(ctx context.Context) Reply {
	ref, err := mcp.ParseCompletion(r.m.Params)
	if err != nil {
		return Reply{Error: err}
	}
	return withOptions(r, func(cc *millracev1.CallContext, o backend.Options) Reply {
		req := &millracev1.CompleteRequest{Context: cc, Argument: ref.Argument, Value: ref.Value, Known: ref.Known}
		if ref.Prompt {
			req.Reference = &millracev1.CompleteRequest_Prompt{Prompt: ref.Name}
		} else {
			req.Reference = &millracev1.CompleteRequest_UriTemplate{UriTemplate: ref.Name}
		}
		resp, failure := r.Backend.Complete(ctx, req, o)
		if failure != nil {
			return r.Failed(r.client, r.m, failure)
		}
		return Reply{Result: jsonrpc.Whole(r.Render.Completion(r.client.Revision, resp))}
	})
}

func (r *request) nameAndArguments() (name string, arguments []byte, err *jsonrpc.Error) {
	if name, err = mcp.StringParam(r.m.Params, "name"); err != nil {
		return "", nil, err
	}
	arguments, err = mcp.ObjectParam(r.m.Params, "arguments")
	return name, arguments, err
}

// withOptions prepares what every call to a worker needs.
func withOptions(r *request, call func(*millracev1.CallContext, backend.Options) Reply) Reply {
	token, err := mcp.ProgressToken(r.m.Meta)
	if err != nil {
		return Reply{Error: err}
	}
	c := r.client
	cc := &millracev1.CallContext{
		ProtocolVersion:    c.Revision.Date,
		ClientInfo:         c.Info,
		ClientCapabilities: c.Capabilities,
		ClientExtensions:   c.Extensions,
		Scope:              c.Session,
		Principal:          Caller(c.Principal),
		WantsProgress:      token != nil && r.out.Open(),
	}
	if r.out.Open() {
		cc.LogLevel = c.LogLevel
	}
	return call(cc, backend.Options{
		Trace:    c.Trace,
		Instance: r.round.Instance,
		Events:   &events{client: c, token: token, out: r.out},
		Carrier:  r.round.Carrier,
	})
}

// reply turns the outcome of a call into a reply.
func reply[R comparable](r *request, o backend.Outcome[R], result func(R) jsonrpc.Pieces) Reply {
	var none R
	switch {
	case o.Result != none:
		return Reply{Result: result(o.Result)}
	case o.NeedsInput != nil:
		return Reply{NeedsInput: o.NeedsInput}
	case o.Failure != nil && o.Failure.Kind == backend.URLRequired:
		return r.urlRequired(o.Failure)
	case o.Failure != nil:
		return r.Failed(r.client, r.m, o.Failure)
	default:
		// No client can ask for tasks yet, so a worker has no reason to make
		// one.
		return r.Failed(r.client, r.m, &backend.Failure{Kind: backend.Internal})
	}
}

// events passes the events of one call on to the client as notifications. It
// is used by one goroutine.
type events struct {
	client *Client
	token  []byte
	out    exchange.Stream
}

// Progress sends a progress notification.
func (e *events) Progress(p *millracev1.Progress) error {
	if e.token == nil {
		return nil
	}
	return e.send(render.Progress(e.client.Revision, e.token, p))
}

// Log sends a log message. The worker leaves out what is below the level; here
// it only matters that a client that wants none gets none.
func (e *events) Log(l *millracev1.LogMessage) error {
	if e.client.LogLevel == "" {
		return nil
	}
	return e.send(render.LogMessage(l))
}

// Close ends the connection of a client that can come back.
func (e *events) Close(c *millracev1.CloseStream) {
	if l, ok := e.out.(exchange.Leaver); ok {
		l.Leave(time.Duration(c.GetRetryMs()) * time.Millisecond)
	}
}

func (e *events) send(msg []byte) error {
	if err := e.out.Send(msg); err != nil && !e.client.Outlives {
		return err
	}
	return nil
}
