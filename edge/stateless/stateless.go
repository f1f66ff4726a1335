// Package stateless serves revision 2026-07-28: every request carries its own
// metadata, there are no sessions, and a client that closes the stream of a
// request has cancelled it.
package stateless

import (
	"context"
	"fmt"
	"net/http"

	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/methods"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/render"
	"github.com/millrace/millrace/edge/seal"
)

// Era is the stateless era. Its fields are set once, before it serves; it is
// safe for concurrent use.
type Era struct {
	Methods *methods.Runner
	// States protects the state of requests that need input.
	States *seal.Ring
	// Tickets remember the states that count once and were used; all edges that
	// share States must share them.
	Tickets Tickets
	// Changes tells about changes to subscriptions.
	Changes *notify.Hub
	// Draining is done when the edge stops.
	Draining context.Context
}

// Claims reports whether a message is of this era: it carries the protocol
// version in _meta, or its header names a modern revision, or its method is
// one that only this era has. initialize never is.
func (e *Era) Claims(req *exchange.Request) bool {
	m := &req.Message
	switch {
	case m.Meta.Get(mcp.MetaProtocolVersion) != nil:
		return true
	case m.Method == mcp.MethodInitialize:
		return false
	case m.Method == mcp.MethodDiscover:
		return true
	}
	rev, ok := mcp.Lookup(req.Header.Get(mcp.HeaderProtocolVersion))
	return ok && rev.Modern
}

// Serve handles one message.
func (e *Era) Serve(ctx context.Context, req *exchange.Request, out exchange.Stream) exchange.Answer {
	m := &req.Message
	switch m.Kind() {
	case jsonrpc.Response:
		return exchange.Refused(mcp.Modern(), http.StatusBadRequest, m.ID, &jsonrpc.Error{
			Code:    jsonrpc.CodeInvalidRequest,
			Message: "responses are not accepted in this revision: answer input requests by sending the request again",
		})
	case jsonrpc.Notification:
		// On HTTP a client cancels by closing the stream of its request.
		if m.Method == mcp.NotificationCancelled && req.Peer != nil {
			e.Methods.Calls.Cancel(req.Peer.Scope, m.Params.Get("requestId"))
		}
		return exchange.Answer{}
	case jsonrpc.Request:
	}
	client, err := e.client(req)
	if err != nil {
		return exchange.Refused(mcp.Modern(), http.StatusBadRequest, m.ID, err)
	}
	if m.Method == mcp.MethodDiscover {
		known := e.Methods.Backend.Known(methods.Caller(req.Principal))
		return exchange.Succeeded(m.ID, jsonrpc.Whole(e.Methods.Render.Discovery(client.Revision, known)))
	}
	if m.Method == mcp.MethodListen {
		return e.listen(ctx, client, m, out)
	}
	if err := e.checkTool(ctx, req); err != nil {
		return exchange.Refused(client.Revision, http.StatusBadRequest, m.ID, err)
	}
	round, once, err := e.round(req)
	if err != nil {
		return exchange.Failed(m.ID, err)
	}
	if once != nil {
		taken, err := e.Tickets.Take(ctx, once.name, once.ttl())
		if err != nil {
			// Whether it was used before is not known: it counts as used.
			return failed(m, e.Methods.Failed(client, m, &backend.Failure{
				Kind: backend.Unavailable, Message: "whether params.requestState was used before cannot be found out now; nothing was executed, try again shortly",
			}))
		}
		if !taken {
			return exchange.Failed(m.ID, usedState())
		}
	}
	ctx, stop := e.Methods.Start(ctx, client, m)
	defer stop()
	reply, ok := e.Methods.Run(ctx, client, m, out, round)
	switch {
	case !ok:
		return exchange.Refused(mcp.Modern(), http.StatusNotFound, m.ID, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found: " + m.Method})
	case reply.NeedsInput != nil:
		state, err := e.sealState(req, reply.NeedsInput)
		if err != nil {
			return exchange.Failed(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: "internal error"})
		}
		return exchange.Succeeded(m.ID, jsonrpc.Whole(e.Methods.Render.InputRequired(client.Revision, reply.NeedsInput, state)))
	case reply.Error == nil:
		return exchange.Succeeded(m.ID, reply.Result)
	}
	if once != nil && reply.Failure != nil {
		e.giveBack(ctx, once, reply.Failure)
	}
	return failed(m, reply)
}

// failed answers a request that ended in an error.
func failed(m *jsonrpc.Message, reply methods.Reply) exchange.Answer {
	answer := exchange.Failed(m.ID, reply.Error)
	if f := reply.Failure; f != nil {
		answer.Status = failureStatus(f)
		answer.RetryAfter = f.RetryAfter()
		answer.Withheld = f.Kind == backend.Cancelled
	}
	return answer
}

// checkTool compares the headers that mirror arguments, for tools that have
// any; an unknown tool is refused later.
func (e *Era) checkTool(ctx context.Context, req *exchange.Request) *jsonrpc.Error {
	if req.Header == nil || req.Message.Method != mcp.MethodToolsCall {
		return nil
	}
	name, err := mcp.StringParam(req.Message.Params, "name")
	if err != nil {
		return err
	}
	tool, ok := e.Methods.Backend.Snapshot(ctx, methods.Caller(req.Principal)).Tool(name)
	if !ok {
		return nil
	}
	return checkParamHeaders(req, tool.Headers)
}

// failureStatus is the HTTP status of a failed call. The revision sets it for a
// missing capability; load balancers and clients understand 503 for the two
// failures where nothing ran.
func failureStatus(f *backend.Failure) int {
	switch f.Kind {
	case backend.Overloaded, backend.Unavailable:
		return http.StatusServiceUnavailable
	case backend.MissingCapability:
		return http.StatusBadRequest
	default:
		return http.StatusOK
	}
}

// client reads and checks the metadata of a request (basic/index, "_meta"; on
// HTTP also transports/streamable-http, "Server Validation").
func (e *Era) client(req *exchange.Request) (*methods.Client, *jsonrpc.Error) {
	m := &req.Message
	c := &methods.Client{Principal: req.Principal}
	if req.Peer != nil {
		c.Scope = req.Peer.Scope
	}
	rawVersion := m.Meta.Get(mcp.MetaProtocolVersion)
	version, ok := jsonrpc.String(rawVersion)
	if !ok {
		return c, metaError(mcp.MetaProtocolVersion, rawVersion, "a string such as "+quoted(mcp.Modern().Date))
	}
	if req.Header != nil {
		if err := checkHeaders(req, version); err != nil {
			return c, err
		}
	}
	rev, ok := mcp.Lookup(version)
	if !ok || !rev.Modern {
		return c, render.UnsupportedVersion(version, true)
	}
	c.Revision, req.Revision = rev, rev
	for _, field := range []struct {
		key      string
		required bool
		value    *[]byte
	}{
		{mcp.MetaClientCapabilities, true, &c.Capabilities},
		{mcp.MetaClientInfo, false, &c.Info},
	} {
		raw := m.Meta.Get(field.key)
		if raw == nil && !field.required {
			continue
		}
		if raw == nil || raw[0] != '{' {
			return c, metaError(field.key, raw, "an object")
		}
		*field.value = raw
	}
	if caps, err := jsonrpc.ParseObject(c.Capabilities); err == nil {
		c.Extensions = caps.Get("extensions")
	}
	if raw := m.Meta.Get(mcp.MetaLogLevel); raw != nil {
		var err *jsonrpc.Error
		if c.LogLevel, err = mcp.LogLevel(raw, "params._meta["+quoted(mcp.MetaLogLevel)+"]"); err != nil {
			return c, err
		}
	}
	c.Trace = methods.Trace(req)
	return c, nil
}

// metaError says which member of _meta is missing or wrong, and what it must
// be.
func metaError(key string, have []byte, want string) *jsonrpc.Error {
	what := "is missing"
	if have != nil {
		what = "is not what it must be"
	}
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInvalidParams,
		Message: fmt.Sprintf("params._meta[%q] %s: every request of this revision carries it, %s", key, what, want),
	}
}

func quoted(s string) string { return `"` + s + `"` }
