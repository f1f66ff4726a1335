// Package workertest runs the tools, resources and prompts of a worker within a
// test, without a bus: the same checks of arguments and results, the same
// outcomes, and the progress and log messages as they were reported. A handler
// that asks for input gets the answers the test has for it, over as many rounds
// as it takes. What needs the bus (slots, draining, lost connections) needs a
// test with a bus.
package workertest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// Client is who makes the calls. The zero value is a client that can do
// everything, wants progress and all log messages, and answers no question.
type Client struct {
	// Answers are the answers to questions, by key: results as a client sends
	// them ([Accept], [Decline], [Cancel], [Message], [Roots]), a
	// [*worker.ClientError] that it sends instead, or anything else that can
	// be marshalled to JSON, to see what becomes of it.
	Answers map[string]any
	// Answer is asked for questions that Answers has nothing for; false: no
	// answer. Nil: there is none.
	Answer func(q Question) (any, bool)
	// Capabilities of the client, anything that can be marshalled to a JSON
	// object. Nil: all; struct{}{}: none.
	Capabilities any
	// LogLevel is the least severe level the client wants to see. Default
	// "debug"; "none": it wants no messages.
	LogLevel string
	// NoProgress: the client wants no progress.
	NoProgress bool
	// Principal who calls; nil: anonymous.
	Principal *worker.Principal
	// Scope and ProtocolVersion of the call, and _meta, a JSON object.
	Scope, ProtocolVersion string
	Meta                   json.RawMessage
	// MaxRounds: the test fails if a call takes more. Default 20.
	MaxRounds int
}

// Question is what a handler has asked.
type Question struct {
	// Round in which it was asked, from 1.
	Round int
	// Key of the question.
	Key string
	// Method is elicitation/create, sampling/createMessage or roots/list.
	Method string
	// Params of the method, a JSON object.
	Params json.RawMessage
}

// Outcome is how a call ended. Exactly one of Result, Contents, Prompt, Error
// and Unanswered is set.
type Outcome struct {
	// Result of a tool, with its members as JSON.
	Result *millracev1.ToolResult
	// Contents of a resource.
	Contents *millracev1.ResourceResult
	// Prompt, filled in.
	Prompt *millracev1.PromptResult
	// Error that the call ended with instead of a result.
	Error *millracev1.Error
	// Unanswered are the questions of the last round, if the client had an
	// answer to none of them.
	Unanswered []Question
	// Asked are the questions of all rounds, those of a round by key.
	Asked []Question
	// Progress and Logs of all rounds, in the order they were reported.
	Progress []*millracev1.Progress
	Logs     []*millracev1.LogMessage
	// Closed is how often the handler has ended the client's connection.
	Closed int
}

// Text returns the blocks of text of the result, contents or prompt, joined by
// line feeds.
func (o *Outcome) Text() string {
	var texts []string
	type block struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	var blocks []block
	switch {
	case o.Result != nil:
		if json.Unmarshal(o.Result.GetContent(), &blocks) != nil {
			return ""
		}
	case o.Contents != nil:
		var contents []struct {
			Text *string `json:"text"`
		}
		if json.Unmarshal(o.Contents.GetContents(), &contents) != nil {
			return ""
		}
		for _, c := range contents {
			if c.Text != nil {
				texts = append(texts, *c.Text)
			}
		}
	case o.Prompt != nil:
		var messages []struct {
			Content block `json:"content"`
		}
		if json.Unmarshal(o.Prompt.GetMessages(), &messages) != nil {
			return ""
		}
		for _, m := range messages {
			blocks = append(blocks, m.Content)
		}
	}
	for _, b := range blocks {
		if b.Type == "text" {
			texts = append(texts, b.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// Accept is the answer of a user who has filled in a form; nil agrees to open
// a page.
func Accept(content any) any {
	answer := map[string]any{"action": worker.ActionAccept}
	if content != nil {
		answer["content"] = content
	}
	return answer
}

// Decline is the answer of a user who says no.
func Decline() any { return map[string]any{"action": worker.ActionDecline} }

// Cancel is the answer of a user who closes the dialog.
func Cancel() any { return map[string]any{"action": worker.ActionCancel} }

// Message is the answer of a model.
func Message(text string) any {
	return map[string]any{
		"role": worker.RoleAssistant, "model": "test", "stopReason": "endTurn",
		"content": map[string]string{"type": "text", "text": text},
	}
}

// Roots is the answer of a client that works in these folders.
func Roots(uris ...string) any {
	roots := make([]worker.Root, len(uris))
	for i, uri := range uris {
		roots[i].URI = uri
	}
	return map[string]any{"roots": roots}
}

// Call runs one tool of w for the zero Client; see [Client.Call].
func Call(t testing.TB, w *worker.Worker, tool string, args any) *Outcome {
	t.Helper()
	return new(Client).Call(t, w, tool, args)
}

// Call runs one tool of w and waits for its outcome. args is a
// json.RawMessage, which is passed on as it is, or any value that can be
// marshalled to a JSON object. The call ends with the test. The test fails at
// once when w was put together wrongly or a round ends without exactly one
// outcome. Call must run on the goroutine of the test.
func (c *Client) Call(t testing.TB, w *worker.Worker, tool string, args any) *Outcome {
	t.Helper()
	raw := marshal(t, args)
	return c.run(t, w, "CallTool", func(from *millracev1.CallContext, resume *millracev1.Resume) proto.Message {
		return &millracev1.CallToolRequest{Context: from, Name: tool, Arguments: raw, Meta: c.Meta, Resume: resume}
	})
}

// Read reads the resource at uri; see [Client.Call].
func (c *Client) Read(t testing.TB, w *worker.Worker, uri string) *Outcome {
	t.Helper()
	return c.run(t, w, "ReadResource", func(from *millracev1.CallContext, resume *millracev1.Resume) proto.Message {
		return &millracev1.ReadResourceRequest{Context: from, Uri: uri, Meta: c.Meta, Resume: resume}
	})
}

// Get fills in a prompt; see [Client.Call].
func (c *Client) Get(t testing.TB, w *worker.Worker, prompt string, args map[string]string) *Outcome {
	t.Helper()
	var raw json.RawMessage
	if args != nil {
		raw = marshal(t, args)
	}
	return c.run(t, w, "GetPrompt", func(from *millracev1.CallContext, resume *millracev1.Resume) proto.Message {
		return &millracev1.GetPromptRequest{Context: from, Name: prompt, Arguments: raw, Meta: c.Meta, Resume: resume}
	})
}

// CompletePrompt completes an argument of a prompt. The test fails at once
// when w was put together wrongly.
func (c *Client) CompletePrompt(t testing.TB, w *worker.Worker, prompt string, req worker.CompleteRequest) *millracev1.CompleteResponse {
	t.Helper()
	return c.complete(t, w, &millracev1.CompleteRequest{Reference: &millracev1.CompleteRequest_Prompt{Prompt: prompt}}, req)
}

// CompleteTemplate completes a variable of a resource template; see
// [Client.CompletePrompt].
func (c *Client) CompleteTemplate(t testing.TB, w *worker.Worker, uriTemplate string, req worker.CompleteRequest) *millracev1.CompleteResponse {
	t.Helper()
	return c.complete(t, w, &millracev1.CompleteRequest{Reference: &millracev1.CompleteRequest_UriTemplate{UriTemplate: uriTemplate}}, req)
}

func (c *Client) complete(t testing.TB, w *worker.Worker, raw *millracev1.CompleteRequest, req worker.CompleteRequest) *millracev1.CompleteResponse {
	t.Helper()
	service := register(t, w)
	raw.Context, raw.Argument, raw.Value, raw.Known = c.context(t), req.Argument, req.Value, req.Known
	answer, err := service.impl.Complete(t.Context(), raw)
	if err != nil {
		t.Fatalf("workertest: the completion ended without an outcome: %v", err)
	}
	return answer
}

// context is what the edge would say about the client.
func (c *Client) context(t testing.TB) *millracev1.CallContext {
	t.Helper()
	from := &millracev1.CallContext{
		ProtocolVersion: c.ProtocolVersion,
		Scope:           c.Scope,
		WantsProgress:   !c.NoProgress,
		LogLevel:        c.LogLevel,
	}
	switch c.LogLevel {
	case "":
		from.LogLevel = worker.LevelDebug.String()
	case "none":
		from.LogLevel = ""
	}
	if p := c.Principal; p != nil {
		from.Principal = &millracev1.Principal{Issuer: p.Issuer, Subject: p.Subject, Scopes: p.Scopes}
	}
	if c.Capabilities == nil {
		from.ClientCapabilities = []byte(`{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{},"context":{}},"roots":{}}`)
	} else {
		from.ClientCapabilities = marshal(t, c.Capabilities)
	}
	return from
}

// run makes a call, round by round.
func (c *Client) run(t testing.TB, w *worker.Worker, method string,
	request func(*millracev1.CallContext, *millracev1.Resume) proto.Message,
) *Outcome {
	t.Helper()
	service := register(t, w)
	most := c.MaxRounds
	if most <= 0 {
		most = 20
	}
	out := new(Outcome)
	var resume *millracev1.Resume
	for round := 1; round <= most; round++ {
		stream := &stream{ctx: t.Context(), request: request(c.context(t), resume)}
		if err := service.handle(method, stream); err != nil {
			t.Fatalf("workertest: %s: round %d ended without an outcome: %v", method, round, err)
		}
		asks, err := stream.collect(out)
		if err != nil {
			t.Fatalf("workertest: %s: round %d: %v", method, round, err)
		}
		if asks == nil {
			return out
		}
		asked, err := questions(round, asks)
		if err != nil {
			t.Fatalf("workertest: %s: round %d: %v", method, round, err)
		}
		out.Asked = append(out.Asked, asked...)
		resume = &millracev1.Resume{State: asks.GetState(), Responses: map[string][]byte{}, Errors: map[string][]byte{}}
		for _, q := range asked {
			answer, ok := c.Answers[q.Key]
			if !ok && c.Answer != nil {
				answer, ok = c.Answer(q)
			}
			if _, refused := answer.(*worker.ClientError); ok && refused {
				resume.Errors[q.Key] = marshal(t, answer)
			} else if ok {
				resume.Responses[q.Key] = marshal(t, answer)
			}
		}
		if len(resume.GetResponses())+len(resume.GetErrors()) == 0 {
			out.Unanswered = asked
			return out
		}
	}
	t.Fatalf("workertest: %s: the call is not over after %d rounds; the last question: %+v", method, most, out.Asked[len(out.Asked)-1])
	return nil
}

// questions reads the requests of an outcome.
func questions(round int, asks *millracev1.NeedsInput) ([]Question, error) {
	var all []Question
	for key, raw := range asks.GetRequests() {
		var request struct {
			Method string          `json:"method"`
			Params json.RawMessage `json:"params"`
		}
		if err := json.Unmarshal(raw, &request); err != nil {
			return nil, fmt.Errorf("the question %q is no JSON object: %w", key, err)
		}
		all = append(all, Question{Round: round, Key: key, Method: request.Method, Params: request.Params})
	}
	byKey(all)
	return all, nil
}

func marshal(t testing.TB, v any) json.RawMessage {
	t.Helper()
	if given, ok := v.(json.RawMessage); ok {
		return given
	}
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("workertest: %T cannot be marshalled: %v", v, err)
	}
	return raw
}

func register(t testing.TB, w *worker.Worker) *registrar {
	t.Helper()
	service := new(registrar)
	if err := w.Register(service); err != nil {
		t.Fatalf("workertest: the worker cannot be run: %v", err)
	}
	for _, p := range w.Problems() {
		t.Errorf("workertest: the tool %q is not offered: %s", p.Tool, p.Reason)
	}
	return service
}

// registrar keeps the service that a worker registers.
type registrar struct {
	desc *grpc.ServiceDesc
	impl millracev1.WorkerServiceServer
}

func (r *registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	r.desc, r.impl = desc, impl.(millracev1.WorkerServiceServer)
}

// handle serves one round on a goroutine of its own, as a bus does: a handler
// may end its goroutine.
func (r *registrar) handle(method string, s *stream) error {
	var err error // stays nil if it does; its outcome was sent by then
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, m := range r.desc.Streams {
			if m.StreamName == method {
				err = m.Handler(r.impl, s)
			}
		}
	}()
	<-done
	return err
}
