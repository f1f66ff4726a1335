package stateless

import (
	"bytes"
	"context"
	"errors"
	"net/http"

	"github.com/millrace/millrace/edge/catalog"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/methods"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/render"
)

// maxFollowed is the most resources one subscription may name.
const maxFollowed = 1000

// errDraining ends a subscription because the edge stops.
var errDraining = errors.New("stateless: the edge is stopping")

// listen serves subscriptions/listen: a request whose answer is an open stream
// of notifications (basic/patterns/subscriptions).
func (e *Era) listen(ctx context.Context, c *methods.Client, m *jsonrpc.Message, out exchange.Stream) exchange.Answer {
	if !out.Open() {
		return exchange.Refused(c.Revision, http.StatusNotAcceptable, m.ID, &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: "a subscription is a stream: accept text/event-stream",
		})
	}
	filter, err := parseFilter(m.Params)
	if err != nil {
		return exchange.Failed(m.ID, err)
	}
	ctx, stop := e.Methods.Start(ctx, c, m)
	defer stop()
	caller := methods.Caller(c.Principal)
	snapshot := e.Methods.Backend.Snapshot(ctx, caller)
	sub := e.Changes.Open(caller, filter.lists...)
	defer sub.Close()
	agreed := filter.agreed(snapshot, sub)
	if len(filter.uris) > 0 && sub.Sync(ctx, false) != nil {
		return exchange.Failed(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: "the edge cannot listen for updates now: try again shortly"})
	}
	if out.Send(render.Acknowledged(m.ID, agreed)) != nil {
		return exchange.Answer{Withheld: true}
	}
	// Draining is not the client's doing: the stream ends well.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	unhook := context.AfterFunc(e.Draining, func() { cancel(errDraining) })
	defer unhook()
	sendErr := sub.Run(ctx, func(ev notify.Event) error { return out.Send(render.Change(ev, m.ID)) })
	if sendErr != nil || !errors.Is(context.Cause(ctx), errDraining) {
		return exchange.Answer{Withheld: true}
	}
	if out.Send(render.Cancelled(m.ID, "the server is stopping")) != nil {
		return exchange.Answer{Withheld: true}
	}
	return exchange.Succeeded(m.ID, jsonrpc.Whole(e.Methods.Render.SubscriptionEnded(c.Revision, m.ID)))
}

// filter is what a client wants to be told.
type filter struct {
	lists []notify.Kind
	names []string
	uris  []string
}

func parseFilter(params jsonrpc.Object) (*filter, *jsonrpc.Error) {
	invalid := func(message string) (*filter, *jsonrpc.Error) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: message}
	}
	wanted, err := jsonrpc.ParseObject(params.Get("notifications"))
	if err != nil {
		return invalid("params.notifications must be an object: which notifications the stream should carry")
	}
	f := &filter{}
	for _, list := range []struct {
		name string
		kind notify.Kind
	}{
		{"toolsListChanged", notify.ToolsChanged},
		{"promptsListChanged", notify.PromptsChanged},
		{"resourcesListChanged", notify.ResourcesChanged},
	} {
		switch raw := wanted.Get(list.name); {
		case bytes.Equal(raw, []byte("true")):
			f.lists = append(f.lists, list.kind)
			f.names = append(f.names, list.name)
		case raw == nil, bytes.Equal(raw, []byte("false")):
		default:
			return invalid("params.notifications." + list.name + " must be true or false")
		}
	}
	raw := wanted.Get("resourceSubscriptions")
	if raw == nil {
		return f, nil
	}
	items, err := jsonrpc.ParseArray(raw)
	if err != nil || len(items) > maxFollowed {
		return invalid("params.notifications.resourceSubscriptions must be an array of at most 1000 URIs")
	}
	for _, item := range items {
		uri, ok := jsonrpc.String(item)
		if !ok {
			return invalid("params.notifications.resourceSubscriptions must hold strings")
		}
		f.uris = append(f.uris, uri)
	}
	return f, nil
}

// agreed follows the resources there are, and writes what is honoured.
func (f *filter) agreed(s *catalog.Snapshot, sub *notify.Subscription) []byte {
	members := make([]jsonrpc.Member, 0, len(f.names)+1)
	for _, name := range f.names {
		members = append(members, jsonrpc.Member{Key: name, Value: []byte("true")})
	}
	if f.uris != nil {
		list := []byte{'['}
		for _, uri := range f.uris {
			if _, _, ok := s.Resource(uri); !ok || sub.Follow(uri) != nil {
				continue
			}
			if len(list) > 1 {
				list = append(list, ',')
			}
			list = jsonrpc.AppendString(list, uri)
		}
		members = append(members, jsonrpc.Member{Key: "resourceSubscriptions", Value: append(list, ']')})
	}
	return jsonrpc.AppendObject(nil, members...)
}
