package legacy

import (
	"errors"
	"slices"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/render"
)

// inputRequest takes an input request apart and leaves out what the revision
// does not know. id is that of the request to the client: a page is named by it
// where the author has given none, so that the same question has the same name
// whoever writes it.
func inputRequest(rev *mcp.Revision, raw []byte, id string) (method string, params []byte, err error) {
	request, err := jsonrpc.ParseObject(raw)
	if err != nil {
		return "", nil, err
	}
	method, ok := jsonrpc.String(request.Get("method"))
	if !ok {
		return "", nil, errors.New("legacy: an input request has no method")
	}
	params = request.Get("params")
	if method == mcp.MethodElicit && rev.ElicitationModes {
		params, err = render.WithElicitationID(params, id)
		return method, params, err
	}
	if method == mcp.MethodElicit && !rev.ElicitationModes {
		if params, err = jsonrpc.Without(params, "mode"); err != nil {
			return "", nil, err
		}
		params, err = withoutLists(params)
	}
	return method, params, err
}

// errForm says that a form cannot be shown in an old revision.
var errForm = errors.New("the request needs a form with a list to choose several from, which the client's revision of the protocol does not have")

// withoutLists leaves out the fields of a form that are lists, which the first
// revision with forms did not have, unless the form needs them.
func withoutLists(params []byte) ([]byte, error) {
	o, err := jsonrpc.ParseObject(params)
	if err != nil {
		return nil, err
	}
	form, err := jsonrpc.ParseObject(o.Get("requestedSchema"))
	if err != nil {
		return nil, err
	}
	fields, err := jsonrpc.ParseObject(form.Get("properties"))
	if err != nil {
		return nil, err
	}
	var lists []string
	for _, f := range fields.Members {
		field, err := jsonrpc.ParseObject(f.Value)
		if err != nil {
			return nil, err
		}
		if kind, _ := jsonrpc.String(field.Get("type")); kind == "array" {
			lists = append(lists, f.Key)
		}
	}
	if lists == nil {
		return params, nil
	}
	required, err := jsonrpc.ParseArray(form.Get("required"))
	if err != nil && form.Get("required") != nil {
		return nil, err
	}
	for _, r := range required {
		if name, _ := jsonrpc.String(r); slices.Contains(lists, name) {
			return nil, errForm
		}
	}
	rest, err := jsonrpc.Without(form.Get("properties"), lists...)
	if err != nil {
		return nil, err
	}
	return replace(o, "requestedSchema", replace(form, "properties", rest)), nil
}

// replace writes an object with another value of one member.
func replace(o jsonrpc.Object, key string, value []byte) []byte {
	members := slices.Clone(o.Members)
	for i := range members {
		if members[i].Key == key {
			members[i].Value = value
		}
	}
	return jsonrpc.AppendObject(nil, members...)
}

// elicitationComplete tells the client of a scope, if it listens here, that a
// visit to a page is over: the session that was sent there, and no other one
// (client/elicitation, "Completion Notifications for URL Mode Elicitation").
func (e *Era) elicitationComplete(scope, id string) {
	if s := e.streams.of(scope); s != nil && id != "" {
		s.changes.Tell(id)
	}
}

// hasElicitationIDs reports whether a client that listens knows what a visit is
// called. On a connection it may have begun to listen before the revision was
// agreed on.
func hasElicitationIDs(peer *exchange.Peer, rev *mcp.Revision) bool {
	if peer != nil {
		if h := peer.Handshake(); h != nil {
			rev = h.Revision
		}
	}
	return rev.ElicitationIDs
}
