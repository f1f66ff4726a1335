package legacy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/methods"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/render"
)

// errReplaced ends a stream whose session has opened another one.
var errReplaced = errors.New("legacy: the session has a newer stream")

// Listen sends what belongs to no request: list changes and updates of
// subscribed resources. On HTTP it is the GET stream of a session (specification
// 2025-03-26, transports, "Listening for Messages from the Server"), on stdio it
// runs as long as the connection.
func (e *Era) Listen(ctx context.Context, req *exchange.Request, out exchange.Stream) exchange.Answer {
	client, refusal := e.client(req)
	if refusal != nil {
		return *refusal
	}
	if client.Scope == "" {
		return exchange.Refused(client.Revision, http.StatusMethodNotAllowed, nil, &jsonrpc.Error{
			Code:    jsonrpc.CodeInvalidRequest,
			Message: "a stream belongs to a session: send initialize by POST first, and its Mcp-Session-Id with this request",
		})
	}
	if !out.Open() {
		return exchange.Refused(client.Revision, http.StatusNotAcceptable, nil, &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: "this is a stream: accept text/event-stream",
		})
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	changes := e.Changes.Open(methods.Caller(req.Principal), notify.ToolsChanged, notify.PromptsChanged, notify.ResourcesChanged)
	defer changes.Close()
	s := &stream{changes: changes, replaced: func() { cancel(errReplaced) }}
	followed, err := e.records.open(client.Scope, s)
	if followed && err == nil {
		err = changes.Sync(ctx)
	}
	if err != nil {
		return exchange.Refused(client.Revision, http.StatusServiceUnavailable, nil, &jsonrpc.Error{
			Code: jsonrpc.CodeInternal, Message: "the edge cannot listen for updates now: try again shortly",
		})
	}
	defer e.records.closed(client.Scope, s)
	if out.Begin() != nil {
		return exchange.Answer{Withheld: true}
	}
	stop := context.AfterFunc(e.Draining, func() { cancel(nil) })
	defer stop()
	// The error is the client's: it has gone.
	_ = changes.Run(ctx, func(ev notify.Event) error {
		if req.Peer != nil && req.Peer.Handshake() == nil {
			return nil // nobody has asked for this era yet
		}
		return out.Send(render.Change(ev, nil))
	})
	return exchange.Answer{Withheld: true}
}

// End ends a session (transports, "Session Management": HTTP DELETE). Its
// streams end, and its running calls are cancelled.
func (e *Era) End(req *exchange.Request) exchange.Answer {
	client, refusal := e.client(req)
	if refusal != nil {
		return *refusal
	}
	if client.Scope == "" {
		return exchange.Refused(client.Revision, http.StatusBadRequest, nil, &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: "the Mcp-Session-Id header is missing: it names the session to end",
		})
	}
	e.records.update(client.Scope, func(rec *record) {
		rec.ended, rec.level, rec.uris = true, "", nil
		if rec.stream != nil {
			rec.stream.replaced()
		}
	})
	e.Methods.Calls.CancelAll(client.Scope)
	return exchange.Answer{Status: http.StatusNoContent}
}

// subscribe serves resources/subscribe and resources/unsubscribe (server/
// resources, "Subscriptions").
func (e *Era) subscribe(ctx context.Context, c *methods.Client, m *jsonrpc.Message) exchange.Answer {
	uri, err := mcp.StringParam(m.Params, "uri")
	if err != nil {
		return exchange.Failed(m.ID, err)
	}
	if c.Scope == "" {
		return exchange.Failed(m.ID, needsSession("a subscription"))
	}
	if m.Method == mcp.MethodUnsubscribe {
		e.records.unsubscribe(c.Scope, uri)
		return exchange.Succeeded(m.ID, json.RawMessage("{}"))
	}
	if _, _, ok := e.Methods.Backend.Snapshot(ctx, methods.Caller(c.Principal)).Resource(uri); !ok {
		return exchange.Failed(m.ID, render.ResourceNotFound(c.Revision, uri))
	}
	ok, changes, followErr := e.records.subscribe(c.Scope, uri)
	if changes != nil && followErr == nil {
		followErr = changes.Sync(ctx)
	}
	switch {
	case !ok:
		return exchange.Failed(m.ID, &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf("a session may subscribe to %d resources: unsubscribe from others first", maxFollowed),
		})
	case followErr != nil:
		return exchange.Failed(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: "internal error"})
	default:
		return exchange.Succeeded(m.ID, json.RawMessage("{}"))
	}
}

// needsSession refuses what cannot be kept without a session.
func needsSession(what string) *jsonrpc.Error {
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInvalidRequest,
		Message: what + " belongs to a session: send initialize first, and its Mcp-Session-Id with this request",
	}
}
