package legacy

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/methods"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

const (
	// maxClaims bounds how often an edge tries to write a continuation that
	// others write too.
	maxClaims = 16
	// insistPatience is how long an edge tries to store who has a call, as long as
	// the events of that are kept, and insistPause how often.
	insistPatience, insistPause = 5 * time.Minute, time.Second
	// keepWait is how long a client waits until its answer can be stored.
	keepWait = 2 * time.Second
	// latePatience is how long an edge goes on to try it, latePause how often, and
	// maxLate bounds how many do so at a time.
	latePatience, latePause, maxLate = time.Minute, 500 * time.Millisecond, 1000
	// askedWait is how long the edge of a call may take to store what it asks.
	askedWait = time.Second
	// askedAway is how long a question waits for a store that is away: an answer
	// that comes before would be lost with the edge that has the call.
	askedAway = 5 * time.Second
)

// errOvertaken ends a call that another edge goes on with.
var errOvertaken = errors.New("legacy: another edge goes on with the call")

// errNotAsked: the question that is answered is not stored, or not yet.
var errNotAsked = errors.New("legacy: nobody has stored the question")

// errKept ends a rewriting of what is as it should be.
var errKept = errors.New("legacy: it is stored already")

// storeAsked stores what a round has asked, before the client sees it: whoever
// gets the answers can then go on if this edge is gone.
func (r *resumable) storeAsked(ctx context.Context, needs *millracev1.NeedsInput) error {
	r.asked, r.settled = false, true
	if !r.offer() {
		return nil
	}
	_, err := rewrite(ctx, r.resume.Calls, r.client.Scope, r.stream, func(c *millracev1.Continuation) error {
		if c.GetEdge() != r.resume.Bus.ID() {
			return errOvertaken
		}
		c.Round, c.Asked, c.Responses, c.Errors, c.Claimed = r.at.Round, needs, nil, nil, false
		return nil
	})
	if isAway(err) {
		return nil
	}
	r.asked = err == nil
	return err
}

// claim says that this edge runs the next round, and with which answers, so that
// another one can if this one is gone before it has. It fails when another one
// does already.
func (r *resumable) claim(ctx context.Context, resume *millracev1.Resume) error {
	if !r.asked {
		return nil // nobody else knows what was asked
	}
	r.claimed = time.Now()
	_, err := rewrite(ctx, r.resume.Calls, r.client.Scope, r.stream, func(c *millracev1.Continuation) error {
		if c.GetEdge() != r.resume.Bus.ID() || c.GetAsked() == nil || c.GetRound() != r.at.Round {
			return errOvertaken
		}
		r.claimed = time.Now()
		c.Responses, c.Errors, c.Claimed = resume.GetResponses(), resume.GetErrors(), true
		return nil
	})
	if isAway(err) {
		return nil
	}
	return err
}

// late reports whether this process stood still after its claim, so that others
// may have taken it for gone.
func (r *resumable) late() bool { return r.asked && time.Since(r.claimed) > beginWait/3 }

// owns reports whether this edge still has the call, as far as is known.
func (r *resumable) owns(ctx context.Context) bool {
	if !r.asked {
		return true
	}
	c, _, err := r.resume.Calls.Call(ctx, r.client.Scope, r.stream)
	return err != nil || c.GetEdge() == r.resume.Bus.ID()
}

// isAnswered reports whether a round that has asked has all its answers.
func isAnswered(c *millracev1.Continuation) bool {
	return c.GetAsked() != nil && len(c.GetResponses())+len(c.GetErrors()) >= len(c.GetAsked().GetRequests())
}

// takeOver goes on with a call whose edge is gone and has not begun the round
// for which there are answers. round is the one that asked; dead is an edge that
// seems to be gone, besides those that everybody sees gone. If that one has claimed
// the round it may have begun it, and whoever follows the call finds out. It does
// not wait. A store that gives no answer is asked again: nobody else would go on with
// what it stored without saying so.
func (e *Era) takeOver(client *methods.Client, stream string, round uint32, dead string) {
	if _, busy := e.taking.LoadOrStore(stream, true); busy {
		return
	}
	e.running.Go(func() {
		claim := rand.Text()
		var kept *millracev1.Continuation
		var claimed time.Time
		err := e.insist(func(ctx context.Context) (err error) {
			claimed = time.Now()
			kept, err = rewrite(ctx, e.Resumption.Calls, client.Scope, stream, func(c *millracev1.Continuation) error {
				if c.GetClaim() == claim {
					return errKept
				}
				gone := c.GetEdge() == dead || !e.Resumption.Alive(c.GetEdge())
				if c.GetRound() != round || !isAnswered(c) || !gone || dead != "" && c.GetClaimed() {
					return errOvertaken
				}
				claimed = time.Now()
				c.Edge, c.Claimed, c.Claim = e.Edge, true, claim
				return nil
			})
			return err
		})
		e.taking.Delete(stream)
		if err == nil || errors.Is(err, errKept) {
			e.goOn(client, stream, kept, claimed)
		}
	})
}

// sleep pauses, and reports whether the context has outlasted that.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// insist tries something with the store until that is there, or this edge stops.
func (e *Era) insist(try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(e.Stopping, insistPatience)
	defer cancel()
	for {
		err := try(ctx)
		if !errors.Is(err, session.ErrUnavailable) {
			return err
		}
		if !sleep(ctx, insistPause) {
			return err
		}
	}
}

// isAway reports whether the store is: then the call goes on as it is, for
// nobody else can go on with it either.
func isAway(err error) bool {
	return errors.Is(err, session.ErrUnavailable) || errors.Is(err, session.ErrNotFound) || errors.Is(err, session.ErrTooLarge)
}

// rewrite changes a stored continuation by compare-and-set.
func rewrite(ctx context.Context, store CallStore, scope, stream string, change func(*millracev1.Continuation) error) (*millracev1.Continuation, error) {
	var err error
	for range maxClaims {
		c, revision, getErr := store.Call(ctx, scope, stream)
		if getErr != nil {
			return nil, getErr
		}
		if changeErr := change(c); changeErr != nil {
			return c, changeErr
		}
		if _, err = store.PutCall(ctx, scope, stream, c, revision); !errors.Is(err, session.ErrConflict) {
			return c, err
		}
	}
	return nil, err
}

// abandon writes down that this edge, which may live on, does not have a call any
// more: whoever follows it has to look after it. The connection that was lost with
// the call is that to the store, too.
func (e *Era) abandon(scope, stream string) {
	_ = e.insist(func(ctx context.Context) error { // whoever has the call else, and a call that is not kept, needs nothing
		_, err := rewrite(ctx, e.Resumption.Calls, scope, stream, func(c *millracev1.Continuation) error {
			if c.GetEdge() != e.Resumption.Bus.ID() {
				return errOvertaken
			}
			c.Edge = ""
			return nil
		})
		return err
	})
}

// openQuestions returns the keys of what a round has asked and the client has
// not answered yet; nil when the call has gone on. The edge of the call may be
// just about to store it. When it is gone (as gone says) without having done so,
// it is stored here.
func (e *Era) openQuestions(ctx context.Context, scope, stream string, round uint32, needs *millracev1.NeedsInput, gone func() bool) (map[string]bool, error) {
	var kept *millracev1.Continuation
	for begun := time.Now(); ; {
		var err error
		kept, _, err = e.Resumption.Calls.Call(ctx, scope, stream)
		waited, settled := time.Since(begun), false
		switch {
		case errors.Is(err, session.ErrUnavailable) && waited < askedAway: // an answer could be stored by nobody
		case err != nil, kept.GetRound() > round, kept.GetRound() == round && kept.GetAsked() != nil:
			settled = true // without a store: ask again rather than never
		case waited > askedWait, gone():
			kept, err = rewrite(ctx, e.Resumption.Calls, scope, stream, func(c *millracev1.Continuation) error {
				if c.GetRound() > round || c.GetRound() == round && c.GetAsked() != nil {
					return errOvertaken
				}
				c.Round, c.Asked, c.Responses, c.Errors, c.Claimed = round, needs, nil, nil, false
				return nil
			})
			settled = err == nil || errors.Is(err, errOvertaken)
		}
		if settled {
			break
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
	if kept != nil && (kept.GetRound() > round || kept.GetAsked() == nil) {
		return nil, nil
	}
	open := map[string]bool{}
	for key := range needs.GetRequests() {
		_, answered := kept.GetResponses()[key]
		_, failed := kept.GetErrors()[key]
		open[key] = !answered && !failed
	}
	return open, nil
}

// keepAnswer stores a client's answer, before the client is told that it was
// taken: then it is not lost with the edge that has the call. kept is the answer
// that counts, an earlier one if there is: whoever stored that may be gone before it
// has passed it on. complete reports that it was the last one of its round. errOvertaken:
// nobody waits for it. errNotAsked: nobody has stored the question yet.
func (e *Era) keepAnswer(ctx context.Context, scope string, r route, reply exchange.Reply) (kept exchange.Reply, complete bool, err error) {
	if e.Resumption == nil {
		return reply, false, session.ErrNotFound
	}
	_, err = rewrite(ctx, e.Resumption.Calls, scope, r.stream, func(c *millracev1.Continuation) error {
		if c.GetRound() < r.round || c.GetRound() == r.round && c.GetAsked() == nil {
			return errNotAsked
		}
		keys := slices.Sorted(maps.Keys(c.GetAsked().GetRequests()))
		if c.GetRound() != r.round || r.index >= len(keys) || c.GetClaimed() {
			return errOvertaken
		}
		key := keys[r.index]
		result, answered := c.GetResponses()[key]
		refusal, failed := c.GetErrors()[key]
		kept = reply
		if answered || failed {
			// Whoever stored that has passed it on, or is gone, and then who
			// follows the call goes on.
			kept = exchange.Reply{Result: result, Error: refusal}
			return errKept
		}
		if reply.Error != nil {
			c.Errors = with(c.GetErrors(), key, reply.Error)
		} else {
			c.Responses = with(c.GetResponses(), key, reply.Result)
		}
		complete = isAnswered(c)
		return nil
	})
	if errors.Is(err, errKept) {
		err = nil
	}
	return kept, complete, err
}

// keepLate stores an answer that could not be stored when it came, as err says: its
// client will not send it again, and the edge that waits for it, if there is one, may
// be gone the next moment. The client waits for that a little, and then it goes on
// without. gone: the edge that asked could not be reached.
func (e *Era) keepLate(ctx context.Context, scope string, r route, reply exchange.Reply, gone bool, err error) {
	// As long as its edge is there nobody else needs what nobody has asked.
	open := func() bool {
		return errors.Is(err, session.ErrUnavailable) || gone && errors.Is(err, errNotAsked)
	}
	try := func(ctx context.Context, patience, pause time.Duration) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		for open() {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			case <-e.Stopping.Done():
				timer.Stop()
				return
			}
			// If nobody goes on, whoever follows the call does, and finds out
			// before whether somebody has.
			_, _, err = e.keepAnswer(ctx, scope, r, reply)
		}
	}
	try(ctx, keepWait, keepWait/8)
	if !open() {
		return
	}
	if e.late.Add(1) > maxLate {
		e.late.Add(-1)
		return
	}
	e.running.Go(func() {
		defer e.late.Add(-1)
		try(context.WithoutCancel(ctx), latePatience, latePause)
	})
}

func with(m map[string][]byte, key string, value []byte) map[string][]byte {
	if m == nil {
		m = map[string][]byte{}
	}
	m[key] = value
	return m
}

// goOn runs the next round of a call of an edge that is gone, and those after
// it. claimed is when this edge still had it to itself. What comes of it is for
// clients that come back.
func (e *Era) goOn(client *methods.Client, stream string, kept *millracev1.Continuation, claimed time.Time) {
	m, err := keptMessage(kept)
	if err != nil {
		return // it was written by an edge: not reached
	}
	c := *client
	c.Outlives, c.LogLevel = true, kept.GetLogLevel()
	c.Trace = backend.Trace{Parent: kept.GetTraceParent(), State: kept.GetTraceState(), Baggage: kept.GetBaggage()}
	r := &resumable{
		resume: e.Resumption, ended: e.endEvents, client: &c, m: &m, stream: stream, at: bus.EventPoint{Round: kept.GetRound()},
		settled: true, asked: true, claimed: claimed,
		lock: make(chan struct{}, 1), leaving: make(chan struct{}), offered: true,
	}
	r.drop()
	if kept.GetParamsCut() {
		r.end(endStatus(&jsonrpc.Error{
			Code: jsonrpc.CodeInternal, Data: []byte(`{"reason":"not_kept"}`),
			Message: "the edge that had the call is gone, and its parameters were too large for another one to go on: call again",
		}))
		return
	}
	resume := &millracev1.Resume{State: kept.GetAsked().GetState(), Responses: kept.GetResponses(), Errors: kept.GetErrors()}
	ctx, stop := e.Methods.Start(context.Background(), &c, &m)
	running := &call{client: &c, m: &m, out: r, stream: stream, resumable: r, stop: stop}
	round := &methods.Round{Resume: resume, Instance: kept.GetAsked().GetInstance()}
	exchange.Guard(e.Logger, m.ID, func() exchange.Answer { return e.runCall(ctx, running, round) })
}

// keptMessage is the request of a continuation.
func keptMessage(c *millracev1.Continuation) (jsonrpc.Message, error) {
	raw := jsonrpc.AppendRequest(nil, c.GetRequestId(), c.GetMethod(), c.GetParams())
	m, err := jsonrpc.Decode(raw, jsonrpc.Limits{MaxBytes: len(raw), MaxDepth: 0})
	if err != nil {
		return m, err
	}
	return m, nil
}

// essential is what of large parameters says what a call is about and how its
// messages are written.
func essential(params jsonrpc.Object) []byte {
	var members []jsonrpc.Member
	for _, m := range params.Members {
		if m.Key == "name" || m.Key == "uri" || m.Key == "_meta" && len(m.Value) <= maxKept {
			members = append(members, m)
		}
	}
	return jsonrpc.AppendObject(nil, members...)
}

// isRequestID reports whether what a client shows as an id is one.
func isRequestID(id []byte) bool {
	if len(id) == 0 {
		return false
	}
	m, err := jsonrpc.Decode(jsonrpc.AppendRequest(nil, id, "ping", nil), jsonrpc.Limits{})
	return err == nil && bytes.Equal(m.ID, id)
}
