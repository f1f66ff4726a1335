package legacy

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/methods"
	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

const (
	// primeAfter is how long a call may run before its client gets a place to
	// come back to. Most calls are over by then, and cost nothing for it.
	primeAfter = time.Second
	// defaultRetry is how long a client should wait that is sent away.
	defaultRetry = time.Second
	// maxKept is the largest parameters that are kept for another edge.
	maxKept = 256 << 10
)

// CallStore keeps what an edge needs to go on with a call of another one;
// *jetstream.Store is one.
type CallStore interface {
	// PutCall stores a continuation, if the one that is stored has the
	// revision; 0: if there is none. Whoever was told is to find it, so it
	// returns when it is stored.
	PutCall(ctx context.Context, session, stream string, c *millracev1.Continuation, revision uint64) (uint64, error)
	// Call returns a continuation, or session.ErrNotFound.
	Call(ctx context.Context, session, stream string) (*millracev1.Continuation, uint64, error)
	// EndCall is PutCall for a call that has ended: it is kept as long as its
	// events are.
	EndCall(session, stream string, c *millracev1.Continuation) error
}

// Resumption is what the streams of calls need to be resumed.
type Resumption struct {
	Calls CallStore
	Log   bus.EventLog
	// SessionCalls returns the continuations of a session by their streams.
	SessionCalls func(ctx context.Context, session string) (map[string]*millracev1.Continuation, error)
	// Available reports whether all of that works now.
	Available func() bool
	Bus       *bus.Client
	// Alive reports whether an edge or an instance of a worker is there.
	Alive func(id string) bool
}

// resumable is the stream of one call of a session whose client can come back
// when it loses its connection: messages have places, and what the worker sends
// is stored under them (proto/bus, Resumable).
type resumable struct {
	resume *Resumption
	// ended publishes the end of a round that this edge has found by itself.
	ended  func(key bus.EventsKey, status error)
	client *methods.Client
	m      *jsonrpc.Message
	out    exchange.EventStream
	stream string
	// routes makes the name of the stream.
	routes *seal.Ring
	// connection is this one, where it is looked for.
	connection connection

	// at is the event that is being passed on, round and number. The goroutine
	// that runs the call owns it.
	at bus.EventPoint
	// unkept: who follows the events does not see the message that came last.
	// Of the same goroutine, as settled is: the round has ended, with questions.
	unkept, settled bool

	// lock guards what follows. Who puts a value in holds it; a full channel
	// makes the next one wait. It is no mutex because a goroutine that waits
	// here for a stalled client is idle to a synctest bubble.
	lock chan struct{}
	// name is that of the stream, once there are places.
	name streamName
	// last is the place of the last message.
	last place
	// over: the call has its answer, and nobody else may write.
	over bool
	// offered: the client has a place and the continuation is stored; refused:
	// it cannot be stored, so there are no places.
	offered, refused bool
	// asked: what the round asks is stored. The goroutine that runs the call
	// owns it.
	asked bool
	// claimed is when this edge began to say that it goes on with the answers: until
	// it was heard, nobody else did.
	claimed time.Time

	primed bool
	timer  *time.Timer

	// left: the connection is not this call's any more. leaving is closed then.
	left    atomic.Bool
	leaving chan struct{}
}

// newResumable returns the resumable stream of a call, or nil where there can be
// none: outside of a session, in a revision without it, for a client that takes
// no stream, or while nothing can be stored.
func (e *Era) newResumable(c *methods.Client, m *jsonrpc.Message, out exchange.Stream, stream string) *resumable {
	events, ok := out.(exchange.EventStream)
	switch m.Method {
	case mcp.MethodToolsCall, mcp.MethodResourcesRead, mcp.MethodPromptsGet:
	default:
		return nil
	}
	if !ok || e.Resumption == nil || !c.Revision.Resumes || c.Session == "" || !c.Outlives || !out.Open() || !e.Resumption.Available() {
		return nil
	}
	r := &resumable{
		resume: e.Resumption, ended: e.endEvents, client: c, m: m, out: events, stream: stream, routes: e.Routes,
		lock: make(chan struct{}, 1), leaving: make(chan struct{}),
	}
	r.connection.call = r
	if c.Revision.Polls {
		r.timer = time.AfterFunc(primeAfter, r.prime)
	}
	return r
}

// carrier makes the next attempt of the call a round of its own.
func (r *resumable) carrier() []grpc.CallOption {
	r.lock <- struct{}{} // whoever offers a place writes the round down
	defer func() { <-r.lock }()
	r.at = bus.EventPoint{Round: r.at.Round + 1}
	r.unkept, r.settled = false, false
	opts := []grpc.CallOption{bus.Resumable(r.key(), &r.at.Number), bus.Unkept(&r.unkept)}
	if r.offered {
		opts = append(opts, bus.Kept()) // the client may be away
	}
	return opts
}

// key names the events of the round.
func (r *resumable) key() bus.EventsKey {
	return bus.EventsKey{Session: r.client.Scope, Stream: r.stream, Round: r.at.Round}
}

// Open reports whether messages reach the client, now or when it comes back.
func (r *resumable) Open() bool { return true }

// Begin starts the stream.
func (r *resumable) Begin() error { return r.out.Begin() }

// Send sends a message with its place.
func (r *resumable) Send(msg []byte) error {
	r.lock <- struct{}{}
	defer func() { <-r.lock }()
	if r.left.Load() {
		return nil
	}
	ev := exchange.Event{Data: msg}
	if !r.offerLocked() {
		return r.out.SendEvents(ev)
	}
	ev.ID = r.nextLocked().String()
	return r.out.SendEvents(r.primedLocked(ev)...)
}

// nextLocked is the place of the next message.
func (r *resumable) nextLocked() place {
	next := place{streamName: r.name, EventPoint: r.at}
	if r.last.EventPoint == r.at {
		next.part = r.last.part + 1
	}
	r.last = next
	return next
}

// offer is offerLocked.
func (r *resumable) offer() bool {
	r.lock <- struct{}{}
	defer func() { <-r.lock }()
	return r.offerLocked()
}

// offerLocked makes it possible to come back, and reports whether it is.
func (r *resumable) offerLocked() bool {
	if r.offered || r.refused {
		return r.offered
	}
	_, err := r.resume.Calls.PutCall(context.Background(), r.client.Scope, r.stream, r.continuation(), 0)
	r.offered, r.refused = err == nil, err != nil
	if r.offered {
		// Most calls end before anybody needs it.
		r.name = nameStream(r.routes, r.client.Scope, r.stream, r.m.ID)
	}
	return r.offered
}

// continuation is what another edge needs to know.
func (r *resumable) continuation() *millracev1.Continuation {
	c := &millracev1.Continuation{
		RequestId: r.m.ID, Method: r.m.Method, Params: r.m.Params.Raw,
		LogLevel: r.client.LogLevel, Round: r.at.Round, Edge: r.resume.Bus.ID(),
		Principal:   methods.Caller(r.client.Principal),
		TraceParent: r.client.Trace.Parent, TraceState: r.client.Trace.State, Baggage: r.client.Trace.Baggage,
	}
	if len(c.GetParams()) > maxKept {
		c.Params, c.ParamsCut = essential(r.m.Params), true
	}
	return c
}

// primedLocked puts the event that only tells a place in front of the first
// message, where the revision has it.
func (r *resumable) primedLocked(events ...exchange.Event) []exchange.Event {
	if r.primed || !r.client.Revision.Polls {
		return events
	}
	r.primed = true
	start := place{streamName: r.name}
	return append([]exchange.Event{{ID: start.String()}}, events...)
}

// prime gives the client of a long call its place.
func (r *resumable) prime() {
	r.lock <- struct{}{}
	defer func() { <-r.lock }()
	if r.over || r.left.Load() || r.primed || !r.offerLocked() {
		return
	}
	_ = r.out.SendEvents(r.primedLocked()...) // a client that left needs none
}

// Leave ends the connection of a client that can come back, and tells it when.
func (r *resumable) Leave(retry time.Duration) {
	r.lock <- struct{}{}
	defer func() { <-r.lock }()
	if r.over || r.left.Load() || !r.client.Revision.Polls || !r.offerLocked() {
		return
	}
	if retry <= 0 {
		retry = defaultRetry
	}
	_ = r.out.SendEvents(r.primedLocked(exchange.Event{Retry: retry})...) // as above
	r.drop()
}

// drop ends the connection as it is: the client has another one, or none.
func (r *resumable) drop() {
	if r.left.CompareAndSwap(false, true) {
		close(r.leaving)
	}
}

// finish gives the answer its place. An error that this edge has found by itself
// is told to whoever follows the events.
func (r *resumable) finish(a exchange.Answer, reply methods.Reply) exchange.Answer {
	if r.timer != nil {
		r.timer.Stop()
	}
	r.lock <- struct{}{}
	defer func() { <-r.lock }()
	r.over = true
	if !r.offered {
		return a
	}
	if reply.Failure != nil && reply.Failure.Kind == backend.Moved {
		// The client comes back for the rest.
		if !r.left.Load() && r.client.Revision.Polls {
			_ = r.out.SendEvents(exchange.Event{Retry: defaultRetry}) // a client that left does anyway
		}
		r.drop()
		return exchange.Answer{Withheld: true, Left: true}
	}
	a.EventID = place{streamName: r.name, EventPoint: r.at, end: true}.String()
	switch {
	case reply.Error != nil:
		r.end(endStatus(reply.Error))
	case (r.unkept || r.at.Round == 0) && reply.Result.Len() <= maxKept:
		// The client got its place while the call was on its way to a worker
		// that then answered at once: it may have left before.
		r.end(endResult(reply.Result.Join()))
	}
	// From now on it is needed no longer than the events.
	_ = r.resume.Calls.EndCall(r.client.Scope, r.stream, r.continuation())
	return a
}

// end ends the events of the call with what this edge has to say.
func (r *resumable) end(status error) {
	key := r.key()
	if r.settled {
		key.Round++ // nobody listens any more to a round that has ended
	}
	r.ended(key, status)
}
