// Package legacy serves the revisions with a handshake, 2024-11-05 to
// 2025-11-25, on HTTP and stdio.
//
// A client that keeps to the protocol calls initialize and sends the session
// id it gets; one that does not (a person with curl, a proxy that drops
// headers) is served all the same, since only the log level, subscriptions, the
// GET stream, questions to the client and resumption need a session. The revisions
// differ by facts, which are rows of mcp's table.
package legacy

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/methods"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/render"
	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/edge/session"
)

// Era is the legacy era. Its fields are set once, before it serves; it is safe
// for concurrent use.
type Era struct {
	Methods  *methods.Runner
	Sessions *session.Issuer
	// Records are what sessions have changed, as all edges see it.
	Records *session.Records
	// Pending are the requests to clients that wait for their answer.
	Pending *exchange.Pending
	// AskTimeout is how long a client may take to answer a request; 0 means
	// 10 min.
	AskTimeout time.Duration

	// Changes tells about changes to sessions that listen.
	Changes *notify.Hub
	// Draining is done when the edge stops.
	Draining context.Context

	// Stopping is done when the edge leaves the bus.
	Stopping context.Context

	// Edge is the address of this edge among its peers.
	Edge string
	// Peers are the other edges; nil when there can be none.
	Peers Peers
	// Routes makes the ids of requests to clients.
	Routes *seal.Ring

	// Resumption makes the streams of calls resumable; nil: they are not.
	Resumption *Resumption

	// Logger reports faults of ours; nil discards.
	Logger *slog.Logger

	streams     streams
	connections connections
	alone       alone
	// taking are the streams of calls that this edge tries to take over.
	taking sync.Map
	// late counts the answers that are still to be stored.
	late atomic.Int32
	// ends counts the ends of events that are still to be found in the log.
	ends atomic.Int32
	// leaving: calls that run when Draining is done send their clients away.
	leaving sync.Once
	// running are the calls that may outlive their connection.
	running sync.WaitGroup
}

// Wait returns when no call runs any more.
func (e *Era) Wait() { e.running.Wait() }

// caller is who sent a message.
type caller struct {
	*methods.Client

	// session is the one that the message names; nil without, and on a connection.
	session *session.Session
	// state is what its session or connection has changed; nil without either.
	state state
	// record is what state said when the message came.
	record session.Record
	// peer is the connection; nil on HTTP.
	peer *exchange.Peer
}

// Claims is always true: the legacy era serves what no other one claims.
func (e *Era) Claims(*exchange.Request) bool { return true }

// Serve handles one message.
func (e *Era) Serve(ctx context.Context, req *exchange.Request, out exchange.Stream) exchange.Answer {
	m := &req.Message
	if m.Kind() == jsonrpc.Request && m.Method == mcp.MethodInitialize {
		return e.initialize(req)
	}
	client, refusal := e.identify(req)
	running, stop := ctx, func() {}
	if refusal == nil && isCall(m) {
		// Before its session is read, which may take a moment: a cancellation, or
		// the end of the session, that comes now finds the call.
		running, stop = e.Methods.Start(ctx, client.Client, m)
	}
	if refusal == nil {
		refusal = e.read(ctx, req, client)
	}
	if refusal != nil {
		stop()
		return *refusal
	}
	switch m.Kind() {
	case jsonrpc.Response:
		// An answer to nothing we asked is accepted and ignored.
		e.answered(ctx, client.Client, m)
		return exchange.Answer{}
	case jsonrpc.Notification:
		if m.Method == mcp.NotificationCancelled {
			e.cancelled(client, m.Params.Get("requestId"))
		}
		return exchange.Answer{}
	case jsonrpc.Request:
	}
	switch m.Method {
	case mcp.MethodPing:
		return exchange.Succeeded(m.ID, jsonrpc.Whole(e.Methods.Render.Empty(client.Revision)))
	case mcp.MethodSetLevel:
		return e.setLevel(ctx, client, m)
	case mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		return e.subscribe(ctx, client, m)
	}
	if client.state != nil {
		client.LogLevel = levelOf(client.record)
	}
	return e.serveCall(running, stop, client.Client, m, out)
}

// isCall reports whether a message is a request that is served by serveCall.
func isCall(m *jsonrpc.Message) bool {
	switch m.Method {
	case mcp.MethodPing, mcp.MethodSetLevel, mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		return false
	}
	return m.Kind() == jsonrpc.Request
}

// RevisionOf returns the revision that the session, the connection or the
// header of a request stands for.
func (e *Era) RevisionOf(ctx context.Context, req *exchange.Request) (*mcp.Revision, *exchange.Answer) {
	client, refusal := e.client(ctx, req)
	return client.Revision, refusal
}

// initialize settles the revision: the one asked for, or the newest of the era
// as a counter-offer, never an error (lifecycle, "Version Negotiation").
func (e *Era) initialize(req *exchange.Request) exchange.Answer {
	m := &req.Message
	asked, err := mcp.StringParam(m.Params, "protocolVersion")
	if err != nil {
		return exchange.Failed(m.ID, err)
	}
	rev, ok := mcp.Lookup(asked)
	if !ok || rev.Modern {
		rev = mcp.Legacy()
	}
	req.Revision = rev
	clientInfo, err := mcp.ObjectParam(m.Params, "clientInfo")
	if err != nil {
		return exchange.Failed(m.ID, err)
	}
	clientCapabilities, err := mcp.ObjectParam(m.Params, "capabilities")
	if err != nil {
		return exchange.Failed(m.ID, err)
	}
	clientCapabilities = fitCapabilities(rev, clientCapabilities)
	known := e.Methods.Backend.Known(methods.Caller(req.Principal))
	answer := exchange.Succeeded(m.ID, jsonrpc.Whole(e.Methods.Render.Initialization(rev, known.Instructions)))
	if req.Peer != nil {
		req.Peer.SetHandshake(&exchange.Handshake{Revision: rev, ClientInfo: clientInfo, Capabilities: clientCapabilities})
		return answer
	}
	id, sessionErr := e.Sessions.New(rev, owner(req.Principal), clientInfo, clientCapabilities)
	if sessionErr != nil {
		return exchange.Failed(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: "internal error"})
	}
	answer.SessionID = id
	return answer
}

// fitCapabilities leaves out what a client can declare only in later revisions:
// nothing is asked of it that the revision agreed on does not have.
func fitCapabilities(rev *mcp.Revision, capabilities []byte) []byte {
	o, err := jsonrpc.ParseObject(capabilities)
	if err != nil || rev.ElicitationModes || o.Get("elicitation") == nil {
		return capabilities
	}
	for i := range o.Members {
		if o.Members[i].Key != "elicitation" {
			continue
		}
		o.Members[i].Value = nil // is left out
		if rev.Elicitation {
			o.Members[i].Value = []byte("{}")
		}
	}
	return jsonrpc.AppendObject(nil, o.Members...)
}

// client finds out who sent a message and under which revision it is served:
// that of the connection or session, else the one the header names, else the
// one the specification says to assume. A session that has ended is refused, and
// the caller has its scope all the same.
func (e *Era) client(ctx context.Context, req *exchange.Request) (*caller, *exchange.Answer) {
	c, refusal := e.identify(req)
	if refusal == nil {
		refusal = e.read(ctx, req, c)
	}
	return c, refusal
}

// identify is the part of client that asks nobody.
func (e *Era) identify(req *exchange.Request) (*caller, *exchange.Answer) {
	// The keys of the trace context in _meta are of a later revision; clients
	// that know them send them in all.
	c := &caller{Client: &methods.Client{Revision: mcp.Assumed(), Principal: req.Principal, Trace: methods.Trace(req)}}
	defer func() { req.Revision = c.Revision }()
	if req.Peer != nil {
		c.peer, c.state = req.Peer, attached{req.Peer}
		c.Scope, c.Session = req.Peer.Scope, req.Peer.Scope
		if req.Peer.Revision != nil {
			c.Revision = req.Peer.Revision
		}
		if h := req.Handshake; h != nil {
			c.Revision, c.Info, c.Capabilities = h.Revision, h.ClientInfo, h.Capabilities
		}
		return c, nil
	}
	// "Disconnection SHOULD NOT be interpreted as the client cancelling its
	// request" (transports, "Sending Messages to the Server").
	c.Outlives = true
	if date := req.Header.Get(mcp.HeaderProtocolVersion); date != "" {
		rev, ok := mcp.Lookup(date)
		if !ok {
			refusal := exchange.Refused(c.Revision, http.StatusBadRequest, req.Message.ID, render.UnsupportedVersion(date, false))
			return c, &refusal
		}
		c.Revision = rev
	}
	ids := req.Header.Values(mcp.HeaderSessionID)
	if len(ids) == 0 {
		return c, nil
	}
	s, err := e.Sessions.Open(ids[0], owner(req.Principal))
	if err != nil || len(ids) > 1 {
		refusal := unknownSession(c.Revision, req.Message.ID)
		return c, &refusal
	}
	c.session, c.state, c.Scope, c.Session = s, stored{e.Records, s}, s.Scope, s.Scope
	return c, nil
}

// read is the rest of client: what the session or the connection has changed.
func (e *Era) read(ctx context.Context, req *exchange.Request, c *caller) *exchange.Answer {
	if c.state == nil {
		return nil
	}
	var err error
	// Any other error is that of the request, which its client has given up.
	if c.record, err = c.state.get(ctx); errors.Is(err, session.ErrUnknown) {
		refusal := unknownSession(c.Revision, req.Message.ID)
		return &refusal
	}
	if s := c.session; s != nil {
		c.Revision, c.Info, c.Capabilities = s.Revision, s.ClientInfo, s.Capabilities
		req.Revision = c.Revision
	}
	return nil
}

// unknownSession refuses an id that is unknown, expired, deleted or somebody
// else's: which of these it is, nobody learns.
func unknownSession(rev *mcp.Revision, id []byte) exchange.Answer {
	return exchange.Refused(rev, http.StatusNotFound, id, &jsonrpc.Error{
		Code:    jsonrpc.CodeInvalidRequest,
		Message: "session not found: send initialize without Mcp-Session-Id to get a new one (a session ends when it is too old or not used, limits session-max-age and session-idle)",
	})
}

func owner(p *exchange.Principal) session.Owner {
	if p == nil {
		return session.Owner{}
	}
	return session.Owner{Issuer: p.Issuer, Subject: p.Subject}
}
