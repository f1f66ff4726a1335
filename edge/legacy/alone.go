package legacy

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

const (
	// alonePatience is how long to look for where a call runs whose edge is gone.
	alonePatience = 2 * time.Second
	// aloneAtOnce bounds the sessions whose calls are looked for at a time, and
	// aloneSessions those that wait for it.
	aloneAtOnce, aloneSessions = 16, 1000
	// aloneIDs bounds the bytes of ids that wait in one session. Hardly any of
	// them is of a call whose edge is gone: the rest is found where it runs.
	aloneIDs = 16 << 10
	// aloneAgain is when it is looked a second time: an edge that is gone seems to
	// be there for a while, and that an edge has gone on with a call may not have
	// been stored yet.
	aloneAgain = 5 * time.Second
	// alonePause and alonePauses are the shortest and the longest pause before it is
	// looked again how far a call has come.
	alonePause, alonePauses = 25 * time.Millisecond, 100 * time.Millisecond
)

// alone are the cancellations of calls that may have no edge. They are looked for
// in the store, so a client that cancels without end must not ask it without end:
// each session has one query at a time, and what comes meanwhile is one more. The
// zero value is ready; it is safe for concurrent use.
type alone struct {
	mu      sync.Mutex
	waiting map[string]*aloneSession
	// again is what is to be looked for a second time, by sessions, of each the
	// oldest first.
	again map[string][]aloneLater
	// atOnce is held by whoever asks the store; made by the first one.
	atOnce chan struct{}
}

// aloneSession is what of a session is to be cancelled.
type aloneSession struct {
	all  bool
	ids  [][]byte
	size int
}

// aloneLater is what is looked for at some time.
type aloneLater struct {
	due    time.Time
	wanted aloneSession
}

// add notes what is to be cancelled and reports whether somebody has to begin to
// look for it. What finds no room is dropped.
func (a *alone) add(scope string, requestID []byte) (begin bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		a.waiting, a.atOnce = map[string]*aloneSession{}, make(chan struct{}, aloneAtOnce)
	}
	s := a.waiting[scope]
	if s == nil {
		if len(a.waiting) >= aloneSessions {
			return false
		}
		s, begin = &aloneSession{}, true
		a.waiting[scope] = s
	}
	switch {
	case requestID == nil:
		s.all, s.ids = true, nil
	case !s.all && s.size+len(requestID) <= aloneIDs:
		s.add(bytes.Clone(requestID))
	}
	return begin
}

// next takes what has come for a session; ok is false when there is nothing, and
// then the next one who adds something has to begin.
func (a *alone) next(scope string) (wanted aloneSession, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.waiting[scope]
	if !s.all && len(s.ids) == 0 {
		delete(a.waiting, scope)
		return aloneSession{}, false
	}
	wanted = *s
	*s = aloneSession{}
	return wanted, true
}

// later notes what is to be looked for again, and reports whether somebody has to
// begin to wait for that. What finds no room is dropped.
func (a *alone) later(scope string, left aloneSession) (begin bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := left.size
	for _, l := range a.again[scope] {
		size += l.wanted.size
	}
	begin = len(a.again[scope]) == 0
	if begin && len(a.again) >= aloneSessions || size > aloneIDs {
		return false
	}
	if a.again == nil {
		a.again = map[string][]aloneLater{}
	}
	a.again[scope] = append(a.again[scope], aloneLater{time.Now().Add(aloneAgain), left})
	return begin
}

// first returns what of a session is to be looked for next, and done takes it away;
// more is false when there is nothing else.
func (a *alone) first(scope string) aloneLater {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.again[scope][0]
}

func (a *alone) done(scope string) (more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.again[scope] = a.again[scope][1:]
	if len(a.again[scope]) == 0 {
		delete(a.again, scope)
		return false
	}
	return true
}

func (s *aloneSession) add(id []byte) {
	s.ids = append(s.ids, id)
	s.size += len(id) + 1
}

func (s *aloneSession) has(id []byte) bool {
	return s.all || slices.ContainsFunc(s.ids, func(wanted []byte) bool { return bytes.Equal(wanted, id) })
}

// cancelAlone cancels calls of a session whose edge is gone: those with the
// request id, or all of them for nil. Others are cancelled by the edge that has
// them. It does not wait.
func (e *Era) cancelAlone(scope string, requestID []byte) {
	if e.Resumption == nil || !e.Resumption.Available() {
		return // then no call can be found, nor be resumed
	}
	if !e.alone.add(scope, requestID) {
		return
	}
	e.running.Go(func() {
		e.alone.atOnce <- struct{}{}
		defer func() { <-e.alone.atOnce }()
		for {
			wanted, ok := e.alone.next(scope)
			if !ok {
				return
			}
			left := e.cancelWanted(scope, &wanted)
			if (left.all || len(left.ids) > 0) && e.alone.later(scope, left) {
				e.running.Go(func() { e.lookAgain(scope) })
			}
		}
	})
}

// lookAgain looks a second time for calls whose edge seemed to be there. One that is
// has been told already, and one that has the call since then is told now.
func (e *Era) lookAgain(scope string) {
	for more := true; more; more = e.alone.done(scope) {
		next := e.alone.first(scope)
		timer := time.NewTimer(time.Until(next.due))
		select {
		case <-timer.C:
		case <-e.Stopping.Done():
			timer.Stop()
			continue
		}
		e.alone.atOnce <- struct{}{}
		left := e.cancelWanted(scope, &next.wanted)
		<-e.alone.atOnce
		for _, id := range left.ids {
			e.cancelCall(scope, id)
		}
	}
}

// cancelCall cancels a call on whichever edge has it.
func (e *Era) cancelCall(scope string, requestID []byte) {
	e.Methods.Calls.Cancel(scope, requestID)
	e.announce(&millracev1.Announcement{News: &millracev1.Announcement_Cancel{
		Cancel: &millracev1.CancelRequest{Scope: scope, RequestId: requestID},
	}})
}

// cancelWanted looks once. left are the calls whose edges are there, and those that
// could not be found.
func (e *Era) cancelWanted(scope string, wanted *aloneSession) (left aloneSession) {
	ctx, cancel := context.WithTimeout(e.Stopping, alonePatience)
	defer cancel()
	calls, err := e.Resumption.SessionCalls(ctx, scope)
	if err != nil {
		return *wanted
	}
	for stream, kept := range calls {
		if !wanted.has(kept.GetRequestId()) {
			continue
		}
		if e.Resumption.Alive(kept.GetEdge()) {
			left.add(kept.GetRequestId())
			continue
		}
		// From now on nobody goes on with it, unless somebody does already.
		_, err := rewrite(ctx, e.Resumption.Calls, scope, stream, func(c *millracev1.Continuation) error {
			if e.Resumption.Alive(c.GetEdge()) {
				return errOvertaken
			}
			c.Round, c.Asked, c.Responses, c.Errors = c.GetRound()+1, nil, nil, nil
			return nil
		})
		if errors.Is(err, errOvertaken) {
			e.cancelCall(scope, kept.GetRequestId())
			continue
		}
		if !e.cancelStream(ctx, scope, stream, kept) {
			left.add(kept.GetRequestId())
		}
	}
	return left
}

// cancelStream cancels the call that writes the events of a stream, and tells
// those who follow them. kept is what was stored of it. It reports false when the
// call, if it runs, could not be found.
func (e *Era) cancelStream(ctx context.Context, scope, stream string, kept *millracev1.Continuation) bool {
	var state bus.EventsState
	var err error
	for pause := alonePause; ; pause *= 2 {
		state, err = e.Resumption.Bus.EventsState(ctx, e.Resumption.Log, scope, stream)
		// What has been sent is stored a moment later, and a round that asked at
		// once may have sent nothing.
		known := state.Ctl != "" || state.Ended || kept.GetAsked() != nil || pause > alonePauses
		if err == nil && known || !sleep(ctx, pause) {
			break
		}
	}
	// Nobody listens any more to a round that has ended.
	round := max(kept.GetRound(), state.Round, 1)
	if kept.GetAsked() != nil && round == kept.GetRound() || state.Ended && round == state.Round {
		round++
	}
	// First the reason, then what the worker makes of it.
	e.endEvents(bus.EventsKey{Session: scope, Stream: stream, Round: round}, endStatus(&jsonrpc.Error{
		Code: jsonrpc.CodeInternal, Message: "the request was cancelled", Data: []byte(`{"reason":"cancelled"}`),
	}))
	e.Resumption.Bus.CancelEvents(state.Ctl)
	return err == nil
}
