package legacy

import (
	"context"
	"slices"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Peers are the other edges; *peer.Peers is one.
type Peers interface {
	// Announce tells all edges something, without waiting.
	Announce(a *millracev1.Announcement) error
	// Tell is Announce, and returns when the edges have acted on it, or soon;
	// those that have not are told so.
	Tell(ctx context.Context, a *millracev1.Announcement) error
	// Deliver passes an answer of a client on to the edge that waits for it.
	// An error means that the edge was not reached.
	Deliver(ctx context.Context, edge string, req *millracev1.DeliverRequest) (taken bool, err error)
}

// tell tells the other edges, if there can be any. An error means that some may
// not know: they find out by what is stored.
func (e *Era) tell(ctx context.Context, a *millracev1.Announcement) error {
	if e.Peers == nil {
		return nil
	}
	err := e.Peers.Tell(ctx, a)
	if err != nil && e.Logger != nil {
		e.Logger.Warn("other edges are not told", "error", err)
	}
	return err
}

// announce tells the other edges without waiting. An error means that there is
// no bus, and then they do not have what it is about either.
func (e *Era) announce(a *millracev1.Announcement) {
	if e.Peers != nil {
		_ = e.Peers.Announce(a)
	}
}

// Heard acts on what another edge or a worker has announced. wait: somebody
// waits until what it asks for has taken effect.
func (e *Era) Heard(ctx context.Context, a *millracev1.Announcement, wait bool) {
	switch news := a.GetNews().(type) {
	case *millracev1.Announcement_Cancel:
		e.Methods.Calls.Cancel(news.Cancel.GetScope(), news.Cancel.GetRequestId())
	case *millracev1.Announcement_SessionChanged:
		scope := news.SessionChanged.GetScope()
		if news.SessionChanged.GetEnded() {
			e.Records.End(scope)
			e.ended(scope)
			return
		}
		e.Records.Forget(scope)
		e.subscribedElsewhere(ctx, scope, news.SessionChanged.GetSubscribed(), wait, a.GetTold())
	case *millracev1.Announcement_ElicitationComplete:
		e.elicitationComplete(news.ElicitationComplete.GetScope(), news.ElicitationComplete.GetElicitationId())
	case *millracev1.Announcement_StreamTaken:
		scope, holder := news.StreamTaken.GetScope(), news.StreamTaken.GetHolder()
		if stream := news.StreamTaken.GetStream(); stream != "" {
			if e.streams.heard(holder) {
				e.connections.taken(scope, stream, holder)
			}
			return
		}
		e.streams.taken(scope, holder)
	}
}

// subscribedElsewhere makes the stream of a session follow what another edge has
// stored; uri is new. wait: the client is answered when it does. Otherwise it may
// have been already, unless this edge is among those that are told so as well.
func (e *Era) subscribedElsewhere(ctx context.Context, scope, uri string, wait bool, told []string) {
	s := e.streams.of(scope)
	if s == nil || !wait && slices.Contains(told, e.Edge) || wait && s.follow(ctx, false) == nil {
		return
	}
	if uri != "" {
		s.miss(uri)
	}
	// Whoever waits for nothing must not wait for the store, and a stream that
	// cannot follow the resource tries again.
	s.checks.within(0)
}

// cancelled serves notifications/cancelled: the call may run on any edge.
func (e *Era) cancelled(c *caller, requestID []byte) {
	if c.Scope == "" || len(requestID) == 0 || string(requestID) == "null" {
		return
	}
	if c.peer != nil {
		e.Methods.Calls.Cancel(c.Scope, requestID)
		return
	}
	e.cancelCall(c.Scope, requestID)
	e.cancelAlone(c.Scope, requestID)
}

// ended ends what a session has on this edge.
func (e *Era) ended(scope string) {
	if s := e.streams.of(scope); s != nil {
		s.end(errEnded)
	}
	e.connections.endAll(scope)
	e.Methods.Calls.CancelAll(scope)
}
