package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"sync"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// maxState bounds the state that a call carries from round to round. It passes
// through the client, twice, and through the bus.
const maxState = 256 << 10

// rounds is what a call knows of its rounds. The zero value is the first round
// without answers. Its methods may be called from any goroutine.
type rounds struct {
	mu sync.Mutex
	// answers were valid in this round or an earlier one.
	answers map[string]json.RawMessage
	// fresh are what the client has sent with this round, not looked at.
	fresh map[string][]byte
	// refused are questions that the client answered with an error, in this
	// round or an earlier one; errors are what it has sent with this round.
	refused map[string]*ClientError
	errors  map[string][]byte
	// pending are questions of this round that have no answer.
	pending map[string][]byte
	// once are results of Once; running are those that are not there yet, and
	// whoever runs one closes its channel.
	once    map[string]json.RawMessage
	running map[string]chan struct{}
}

// state is what is carried. Only workers read it: the edge authenticates it,
// so a client cannot have changed it.
type state struct {
	Version  int                        `json:"v"`
	Answers  map[string]json.RawMessage `json:"answers,omitempty"`
	Refused  map[string]*ClientError    `json:"refused,omitempty"`
	Once     map[string]json.RawMessage `json:"once,omitempty"`
	Progress *float64                   `json:"progress,omitempty"`
}

// stateVersion changes when older workers cannot read the state any more.
const stateVersion = 1

// restore takes up what earlier rounds have left.
func (c *Call) restore() error {
	r := &c.rounds
	raw := c.resume.GetState()
	if len(raw) == 0 && c.onceOnly {
		// Answers to no round of ours: nothing says how often they came.
		c.resume = nil
		return nil
	}
	r.fresh, r.errors = c.resume.GetResponses(), c.resume.GetErrors()
	if len(raw) == 0 {
		return nil
	}
	var s state
	if err := c.w.codec.unmarshal(raw, &s); err != nil || s.Version != stateVersion {
		return &ProtocolError{Code: invalidParamsCode, Message: "the request state is not one of this server: make the call again from the beginning"}
	}
	r.answers, r.refused, r.once = s.Answers, s.Refused, s.Once
	if s.Progress != nil {
		c.last = *s.Progress
	}
	return nil
}

// ask returns the answers to the questions. If there is none to some of them,
// it returns why: a ClientError if the client has refused one, otherwise
// ErrNeedsInput, and these are noted.
func (r *rounds) ask(questions []Question) (map[string]json.RawMessage, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answers := make(map[string]json.RawMessage, len(questions))
	var open []Question
	var refused *ClientError
	for _, q := range questions {
		if answer, ok := r.answerLocked(&q); ok {
			answers[q.key] = answer
		} else if e := r.refusalLocked(q.key); e == nil {
			open = append(open, q)
		} else if refused == nil {
			refused = e
		}
	}
	if refused != nil {
		return nil, refused
	}
	for _, q := range open {
		set(&r.pending, q.key, q.encode())
	}
	if len(open) > 0 {
		return nil, ErrNeedsInput
	}
	return answers, nil
}

// answerLocked returns the answer to a question. mu is held.
func (r *rounds) answerLocked(q *Question) (json.RawMessage, bool) {
	// The older answer counts: what was done since depends on it.
	if answer, ok := r.answers[q.key]; ok && q.valid(answer) == nil {
		return answer, true
	}
	answer, ok := r.fresh[q.key]
	if !ok || q.valid(answer) != nil {
		return nil, false
	}
	set(&r.answers, q.key, answer)
	return answer, true
}

// refusalLocked returns the error a question was answered with, or nil. mu is
// held.
func (r *rounds) refusalLocked(key string) *ClientError {
	e := r.refused[key]
	if raw, ok := r.errors[key]; ok && e == nil {
		e = readClientError(raw)
		set(&r.refused, key, e)
	}
	if e != nil && e.Key == "" {
		e.Key = key // it is not part of what is carried
	}
	return e
}

// set makes the map where there is none.
func set[V any](m *map[string]V, key string, value V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = value
}

// needsInput writes the outcome of a round that ends with questions. The call
// has ended, so nothing else uses it any more.
func (c *Call) needsInput() (*millracev1.NeedsInput, error) {
	c.rounds.mu.Lock()
	// A goroutine that the handler has left behind may still ask.
	pending := maps.Clone(c.rounds.pending)
	c.rounds.mu.Unlock()
	if len(pending) == 0 {
		return nil, internalf("the handler returned ErrNeedsInput, but there is no question without an answer")
	}
	return c.nextRound(pending)
}

// nextRound writes what a further round needs: the questions and what is known
// so far.
func (c *Call) nextRound(requests map[string][]byte) (*millracev1.NeedsInput, error) {
	r := &c.rounds
	r.mu.Lock()
	defer r.mu.Unlock()
	s := state{Version: stateVersion, Answers: r.answers, Refused: r.refused, Once: r.once}
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	if !math.IsInf(last, 0) {
		s.Progress = &last
	}
	raw, err := marshal(s)
	if err != nil {
		return nil, internalf("the state of the call cannot be written: %v", err)
	}
	if len(raw) > maxState {
		return nil, &ProtocolError{
			Code:    internalCode,
			Message: fmt.Sprintf("the answers and intermediate results of the call take %d bytes, and the limit is %d", len(raw), maxState),
		}
	}
	return &millracev1.NeedsInput{Requests: requests, State: raw, OnceOnly: c.onceOnly}, nil
}

// Once runs fn in the first round of a call that gets there, and returns its
// result in all later ones: for what has to happen before an [Call.Ask] and
// must not happen again. Calls of the same key wait for each other. The result
// is carried as JSON, by the key, with the state of the call; T must survive
// that. If fn returns an error, nothing is kept, and the next round runs it
// again.
//
// This is at least once, not exactly once: the result is kept only when the
// round ends with a question, and a client can repeat an earlier round, or the
// call. Effects that must never be repeated need an identifier of their own
// where they take place.
func Once[T any](call *Call, key string, fn func() (T, error)) (T, error) {
	var result T
	raw, err := call.rounds.do(call.ctx, validText(key), func() (json.RawMessage, error) {
		value, err := fn()
		if err != nil {
			return nil, err
		}
		raw, err := call.w.codec.marshal(value)
		if err != nil {
			return nil, internalf("the result of Once %q cannot be written: %v", key, err)
		}
		if len(raw) == 0 {
			raw = json.RawMessage("null")
		}
		return raw, nil
	})
	if err != nil {
		return result, err
	}
	// In the first round too, so that a type that does not survive is noticed.
	if err := call.w.codec.unmarshal(raw, &result); err != nil {
		return result, internalf("the result of Once %q cannot be read as %T: %v", key, result, err)
	}
	return result, nil
}

// do returns the result that key has, or runs fn for it.
func (r *rounds) do(ctx context.Context, key string, fn func() (json.RawMessage, error)) (json.RawMessage, error) {
	for {
		r.mu.Lock()
		if raw, ok := r.once[key]; ok {
			r.mu.Unlock()
			return raw, nil
		}
		running, ok := r.running[key]
		if !ok {
			break
		}
		r.mu.Unlock()
		select {
		case <-running: // with a result, or it is our turn
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	done := make(chan struct{})
	set(&r.running, key, done)
	r.mu.Unlock()

	var raw json.RawMessage
	defer func() { // also when fn panics
		r.mu.Lock()
		delete(r.running, key)
		if raw != nil {
			set(&r.once, key, raw)
		}
		r.mu.Unlock()
		close(done)
	}()
	raw, err := fn()
	return raw, err
}
