package legacy

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/methods"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

const (
	// defaultAskTimeout is how long a person may take to answer.
	defaultAskTimeout = 10 * time.Minute
	// maxRounds ends a tool that asks for ever.
	maxRounds = 64
)

// call is one request of a client while it runs. One goroutine has it.
type call struct {
	client *methods.Client
	m      *jsonrpc.Message
	out    exchange.Stream
	// stream names the call among all edges; it is unique and unguessable.
	stream string
	// round is the one that runs or waits for answers, counted from 1.
	round uint32
	// resumable is out, where its client can come back; else nil.
	resumable *resumable
	// stop ends that the client can cancel the call.
	stop func()
}

// serveCall runs a request that was started, and answers it.
func (e *Era) serveCall(ctx context.Context, stop func(), c *methods.Client, m *jsonrpc.Message, out exchange.Stream) exchange.Answer {
	running := &call{client: c, m: m, out: out, stream: rand.Text(), stop: stop}
	r := e.newResumable(c, m, out, running.stream)
	if r == nil {
		return e.runCall(ctx, running, &methods.Round{})
	}
	running.out, running.resumable = r, r
	// Before the call begins: with its first event the client can come back on
	// another connection, which ends this one.
	key := streamKey{c.Scope, r.stream}
	e.connections.take(key, &r.connection)
	defer e.connections.release(key, &r.connection)
	// The connection may end before the call does.
	answered := make(chan exchange.Answer, 1) // one answer, so it never blocks
	e.running.Go(func() {
		answered <- exchange.Guard(e.Logger, m.ID, func() exchange.Answer { return e.runCall(ctx, running, &methods.Round{}) })
	})
	e.leaving.Do(func() { context.AfterFunc(e.Draining, e.leave) })
	if e.Draining.Err() != nil {
		r.Leave(0) // it may have come too late to be told with the others
	}
	select {
	case a := <-answered:
		if !r.left.Load() {
			return a
		}
	case <-r.leaving:
		// Who writes to the response has it until the write is over; whoever
		// comes later finds that the call has left.
		r.lock <- struct{}{}
		<-r.lock
	}
	return exchange.Answer{Withheld: true, Left: true}
}

// leave sends the clients of all calls that run here to another edge.
func (e *Era) leave() {
	for _, r := range e.connections.calls() {
		e.running.Go(func() { r.Leave(0) }) // a client may be slow, and the others wait for no one
	}
}

// runCall runs a request that was started, from a round on. The answer is Withheld
// when the client expects none here.
func (e *Era) runCall(ctx context.Context, c *call, round *methods.Round) exchange.Answer {
	defer c.stop()
	reply, ok := e.runRounds(ctx, c, round)
	var answer exchange.Answer
	switch {
	case !ok:
		// Never HTTP 404: in this era that says the session is gone.
		return exchange.Failed(c.m.ID, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found: " + c.m.Method})
	case reply.Error == nil:
		answer = exchange.Succeeded(c.m.ID, reply.Result)
	default:
		// The HTTP status of a failed call is 200: clients of this era look for
		// JSON-RPC errors only there.
		answer = exchange.Failed(c.m.ID, reply.Error)
	}
	if reply.Failure != nil {
		answer.RetryAfter = reply.Failure.RetryAfter()
		answer.Withheld = reply.Failure.Kind == backend.Cancelled
	}
	if c.resumable == nil {
		return answer
	}
	if reply.Failure != nil && reply.Failure.Kind == backend.Moved {
		e.running.Go(func() { e.abandon(c.client.Scope, c.stream) })
	}
	return c.resumable.finish(answer, reply)
}

// runRounds runs a request until it needs no more input. What a worker asks for
// is sent to the client as requests of this era, on the stream of the call, and
// the call is made again with the answers.
func (e *Era) runRounds(ctx context.Context, c *call, round *methods.Round) (methods.Reply, bool) {
	for c.round = 1; c.round <= maxRounds; c.round++ {
		if c.resumable != nil {
			if c.resumable.late() {
				return e.Methods.Failed(c.client, c.m, &backend.Failure{Kind: backend.Moved}), true
			}
			round.Carrier = c.resumable.carrier
		}
		reply, ok := e.Methods.Run(ctx, c.client, c.m, c.out, round)
		if !ok || reply.NeedsInput == nil {
			return reply, ok
		}
		resume, failure := e.ask(ctx, c, reply.NeedsInput)
		if failure != nil {
			return e.Methods.Failed(c.client, c.m, failure), true
		}
		round = &methods.Round{Resume: resume, Instance: reply.NeedsInput.GetInstance()}
	}
	return e.Methods.Failed(c.client, c.m, &backend.Failure{Kind: backend.NoInput, Message: fmt.Sprintf("the request asked for input %d times without an end", maxRounds)}), true
}

// question is one request to the client.
type question struct {
	// key is the worker's name of it, id ours.
	key, id string
	message []byte
}

// questions writes what a round asks as requests to the client. They are the
// same whoever writes them: sorted, and named by the edge that has the call.
func (e *Era) questions(c *methods.Client, from route, needs *millracev1.NeedsInput) ([]question, *backend.Failure) {
	questions := make([]question, 0, len(needs.GetRequests()))
	for index, key := range slices.Sorted(maps.Keys(needs.GetRequests())) {
		from.index = index
		id := from.id(e.Routes, c.Scope)
		method, params, err := inputRequest(c.Revision, needs.GetRequests()[key], id)
		if errors.Is(err, errForm) {
			return nil, &backend.Failure{Kind: backend.NoInput, Message: errForm.Error()}
		}
		if err != nil {
			return nil, &backend.Failure{Kind: backend.Internal}
		}
		questions = append(questions, question{key, id, jsonrpc.AppendRequest(nil, jsonrpc.Quote(id), method, params)})
	}
	return questions, nil
}

// ask sends all questions of a round, then waits for all answers.
func (e *Era) ask(ctx context.Context, c *call, needs *millracev1.NeedsInput) (*millracev1.Resume, *backend.Failure) {
	if !c.out.Open() && len(needs.GetRequests()) > 0 {
		return nil, &backend.Failure{
			Kind:    backend.NoInput,
			Message: "the request needs input, and its client takes no stream on which to ask: accept text/event-stream",
		}
	}
	from := route{edge: e.Edge, stream: c.stream, round: c.round}
	if c.resumable != nil {
		from.round, from.kept = c.resumable.at.Round, c.resumable.offer()
	}
	questions, failure := e.questions(c.client, from, needs)
	if failure != nil {
		return nil, failure
	}
	replies := make([]<-chan exchange.Reply, len(questions))
	for i, q := range questions {
		reply, forget := e.Pending.Open(c.client.Scope, q.id)
		defer forget()
		replies[i] = reply
	}
	if c.resumable != nil {
		if err := c.resumable.storeAsked(ctx, needs); err != nil {
			return nil, c.moved(ctx, err)
		}
	}
	for _, q := range questions {
		if err := c.out.Send(q.message); err != nil && !c.client.Outlives {
			return nil, &backend.Failure{Kind: backend.Cancelled, Cause: err}
		}
	}
	timer := time.NewTimer(e.askTimeout())
	defer timer.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	resume := &millracev1.Resume{State: needs.GetState(), Responses: map[string][]byte{}, Errors: map[string][]byte{}}
	for i := 0; i < len(questions); {
		select {
		case r := <-replies[i]:
			if r.Error != nil {
				resume.Errors[questions[i].key] = r.Error
			} else {
				resume.Responses[questions[i].key] = r.Result
			}
			i++
		case <-look.C:
			if err := e.lookUp(ctx, c, questions); err != nil {
				return nil, c.moved(ctx, err)
			}
		case <-timer.C:
			if c.resumable != nil && !c.resumable.owns(ctx) {
				return nil, &backend.Failure{Kind: backend.Moved}
			}
			return nil, &backend.Failure{Kind: backend.NoInput, Message: fmt.Sprintf("the client did not answer %q within %v", questions[i].key, e.askTimeout())}
		case <-e.Stopping.Done():
			// The answers go to an edge that goes on with the call, if there
			// is a way to find it.
			return nil, &backend.Failure{Kind: backend.Moved}
		case <-ctx.Done():
			return nil, &backend.Failure{Kind: backend.Cancelled, Cause: context.Cause(ctx)}
		}
	}
	if c.resumable != nil {
		if err := c.resumable.claim(ctx, resume); err != nil {
			return nil, c.moved(ctx, err)
		}
	}
	return resume, nil
}

// lookUp finds out what this edge was not told of while it was parted from another
// one: answers that are stored, and that another edge goes on with the call, which
// is errOvertaken. A store that cannot be read is looked at again later.
func (e *Era) lookUp(ctx context.Context, c *call, questions []question) error {
	if c.resumable == nil || !c.resumable.asked {
		return nil
	}
	kept, _, err := c.resumable.resume.Calls.Call(ctx, c.client.Scope, c.stream)
	switch {
	case err != nil:
		return nil //nolint:nilerr // as said above
	case kept.GetEdge() != e.Edge:
		return errOvertaken
	case kept.GetRound() != c.resumable.at.Round:
		return nil
	}
	for _, q := range questions {
		if result, ok := kept.GetResponses()[q.key]; ok {
			e.Pending.Deliver(c.client.Scope, q.id, exchange.Reply{Result: result})
		} else if failure, ok := kept.GetErrors()[q.key]; ok {
			e.Pending.Deliver(c.client.Scope, q.id, exchange.Reply{Error: failure})
		}
	}
	return nil
}

// moved is the failure of a call with which another edge goes on.
func (c *call) moved(ctx context.Context, err error) *backend.Failure {
	switch {
	case errors.Is(err, errOvertaken):
		return &backend.Failure{Kind: backend.Moved}
	case ctx.Err() != nil:
		return &backend.Failure{Kind: backend.Cancelled, Cause: context.Cause(ctx)}
	default:
		return &backend.Failure{Kind: backend.Internal}
	}
}

// askTimeout is how long a client may take to answer.
func (e *Era) askTimeout() time.Duration {
	if e.AskTimeout > 0 {
		return e.AskTimeout
	}
	return defaultAskTimeout
}

// answered takes a client's answer to a request of some edge, and passes it on
// to whoever waits for it there. An answer to nothing that was asked, a second
// one and one that comes too late reach nobody, which is no error.
func (e *Era) answered(ctx context.Context, c *methods.Client, m *jsonrpc.Message) {
	id, ok := jsonrpc.String(m.ID)
	if !ok {
		return
	}
	to, ok := parseRoute(e.Routes, c.Scope, id)
	if !ok {
		return
	}
	// The message's bytes go back to their pool before they are read.
	reply := exchange.Reply{Result: bytes.Clone(m.Result), Error: bytes.Clone(m.Error)}
	// It counts, whatever becomes of the connection it came on.
	ctx = context.WithoutCancel(ctx)
	var complete bool
	var err error
	if to.kept {
		var kept exchange.Reply
		if kept, complete, err = e.keepAnswer(ctx, c.Scope, to, reply); err == nil {
			reply = kept
		}
	}
	// What could not be stored is passed on too: the question may have been asked
	// while nothing could. Whoever waits for it knows whether it still may.
	gone := false
	switch {
	case to.edge == e.Edge:
		e.Pending.Deliver(c.Scope, id, reply)
	case e.Peers != nil:
		_, notReached := e.Peers.Deliver(ctx, to.edge, &millracev1.DeliverRequest{Scope: c.Scope, Id: id, Result: reply.Result, Error: reply.Error})
		gone = notReached != nil
	}
	switch {
	case err != nil:
		e.keepLate(ctx, c.Scope, to, reply, gone, err)
	case complete && gone:
		e.takeOver(c, to.stream, to.round, to.edge)
	}
}

// Delivered takes an answer that another edge has received for this one, and
// reports whether somebody waited for it.
func (e *Era) Delivered(req *millracev1.DeliverRequest) bool {
	r := exchange.Reply{Result: req.GetResult()}
	if len(req.GetError()) > 0 {
		r = exchange.Reply{Error: req.GetError()}
	}
	return e.Pending.Deliver(req.GetScope(), req.GetId(), r)
}
