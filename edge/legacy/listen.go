package legacy

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/methods"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/render"
	"github.com/millrace/millrace/edge/session"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// checkEvery is how often an open stream looks whether its session is still
// there. It counts as use: a client that only listens is no idle one. News that
// was lost on the way between edges is made up for then.
const checkEvery = 5 * time.Minute

// checkSoon is the same while it is not known what the session subscribes to, or
// while not all of that is followed.
const checkSoon = time.Second

// lostWithin is how soon the streams look when news was missed: there may be many.
const lostWithin = 5 * time.Second

// Listen sends what belongs to no request: list changes and updates of
// subscribed resources. On HTTP it is the GET stream of a session (specification
// 2025-03-26, transports, "Listening for Messages from the Server"), on stdio it
// runs as long as the connection.
//
// Most streams wait for all of their life, and a stack never shrinks to less than
// four times of what is in use. So a stream is opened on a stack of its own, which
// is gone when this one waits.
func (e *Era) Listen(ctx context.Context, req *exchange.Request, out exchange.Stream) exchange.Answer {
	opened := make(chan *listening, 1) // one result, never blocks
	go func() {
		var l *listening
		answer := exchange.Guard(e.Logger, nil, func() exchange.Answer { l = e.listen(ctx, req, out); return exchange.Answer{} })
		if answer.Body != nil { // and l is nil
			answer.Status = http.StatusInternalServerError
			l = &listening{refusal: &answer}
		}
		opened <- l
	}()
	l := <-opened
	defer l.close()
	if l.refusal != nil {
		return *l.refusal
	}
	// The error is the client's: it has gone.
	_ = l.stream.changes.Run(l.stream.ctx, l.tell)
	return exchange.Answer{Withheld: true}
}

// listening is a stream that is served.
type listening struct {
	// refusal: there is no stream; then the fields below are nil.
	refusal *exchange.Answer
	stream  *stream
	// tell sends a change.
	tell func(notify.Event) error
	// closing is what is to be done at the end, last first.
	closing []func()
}

func (l *listening) close() {
	for _, do := range slices.Backward(l.closing) {
		do()
	}
}

func (l *listening) refuse(answer exchange.Answer) *listening {
	l.refusal = &answer
	return l
}

// listen opens a stream.
func (e *Era) listen(ctx context.Context, req *exchange.Request, out exchange.Stream) *listening {
	l := &listening{}
	client, refusal := e.client(ctx, req)
	if refusal != nil {
		return l.refuse(*refusal)
	}
	if client.state == nil {
		return l.refuse(exchange.Refused(client.Revision, http.StatusMethodNotAllowed, nil, &jsonrpc.Error{
			Code:    jsonrpc.CodeInvalidRequest,
			Message: "a stream belongs to a session: send initialize by POST first, and its Mcp-Session-Id with this request",
		}))
	}
	if !out.Open() {
		return l.refuse(exchange.Refused(client.Revision, http.StatusNotAcceptable, nil, &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: "this is a stream: accept text/event-stream",
		}))
	}
	// What is done only once goes by ctx: a context that never had children is
	// smaller.
	streamCtx, cancel := context.WithCancelCause(ctx)
	changes := e.Changes.Open(methods.Caller(req.Principal), listKinds[:]...)
	s := &stream{
		scope: client.Scope, state: client.state, changes: changes, out: out, ctx: streamCtx, end: cancel,
		following: make(chan struct{}, 1), sending: make(chan struct{}, 1),
		places: client.peer == nil && client.Revision.Resumes, name: crand.Text()[:8],
	}
	l.stream = s
	l.closing = append(l.closing, func() { cancel(nil) }, changes.Close)
	seen, resumed := parseListPlace(req.Header.Get(mcp.HeaderLastEventID))
	if resumed && s.places {
		for i, kind := range listKinds {
			changes.Since(kind, seen[i][:])
		}
	}
	s.lists = placeOf(changes)
	// The stream before goes on until this one hears what it does, so that nothing
	// is lost between the two.
	if refusal := e.followFirst(ctx, s, client.Revision, false); refusal != nil {
		return l.refuse(*refusal)
	}
	if streamCtx.Err() != nil {
		// The client has gone, and may have a stream elsewhere already.
		return l.refuse(exchange.Answer{Withheld: true})
	}
	e.streams.open(s)
	l.closing = append(l.closing, func() { e.streams.closed(s) }, s.close)
	if client.peer == nil {
		// An edge that does not hear of it sends the same until it does.
		_ = e.tell(ctx, &millracev1.Announcement{News: &millracev1.Announcement_StreamTaken{
			StreamTaken: &millracev1.StreamTaken{Scope: s.scope, Holder: s.holder},
		}})
	}
	// And whoever changed a subscription meanwhile did not find this one, but has
	// been answered: what is new is late.
	if refusal := e.followFirst(ctx, s, client.Revision, true); refusal != nil {
		return l.refuse(*refusal)
	}
	if resumed && s.places {
		changes.TouchAll()
	}
	if s.begin(client.Revision.Polls) != nil {
		return l.refuse(exchange.Answer{Withheld: true})
	}
	stop := context.AfterFunc(e.Draining, func() { cancel(nil) })
	l.closing = append(l.closing, func() { stop() })
	if client.peer == nil {
		l.closing = append(l.closing, e.keepChecking(s))
	}
	peer, rev := req.Peer, client.Revision // nothing else of the request is kept
	l.tell = func(ev notify.Event) error {
		if peer != nil && peer.Handshake() == nil {
			return nil // nobody has asked for this era yet
		}
		if ev.Kind == notify.ElicitationComplete && !hasElicitationIDs(peer, rev) {
			return nil
		}
		s.know(placeOf(changes))
		return s.send(render.Change(ev, nil))
	}
	return l
}

// followFirst makes a stream follow what its session subscribes to, before it
// begins. A store that cannot be read is no reason to refuse it. late is as for
// follow.
func (e *Era) followFirst(ctx context.Context, s *stream, rev *mcp.Revision, late bool) *exchange.Answer {
	err := s.follow(ctx, late)
	var refusal exchange.Answer
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNotRead):
		s.checks.within(checkSoon)
		return nil
	case errors.Is(err, session.ErrUnknown):
		refusal = unknownSession(rev, nil)
	case s.ctx.Err() != nil:
		return nil // the client has gone, or has a newer stream: this one ends
	default:
		refusal = exchange.Refused(rev, http.StatusServiceUnavailable, nil, &jsonrpc.Error{
			Code: jsonrpc.CodeInternal, Message: "the edge cannot listen for updates now: try again shortly",
		})
	}
	return &refusal
}

// keepChecking looks after an open stream until it ends. It has no goroutine
// but while it looks.
func (e *Era) keepChecking(s *stream) (stop func()) {
	// Not all at once that were opened together.
	spread := func(every time.Duration) time.Duration {
		return every - rand.N(every/5) //nolint:gosec // nobody gains from guessing it
	}
	return s.checks.start(func() time.Duration { return spread(checkEvery) }, func() (again bool) {
		err := s.follow(s.ctx, true)
		if err != nil && s.ctx.Err() == nil {
			s.checks.within(spread(checkSoon))
		}
		return s.ctx.Err() == nil
	})
}

// NewsMissed says that this edge may not have heard what others have told: the bus
// was gone, or another edge is, which may have stored the change of a session, or
// its end, and told nobody. The open streams look.
func (e *Era) NewsMissed() {
	for _, s := range e.streams.all() {
		e.Records.Forget(s.scope)
		s.checks.within(rand.N(lostWithin)) //nolint:gosec // as above
	}
}

// checks run a function now and then, one at a time. The zero value is ready.
type checks struct {
	mu    sync.Mutex
	timer *time.Timer // nil: not started, or stopped
	due   time.Time   // when it runs next, unless busy
	busy  bool        // it runs
	// wanted: it is to run once more, soon after that or after the start.
	wanted bool
	soon   time.Duration
}

// start runs check after next, and again as long as it returns true, until stop is
// called, which does not wait.
func (c *checks) start(next func() time.Duration, check func() (again bool)) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(c.pauseLocked(next), func() {
		c.mu.Lock()
		c.busy = c.timer != nil
		stopped := !c.busy
		c.mu.Unlock()
		if stopped {
			return
		}
		again := check()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.busy = false
		if again && c.timer != nil {
			c.timer.Reset(c.pauseLocked(next))
		}
	})
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.timer != nil {
			c.timer.Stop()
			c.timer = nil
		}
	}
}

func (c *checks) pauseLocked(next func() time.Duration) time.Duration {
	pause := next()
	if c.wanted {
		pause = min(pause, c.soon)
	}
	c.wanted = false
	c.due = time.Now().Add(pause)
	return pause
}

// within makes a check begin in that time at the latest: one that runs may have
// seen what was before.
func (c *checks) within(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil && !c.busy {
		// One that is due has not begun.
		if due := time.Now().Add(d); due.Before(c.due) {
			c.due = due
			c.timer.Reset(d)
		}
		return
	}
	if !c.wanted || d < c.soon {
		c.wanted, c.soon = true, d
	}
}

// End ends a session (transports, "Session Management": HTTP DELETE). Its
// streams end, and its running calls are cancelled, on whichever edges they are.
func (e *Era) End(ctx context.Context, req *exchange.Request) exchange.Answer {
	// It counts, whatever becomes of the connection: a client that goes away has
	// often sent this last.
	ctx = context.WithoutCancel(ctx)
	client, refusal := e.client(ctx, req)
	if refusal != nil {
		if client.Scope != "" {
			e.endEverywhere(ctx, client.Scope) // the edge that ended it may not have got to this
		}
		return *refusal
	}
	if client.state == nil {
		return exchange.Refused(client.Revision, http.StatusBadRequest, nil, &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: "the Mcp-Session-Id header is missing: it names the session to end",
		})
	}
	err := client.state.update(ctx, func(rec *session.Record) error {
		rec.Ended, rec.Level, rec.URIs = true, "", nil
		return nil
	})
	switch {
	case errors.Is(err, session.ErrUnknown):
		e.endEverywhere(ctx, client.Scope) // as above
		return unknownSession(client.Revision, nil)
	case err != nil:
		refusal, after := e.notStored(client, &req.Message, err)
		answer := exchange.Refused(client.Revision, http.StatusServiceUnavailable, nil, refusal)
		answer.RetryAfter = after
		return answer
	}
	e.endEverywhere(ctx, client.Scope)
	return exchange.Answer{Status: http.StatusNoContent}
}

// endEverywhere ends what a session that is over has on any edge, or alone.
func (e *Era) endEverywhere(ctx context.Context, scope string) {
	e.ended(scope)
	// Who is not told finds it out when it looks.
	_ = e.tell(ctx, &millracev1.Announcement{News: &millracev1.Announcement_SessionChanged{
		SessionChanged: &millracev1.SessionChanged{Scope: scope, Ended: true},
	}})
	e.cancelAlone(scope, nil)
}

// subscribe serves resources/subscribe and resources/unsubscribe (server/
// resources, "Subscriptions").
func (e *Era) subscribe(ctx context.Context, c *caller, m *jsonrpc.Message) exchange.Answer {
	uri, err := mcp.StringParam(m.Params, "uri")
	if err != nil {
		return exchange.Failed(m.ID, err)
	}
	if c.state == nil {
		return exchange.Failed(m.ID, needsSession("a subscription"))
	}
	change := unfollowed
	if m.Method == mcp.MethodSubscribe {
		change = followed
		if _, _, ok := e.Methods.Backend.Snapshot(ctx, methods.Caller(c.Principal)).Resource(uri); !ok {
			return exchange.Failed(m.ID, render.ResourceNotFound(c.Revision, uri))
		}
	}
	changeErr := c.state.update(ctx, func(rec *session.Record) error { return change(rec, uri) })
	if errors.Is(changeErr, errTooMany) {
		return exchange.Failed(m.ID, &jsonrpc.Error{
			Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf("a session may subscribe to %d resources: unsubscribe from others first", maxFollowed),
		})
	}
	if s := e.streams.of(c.Scope); s != nil && changeErr == nil {
		if followErr := s.follow(ctx, false); followErr != nil && s.ctx.Err() == nil {
			changeErr = fmt.Errorf("%w: %w", session.ErrUnavailable, followErr) // it is stored; to repeat it does no harm
		}
	}
	if m.Method == mcp.MethodUnsubscribe {
		uri = "" // there is nothing to be told of
	}
	return e.changed(ctx, c, m, uri, changeErr)
}

// needsSession refuses what cannot be kept without a session.
func needsSession(what string) *jsonrpc.Error {
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInvalidRequest,
		Message: what + " belongs to a session: send initialize first, and its Mcp-Session-Id with this request",
	}
}
