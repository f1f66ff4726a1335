package worker

import (
	"context"
	"encoding/json"
	"math"

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

// Call is what a handler knows about the call it serves, and how it reports
// back before it returns. Its methods may be called from any goroutine; after
// the handler has returned they do nothing.
type Call struct {
	ctx  context.Context
	from *millracev1.CallContext
	meta json.RawMessage
	send func(*millracev1.Progress) error

	// turn holds one token. Who has it may send on the stream and owns last
	// and ended; waiting for it ends with the context of the call.
	turn  chan struct{}
	last  float64
	ended bool
}

func newCall(ctx context.Context, from *millracev1.CallContext, meta []byte, send func(*millracev1.Progress) error) *Call {
	c := &Call{ctx: ctx, from: from, meta: rawOrNil(meta), send: send, turn: make(chan struct{}, 1), last: math.Inf(-1)}
	c.turn <- struct{}{}
	return c
}

// Progress tells the client how far the call is: done of total, and a message
// for people, which may be empty. A total below 0 ([UnknownTotal]) says that
// it is not known. It reports nothing when the client did not ask for
// progress, and drops a value that does not exceed the last one, so a handler
// may call it as often as it likes; a client that reads slowly slows it down.
func (c *Call) Progress(done, total float64, message string) {
	if !c.WantsProgress() || math.IsNaN(done) || math.IsInf(done, 0) {
		return
	}
	select {
	case <-c.turn:
	case <-c.ctx.Done():
		return
	}
	defer c.release()
	if c.ended || done <= c.last || c.ctx.Err() != nil {
		return
	}
	c.last = done
	event := &millracev1.Progress{Progress: number(done), Message: message}
	if total >= 0 && !math.IsInf(total, 0) {
		event.Total = number(total)
	}
	// An error means the call is over; its context says so to the handler.
	_ = c.send(event)
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
