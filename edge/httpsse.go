package edge

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/methods"
	"github.com/millrace/millrace/edge/sse"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// The transport of 2024-11-05 ("HTTP with SSE"), for clients that have no other
// one. A GET of /sse is the connection; its first event says where to POST
// messages, and everything else the server has to say is a further event. A
// POST reaches any edge, and goes from there to the one that holds the stream.

const (
	// streamMethods and messageMethods are the methods of the two paths.
	streamMethods  = http.MethodGet
	messageMethods = http.MethodPost
	// maxStreamRequests is how many requests of one connection run at a time.
	// Their POSTs have been answered, so nothing else would bound them.
	maxStreamRequests = 256
	// readPause is how long after the last progress of a call its answer comes,
	// so that a client reads them apart. Whether it has read is not to be seen
	// through a network.
	readPause = 20 * time.Millisecond
)

// poster reaches the other edges.
type poster interface {
	// Post passes a message on to the edge that holds its connection and
	// reports whether the connection is open. An error means that the edge was
	// not reached.
	Post(ctx context.Context, edge string, req *millracev1.PostRequest) (known bool, err error)
}

// serveSSE serves GET /sse: a connection from its begin to its end.
func (e *Edge) serveSSE(w http.ResponseWriter, r *http.Request) {
	principal, ok := e.admit(w, r, streamMethods)
	switch {
	case !ok:
		return
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", streamMethods)
		e.reject(w, r, http.StatusMethodNotAllowed, "method "+r.Method+" is not served here: open the stream of HTTP+SSE by GET, or send messages to /mcp")
		return
	case !parseAccept(r.Header).stream:
		e.reject(w, r, http.StatusNotAcceptable, "this is a stream: accept text/event-stream")
		return
	case e.draining.Err() != nil:
		w.Header().Set("Retry-After", "1")
		e.reject(w, r, http.StatusServiceUnavailable, "the server is stopping: connect again")
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	cfg := e.sseConfig()
	cfg.OnError = func(err error) {
		e.cutOff(err)
		cancel(err) // who does not read is cut off
	}
	out := sse.NewWriter(w, cfg)
	defer func() { _ = out.Close() }() // the client has gone or is sent away
	e.open.Add(1)
	defer e.open.Add(-1)

	s := &stream{principal: principal, inbox: make(chan packet), ended: make(chan struct{})}
	s.connection = connection{
		edge: e, peer: &exchange.Peer{Scope: rand.Text(), Revision: mcp.Oldest()},
		handshake: true, limit: maxStreamRequests,
		awaitRead: func(last time.Time) { time.Sleep(readPause - time.Since(last)) },
		write:     func(msg jsonrpc.Pieces) error { return writeEvent(out, sse.Event{Name: "message"}, msg) },
	}
	e.streams.add(s)
	// Relative, so that it is right under whatever name, scheme and path the
	// client has reached the edge.
	endpoint := "messages?s=" + e.sealStream(e.client.ID(), s.peer.Scope, principal)
	_ = out.Event(sse.Event{Name: "endpoint", Data: []byte(endpoint)}) // an error ends ctx
	s.run(ctx)
	e.streams.remove(s)
	cancel(nil) // there is no way back to this connection, so its calls end
	s.running.Wait()
}

// stream is one connection of HTTP+SSE.
type stream struct {
	connection

	principal *exchange.Principal
	// inbox is unbuffered: a POST waits until the packet before its own is
	// taken, which a client that does not read can delay. Many send on it, so
	// it is never closed; ended is, by run.
	inbox chan packet
	ended chan struct{}
}

// run serves what is posted, in its order, until ctx ends. When the edge is
// drained it ends as soon as no request runs: its client has no way back to an
// answer.
func (s *stream) run(ctx context.Context) {
	stop := s.listen(ctx, s.principal)
	defer stop()
	defer close(s.ended) // first: nobody is to wait for what stop waits for
	draining := s.edge.draining.Done()
	var idle chan struct{} // nil before the edge is drained; closed when no request runs then
	for {
		select {
		case p := <-s.inbox:
			if idle != nil && p.begins() {
				s.refuse(p)
				continue
			}
			s.accept(ctx, p)
		case <-draining:
			draining, idle = nil, make(chan struct{})
			go func() {
				// No request begins any more, and serveSSE waits for those that run.
				s.running.Wait()
				close(idle)
			}()
		case <-idle:
			return
		case <-ctx.Done():
			return
		}
	}
}

// begins reports whether a packet holds a request, or may hold some.
func (p *packet) begins() bool {
	return p.batch || p.err == nil && p.msg.Kind() == jsonrpc.Request
}

// refuse answers a packet that comes too late. To the requests of a batch, one
// answer without an id says so.
func (s *stream) refuse(p packet) {
	call := &connectionCall{connection: &s.connection}
	call.answer(exchange.Refused(s.revision(s.peer.Handshake()), 0, p.msg.ID, &jsonrpc.Error{
		Code: jsonrpc.CodeInternal, Message: "the server is stopping: connect again; nothing was executed",
		Data: json.RawMessage(`{"reason":"draining"}`),
	}))
}

// post hands a packet over and reports whether the connection took it. The
// error is that of ctx.
func (s *stream) post(ctx context.Context, p packet) (taken bool, err error) {
	select {
	case s.inbox <- p:
		return true, nil
	case <-s.ended:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// streams are the open connections of this edge. The zero value is ready; it is
// safe for concurrent use.
type streams struct {
	mu      sync.Mutex
	byScope map[string]*stream
}

func (o *streams) add(s *stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byScope == nil {
		o.byScope = map[string]*stream{}
	}
	o.byScope[s.peer.Scope] = s
}

func (o *streams) remove(s *stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.byScope, s.peer.Scope)
}

// find returns the connection of that name, if it is the caller's.
func (o *streams) find(scope string, p *exchange.Principal) *stream {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.byScope[scope]; s != nil && bytes.Equal(ownerOf(s.principal), ownerOf(p)) {
		return s
	}
	return nil
}

// serveMessages serves POST /messages: one message for a connection, which is
// answered there.
func (e *Edge) serveMessages(w http.ResponseWriter, r *http.Request) {
	principal, ok := e.admit(w, r, messageMethods)
	if !ok {
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", messageMethods)
		e.reject(w, r, http.StatusMethodNotAllowed, "method "+r.Method+" is not served here: send a JSON-RPC message by POST")
		return
	}
	holder, scope, err := e.openStream(r.URL.Query().Get("s"), principal)
	if err != nil {
		e.rejectStream(w, r)
		return
	}
	if !e.acceptContent(w, r) {
		return
	}
	body, ok := e.readBody(w, r)
	if !ok {
		return
	}
	// The message outlives this request.
	p := e.decode(bytes.Clone(body.Bytes()), principal)
	e.bodies.put(body)
	if p.batch {
		_, p.err = jsonrpc.DecodeBatch(p.raw, e.cfg.Limits)
	}
	malformed := p.err
	if malformed != nil && (p.batch || malformed.ID == nil) {
		if isNotification(&p.msg, malformed) {
			w.WriteHeader(http.StatusAccepted) // and nothing comes of it
			return
		}
		// Nobody waits on the stream for an answer to it.
		e.rejectMessage(w, r, malformed)
		return
	}
	switch known, err := e.pass(r.Context(), holder, scope, p); {
	case err != nil:
		w.Header().Set("Retry-After", "1")
		e.reject(w, r, http.StatusServiceUnavailable, "the connection takes no messages at the moment, or is not known to have taken this one: read what it sends")
	case !known:
		e.rejectStream(w, r)
	case malformed != nil:
		// The stream has the error too: clients exist that look for answers
		// nowhere else.
		e.rejectMessage(w, r, malformed)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// rejectStream answers a POST to a connection that is not there: forged, ended,
// somebody else's or that of an edge which has gone, all alike.
func (e *Edge) rejectStream(w http.ResponseWriter, r *http.Request) {
	e.reject(w, r, http.StatusNotFound, "connection not found: GET /sse opens one, and its first event says where to send messages")
}

// pass hands a packet to its connection, on whichever edge that is, and reports
// whether it is open.
func (e *Edge) pass(ctx context.Context, holder, scope string, p packet) (known bool, err error) {
	if holder != e.client.ID() {
		if e.posts == nil {
			return false, nil
		}
		known, err = e.posts.Post(ctx, holder, &millracev1.PostRequest{
			Connection: scope, Message: p.raw, Principal: methods.Caller(p.principal),
		})
		switch bus.Reason(err) {
		case bus.ReasonNoResponders, bus.ReasonWorkerLost:
			return false, nil // the edge has gone, and its connections with it
		}
		return known, err
	}
	s := e.streams.find(scope, p.principal)
	if s == nil {
		return false, nil
	}
	return s.post(ctx, p)
}

// takePost takes a message that another edge passes on, and reports whether its
// connection is open.
func (e *Edge) takePost(ctx context.Context, req *millracev1.PostRequest) (known bool) {
	principal := principalOf(req.GetPrincipal())
	s := e.streams.find(req.GetConnection(), principal)
	if s == nil {
		return false
	}
	known, _ = s.post(ctx, e.decode(req.GetMessage(), principal)) // the caller sees the error by itself
	return known
}

func principalOf(p *millracev1.Principal) *exchange.Principal {
	if p == nil {
		return nil
	}
	return &exchange.Principal{Issuer: p.GetIssuer(), Subject: p.GetSubject(), Scopes: p.GetScopes()}
}

// ownerOf is whose connection it is, unambiguously; never the bytes of a token,
// which change when it is refreshed.
func ownerOf(p *exchange.Principal) []byte {
	if p == nil {
		return nil
	}
	b := binary.BigEndian.AppendUint32([]byte{1}, uint32(len(p.Issuer)))
	return append(append(b, p.Issuer...), p.Subject...)
}

// sealStream makes the token that names a connection: nobody can guess it, and
// it is good for its principal only.
func (e *Edge) sealStream(holder, scope string, p *exchange.Principal) string {
	return e.ring.Seal(streamPurpose(p), []byte(holder+" "+scope))
}

// openStream reads a token back.
func (e *Edge) openStream(token string, p *exchange.Principal) (holder, scope string, err error) {
	payload, err := e.ring.Open(streamPurpose(p), token)
	if err != nil {
		return "", "", fmt.Errorf("edge: connection token: %w", err)
	}
	holder, scope, _ = strings.Cut(string(payload), " ")
	return holder, scope, nil
}

// streamPurpose separates these tokens from the others of the ring.
func streamPurpose(p *exchange.Principal) string { return "httpsse/1" + string(ownerOf(p)) }
