package worker

import (
	"context"
	"encoding/json"
	"math"
	"sync"

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
	// turn holds one token. Who has it may send on the stream and owns prompt;
	// waiting for it ends with the context of the call.
	turn   chan struct{}
	prompt bool // what is sent leaves at once

	// mu guards what follows; nothing is sent while it is held.
	mu    sync.Mutex
	last  float64 // the newest progress, sent or kept
	ended bool
	// kept waits to be sent, if keeps is set. Who has the turn looks at keeps
	// after giving the turn back, so nobody has to wait for the turn to have a
	// report sent; and where there is no room for it, the bus says when there is.
	kept  report
	keeps bool

	rounds rounds
}

// report is what Progress was told.
type report struct {
	done, total float64
	message     string
}

// encode writes the report as the event of a stream.
func (r report) encode() *millracev1.Progress {
	event := &millracev1.Progress{Progress: number(r.done), Message: validText(r.message)}
	if r.total >= 0 && !math.IsInf(r.total, 0) {
		event.Total = number(r.total)
	}
	return event
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
// likes.
//
// It does not wait for the client, unless the message takes more than 128 KiB.
// While the client reads too slowly to take the report, or another goroutine is
// sending, the report is kept until a newer one replaces it or there is room for
// it. So a slow client sees fewer reports, but always the last one before a pause,
// a log message or the outcome.
func (c *Call) Progress(done, total float64, message string) {
	if !c.WantsProgress() || math.IsNaN(done) || math.IsInf(done, 0) || c.sink == nil || c.ctx.Err() != nil {
		return
	}
	if !c.keep(report{done: done, total: total, message: message}) {
		return
	}
	c.flush()
}

// keep makes r the report that is sent next. It reports false when there is
// nothing new in it, or the call has ended.
func (c *Call) keep(r report) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || r.done <= c.last {
		return false
	}
	c.last, c.kept, c.keeps = r.done, r, true
	return true
}

// sendReady sends the report that is kept, if that needs no waiting. The caller
// has the turn, and sees to the report when it has given that back.
func (c *Call) sendReady() {
	if bus.SendReady(c.ctx) {
		c.sendKept()
	}
}

// flush sends the report that is kept, if nobody else sees to it.
func (c *Call) flush() {
	select {
	case <-c.turn:
		c.sendReady()
		c.release()
	default: // whoever has the turn looks when it gives it back
	}
}

// sendKept sends the report that is kept, if there is one, and waits until that is
// possible. The caller has the turn.
func (c *Call) sendKept() {
	c.mu.Lock()
	r, keeps := c.kept, c.keeps
	c.kept, c.keeps = report{}, false
	c.mu.Unlock()
	if !keeps {
		return
	}
	c.sendNow()
	// An error means the call is over; its context says so to the handler.
	_ = c.sink.progress(r.encode())
}

// sendNow: somebody waits to see what is sent next. The caller has the turn.
func (c *Call) sendNow() {
	if !c.prompt {
		c.prompt = true
		bus.SendNow(c.ctx)
	}
}

// take waits for the stream, and sends the report that is kept, so that what the
// caller sends comes behind it. If it reports true, the caller has to release the
// stream.
func (c *Call) take() bool {
	if c.sink == nil {
		return false
	}
	select {
	case <-c.turn:
	case <-c.ctx.Done():
		return false
	}
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	if ended || c.ctx.Err() != nil {
		c.release()
		return false
	}
	c.sendKept()
	return true
}

// end makes all later reports do nothing, waits for one that is being sent and
// sends the one that is kept: the stream belongs to the caller then. It reports
// false when the call was cancelled first; nothing may be sent any more in that
// case.
func (c *Call) end() bool {
	select {
	case <-c.turn:
		c.mu.Lock()
		c.ended = true
		c.mu.Unlock()
		c.sendKept()
		c.release()
		return true
	case <-c.ctx.Done():
		return false
	}
}

// release gives the stream back, and sees to reports that were made meanwhile.
func (c *Call) release() {
	for {
		c.turn <- struct{}{}
		c.mu.Lock()
		keeps := c.keeps
		c.mu.Unlock()
		if !keeps {
			return
		}
		if !bus.SendReady(c.ctx) {
			bus.OnSendReady(c.ctx, c.flush)
			return
		}
		select {
		case <-c.turn:
			c.sendReady()
		default: // whoever has it now does the same
			return
		}
	}
}

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
