package worker

import (
	"context"
	"encoding/json"
	"math"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// UnknownTotal is the total of [Call.Progress] when it is not known how much
// there is to do.
const UnknownTotal float64 = -1

// Principal is who made a call, as the edge has verified it.
type Principal struct {
	// Issuer and Subject identify the caller together.
	Issuer, Subject string
	// Scopes the caller was granted.
	Scopes []string
}

// Method is what a call asks for, in the words of the protocol.
type Method string

// The methods that reach a worker.
const (
	MethodCallTool     Method = "tools/call"
	MethodReadResource Method = "resources/read"
	MethodGetPrompt    Method = "prompts/get"
	MethodComplete     Method = "completion/complete"
)

// Call is what a handler knows about the call it serves, and how it reports
// back before it returns. Its methods may be called from any goroutine; after
// the handler has returned they do nothing.
type Call struct {
	w    *Worker
	ctx  context.Context
	from *millracev1.CallContext

	method         Method
	name, template string
	args, meta     json.RawMessage
	resume         *millracev1.Resume

	// serve runs the handler with what was registered for it; the end of the
	// chain of middleware calls it.
	serve func(ctx context.Context) error
	// failed: the handler has returned a result with isError.
	failed bool
	// onceOnly: see Tool.OnceOnly.
	onceOnly bool

	// sink takes what is reported; nil where there is no stream.
	sink sink
	// turn holds one token. Who has it may send on the stream and owns last
	// and ended; waiting for it ends with the context of the call.
	turn  chan struct{}
	last  float64
	ended bool

	rounds rounds
}

// sink is the stream of a call.
type sink interface {
	progress(p *millracev1.Progress) error
	log(m *millracev1.LogMessage) error
}

// init fills in what every call has.
func (c *Call) init() *Call {
	c.turn = make(chan struct{}, 1)
	c.turn <- struct{}{}
	c.last = math.Inf(-1)
	return c
}

// Method returns what kind of call it is.
func (c *Call) Method() Method { return c.method }

// Name returns what is called: the name of the tool or prompt, or the URI of
// the resource. For [MethodComplete] it is what the completed argument belongs to,
// the name of a prompt or a URI template.
func (c *Call) Name() string { return c.name }

// URITemplate returns the template the URI of a [MethodReadResource] call matched;
// empty for a listed resource and for other calls. Metrics should use it in
// the place of the URI, of which there is no end.
func (c *Call) URITemplate() string { return c.template }

// Arguments returns the arguments of a tool or prompt, byte for byte as the
// client sent them: before the handler has begun, nothing has checked them.
// Nil when there are none.
func (c *Call) Arguments() json.RawMessage { return c.args }

// Progress tells the client how far the call is: done of total, and a message
// for people, which may be empty. A total below 0 ([UnknownTotal]) says that
// it is not known. It reports nothing when the client did not ask for
// progress, and drops a value that does not exceed the last one, in this round
// or an earlier one (see [Call.Ask]), so a handler may call it as often as it
// likes; a client that reads slowly slows it down.
func (c *Call) Progress(done, total float64, message string) {
	if !c.WantsProgress() || math.IsNaN(done) || math.IsInf(done, 0) || !c.take() {
		return
	}
	defer c.release()
	if done <= c.last {
		return
	}
	c.last = done
	event := &millracev1.Progress{Progress: number(done), Message: message}
	if total >= 0 && !math.IsInf(total, 0) {
		event.Total = number(total)
	}
	bus.SendNow(c.ctx) // somebody waits to see it
	// An error means the call is over; its context says so to the handler.
	_ = c.sink.progress(event)
}

// take waits for the stream. If it reports true, the caller has to release it.
func (c *Call) take() bool {
	if c.sink == nil {
		return false
	}
	select {
	case <-c.turn:
	case <-c.ctx.Done():
		return false
	}
	if c.ended || c.ctx.Err() != nil {
		c.release()
		return false
	}
	return true
}

// end makes all later reports do nothing and waits for one that is being sent:
// the stream belongs to the caller then. It reports false when the call was
// cancelled first; nothing may be sent any more in that case.
func (c *Call) end() bool {
	select {
	case <-c.turn:
		c.ended = true
		c.release()
		return true
	case <-c.ctx.Done():
		return false
	}
}

func (c *Call) release() { c.turn <- struct{}{} }

// WantsProgress reports whether anybody hears what [Call.Progress] says.
func (c *Call) WantsProgress() bool { return c.from.GetWantsProgress() }

// Meta returns the _meta of the request, a JSON object; nil when there is
// none.
func (c *Call) Meta() json.RawMessage { return c.meta }

// Principal returns who made the call; nil means an anonymous caller.
func (c *Call) Principal() *Principal {
	p := c.from.GetPrincipal()
	if p == nil {
		return nil
	}
	return &Principal{Issuer: p.GetIssuer(), Subject: p.GetSubject(), Scopes: p.GetScopes()}
}

// ProtocolVersion returns the MCP revision the call is served under. Tools
// should not depend on it; it is here for logs.
func (c *Call) ProtocolVersion() string { return c.from.GetProtocolVersion() }

// ClientInfo returns what the client says about itself, a JSON object with
// name and version; nil when it said nothing.
func (c *Call) ClientInfo() json.RawMessage { return rawOrNil(c.from.GetClientInfo()) }

// Scope returns an opaque key that is equal for all calls a client makes in
// one conversation, for tools that keep state by it in a store of their own.
// It is empty where the protocol has no such notion.
func (c *Call) Scope() string { return c.from.GetScope() }

func rawOrNil(b []byte) json.RawMessage {
	if len(b) == 0 {
		return nil
	}
	return b
}

// number writes a finite number as JSON.
func number(f float64) []byte {
	data, err := json.Marshal(f)
	if err != nil {
		return []byte("0") // not reached: callers have checked that f is finite
	}
	return data
}
