// Package legacy serves the revisions with a handshake, 2024-11-05 to
// 2025-11-25, on HTTP and stdio.
//
// A client that keeps to the protocol calls initialize and sends the session
// id it gets; one that does not (a person with curl, a proxy that drops
// headers) is served all the same, since nothing here needs a session. The
// revisions differ by facts, which are rows of mcp's table.
package legacy

import (
	"context"
	"net/http"
	"time"

	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/methods"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/render"
	"github.com/millrace/millrace/edge/session"
)

// Era is the legacy era. Its fields are set once, before it serves; it is safe
// for concurrent use.
type Era struct {
	Methods  *methods.Runner
	Sessions *session.Issuer
	// Pending are the requests to clients that wait for their answer.
	Pending *exchange.Pending
	// AskTimeout is how long a client may take to answer a request; 0 means
	// 10 min.
	AskTimeout time.Duration

	// Changes tells about changes to sessions that listen.
	Changes *notify.Hub
	// Draining is done when the edge stops.
	Draining context.Context

	records records
}

// Claims is always true: the legacy era serves what no other one claims.
func (e *Era) Claims(*exchange.Request) bool { return true }

// Serve handles one message.
func (e *Era) Serve(ctx context.Context, req *exchange.Request, out exchange.Stream) exchange.Answer {
	m := &req.Message
	if m.Kind() == jsonrpc.Request && m.Method == mcp.MethodInitialize {
		return e.initialize(req)
	}
	client, refusal := e.client(req)
	if refusal != nil {
		return *refusal
	}
	switch m.Kind() {
	case jsonrpc.Response:
		// An answer to nothing we asked is accepted and ignored.
		e.Pending.Deliver(client.Scope, m)
		return exchange.Answer{}
	case jsonrpc.Notification:
		if m.Method == mcp.NotificationCancelled {
			e.Methods.Calls.Cancel(client.Scope, m.Params.Get("requestId"))
		}
		return exchange.Answer{}
	case jsonrpc.Request:
	}
	switch m.Method {
	case mcp.MethodPing:
		return exchange.Succeeded(m.ID, e.Methods.Render.Empty(client.Revision))
	case mcp.MethodSetLevel:
		return e.setLevel(client, m)
	case mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		return e.subscribe(ctx, client, m)
	}
	if client.Scope != "" {
		client.LogLevel = e.records.level(client.Scope)
	}
	reply, ok := e.runRounds(ctx, client, m, out)
	switch {
	case !ok:
		// Never HTTP 404: in this era that says the session is gone.
		return exchange.Failed(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found: " + m.Method})
	case reply.Error == nil:
		return exchange.Succeeded(m.ID, reply.Result)
	}
	// The HTTP status of a failed call is 200: clients of this era look for
	// JSON-RPC errors only there.
	answer := exchange.Failed(m.ID, reply.Error)
	if reply.Failure != nil {
		answer.RetryAfter = reply.Failure.RetryAfter()
		answer.Withheld = reply.Failure.Kind == backend.Cancelled
	}
	return answer
}

// RevisionOf returns the revision that the session, the connection or the
// header of a request stands for.
func (e *Era) RevisionOf(req *exchange.Request) (*mcp.Revision, *exchange.Answer) {
	client, refusal := e.client(req)
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
	answer := exchange.Succeeded(m.ID, e.Methods.Render.Initialization(rev, known.Instructions))
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
// one the specification says to assume.
func (e *Era) client(req *exchange.Request) (*methods.Client, *exchange.Answer) {
	c := &methods.Client{Revision: mcp.Assumed(), Principal: req.Principal}
	if req.Peer != nil {
		c.Scope, c.Session = req.Peer.Scope, req.Peer.Scope
		if h := req.Handshake; h != nil {
			c.Revision, c.Info, c.Capabilities = h.Revision, h.ClientInfo, h.Capabilities
		}
		return c, nil
	}
	// "Disconnection SHOULD NOT be interpreted as the client cancelling its
	// request" (transports, "Sending Messages to the Server").
	c.Outlives = true
	// This era has the trace context in HTTP headers only.
	c.Trace = backend.Trace{
		Parent:  req.Header.Get(mcp.MetaTraceParent),
		State:   req.Header.Get(mcp.MetaTraceState),
		Baggage: req.Header.Get(mcp.MetaBaggage),
	}
	if date := req.Header.Get(mcp.HeaderProtocolVersion); date != "" {
		rev, ok := mcp.Lookup(date)
		if !ok {
			refusal := exchange.Refused(c.Revision, http.StatusBadRequest, req.Message.ID, render.UnsupportedVersion(date, false))
			return c, &refusal
		}
		c.Revision = rev
	}
	if ids := req.Header.Values(mcp.HeaderSessionID); len(ids) > 0 {
		s, err := e.Sessions.Open(ids[0], owner(req.Principal))
		if err != nil || len(ids) > 1 || e.records.ended(s.Scope) {
			refusal := exchange.Refused(c.Revision, http.StatusNotFound, req.Message.ID, &jsonrpc.Error{
				Code:    jsonrpc.CodeInvalidRequest,
				Message: "session not found: send initialize without Mcp-Session-Id to get a new one",
			})
			return c, &refusal
		}
		c.Revision, c.Info, c.Capabilities = s.Revision, s.ClientInfo, s.Capabilities
		c.Scope, c.Session = s.Scope, s.Scope
	}
	return c, nil
}

func owner(p *exchange.Principal) session.Owner {
	if p == nil {
		return session.Owner{}
	}
	return session.Owner{Issuer: p.Issuer, Subject: p.Subject}
}
