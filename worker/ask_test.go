package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

type person struct {
	Name string `json:"name"`
	Age  int    `json:"age,omitempty"`
}

// asking returns a worker whose tool "ask" runs handle.
func asking(handle func(call *worker.Call) (string, error)) *worker.Worker {
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "ask"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		return handle(call)
	})
	return w
}

func personForm(key string) worker.Question { return worker.ElicitFor[person](key, "Who?") }

// The questions on the wire are the input requests of the specification.
func TestQuestions(t *testing.T) {
	t.Parallel()
	type fields struct {
		Name    string    `json:"name" jsonschema:"your name" title:"Name" default:"Ada"`
		Mail    *string   `json:"mail" format:"email"`
		Age     int       `json:"age,omitempty" default:"30"`
		Share   float64   `json:"share"`
		Yes     bool      `json:"yes" default:"true"`
		When    time.Time `json:"when"`
		Size    string    `json:"size" enum:"S,M,L"`
		Colours []string  `json:"colours" enum:"red,green" default:"red"`
		hidden  string    //nolint:unused // it is no field of the form
	}
	low, high := 0.0, 1.0
	meta := json.RawMessage(`{"k":1}`)
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	for name, c := range map[string]struct {
		question worker.Question
		want     string
	}{
		"form": {
			worker.Elicit("q", "Who?", raw(`{ "type": "object", "properties": { "n": { "type": "string", "oneOf": [{"const": "a", "title": "A"}] } } }`)),
			`{"method":"elicitation/create","params":{"mode":"form","message":"Who?","requestedSchema":{"type":"object","properties":{"n":{"type":"string","oneOf":[{"const":"a","title":"A"}]}}}}}`,
		},
		"inferred": {
			worker.ElicitFor[*fields]("q", "m"),
			`{"method":"elicitation/create","params":{"mode":"form","message":"m","requestedSchema":{"type":"object","properties":{` +
				`"name":{"type":"string","title":"Name","description":"your name","default":"Ada"},` +
				`"mail":{"type":"string","format":"email"},` +
				`"age":{"type":"integer","default":30},` +
				`"share":{"type":"number"},` +
				`"yes":{"type":"boolean","default":true},` +
				`"when":{"type":"string","format":"date-time"},` +
				`"size":{"type":"string","enum":["S","M","L"]},` +
				`"colours":{"type":"array","items":{"type":"string","enum":["red","green"]},"default":["red"]}},` +
				`"required":["name","share","yes","when","size","colours"]}}}`,
		},
		"nothing to fill in": {
			worker.ElicitFor[struct{}]("q", "Sure?"),
			`{"method":"elicitation/create","params":{"mode":"form","message":"Sure?","requestedSchema":{"type":"object","properties":{}}}}`,
		},
		"page": {
			worker.ElicitURL("q", "Sign in", "https://example.com/a?b=c&d", "e-1"),
			`{"method":"elicitation/create","params":{"mode":"url","message":"Sign in","url":"https://example.com/a?b=c&d","elicitationId":"e-1"}}`,
		},
		"page without a name": {
			worker.ElicitURL("q", "Sign in", "https://example.com/", ""),
			`{"method":"elicitation/create","params":{"mode":"url","message":"Sign in","url":"https://example.com/"}}`,
		},
		"message": {
			worker.CreateMessage("q", worker.CreateMessageParams{
				Messages: []worker.SamplingMessage{{Content: []worker.Content{worker.Text("hi")}}}, MaxTokens: 7,
			}),
			`{"method":"sampling/createMessage","params":{"messages":[{"role":"user","content":{"type":"text","text":"hi"}}],"maxTokens":7}}`,
		},
		"message with everything": {
			worker.CreateMessage("q", worker.CreateMessageParams{
				Messages: []worker.SamplingMessage{
					{Role: worker.RoleAssistant, Content: []worker.Content{worker.Text("a"), worker.RawContent(raw(`{"type":"tool_use","id":"1"}`))}, Meta: meta},
					{Content: []worker.Content{worker.RawContent(raw(`{"type":"tool_result","toolUseId":"1"}`))}},
				},
				MaxTokens: 1, SystemPrompt: "be kind", Temperature: &low, StopSequences: []string{"."}, IncludeContext: "none", Metadata: meta,
				ModelPreferences: &worker.ModelPreferences{Hints: []string{"small"}, CostPriority: &high},
				Tools:            []worker.Tool{{Name: "t", InputSchema: raw(`{"type":"object"}`)}}, ToolChoice: "required",
			}),
			`{"method":"sampling/createMessage","params":{"messages":[{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","id":"1"}],"_meta":{"k":1}},` +
				`{"role":"user","content":{"type":"tool_result","toolUseId":"1"}}],` +
				`"modelPreferences":{"hints":[{"name":"small"}],"costPriority":1},"systemPrompt":"be kind","includeContext":"none","temperature":0,"maxTokens":1,` +
				`"stopSequences":["."],"metadata":{"k":1},"tools":[{"name":"t","inputSchema":{"type":"object"}}],"toolChoice":{"mode":"required"}}}`,
		},
		"roots": {worker.ListRoots("q"), `{"method":"roots/list","params":{}}`},
	} {
		out := workertest.Call(t, asking(func(call *worker.Call) (string, error) {
			_, err := call.Ask(c.question)
			return "", err
		}), "ask", struct{}{})
		if len(out.Unanswered) != 1 || out.Unanswered[0].Key != "q" {
			t.Errorf("%s: %v, %v", name, out.Error, out.Asked)
			continue
		}
		if got := fmt.Sprintf(`{"method":%q,"params":%s}`, out.Unanswered[0].Method, out.Unanswered[0].Params); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, c.want)
		}
	}
}

// What cannot be asked is the fault of the author: an internal error.
func TestQuestionsThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	form := func(schema string) []worker.Question {
		return []worker.Question{worker.Elicit("q", "m", json.RawMessage(schema))}
	}
	one := func(q worker.Question) []worker.Question { return []worker.Question{q} }
	bad := 2.0
	hello := []worker.SamplingMessage{{Content: []worker.Content{worker.Text("hi")}}}
	for name, questions := range map[string][]worker.Question{
		"zero":          {{}},
		"no key":        one(worker.ListRoots("")),
		"twice":         {worker.ListRoots("q"), personForm("q")},
		"no schema":     form(``),
		"no JSON":       form(`{`),
		"no object":     form(`{"type":"string"}`),
		"no properties": form(`{"type":"object"}`),
		"nested":        form(`{"type":"object","properties":{"a":{"type":"object"}}}`),
		"list":          form(`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}}}}`),
		"any type":      form(`{"type":"object","properties":{"a":{}}}`),
		"two types":     form(`{"type":"object","properties":{"a":{"type":["string","null"]}}}`),
		"alternatives":  form(`{"type":"object","properties":{"a":{"type":"string","oneOf":[{"type":"string"}]}}}`),
		"reference":     form(`{"type":"object","properties":{"a":{"$ref":"#"}}}`),
		"combined":      form(`{"type":"object","properties":{},"allOf":[]}`),
		"not a struct":  one(worker.ElicitFor[string]("q", "m")),
		"nested struct": one(worker.ElicitFor[struct{ P person }]("q", "m")),
		"free list":     one(worker.ElicitFor[struct{ L []string }]("q", "m")),
		"enum of number": one(worker.ElicitFor[struct {
			N int `enum:"1,2"`
		}]("q", "m")),
		"format of number": one(worker.ElicitFor[struct {
			N int `format:"email"`
		}]("q", "m")),
		"bad default": one(worker.ElicitFor[struct {
			N int `default:"many"`
		}]("q", "m")),
		"relative page": one(worker.ElicitURL("q", "m", "/login", "")),
		"no messages":   one(worker.CreateMessage("q", worker.CreateMessageParams{MaxTokens: 1})),
		"no tokens":     one(worker.CreateMessage("q", worker.CreateMessageParams{Messages: hello})),
		"bad role": one(worker.CreateMessage("q", worker.CreateMessageParams{
			MaxTokens: 1, Messages: []worker.SamplingMessage{{Role: "system", Content: hello[0].Content}},
		})),
		"bad content": one(worker.CreateMessage("q", worker.CreateMessageParams{
			MaxTokens: 1, Messages: []worker.SamplingMessage{{Content: []worker.Content{{}}}},
		})),
		"bad priority": one(worker.CreateMessage("q", worker.CreateMessageParams{
			MaxTokens: 1, Messages: hello, ModelPreferences: &worker.ModelPreferences{CostPriority: &bad},
		})),
		"bad tool": one(worker.CreateMessage("q", worker.CreateMessageParams{
			MaxTokens: 1, Messages: hello, Tools: []worker.Tool{{Name: "no name"}},
		})),
	} {
		out := workertest.Call(t, asking(func(call *worker.Call) (string, error) {
			_, err := call.Ask(questions...)
			return "", err
		}), "ask", struct{}{})
		if out.Error.GetKind() != millracev1.Error_KIND_INTERNAL {
			t.Errorf("%s: %v, %v, asked %v", name, out.Error, out.Result, out.Asked)
		}
	}
}

// Which answers count, and how the author sees them.
func TestAnswers(t *testing.T) {
	t.Parallel()
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	form, page := personForm("q"), worker.ElicitURL("q", "m", "https://example.com/", "")
	message := worker.CreateMessage("q", worker.CreateMessageParams{
		Messages: []worker.SamplingMessage{{Content: []worker.Content{worker.Text("hi")}}}, MaxTokens: 1,
	})
	optional := worker.Elicit("q", "m", raw(`{"type":"object","properties":{"a":{"type":"string"}}}`))
	for _, c := range []struct {
		question worker.Question
		answer   string
		want     string // what the author sees; empty: asked again
	}{
		{form, `{"action":"accept","content":{"name":"Ada","age":36}}`, `accept {"name":"Ada","age":36} {Ada 36} true`},
		{form, `{"action":"accept","content":{"name":"Ada","age":3.6e1,"more":[1]},"_meta":{}}`, `accept {"name":"Ada","age":3.6e1,"more":[1]} {Ada 36} true`},
		{form, `{"action":"decline"}`, `decline  { 0} false`},
		{form, `{"action":"decline","content":{"name":7}}`, `decline  { 0} false`},
		{form, `{"action":"cancel","content":null}`, `cancel  { 0} false`},
		{form, `{"action":"accept"}`, ``},
		{form, `{"action":"accept","content":null}`, ``},
		{form, `{"action":"accept","content":{}}`, ``},
		{form, `{"action":"accept","content":{"name":1}}`, ``},
		{form, `{"action":"accept","content":{"name":"Ada","age":"old"}}`, ``},
		{form, `{"action":"accept","content":["name"]}`, ``},
		{form, `{"action":"agree","content":{"name":"Ada"}}`, ``},
		{form, `{"action":"Accept","content":{"name":"Ada"}}`, ``},
		{form, `{"Action":"accept","content":{"name":"Ada"}}`, ``},
		{form, `{"action":["accept"],"content":{"name":"Ada"}}`, ``},
		{form, `{"content":{"name":"Ada"}}`, ``},
		{form, `{}`, ``},
		{form, `null`, ``},
		{form, `7`, ``},
		{form, `"accept"`, ``},
		{form, ``, ``},
		{form, `{"action":"accept"`, ``},
		{optional, `{"action":"accept"}`, `accept  { 0} true`},
		{page, `{"action":"accept"}`, `accept  { 0} true`},
		{page, `{"action":"maybe"}`, ``},
		{message, `{"role":"assistant","content":{"type":"text","text":"Paris"},"model":"m","stopReason":"endTurn"}`, `Paris m endTurn 0`},
		{message, `{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","id":"1","name":"t","input":{"x":1}},{"type":"text","text":"b"}],"model":"m","_meta":{"k":1}}`, "a\nb m  1"},
		{message, `{"role":"assistant","content":[],"model":"m","stopReason":null}`, ` m  0`},
		{message, `{"role":"system","content":[],"model":"m"}`, ``},
		{message, `{"role":"assistant","content":"Paris","model":"m"}`, ``},
		{message, `{"role":"assistant","content":{"text":"Paris"},"model":"m"}`, ``},
		{message, `{"role":"assistant","content":[1],"model":"m"}`, ``},
		{message, `{"role":"assistant","content":null,"model":"m"}`, ``},
		{message, `{"role":"assistant","content":[]}`, ``},
		{message, `[]`, ``},
		{worker.ListRoots("q"), `{"roots":[{"uri":"file:///a","name":"A"},{"uri":"file:///b"}]}`, `[{file:///a A } {file:///b  }]`},
		{worker.ListRoots("q"), `{"roots":[]}`, `[]`},
		{worker.ListRoots("q"), `{"roots":null}`, ``},
		{worker.ListRoots("q"), `{"roots":[{"name":"A"}]}`, ``},
		{worker.ListRoots("q"), `{"roots":[1]}`, ``},
		{worker.ListRoots("q"), `{}`, ``},
	} {
		w := asking(func(call *worker.Call) (string, error) {
			answers, err := call.Ask(c.question)
			if err != nil {
				return "", err
			}
			if string(answers.Raw("q")) != c.answer || answers.Raw("other") != nil {
				t.Errorf("raw: %s", answers.Raw("q"))
			}
			switch elicited := answers.Elicited("q"); {
			case elicited.Action != "":
				value, accepted, err := worker.Accepted[person](answers, "q")
				return fmt.Sprintf("%s %s %v %v", elicited.Action, elicited.Content, value, accepted), err
			case answers.Roots("q") != nil:
				if answers.Message("q").Model != "" {
					t.Error("roots are read as a message")
				}
				return fmt.Sprintf("%s", answers.Roots("q")), nil
			default:
				m := answers.Message("q")
				for _, use := range m.ToolUses() {
					if use.ID != "1" || use.Name != "t" || string(use.Input) != `{"x":1}` || string(m.Message.Meta) != `{"k":1}` {
						t.Errorf("use: %v of %v", use, m)
					}
				}
				return fmt.Sprintf("%s %s %s %d", m.Text(), m.Model, m.StopReason, len(m.ToolUses())), nil
			}
		})
		client := &workertest.Client{MaxRounds: 3, Answer: func(q workertest.Question) (any, bool) {
			if q.Round == 1 {
				return json.RawMessage(c.answer), true
			}
			return nil, false
		}}
		out := client.Call(t, w, "ask", struct{}{})
		if c.want == "" {
			if len(out.Asked) != 2 || len(out.Unanswered) != 1 {
				t.Errorf("%s: not asked again: %v, %v", c.answer, out.Error, out.Result)
			}
		} else if out.Text() != c.want {
			t.Errorf("%s: %q, want %q (%v)", c.answer, out.Text(), c.want, out.Error)
		}
	}
}

func TestAcceptedOfNothing(t *testing.T) {
	t.Parallel()
	type small struct {
		Age int8 `json:"age"`
	}
	w := asking(func(call *worker.Call) (string, error) {
		answers, err := call.Ask(personForm("q"), worker.ListRoots("r"))
		if err != nil {
			return "", err
		}
		for _, key := range []string{"", "other", "r"} {
			if _, ok, err := worker.Accepted[person](answers, key); ok || err == nil || answers.Elicited(key).Action != "" {
				t.Errorf("%q is accepted: %v", key, err)
			}
		}
		if answers.Roots("q") != nil || answers.Roots("other") != nil || answers.Message("r").Model != "" || answers.Message("x").Text() != "" {
			t.Error("answers of other kinds are read")
		}
		var zero worker.Answers
		if _, _, err := worker.Accepted[person](zero, "q"); err == nil || zero.Raw("q") != nil || zero.Roots("q") != nil {
			t.Error("zero answers have something")
		}
		_, _, err = worker.Accepted[small](answers, "q")
		return "", err
	})
	client := &workertest.Client{Answers: map[string]any{
		"q": workertest.Accept(person{Name: "Ada", Age: 300}), "r": workertest.Roots("file:///a"),
	}}
	if out := client.Call(t, w, "ask", struct{}{}); !out.Result.GetIsError() || !strings.Contains(out.Text(), `the answer to "q"`) {
		t.Errorf("a number that does not fit: %v, %v", out.Error, out.Result)
	}
}

// Several questions and several rounds: only what is open is asked, and what
// was answered stays.
func TestRounds(t *testing.T) {
	t.Parallel()
	runs := 0
	w := asking(func(call *worker.Call) (string, error) {
		runs++
		first, err := call.Ask(personForm("a"), personForm("b"))
		if err != nil {
			return "", fmt.Errorf("wrapped: %w", err)
		}
		second, err := call.Ask(personForm("c"))
		if err != nil {
			return "", errors.Join(errors.New("joined"), err)
		}
		a, _, _ := worker.Accepted[person](first, "a")
		b, _, _ := worker.Accepted[person](first, "b")
		c, _, _ := worker.Accepted[person](second, "c")
		return a.Name + b.Name + c.Name, nil
	})
	answer := func(name string) any { return workertest.Accept(person{Name: name}) }
	script := map[string]any{"1a": answer("A"), "1b": 0, "1c": answer("early"), "2b": answer("B"), "2a": answer("late"), "3c": answer("C")}
	client := &workertest.Client{Answer: func(q workertest.Question) (any, bool) {
		a, ok := script[fmt.Sprint(q.Round, q.Key)]
		return a, ok
	}}
	out := client.Call(t, w, "ask", struct{}{})
	var asked []string
	for _, q := range out.Asked {
		asked = append(asked, fmt.Sprint(q.Round, q.Key))
	}
	if out.Text() != "ABC" || runs != 4 || !slices.Equal(asked, []string{"1a", "1b", "2b", "3c"}) {
		t.Errorf("%q after %d runs, asked %q, %v", out.Text(), runs, asked, out.Error)
	}
}

// An answer of an earlier round is not replaced, and answers may come before
// their question.
func TestAnswersOnTheWire(t *testing.T) {
	t.Parallel()
	server := startBus(t)
	handle := func(call *worker.Call) (string, error) {
		answers, err := call.Ask(personForm("a"))
		if err != nil {
			return "", err
		}
		if _, err := call.Ask(worker.ListRoots("r")); err != nil {
			return "", err
		}
		a, _, err := worker.Accepted[person](answers, "a")
		return a.Name, err
	}
	// Two instances: either may serve a round.
	serve(t, server, asking(handle))
	serve(t, server, asking(handle))
	client := dial(t, server)
	round := func(resume *millracev1.Resume) *millracev1.CallToolResponse {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		events, err := callTool(ctx, client, &millracev1.CallToolRequest{
			Name: "ask", Resume: resume,
			Context: &millracev1.CallContext{ClientCapabilities: []byte(`{"elicitation":{},"roots":{}}`)},
		})
		if err != nil || len(events) != 1 {
			t.Fatalf("%v, %v", events, err)
		}
		return events[0]
	}
	named := func(name string) []byte { return []byte(`{"action":"accept","content":{"name":"` + name + `"}}`) }
	asks := round(nil).GetNeedsInput()
	if len(asks.GetState()) == 0 || len(asks.GetRequests()) != 1 || asks.GetInstance() != "" {
		t.Fatalf("round 1: %v", asks)
	}
	asks2 := round(&millracev1.Resume{State: asks.GetState(), Responses: map[string][]byte{"a": named("Ada"), "unknown": []byte("1")}}).GetNeedsInput()
	if requests := slices.Collect(maps.Keys(asks2.GetRequests())); !slices.Equal(requests, []string{"r"}) || string(asks2.GetState()) == string(asks.GetState()) {
		t.Fatalf("round 2: %v", asks2)
	}
	roots := []byte(`{"roots":[]}`)
	done := round(&millracev1.Resume{State: asks2.GetState(), Responses: map[string][]byte{"a": named("Bob"), "r": roots}}).GetResult()
	if !strings.Contains(string(done.GetContent()), "Ada") {
		t.Errorf("round 3: %s", done.GetContent())
	}
	early := round(&millracev1.Resume{Responses: map[string][]byte{"a": named("Eve"), "r": roots}}).GetResult()
	if !strings.Contains(string(early.GetContent()), "Eve") {
		t.Errorf("answers without a question: %s", early.GetContent())
	}

	for _, state := range []string{"{", "[]", "0", "garbage", "{}", `{"v":2}`, `{"v":1,"answers":7}`, string(asks.GetState()) + "x", "\x00\xff"} {
		failed := round(&millracev1.Resume{State: []byte(state)}).GetError()
		if failed.GetKind() != millracev1.Error_KIND_CUSTOM || failed.GetCode() != -32602 {
			t.Errorf("state %q: %v", state, failed)
		}
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	all := []worker.Capability{
		worker.CapabilityElicitation, worker.CapabilityElicitationURL, worker.CapabilitySampling,
		worker.CapabilitySamplingTools, worker.CapabilitySamplingContext, worker.CapabilityRoots,
	}
	for declared, want := range map[string]string{
		`{}`: ``, `null`: ``, `7`: ``,
		`{"elicitation":{}}`:                                             `elicitation`,
		`{"elicitation":{"form":{}}}`:                                    `elicitation`,
		`{"elicitation":{"url":{}}}`:                                     `elicitation.url`,
		`{"elicitation":{"url":null}}`:                                   `elicitation`,
		`{"elicitation":{"form":{},"url":{}}}`:                           `elicitation elicitation.url`,
		`{"elicitation":true,"roots":{"listChanged":true}}`:              `roots`,
		`{"elicitation":null,"sampling":null,"roots":null}`:              ``,
		`{"Elicitation":{},"sampling":{}}`:                               `sampling`,
		`{"sampling":{"tools":{}}}`:                                      `sampling sampling.tools`,
		`{"sampling":{"context":{}},"elicitation":[],"experimental":{}}`: `sampling sampling.context`,
	} {
		out := (&workertest.Client{Capabilities: json.RawMessage(declared)}).Call(t, asking(func(call *worker.Call) (string, error) {
			if string(call.Capabilities()) != declared {
				t.Errorf("capabilities: %s", call.Capabilities())
			}
			var can []string
			for _, one := range all {
				if call.Can(one) {
					can = append(can, one.String())
				}
				if (call.Require(one) == nil) != call.Can(one) {
					t.Errorf("%v is required and not there", one)
				}
			}
			if !call.Can() || call.Can(99) {
				t.Error("nothing is everything")
			}
			return strings.Join(can, " "), nil
		}), "ask", struct{}{})
		if out.Text() != want {
			t.Errorf("%s: %q, want %q", declared, out.Text(), want)
		}
	}
	if worker.Capability(99).String() != "unknown capability" {
		t.Error("a name for what is no capability")
	}
}

// What is missing is told before anything is asked.
func TestMissingCapabilities(t *testing.T) {
	t.Parallel()
	model := func(p worker.CreateMessageParams) worker.Question {
		p.Messages, p.MaxTokens = []worker.SamplingMessage{{Content: []worker.Content{worker.Text("hi")}}}, 1
		return worker.CreateMessage("m", p)
	}
	page := worker.ElicitURL("p", "m", "https://example.com/", "")
	tools := worker.CreateMessageParams{Tools: []worker.Tool{{Name: "t"}}}
	for _, c := range []struct {
		declared  string
		questions []worker.Question
		want      string
	}{
		{``, []worker.Question{personForm("f")}, `{"elicitation":{}}`},
		{`{"elicitation":{"url":{}}}`, []worker.Question{personForm("f")}, `{"elicitation":{}}`},
		{`{"elicitation":{}}`, []worker.Question{page, personForm("f")}, `{"elicitation":{"url":{}}}`},
		{`{}`, []worker.Question{page, personForm("f")}, `{"elicitation":{"form":{},"url":{}}}`},
		{`{"elicitation":{}}`, []worker.Question{personForm("f"), model(worker.CreateMessageParams{})}, `{"sampling":{}}`},
		{`{"sampling":{}}`, []worker.Question{model(tools)}, `{"sampling":{"tools":{}}}`},
		{`{}`, []worker.Question{model(worker.CreateMessageParams{IncludeContext: "allServers", ToolChoice: "none"})}, `{"sampling":{"tools":{},"context":{}}}`},
		{`{}`, []worker.Question{worker.ListRoots("r"), model(worker.CreateMessageParams{})}, `{"sampling":{},"roots":{}}`},
	} {
		out := (&workertest.Client{Capabilities: json.RawMessage(c.declared)}).Call(t, asking(func(call *worker.Call) (string, error) {
			_, err := call.Ask(c.questions...)
			var missing *worker.MissingCapabilityError
			if !errors.As(err, &missing) || len(missing.Missing) == 0 {
				t.Errorf("Ask: %v", err)
			}
			return "", fmt.Errorf("wrapped: %w", err)
		}), "ask", struct{}{})
		if out.Error.GetKind() != millracev1.Error_KIND_MISSING_CAPABILITY || string(out.Error.GetData()) != c.want || out.Error.GetMessage() == "" {
			t.Errorf("%s: %v, want %s", c.declared, out.Error, c.want)
		}
	}
}

// An error of the client ends the call, unless the author goes on without the
// answer; then it is not asked for again, in all later rounds.
func TestClientErrors(t *testing.T) {
	t.Parallel()
	refusal := &worker.ClientError{Code: -1, Message: "user rejected", Data: json.RawMessage(`{"why":"no"}`)}
	yes := workertest.Accept(person{Name: "Ada"})
	w := asking(func(call *worker.Call) (string, error) {
		_, err := call.Ask(personForm("a"), worker.ListRoots("r"))
		return "", err
	})
	out := (&workertest.Client{Answers: map[string]any{"r": refusal}}).Call(t, w, "ask", struct{}{})
	if !out.Result.GetIsError() || !strings.Contains(out.Text(), `"r"`) || !strings.Contains(out.Text(), "user rejected (code -1)") || len(out.Asked) != 2 {
		t.Errorf("%v, %v, %v", out.Error, out.Result, out.Asked)
	}

	w = asking(func(call *worker.Call) (string, error) {
		var refused *worker.ClientError
		if _, err := call.Ask(worker.ListRoots("r")); !errors.As(err, &refused) {
			return "", err
		}
		if refused.Key != "r" || refused.Code != -1 || string(refused.Data) != `{"why":"no"}` {
			t.Errorf("%+v", refused)
		}
		for _, key := range []string{"a", "b"} {
			if _, err := call.Ask(personForm(key)); err != nil {
				return "", err
			}
		}
		return refused.Message, nil
	})
	out = (&workertest.Client{Answers: map[string]any{"r": refusal, "a": yes, "b": yes}}).Call(t, w, "ask", struct{}{})
	if out.Text() != "user rejected" || len(out.Asked) != 3 {
		t.Errorf("%v, %v, %v", out.Error, out.Result, out.Asked)
	}

	// An answer that was given is not taken back by an error, and what is no
	// error object is one all the same.
	client := pair(t, asking(func(call *worker.Call) (string, error) {
		_, err := call.Ask(personForm("a"), worker.ListRoots("r"))
		return "", err
	}))
	resume := &millracev1.Resume{
		State:     []byte(`{"v":1,"answers":{"a":{"action":"decline"}}}`),
		Responses: map[string][]byte{"r": []byte(`{"roots":[]}`)},
		Errors:    map[string][]byte{"a": []byte(`{"code":1,"message":"x"}`), "r": []byte(`7`)},
	}
	req := &millracev1.CallToolRequest{Name: "ask", Resume: resume, Context: &millracev1.CallContext{ClientCapabilities: []byte(`{"elicitation":{},"roots":{}}`)}}
	if events, err := callTool(t.Context(), client, req); err != nil || events[0].GetResult().GetIsError() {
		t.Errorf("%v, %v", events, err)
	}
	resume.Responses = nil
	if events, err := callTool(t.Context(), client, req); err != nil || !strings.Contains(string(events[0].GetResult().GetContent()), "cannot be read") {
		t.Errorf("%v, %v", events, err)
	}
}

func TestNeedsInputWithoutAQuestion(t *testing.T) {
	t.Parallel()
	out := workertest.Call(t, asking(func(*worker.Call) (string, error) { return "", worker.ErrNeedsInput }), "ask", struct{}{})
	if out.Error.GetKind() != millracev1.Error_KIND_INTERNAL {
		t.Errorf("%v, %v", out.Error, out.Result)
	}
	// A handler that goes on without its answer has a result.
	out = workertest.Call(t, asking(func(call *worker.Call) (string, error) {
		_, err := call.Ask(personForm("q"))
		return fmt.Sprint(errors.Is(err, worker.ErrNeedsInput)), nil
	}), "ask", struct{}{})
	if out.Text() != "true" || len(out.Asked) != 0 {
		t.Errorf("%v, %v", out.Error, out.Result)
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	ran := map[string]int{}
	run := func(key string, value any, err error) func() (any, error) {
		return func() (any, error) {
			mu.Lock()
			defer mu.Unlock()
			ran[key]++
			return value, err
		}
	}
	w := asking(func(call *worker.Call) (string, error) {
		// Concurrent uses of one key wait for each other.
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				if got, err := worker.Once(call, "slow", run("slow", "s", nil)); err != nil || got != "s" {
					t.Errorf("slow: %v, %v", got, err)
				}
			})
		}
		group.Wait()
		got, err := worker.Once(call, "person", func() (person, error) {
			mu.Lock()
			ran["person"]++
			mu.Unlock()
			return person{Name: "Ada"}, nil
		})
		if err != nil || got != (person{Name: "Ada"}) {
			t.Errorf("person: %v, %v", got, err)
		}
		if got, err := worker.Once(call, "null", run("null", nil, nil)); got != nil || err != nil {
			t.Errorf("null: %v, %v", got, err)
		}
		if _, err := worker.Once(call, "fails", run("fails", nil, errors.New("no"))); err == nil || err.Error() != "no" {
			t.Errorf("fails: %v", err)
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = worker.Once(call, "panics", func() (int, error) {
				mu.Lock()
				defer mu.Unlock()
				ran["panics"]++
				panic("oh")
			})
		}()
		if _, err := worker.Once(call, "unwritable", func() (chan int, error) { return make(chan int), nil }); err == nil {
			t.Error("a channel was kept")
		}
		if _, err := worker.Once(call, "slow", func() (int, error) { return 0, nil }); err == nil {
			t.Error("a text was read as a number")
		}
		if _, err := call.Ask(personForm("a")); err != nil {
			return "", err
		}
		_, err = call.Ask(personForm("b"))
		return "done", err
	})
	yes := workertest.Accept(person{Name: "x"})
	out := (&workertest.Client{Answers: map[string]any{"a": yes, "b": yes}}).Call(t, w, "ask", struct{}{})
	if out.Text() != "done" {
		t.Fatalf("%v, %v", out.Error, out.Result)
	}
	if want := map[string]int{"slow": 1, "person": 1, "null": 1, "fails": 3, "panics": 3}; !maps.Equal(ran, want) {
		t.Errorf("runs: %v, want %v", ran, want)
	}
}

func TestOnceEndsWithTheCall(t *testing.T) {
	t.Parallel()
	began, free := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1) // one call waits
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "wait"}, func(ctx context.Context, call *worker.Call, _ struct{}) (string, error) {
		var group sync.WaitGroup
		defer group.Wait()
		group.Go(func() {
			_, _ = worker.Once(call, "k", func() (int, error) {
				close(began)
				<-free
				return 0, nil
			})
		})
		<-began
		_, err := worker.Once(call, "k", func() (int, error) { return 0, nil })
		ended <- err
		close(free)
		return "", ctx.Err()
	})
	client := pair(t, w)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := client.CallTool(ctx, &millracev1.CallToolRequest{Name: "wait"})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, began, "the first Once")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Once: %v", err)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("a cancelled call has an event")
	}
}

// The state has a limit, which the error names.
func TestStateLimit(t *testing.T) {
	t.Parallel()
	for size, fits := range map[int]bool{200 << 10: true, 256 << 10: false} {
		w := asking(func(call *worker.Call) (string, error) {
			if _, err := worker.Once(call, "big", func() (string, error) { return strings.Repeat("x", size), nil }); err != nil {
				return "", err
			}
			_, err := call.Ask(personForm("a"))
			return "", err
		})
		out := workertest.Call(t, w, "ask", struct{}{})
		if fits && len(out.Unanswered) != 1 {
			t.Errorf("%d bytes: %v", size, out.Error)
		}
		if !fits && (out.Error.GetKind() != millracev1.Error_KIND_CUSTOM || !strings.Contains(out.Error.GetMessage(), "262144")) {
			t.Errorf("%d bytes: %v, %v", size, out.Error, out.Asked)
		}
	}
}

// Progress goes on where the round before has left it.
func TestProgressOverRounds(t *testing.T) {
	t.Parallel()
	w := asking(func(call *worker.Call) (string, error) {
		call.Progress(1, 4, "")
		call.Progress(2.5, 4, "")
		if _, err := call.Ask(personForm("a")); err != nil {
			return "", err
		}
		call.Progress(3, 4, "")
		if _, err := call.Ask(personForm("b")); err != nil {
			return "", err
		}
		call.Progress(4, 4, "")
		return "", nil
	})
	yes := workertest.Accept(person{Name: "x"})
	out := (&workertest.Client{Answers: map[string]any{"a": yes, "b": yes}}).Call(t, w, "ask", struct{}{})
	var done []string
	for _, p := range out.Progress {
		done = append(done, string(p.GetProgress()))
	}
	if !slices.Equal(done, []string{"1", "2.5", "3", "4"}) {
		t.Errorf("progress: %q", done)
	}
}

// Resources and prompts ask in the same way, completions cannot.
func TestAskElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	name := func(call *worker.Call) (string, error) {
		answers, err := call.Ask(personForm("who"))
		if err != nil {
			return "", fmt.Errorf("asking: %w", err)
		}
		who, _, err := worker.Accepted[person](answers, "who")
		return who.Name, err
	}
	w.AddResource(worker.Resource{URI: "r:who", Name: "who"}, func(_ context.Context, call *worker.Call, _ worker.ReadRequest) (*worker.Contents, error) {
		who, err := name(call)
		return worker.TextContents("", who), err
	})
	w.AddPrompt(worker.Prompt{Name: "who", Arguments: []worker.PromptArgument{{
		Name: "a", Complete: func(_ context.Context, call *worker.Call, _ worker.CompleteRequest) (*worker.Completion, error) {
			call.Progress(1, 2, "nobody hears it")
			call.Log(worker.LevelError, "", "nor this")
			_, err := call.Ask(personForm("who"))
			return nil, err
		},
	}}}, func(_ context.Context, call *worker.Call, _ map[string]string) (*worker.PromptResult, error) {
		who, err := name(call)
		return &worker.PromptResult{Messages: []worker.PromptMessage{{Content: worker.Text(who)}}}, err
	})
	client := &workertest.Client{Answers: map[string]any{"who": workertest.Accept(person{Name: "Ada"})}}
	if out := client.Read(t, w, "r:who"); out.Text() != "Ada" || len(out.Asked) != 1 {
		t.Errorf("resource: %v, %v", out.Error, out.Contents)
	}
	if out := client.Get(t, w, "who", nil); out.Text() != "Ada" || len(out.Asked) != 1 {
		t.Errorf("prompt: %v, %v", out.Error, out.Prompt)
	}
	if got := client.CompletePrompt(t, w, "who", worker.CompleteRequest{Argument: "a"}); got.GetError().GetKind() != millracev1.Error_KIND_INTERNAL {
		t.Errorf("completion: %v", got)
	}
	nobody := &workertest.Client{Capabilities: struct{}{}}
	if out := nobody.Get(t, w, "who", nil); out.Error.GetKind() != millracev1.Error_KIND_MISSING_CAPABILITY {
		t.Errorf("prompt: %v", out.Error)
	}
	if out := nobody.Read(t, w, "r:who"); out.Error.GetKind() != millracev1.Error_KIND_MISSING_CAPABILITY {
		t.Errorf("resource: %v", out.Error)
	}
}
