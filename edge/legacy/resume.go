package legacy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/methods"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

const (
	// lostCheck is how often whoever follows a silent call looks whether the
	// edge and the worker that have it are still there.
	lostCheck = time.Second
	// storeWait is how long a client that comes back waits for a store that is
	// away.
	storeWait = 30 * time.Second
	// logPause is how long to wait when the log cannot be read.
	logPause = 200 * time.Millisecond
	// lookEvery is how often whoever follows a silent call looks who has it: its
	// edge may have lost it and live on.
	lookEvery = 5 * time.Second
	// beginWait is how long the round of an edge that is gone may take to
	// begin: an OPEN of it is refused when it is older than a second.
	beginWait = 3 * time.Second
	// nextRoundWait is how long a failed round may be followed by another
	// attempt, or by what its edge says about it.
	nextRoundWait = time.Second
	// togetherCount and togetherBytes bound the messages that are written
	// together when a client gets what was stored.
	togetherCount = 128
	togetherBytes = 32 << 10
)

// errSentAway ends a connection because the edge stops: its client is to come back
// to another one.
var errSentAway = errors.New("legacy: the edge is stopping")

// errTaken ends a connection whose client has a newer one for the same stream.
var errTaken = errors.New("legacy: the client has a newer connection for the stream")

// Resume serves a GET that names a place in the stream of a call: it sends what
// follows, stored or still to come, whichever edge made the call and whether it
// is still there (specification 2025-11-25, transports, "Resumability and
// Redelivery").
func (e *Era) Resume(ctx context.Context, req *exchange.Request, lastEventID string, out exchange.EventStream) (exchange.Answer, bool) {
	if !looksLikePlace(lastEventID) {
		return exchange.Answer{}, false
	}
	c, refusal := e.client(ctx, req)
	if refusal != nil {
		return *refusal, true
	}
	if c.Scope == "" || !c.Revision.Resumes || e.Resumption == nil {
		return exchange.Answer{}, false
	}
	refuse := func(status int, message string) (exchange.Answer, bool) {
		return exchange.Refused(c.Revision, status, nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: message}), true
	}
	at, ok := e.parsePlace(c.Scope, lastEventID)
	if !ok {
		return refuse(http.StatusBadRequest, "no stream of this session has the event that Last-Event-ID names")
	}
	if at.end {
		// A client that comes back after an answer would do so for ever; this
		// is the one status that all of them take for "there is nothing".
		return refuse(http.StatusMethodNotAllowed, "nothing follows this event: the stream has ended with its answer")
	}
	if !out.Open() {
		return refuse(http.StatusNotAcceptable, "this is a stream: accept text/event-stream")
	}
	kept, err := e.recall(ctx, c.Scope, at.stream, out)
	var m jsonrpc.Message
	if err == nil {
		m, err = keptMessage(kept)
	}
	if err != nil {
		if ctx.Err() != nil {
			return exchange.Answer{Withheld: true}, true
		}
		// The request is told, where the place says which one it is: its
		// client would wait for an answer, and come back again and again.
		lost := &jsonrpc.Error{
			Code: jsonrpc.CodeInternal, Message: "the rest of this stream is not kept any more: streams are kept for 5 minutes, with 512 messages and 4 MiB each; the call may have been executed",
			Data: []byte(`{"reason":"not_kept"}`),
		}
		if errors.Is(err, session.ErrUnavailable) {
			lost = errUnread()
		}
		if id := []byte(at.request); isRequestID(id) {
			answer := exchange.Failed(id, lost)
			at.end = true
			answer.EventID = at.String()
			return answer, true
		}
		return refuse(http.StatusBadRequest, lost.Message)
	}
	c.LogLevel = kept.GetLogLevel()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	key, conn := streamKey{c.Scope, at.stream}, &connection{holder: e.streams.holder(), end: func() { cancel(errTaken) }}
	e.connections.take(key, conn)
	defer e.connections.release(key, conn)
	e.announce(&millracev1.Announcement{News: &millracev1.Announcement_StreamTaken{
		StreamTaken: &millracev1.StreamTaken{Scope: c.Scope, Stream: at.stream, Holder: conn.holder},
	}})
	if c.Revision.Polls {
		defer context.AfterFunc(e.Draining, func() { cancel(errSentAway) })()
	}
	// What follows the event before, since a place may be in the middle of what
	// one event became.
	after := at.EventPoint
	if after.Number > 0 {
		after.Number--
	}
	follower, err := e.Resumption.Bus.Follow(e.Resumption.Log, c.Scope, at.stream, after)
	if err != nil {
		return refuse(http.StatusServiceUnavailable, "the edge cannot read the stream now: try again shortly")
	}
	defer follower.Close()
	follower.Pool(e.Methods.Pool(ctx, c.Client, &m))
	if out.Begin() != nil {
		return exchange.Answer{Withheld: true}, true
	}
	r := &resumed{
		era: e, client: c.Client, m: &m, from: at, out: out,
		events: events{era: e, client: c.Client, follower: follower, scope: c.Scope, stream: at.stream, edge: kept.GetEdge(), heard: time.Now()},
	}
	r.events.flush = r.flush
	return r.serve(ctx), true
}

// recall reads a continuation. While the store is away it waits, with the
// client's stream begun: most clients give a session up at the first refusal.
func (e *Era) recall(ctx context.Context, scope, stream string, out exchange.Stream) (*millracev1.Continuation, error) {
	wait, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	for {
		kept, _, err := e.Resumption.Calls.Call(wait, scope, stream)
		if !errors.Is(err, session.ErrUnavailable) {
			return kept, err
		}
		if beginErr := out.Begin(); beginErr != nil {
			return nil, beginErr
		}
		if !sleep(wait, lostCheck) {
			return nil, err
		}
	}
}

// resumed writes the rest of a stream for one client.
type resumed struct {
	era    *Era
	client *methods.Client
	m      *jsonrpc.Message
	// from is what the client has seen last.
	from place
	out  exchange.EventStream
	// last is the place of the message before.
	last   place
	events events
	// waiting are messages that are written with those that follow, before
	// anything is waited for; size is theirs.
	waiting []exchange.Event
	size    int
}

// serve writes until the answer.
func (r *resumed) serve(ctx context.Context) exchange.Answer {
	for {
		reply, ok := r.era.Methods.Replay(ctx, r.client, r.m, r, &r.events)
		_ = r.flush() // if the client has gone, it is found below or by the next write
		switch {
		case !ok:
			return r.answer(exchange.Failed(r.m.ID, &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: "internal error"}))
		case errors.Is(context.Cause(ctx), errSentAway):
			_ = r.out.SendEvents(exchange.Event{Retry: defaultRetry}) // a client that left comes back anyway
			return exchange.Answer{Withheld: true}
		case ctx.Err() != nil, r.era.Stopping.Err() != nil:
			// The client has left, or has a newer connection, or comes back to
			// another edge.
			return exchange.Answer{Withheld: true}
		case r.events.final != nil:
			return r.answer(r.events.final.answer(r.m.ID))
		case reply.NeedsInput != nil:
			if err := r.ask(ctx, reply.NeedsInput); err != nil {
				return exchange.Answer{Withheld: true}
			}
		case reply.Error != nil:
			return r.answer(exchange.Failed(r.m.ID, reply.Error))
		default:
			return r.answer(exchange.Succeeded(r.m.ID, reply.Result))
		}
	}
}

func (r *resumed) answer(a exchange.Answer) exchange.Answer {
	end := r.place()
	end.end = true
	a.EventID = end.String()
	return a
}

func (r *resumed) place() place {
	return place{streamName: r.from.streamName, EventPoint: r.events.at}
}

// Open reports whether messages reach the client.
func (r *resumed) Open() bool { return true }

// Begin does nothing: the stream has begun.
func (r *resumed) Begin() error { return nil }

// Send sends a message that the client has not seen yet.
func (r *resumed) Send(msg []byte) error {
	next := r.next()
	if next.EventPoint == r.from.EventPoint && next.part <= r.from.part {
		return nil
	}
	r.waiting = append(r.waiting, exchange.Event{ID: next.String(), Data: msg})
	r.size += len(msg)
	if len(r.waiting) < togetherCount && r.size < togetherBytes {
		return nil
	}
	return r.flush()
}

// flush writes the messages that wait: many that were stored cost little more
// than one.
func (r *resumed) flush() error {
	if len(r.waiting) == 0 {
		return nil
	}
	err := r.out.SendEvents(r.waiting...)
	clear(r.waiting)
	r.waiting, r.size = r.waiting[:0], 0
	return err
}

// next is the place of the next message, whether it is sent or not, so that places
// agree between edges.
func (r *resumed) next() place {
	next := r.place()
	if r.last.EventPoint == next.EventPoint {
		next.part = r.last.part + 1
	}
	r.last = next
	return next
}

// ask sends the questions of a round that are still open.
func (r *resumed) ask(ctx context.Context, needs *millracev1.NeedsInput) error {
	r.events.settled = r.events.at.Round
	open, err := r.era.openQuestions(ctx, r.client.Scope, r.from.stream, r.events.at.Round, needs, r.events.gone)
	if err != nil || open == nil {
		return err
	}
	from := route{edge: r.events.edge, stream: r.from.stream, round: r.events.at.Round, kept: true}
	questions, failure := r.era.questions(r.client, from, needs)
	if failure != nil {
		return nil // the edge that has the call finds it too, and ends it
	}
	for _, q := range questions {
		if !open[q.key] {
			r.next()
			continue
		}
		if err := r.Send(q.message); err != nil {
			return err
		}
	}
	return nil
}

// events are those of a call as a source of the backend. It also does what the
// edge that made the call would do, if that one is gone: it ends a call that
// nobody works on any more.
type events struct {
	era           *Era
	client        *methods.Client
	follower      *bus.Follower
	scope, stream string
	// flush passes on to the client what it has not been sent yet.
	flush func() error
	// edge has the call, as far as is known; ctl is where the worker hears.
	edge, ctl string
	at        bus.EventPoint
	// settled is the last round whose outcome was seen.
	settled uint32
	heard   time.Time
	// looked is when it was last looked who has the call; unread since when the
	// log cannot be read, zero: it can.
	looked, unread time.Time
	// suspected: the call was found lost when it was last looked at. It is only
	// when that is so twice: a process that stood still has not read yet what
	// came meanwhile.
	suspected bool
	// ahead is an event that was waited for apart, and comes next.
	ahead *bus.Event
	// gap: what came directly before the end is missing; large: it was too large.
	gap, large bool
	// final is the answer that the edge of the call has given by itself.
	final *final
}

// final is an answer, less its id: one of the two.
type final struct {
	result []byte
	err    *jsonrpc.Error
}

func (f *final) answer(id []byte) exchange.Answer {
	if f.err != nil {
		return exchange.Failed(id, f.err)
	}
	return exchange.Succeeded(id, jsonrpc.Whole(f.result))
}

var errNotKept = status.Error(codes.ResourceExhausted,
	"the result is larger than the 4 MiB that are kept for a client that comes back: it was sent on the first connection only; the call was executed")

// Next implements backend.Source.
func (s *events) Next(ctx context.Context) ([]byte, error) {
	for {
		ev, err := s.next(ctx)
		if err != nil {
			return nil, err
		}
		s.heard, s.suspected = time.Now(), false
		if ev.Client != "" {
			s.edge = ev.Client
		}
		if ev.Ctl != "" {
			s.ctl = ev.Ctl
		}
		switch {
		case ev.Started:
			s.at = bus.EventPoint{Round: ev.Round}
			continue
		case ev.End && ev.Round <= s.settled && endFinal(ev.Err) == nil:
			continue // the outcome was seen
		case ev.Gap:
			s.at, s.gap, s.large = ev.EventPoint, true, ev.Large
			continue // unless it has failed, that was the outcome
		case !ev.End, ev.Message != nil:
			s.at, s.gap = ev.EventPoint, false
			return ev.Message, nil
		}
		if s.final = endFinal(ev.Err); s.final != nil {
			return nil, backend.ErrOver
		}
		switch {
		case ev.Err != nil:
		case s.gap && s.large:
			return nil, errNotKept
		case s.gap:
			return nil, backend.ErrLost
		default:
			return nil, io.EOF
		}
		s.gap = false
		if code := status.Code(ev.Err); code == codes.Unavailable || code == codes.Canceled {
			// The edge may try again, or says itself how the call ended.
			if err := s.flush(); err != nil {
				return nil, err
			}
			if again, err := s.nextWithin(ctx, nextRoundWait); err == nil {
				s.ahead = &again
				continue
			}
		}
		return nil, ev.Err
	}
}

func (s *events) nextWithin(ctx context.Context, d time.Duration) (bus.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return s.follower.Next(ctx)
}

// next waits for an event as long as somebody is there to send one.
func (s *events) next(ctx context.Context) (bus.Event, error) {
	if ev := s.ahead; ev != nil {
		s.ahead = nil
		return *ev, nil
	}
	for {
		if ev, ok := s.follower.Ready(); ok {
			return ev, nil
		}
		if err := s.flush(); err != nil {
			return bus.Event{}, err
		}
		ev, err := s.nextWithin(ctx, lostCheck)
		switch {
		case err == nil, ctx.Err() != nil, errors.Is(err, bus.ErrFollowerClosed):
			return ev, err
		case s.era.Stopping.Err() != nil:
			return ev, backend.ErrOver
		case !errors.Is(err, context.DeadlineExceeded), errors.Is(err, session.ErrUnavailable):
			// A request to the log may have taken too long, too. The log cannot be read now; what is sent meanwhile is in it later.
			if s.unread.IsZero() {
				s.unread = time.Now()
			}
			if time.Since(s.unread) > storeWait {
				s.final = &final{err: errUnread()}
				return ev, backend.ErrOver
			}
			sleep(ctx, logPause)
			continue
		}
		s.unread = time.Time{}
		if failure := s.lost(ctx); failure != nil {
			key := s.key()
			if s.ctl != "" {
				s.era.Resumption.Bus.CancelEvents(s.ctl)
			}
			// Others who follow are told the same; so are those to come.
			s.era.endEvents(key, endStatus(failure))
			s.final = &final{err: failure}
			return bus.Event{}, backend.ErrOver
		}
	}
}

// key names the round that is to end.
func (s *events) key() bus.EventsKey {
	key := bus.EventsKey{Session: s.scope, Stream: s.stream, Round: max(s.at.Round, 1)}
	if s.settled >= key.Round {
		key.Round = s.settled + 1 // nobody listens any more to a round that has ended
	}
	return key
}

// look finds out who has a silent call.
func (s *events) look(ctx context.Context, silent time.Duration) {
	if silent < lookEvery || time.Since(s.looked) < lookEvery {
		return
	}
	s.looked = time.Now()
	if kept, _, err := s.era.Resumption.Calls.Call(ctx, s.scope, s.stream); err == nil {
		s.edge = kept.GetEdge()
	}
}

// gone reports whether the edge of the call is.
func (s *events) gone() bool { return !s.era.Resumption.Alive(s.edge) }

// lost says why nothing will come any more; nil while something may. Where the
// edge of a round is gone before it has begun it, this edge does.
func (s *events) lost(ctx context.Context) *jsonrpc.Error {
	silent, suspected := time.Since(s.heard), s.suspected
	s.suspected = false
	fail := func(reason, message string) *jsonrpc.Error {
		if !suspected {
			s.suspect()
			return nil
		}
		return &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: message, Data: []byte(`{"reason":"` + reason + `"}`)}
	}
	alive, timeout := s.era.Resumption.Alive, s.era.Methods.Backend.Timeout()
	if s.settled > 0 && s.settled >= s.at.Round {
		// Nothing has begun since the questions. Who has the call now, is
		// stored.
		kept, _, err := s.era.Resumption.Calls.Call(ctx, s.scope, s.stream)
		switch {
		case err == nil && alive(kept.GetEdge()):
		case err == nil && isAnswered(kept) && silent > beginWait:
			if !suspected {
				s.suspect()
				return nil
			}
			s.era.takeOver(s.client, s.stream, s.settled, "")
			s.heard = time.Now()
		case silent > s.era.askTimeout():
			return fail("no_input", "the client did not answer within "+s.era.askTimeout().String())
		}
		return nil
	}
	s.look(ctx, silent)
	switch {
	case !s.gone():
	case s.ctl != "" && !alive(instance(s.ctl)):
		return fail("worker_lost", "the worker that took the call is gone; the call may have been executed")
	case silent > timeout:
		return fail("timeout", "the worker gave no result or progress within "+timeout.String()+"; the call was cancelled")
	}
	return nil
}

// suspect notes that the call seems to be lost, until the log has been read: what is
// there may say otherwise.
func (s *events) suspect() {
	s.suspected = true
	s.follower.Refresh()
}

// instance is the id in the address of a call.
func instance(ctl string) string {
	// mr.<tenant>.i.<instance>.<call>
	if fields := strings.Split(ctl, "."); len(fields) == 5 {
		return fields[3]
	}
	return ""
}

// endStatus carries a JSON-RPC error as the end of a call's events, so that
// whoever follows them answers what the edge of the call has answered.
func endStatus(e *jsonrpc.Error) error {
	return status.Error(codes.Aborted, string(jsonrpc.AppendErrorObject(nil, e)))
}

// endResult is endStatus for a result.
func endResult(result []byte) error {
	return status.Error(codes.Aborted, string(jsonrpc.AppendObject(nil, jsonrpc.Member{Key: "result", Value: result})))
}

// endFinal reads what endStatus and endResult wrote; nil for any other end.
func endFinal(err error) *final {
	if status.Code(err) != codes.Aborted {
		return nil
	}
	// An error here is that of no edge, and then there is neither.
	o, _ := jsonrpc.ParseObject([]byte(status.Convert(err).Message()))
	if result := o.Get("result"); result != nil {
		return &final{result: result}
	}
	code, _ := strconv.Atoi(string(o.Get("code")))
	message, ok := jsonrpc.String(o.Get("message"))
	if code == 0 || !ok {
		return nil
	}
	return &final{err: &jsonrpc.Error{Code: code, Message: message, Data: o.Get("data")}}
}

// errUnread is the answer when JetStream is away for long.
func errUnread() *jsonrpc.Error {
	return &jsonrpc.Error{
		Code: jsonrpc.CodeInternal, Data: []byte(`{"reason":"may_have_started"}`),
		Message: "the rest of this stream cannot be read at the moment; the call may have been executed",
	}
}
