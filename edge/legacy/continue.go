package legacy

import (
	"bytes"
	"context"
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
	// askedWait is how long the edge of a call may take to store what it asks.
	askedWait = time.Second
)

// errOvertaken ends a call that another edge goes on with.
var errOvertaken = errors.New("legacy: another edge goes on with the call")

// storeAsked stores what a round has asked, before the client sees it: whoever
// gets the answers can then go on if this edge is gone.
func (r *resumable) storeAsked(ctx context.Context, needs *millracev1.NeedsInput) error {
	r.lock <- struct{}{}
	offered := r.offerLocked()
	<-r.lock
	r.asked, r.settled = false, true
	if !offered {
		return nil
	}
	_, err := rewrite(ctx, r.resume.Calls, r.client.Scope, r.stream, func(c *millracev1.Continuation) error {
		if c.GetEdge() != r.resume.Bus.ID() {
			return errOvertaken
		}
		c.Round, c.Asked, c.Responses, c.Errors = r.at.Round, needs, nil, nil
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
	_, err := rewrite(ctx, r.resume.Calls, r.client.Scope, r.stream, func(c *millracev1.Continuation) error {
		if c.GetEdge() != r.resume.Bus.ID() || c.GetAsked() == nil || c.GetRound() != r.at.Round {
			return errOvertaken
		}
		c.Responses, c.Errors = resume.GetResponses(), resume.GetErrors()
		return nil
	})
	if isAway(err) {
		return nil
	}
	r.claimed = time.Now()
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
// is known to be gone, besides those that everybody sees gone.
func (e *Era) takeOver(ctx context.Context, client *methods.Client, stream string, round uint32, dead string) {
	kept, err := rewrite(ctx, e.Resumption.Calls, client.Scope, stream, func(c *millracev1.Continuation) error {
		gone := c.GetEdge() == dead || !e.Resumption.Alive(c.GetEdge())
		if c.GetRound() != round || !isAnswered(c) || !gone {
			return errOvertaken
		}
		c.Edge = e.Edge
		return nil
	})
	if err == nil {
		e.running.Go(func() { e.goOn(client, stream, kept) })
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

// openQuestions returns the keys of what a round has asked and the client has
// not answered yet; nil when the call has gone on. The edge of the call may be
// just about to store it. When it is gone (as gone says) without having done so,
// it is stored here.
func (e *Era) openQuestions(ctx context.Context, scope, stream string, round uint32, needs *millracev1.NeedsInput, gone func() bool) (map[string]bool, error) {
	var kept *millracev1.Continuation
	for begun := time.Now(); ; {
		var err error
		kept, _, err = e.Resumption.Calls.Call(ctx, scope, stream)
		if err != nil || kept.GetRound() > round || kept.GetRound() == round && kept.GetAsked() != nil {
			break // without a store: ask again rather than never
		}
		if time.Since(begun) > askedWait || gone() {
			kept, err = rewrite(ctx, e.Resumption.Calls, scope, stream, func(c *millracev1.Continuation) error {
				if c.GetRound() > round || c.GetRound() == round && c.GetAsked() != nil {
					return errOvertaken
				}
				c.Round, c.Asked, c.Responses, c.Errors = round, needs, nil, nil
				return nil
			})
			if err == nil || errors.Is(err, errOvertaken) {
				break
			}
		}
		pause := time.NewTimer(20 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
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
// taken: then it is not lost with the edge that has the call. complete reports
// that it was the last one of its round. errOvertaken: nobody waits for it.
func (e *Era) keepAnswer(ctx context.Context, scope string, r route, reply exchange.Reply) (complete bool, err error) {
	if e.Resumption == nil {
		return false, session.ErrNotFound
	}
	_, err = rewrite(ctx, e.Resumption.Calls, scope, r.stream, func(c *millracev1.Continuation) error {
		keys := slices.Sorted(maps.Keys(c.GetAsked().GetRequests()))
		if c.GetRound() != r.round || r.index >= len(keys) {
			return errOvertaken
		}
		key := keys[r.index]
		_, answered := c.GetResponses()[key]
		_, failed := c.GetErrors()[key]
		if answered || failed {
			return errOvertaken
		}
		if reply.Error != nil {
			c.Errors = with(c.GetErrors(), key, reply.Error)
		} else {
			c.Responses = with(c.GetResponses(), key, reply.Result)
		}
		complete = isAnswered(c)
		return nil
	})
	return complete, err
}

func with(m map[string][]byte, key string, value []byte) map[string][]byte {
	if m == nil {
		m = map[string][]byte{}
	}
	m[key] = value
	return m
}

// goOn runs the next round of a call of an edge that is gone, and those after
// it. What comes of it is for clients that come back.
func (e *Era) goOn(client *methods.Client, stream string, kept *millracev1.Continuation) {
	m, err := keptMessage(kept)
	if err != nil {
		return // it was written by an edge: not reached
	}
	c := *client
	c.Outlives, c.LogLevel = true, kept.GetLogLevel()
	c.Trace = backend.Trace{Parent: kept.GetTraceParent(), State: kept.GetTraceState(), Baggage: kept.GetBaggage()}
	r := &resumable{
		resume: e.Resumption, client: &c, m: &m, stream: stream, at: bus.EventPoint{Round: kept.GetRound()}, settled: true,
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
	e.runCall(context.Background(), &call{client: &c, m: &m, out: r, stream: stream, resumable: r},
		&methods.Round{Resume: resume, Instance: kept.GetAsked().GetInstance()})
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
