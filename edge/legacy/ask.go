package legacy

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/methods"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

const (
	// defaultAskTimeout is how long a person may take to answer.
	defaultAskTimeout = 10 * time.Minute
	// maxRounds ends a tool that asks for ever.
	maxRounds = 64
)

// runRounds runs a request until it needs no more input. What a worker asks for
// is sent to the client as requests of this era, on the stream of the call, and
// the call is made again with the answers.
func (e *Era) runRounds(ctx context.Context, c *methods.Client, m *jsonrpc.Message, out exchange.Stream) (methods.Reply, bool) {
	ctx, stop := e.Methods.Start(ctx, c, m)
	defer stop()
	var round *methods.Round
	for range maxRounds {
		reply, ok := e.Methods.Run(ctx, c, m, out, round)
		if !ok || reply.NeedsInput == nil {
			return reply, ok
		}
		resume, failure := e.ask(ctx, c, reply.NeedsInput, out)
		if failure != nil {
			return e.Methods.Failed(c, m, failure), true
		}
		round = &methods.Round{Resume: resume, Instance: reply.NeedsInput.GetInstance()}
	}
	return e.Methods.Failed(c, m, &backend.Failure{Kind: backend.NoInput, Message: fmt.Sprintf("the request asked for input %d times without an end", maxRounds)}), true
}

// question is one request to the client.
type question struct {
	key    string
	reply  <-chan exchange.Reply
	forget func()
}

// ask sends all questions, then waits for all answers.
func (e *Era) ask(ctx context.Context, c *methods.Client, needs *millracev1.NeedsInput, out exchange.Stream) (*millracev1.Resume, *backend.Failure) {
	if !out.Open() && len(needs.GetRequests()) > 0 {
		return nil, &backend.Failure{
			Kind:    backend.NoInput,
			Message: "the request needs input, and its client takes no stream on which to ask: accept text/event-stream",
		}
	}
	questions := make([]question, 0, len(needs.GetRequests()))
	defer func() {
		for _, q := range questions {
			q.forget()
		}
	}()
	for _, key := range slices.Sorted(maps.Keys(needs.GetRequests())) {
		method, params, err := inputRequest(c.Revision, needs.GetRequests()[key])
		if errors.Is(err, errForm) {
			return nil, &backend.Failure{Kind: backend.NoInput, Message: errForm.Error()}
		}
		if err != nil {
			return nil, &backend.Failure{Kind: backend.Internal}
		}
		id, reply, forget := e.Pending.Open(c.Scope)
		questions = append(questions, question{key, reply, forget})
		if err := out.Send(jsonrpc.AppendRequest(nil, id, method, params)); err != nil && !c.Outlives {
			return nil, &backend.Failure{Kind: backend.Cancelled, Cause: err}
		}
	}
	timeout := e.AskTimeout
	if timeout <= 0 {
		timeout = defaultAskTimeout
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	resume := &millracev1.Resume{State: needs.GetState(), Responses: map[string][]byte{}, Errors: map[string][]byte{}}
	for _, q := range questions {
		select {
		case r := <-q.reply:
			if r.Error != nil {
				resume.Errors[q.key] = r.Error
			} else {
				resume.Responses[q.key] = r.Result
			}
		case <-timer.C:
			return nil, &backend.Failure{Kind: backend.NoInput, Message: fmt.Sprintf("the client did not answer %q within %v", q.key, timeout)}
		case <-ctx.Done():
			return nil, &backend.Failure{Kind: backend.Cancelled, Cause: context.Cause(ctx)}
		}
	}
	return resume, nil
}

// inputRequest takes an input request apart and leaves out what the revision
// does not know.
func inputRequest(rev *mcp.Revision, raw []byte) (method string, params []byte, err error) {
	request, err := jsonrpc.ParseObject(raw)
	if err != nil {
		return "", nil, err
	}
	method, ok := jsonrpc.String(request.Get("method"))
	if !ok {
		return "", nil, errors.New("legacy: an input request has no method")
	}
	params = request.Get("params")
	if method == mcp.MethodElicit && rev.ElicitationModes {
		params, err = withElicitationID(params)
		return method, params, err
	}
	if method == mcp.MethodElicit && !rev.ElicitationModes {
		if params, err = jsonrpc.Without(params, "mode"); err != nil {
			return "", nil, err
		}
		params, err = withoutLists(params)
	}
	return method, params, err
}

// errForm says that a form cannot be shown in an old revision.
var errForm = errors.New("the request needs a form with a list to choose several from, which the client's revision of the protocol does not have")

// withoutLists leaves out the fields of a form that are lists, which the first
// revision with forms did not have, unless the form needs them.
func withoutLists(params []byte) ([]byte, error) {
	o, err := jsonrpc.ParseObject(params)
	if err != nil {
		return nil, err
	}
	form, err := jsonrpc.ParseObject(o.Get("requestedSchema"))
	if err != nil {
		return nil, err
	}
	fields, err := jsonrpc.ParseObject(form.Get("properties"))
	if err != nil {
		return nil, err
	}
	var lists []string
	for _, f := range fields.Members {
		field, err := jsonrpc.ParseObject(f.Value)
		if err != nil {
			return nil, err
		}
		if kind, _ := jsonrpc.String(field.Get("type")); kind == "array" {
			lists = append(lists, f.Key)
		}
	}
	if lists == nil {
		return params, nil
	}
	required, err := jsonrpc.ParseArray(form.Get("required"))
	if err != nil && form.Get("required") != nil {
		return nil, err
	}
	for _, r := range required {
		if name, _ := jsonrpc.String(r); slices.Contains(lists, name) {
			return nil, errForm
		}
	}
	rest, err := jsonrpc.Without(form.Get("properties"), lists...)
	if err != nil {
		return nil, err
	}
	return replace(o, "requestedSchema", replace(form, "properties", rest)), nil
}

// replace writes an object with another value of one member.
func replace(o jsonrpc.Object, key string, value []byte) []byte {
	members := slices.Clone(o.Members)
	for i := range members {
		if members[i].Key == key {
			members[i].Value = value
		}
	}
	return jsonrpc.AppendObject(nil, members...)
}

// withElicitationID adds the id that a URL elicitation must have in this era
// (client/elicitation, "URL Mode") where the author gave none.
func withElicitationID(params []byte) ([]byte, error) {
	o, err := jsonrpc.ParseObject(params)
	if err != nil {
		return nil, err
	}
	if mode, _ := jsonrpc.String(o.Get("mode")); mode != "url" || o.Get("elicitationId") != nil {
		return params, nil
	}
	members := slices.Concat(o.Members, []jsonrpc.Member{{Key: "elicitationId", Value: jsonrpc.Quote(rand.Text())}})
	return jsonrpc.AppendObject(nil, members...), nil
}

// setLevel keeps the log level of a session or connection (server/utilities/
// logging, "Setting Log Level").
func (e *Era) setLevel(c *methods.Client, m *jsonrpc.Message) exchange.Answer {
	level, err := mcp.LogLevel(m.Params.Get("level"), "params.level")
	if err != nil {
		return exchange.Failed(m.ID, err)
	}
	if c.Scope == "" {
		return exchange.Failed(m.ID, needsSession("a log level"))
	}
	e.records.update(c.Scope, func(rec *record) { rec.level = level })
	return exchange.Succeeded(m.ID, json.RawMessage("{}"))
}
