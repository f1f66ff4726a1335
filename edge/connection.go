package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// connection is one client whose messages come one after another and whose
// answers all go back on one channel: stdio, and HTTP+SSE. Requests run side by
// side and are answered as they finish. The fields above running are set
// before it is used.
type connection struct {
	edge *Edge
	peer *exchange.Peer
	// write writes one message. It is called by many goroutines, and its error
	// means that no later one will be read.
	write func(msg jsonrpc.Pieces) error
	// awaitRead returns when the client has read the notifications of a call,
	// the last of which was written at the given time, or soon.
	awaitRead func(last time.Time)
	// handshake: only the revisions that have one are spoken.
	handshake bool
	// limit is the most requests that run at a time; 0: any number.
	limit int64

	running sync.WaitGroup
	// requests is how many run. Only accept adds to it.
	requests atomic.Int64
}

// packet is what a client sent, decoded once.
type packet struct {
	raw       []byte
	principal *exchange.Principal
	batch     bool
	// msg is the message of a packet that is no batch; err says why it is none.
	msg jsonrpc.Message
	err *jsonrpc.Error
}

// decode decodes what a client sent. The packet keeps raw.
func (e *Edge) decode(raw []byte, principal *exchange.Principal) packet {
	p := packet{raw: raw, principal: principal}
	if p.batch = jsonrpc.IsBatch(raw); !p.batch {
		p.msg, p.err = jsonrpc.Decode(raw, e.cfg.Limits)
	}
	return p
}

// accept starts serving one packet; it is called by one goroutine, in the order
// in which packets came. What settles how later ones are read runs before it
// returns: the handshake, cancellations and other notifications.
func (c *connection) accept(ctx context.Context, p packet) {
	settled := c.peer.Handshake()
	call := &connectionCall{connection: c}
	req := &exchange.Request{Message: p.msg, Peer: c.peer, Handshake: settled, Principal: p.principal}
	serve := func(ctx context.Context) {
		defer call.lease.release()
		ctx = call.lease.with(ctx)
		answer := exchange.Guard(c.edge.cfg.Logger, p.msg.ID, func() exchange.Answer { return c.serve(ctx, req, call) })
		if p.msg.Kind() == jsonrpc.Request { // nothing else is ever answered
			call.answer(answer)
		}
	}
	switch {
	case p.batch: // runs beside others, as requests do
	case p.err != nil:
		if isNotification(&p.msg, p.err) {
			return
		}
		call.answer(exchange.Refused(c.revision(settled), 0, p.err.ID, p.err))
		return
	case p.msg.Kind() != jsonrpc.Request || p.msg.Method == mcp.MethodInitialize:
		serve(ctx)
		return
	}
	if c.limit > 0 && c.requests.Load() >= c.limit {
		call.answer(exchange.Refused(c.revision(settled), 0, p.msg.ID, &jsonrpc.Error{
			Code:    jsonrpc.CodeInternal,
			Message: fmt.Sprintf("%d requests of this connection are running, which is the limit: try again when some are answered", c.limit),
			Data:    json.RawMessage(`{"reason":"overloaded","retryAfterMs":1000}`),
		}))
		return
	}
	c.requests.Add(1)
	// A cancellation may be the very next packet, so calls are known before that
	// is read.
	stop := func() {}
	if p.batch {
		ctx = call.lease.with(ctx)
		started, err := c.edge.startBatch(ctx, c.peer.Scope, p.raw)
		serve = func(ctx context.Context) {
			defer call.lease.release()
			call.answer(c.edge.serveBatch(ctx, *req, started, err, call))
		}
	} else {
		ctx, stop = c.edge.calls.Start(ctx, c.peer.Scope, p.msg.ID)
	}
	c.running.Go(func() {
		defer c.requests.Add(-1)
		defer stop()
		serve(ctx)
	})
}

// revision is the one that errors to what is no message are written in.
func (c *connection) revision(settled *exchange.Handshake) *mcp.Revision {
	switch {
	case settled != nil:
		return settled.Revision
	case c.peer.Revision != nil:
		return c.peer.Revision
	default:
		return mcp.Modern() // which has no handshake
	}
}

// serve passes a message to its era.
func (c *connection) serve(ctx context.Context, req *exchange.Request, out exchange.Stream) exchange.Answer {
	if !c.handshake || !c.edge.modern.Claims(req) {
		return c.edge.serve(ctx, req, out)
	}
	if req.Message.Kind() != jsonrpc.Request {
		return exchange.Answer{}
	}
	// The code is none of the modern era's own, which would say that more of
	// that era is to be had here: a client that speaks both goes back to the
	// handshake (specification 2026-07-28, versioning, "Backward
	// Compatibility").
	return exchange.Refused(mcp.Modern(), 0, req.Message.ID, &jsonrpc.Error{
		Code:    jsonrpc.CodeInvalidRequest,
		Message: "revision " + mcp.Modern().Date + " is not spoken on this transport: send it to /mcp, or begin here with initialize",
	})
}

// listen sends what belongs to no request, beside the answers, until stop is
// called, which waits.
func (c *connection) listen(ctx context.Context, principal *exchange.Principal) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	for _, era := range c.edge.eras {
		if l, ok := era.(exchange.Listener); ok {
			listening.Go(func() { l.Listen(ctx, &exchange.Request{Peer: c.peer, Principal: principal}, c) })
		}
	}
	return func() {
		cancel()
		listening.Wait()
	}
}

// Open is always true: a message can be written at any time.
func (c *connection) Open() bool { return true }

// Begin does nothing: the channel is there from the start.
func (c *connection) Begin() error { return nil }

// Send writes a notification.
func (c *connection) Send(msg []byte) error { return c.write(jsonrpc.Whole(msg)) }

// connectionCall is the connection as one message sees it.
type connectionCall struct {
	*connection
	lease lease
	// notified is when a notification was last written for this message; nil:
	// never. Of a batch, whose messages run side by side, for any of them.
	notified atomic.Pointer[time.Time]
	// observed is told of what is sent; nil: nobody is.
	observed Observation
}

// observe has what is sent told to o. It is called before anything is sent.
func (c *connectionCall) observe(o Observation) { c.observed = o }

// Send writes a notification.
func (c *connectionCall) Send(msg []byte) error {
	err := c.connection.Send(msg)
	c.notified.Store(new(time.Now()))
	if c.observed != nil {
		c.observed.Event()
	}
	return err
}

// answer writes an answer, if there is one. A failed write has ended the
// connection, which is all that can be done about it here.
//
// Clients exist that take the answer out of what they have read at once before
// the progress that stands in front of it, and then drop the progress. So an
// answer waits a moment until they have read what is there.
func (c *connectionCall) answer(a exchange.Answer) {
	if a.Body == nil || a.Withheld {
		return
	}
	if last := c.notified.Load(); last != nil && c.awaitRead != nil {
		c.awaitRead(*last)
	}
	_ = c.write(a.Body)
}
