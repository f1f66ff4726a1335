// Package exchange is what the transports (HTTP, stdio) and the eras of the
// protocol agree on: one message from a client, the stream for what precedes
// its answer, and the answer. Neither side knows the other.
package exchange

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// Request is one message of a client: a request, a notification or a response.
type Request struct {
	// Message is the decoded message; its slices alias the received bytes.
	Message jsonrpc.Message
	// Header holds the HTTP headers; nil where there is a Peer.
	Header http.Header
	// Peer is the connection; nil on Streamable HTTP, which has none.
	Peer *Peer
	// Handshake is what initialize had settled on the connection when the
	// message came; nil before it, and without a Peer. A later one is not for it.
	Handshake *Handshake
	// Principal is the authenticated caller; nil when there is none.
	Principal *Principal
	// Revision is set by the era that serves the message once it knows under
	// which one that is, for who observes the exchange.
	Revision *mcp.Revision
}

// Principal is who calls, as the transport has verified it.
type Principal struct {
	Issuer, Subject string
	Scopes          []string
}

// Answer is the last word on a message.
type Answer struct {
	// Status is the HTTP status; 0 means 200, or 202 without a body.
	Status int
	// SessionID is set as Mcp-Session-Id when not empty.
	SessionID string
	// RetryAfter is set as Retry-After, rounded up to seconds, when positive.
	RetryAfter time.Duration
	// Body is the JSON-RPC response; nil when there is none.
	Body jsonrpc.Pieces
	// Code is the code of the error in Body; 0 when there is none.
	Code int
	// Withheld: the client has cancelled the request and expects no answer.
	// Body is sent only where the transport must say something.
	Withheld bool
	// EventID is the place of Body in the stream, where it is sent as an event.
	EventID string
	// Left: the connection ends here and the call goes on, so the bytes of the
	// request are still in use.
	Left bool
}

// Stream takes the notifications that precede an answer.
type Stream interface {
	// Send passes a message on. Where the client takes no stream the message
	// is dropped; that is no error. An error means that the client is gone or
	// does not read; nothing sent later will arrive.
	Send(msg []byte) error
	// Open reports whether Send reaches the client.
	Open() bool
	// Begin starts the stream without a message, for a client that has to see
	// that it is there. Where the client takes no stream it does nothing.
	Begin() error
}

// Era serves one way of speaking the protocol.
type Era interface {
	// Claims reports whether the message is of this era. It must be cheap:
	// the door asks for every message.
	Claims(req *Request) bool
	// Serve handles one message. The context ends when the client goes away;
	// whether that ends the call is the era's decision. Messages may be
	// served concurrently.
	Serve(ctx context.Context, req *Request, out Stream) Answer
}

// Listener is an era that sends messages which belong to no request: those that
// legacy clients get on a GET stream, or at any time on stdio.
type Listener interface {
	// Listen sends until ctx ends, and says why when it does not begin.
	Listen(ctx context.Context, req *Request, out Stream) Answer
}

// Batcher is an era some of whose revisions have batches.
type Batcher interface {
	// RevisionOf returns the revision of a request without a message, or why
	// the request is refused whatever it holds.
	RevisionOf(ctx context.Context, req *Request) (rev *mcp.Revision, refusal *Answer)
}

// Ender is an era whose sessions a client can end.
type Ender interface {
	// End ends the session of a request.
	End(ctx context.Context, req *Request) Answer
}

// Peer is one connection whose messages all come and go by it: stdio, or
// HTTP+SSE. It is safe for concurrent use.
type Peer struct {
	// Scope names the connection; it is unique and unguessable.
	Scope string
	// Revision is the one before the handshake; nil: the one that is assumed on
	// other transports.
	Revision *mcp.Revision

	handshake atomic.Pointer[Handshake]

	mu   sync.Mutex
	kept any
}

// Keep changes what the era that serves the connection keeps with it: change is
// given what is kept, nil at first, and returns what takes its place. Changes of
// one connection come one after another.
func (p *Peer) Keep(change func(kept any) any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = change(p.kept)
}

// Handshake is what initialize settled on a connection.
type Handshake struct {
	Revision *mcp.Revision
	// ClientInfo and Capabilities are JSON objects, nil when not given.
	ClientInfo, Capabilities []byte
}

// Handshake returns what initialize settled, or nil before it.
func (p *Peer) Handshake() *Handshake { return p.handshake.Load() }

// SetHandshake records what initialize settled; a later one replaces it.
func (p *Peer) SetHandshake(h *Handshake) { p.handshake.Store(h) }

// ErrCancelled is the cause of a call that its client took back with
// notifications/cancelled.
var ErrCancelled = errors.New("exchange: cancelled by the client")

// Calls knows the running calls of clients, so that a cancellation finds
// them. The client's ids are only ever compared inside one scope (a session or
// a connection), and a repeated id never displaces the earlier call. The zero
// value is ready; it is safe for concurrent use.
type Calls struct {
	mu      sync.Mutex
	running map[callKey]*entry // the one that began last; the rest by next
}

type callKey struct{ scope, id string }

type entry struct {
	cancel context.CancelCauseFunc
	next   *entry // an earlier call with the same id that still runs
}

// Start registers a call. The returned context is cancelled with
// ErrCancelled when Cancel names the call; stop must be called when the call has ended. Without a
// scope there is nobody who could name the call and it is not registered.
func (c *Calls) Start(ctx context.Context, scope string, id []byte) (_ context.Context, stop func()) {
	if scope == "" {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	key, e := callKey{scope, string(id)}, &entry{cancel: cancel}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running = map[callKey]*entry{}
	}
	e.next = c.running[key]
	c.running[key] = e
	return ctx, func() {
		c.remove(key, e)
		cancel(nil)
	}
}

// remove forgets a call that has ended.
func (c *Calls) remove(key callKey, e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.running[key]
	if first != e {
		for ; first != nil; first = first.next {
			if first.next == e {
				first.next = e.next
			}
		}
		return
	}
	if e.next == nil {
		delete(c.running, key)
		return
	}
	c.running[key] = e.next
}

// cancelAll cancels a call and those behind it, and returns how many there
// were.
func (e *entry) cancelAll() (n int) {
	for ; e != nil; e = e.next {
		e.cancel(ErrCancelled)
		n++
	}
	return n
}

// Cancel cancels the calls of a scope that carry the id and returns how many
// there were.
func (c *Calls) Cancel(scope string, id []byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running[callKey{scope, string(id)}].cancelAll()
}

// CancelAll cancels all calls of a scope and returns how many there were.
func (c *Calls) CancelAll(scope string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for key, calls := range c.running {
		if key.scope == scope {
			n += calls.cancelAll()
		}
	}
	return n
}

// Len returns the number of running calls that are registered.
func (c *Calls) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, e := range c.running {
		for ; e != nil; e = e.next {
			n++
		}
	}
	return n
}

// Succeeded is the answer with a result. It keeps the pieces of a large one.
func Succeeded(id []byte, result jsonrpc.Pieces) Answer {
	return Answer{Body: jsonrpc.ResultPieces(id, result)}
}

// Failed is the answer with an error, under HTTP status 200.
func Failed(id []byte, err *jsonrpc.Error) Answer {
	return Answer{Code: err.Code, Body: jsonrpc.Whole(jsonrpc.AppendError(nil, id, err))}
}

// Refused is the answer to a message that is not served at all. Without an id
// it says "id":null, as JSON-RPC 2.0 has it, or nothing about it, as the
// schemas of the revisions do where the id of an error is optional.
func Refused(rev *mcp.Revision, status int, id []byte, err *jsonrpc.Error) Answer {
	if id == nil && !rev.NullErrorID {
		return Answer{Status: status, Code: err.Code, Body: jsonrpc.Whole(jsonrpc.AppendErrorWithoutID(nil, err))}
	}
	return Answer{Status: status, Code: err.Code, Body: jsonrpc.Whole(jsonrpc.AppendError(nil, id, err))}
}
