package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// round makes one round of a call that must have one event only.
func round(t *testing.T, client millracev1.WorkerServiceClient, tool string, resume *millracev1.Resume) *millracev1.CallToolResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := callTool(ctx, client, &millracev1.CallToolRequest{
		Name: tool, Resume: resume,
		Context: &millracev1.CallContext{ClientCapabilities: []byte(`{"elicitation":{"form":{},"url":{}}}`), Scope: "s"},
	})
	if err != nil || len(events) != 1 {
		t.Fatalf("%s: %v, %v", tool, events, err)
	}
	return events[0]
}

// answered are answers to the questions of a round.
func answered(input *millracev1.NeedsInput, answers map[string]string) *millracev1.Resume {
	resume := &millracev1.Resume{State: input.GetState(), Responses: map[string][]byte{}}
	for key, answer := range answers {
		resume.Responses[key] = []byte(answer)
	}
	return resume
}

// needingPages returns a worker whose tool "list" asks who, and then needs two
// pages to be visited until done says so.
func needingPages(done func() bool) *worker.Worker {
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "list"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		answers, err := call.Ask(personForm("who"))
		if err != nil {
			return "", err
		}
		if !done() {
			return "", fmt.Errorf("listing: %w", &worker.URLElicitationRequiredError{Pages: []worker.URLElicitation{
				{URL: "https://a.example/?x=1&y", Message: "Sign in.", ID: "e-1"},
				{URL: "https://b.example/"},
			}})
		}
		who, _, err := worker.Accepted[person](answers, "who")
		return "files of " + who.Name, err
	})
	return w
}

func TestPagesOnTheWire(t *testing.T) {
	t.Parallel()
	visited := false // the calls come one after another
	client := pair(t, needingPages(func() bool { return visited }))
	first := round(t, client, "list", nil)
	failed := round(t, client, "list", answered(first.GetNeedsInput(), map[string]string{"who": `{"action":"accept","content":{"name":"Ada"}}`})).GetError()
	if failed.GetKind() != millracev1.Error_KIND_URL_ELICITATION_REQUIRED || failed.GetMessage() != "the user has to visit a page first" {
		t.Fatalf("error: %v", failed)
	}
	for key, want := range map[string]string{
		"millrace/page/1": `{"method":"elicitation/create","params":{"mode":"url","message":"Sign in.","url":"https://a.example/?x=1&y","elicitationId":"e-1"}}`,
		"millrace/page/2": `{"method":"elicitation/create","params":{"mode":"url","message":"the user has to visit a page first","url":"https://b.example/"}}`,
	} {
		if got := string(failed.GetInput().GetRequests()[key]); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
	const agreed = `{"action":"accept"}`
	both := map[string]string{"millrace/page/1": agreed, "millrace/page/2": agreed}
	// As long as the visit lasts, it is asked for; what was answered is kept.
	again := round(t, client, "list", answered(failed.GetInput(), both)).GetError()
	if len(again.GetInput().GetRequests()) != 2 {
		t.Errorf("the visit is not over: %v", again)
	}
	// Who declines is not asked the same again.
	for _, no := range []string{`{"action":"decline"}`, `{"action":"cancel"}`} {
		got := round(t, client, "list", answered(failed.GetInput(), map[string]string{"millrace/page/1": agreed, "millrace/page/2": no})).GetResult()
		if !got.GetIsError() || !strings.Contains(string(got.GetContent()), "the user did not agree to visit the page") {
			t.Errorf("%s: %v", no, got)
		}
	}
	visited = true
	got := round(t, client, "list", answered(again.GetInput(), both)).GetResult()
	if !strings.Contains(string(got.GetContent()), "files of Ada") {
		t.Errorf("after the visit: %v", got)
	}
}

// A page that cannot be shown is a fault of the author.
func TestPagesThatCannotBeShown(t *testing.T) {
	t.Parallel()
	var pages []worker.URLElicitation // the calls come one after another
	w := newWorker(nil)
	var outcomes []worker.Outcome
	w.Use(func(next worker.Handler) worker.Handler {
		return func(ctx context.Context, call *worker.Call) error {
			err := next(ctx, call)
			outcomes = append(outcomes, call.Outcome(err))
			return err
		}
	})
	worker.AddTool(w, worker.Tool{Name: "list"}, func(context.Context, *worker.Call, struct{}) (string, error) {
		return "", &worker.URLElicitationRequiredError{Pages: pages}
	})
	client := pair(t, w)
	for _, pages = range [][]worker.URLElicitation{nil, {{URL: "/login"}}, {{URL: "https://a.example"}, {}}} {
		if got := round(t, client, "list", nil).GetError(); got.GetKind() != millracev1.Error_KIND_INTERNAL {
			t.Errorf("%v: %v", pages, got)
		}
	}
	if want := slices.Repeat([]worker.Outcome{worker.OutcomeNeedsInput}, 3); !slices.Equal(outcomes, want) {
		t.Errorf("outcomes: %v", outcomes)
	}
}

func TestPagesOfAPrompt(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	w.AddPrompt(worker.Prompt{Name: "p"}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		return nil, &worker.URLElicitationRequiredError{Pages: []worker.URLElicitation{{URL: "https://a.example"}}}
	})
	client := pair(t, w)
	get := func(resume *millracev1.Resume) *millracev1.Error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		stream, err := client.GetPrompt(ctx, &millracev1.GetPromptRequest{Name: "p", Resume: resume})
		if err != nil {
			t.Fatal(err)
		}
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return event.GetError()
	}
	first := get(nil)
	if first.GetKind() != millracev1.Error_KIND_URL_ELICITATION_REQUIRED {
		t.Fatalf("error: %v", first)
	}
	second := get(answered(first.GetInput(), map[string]string{"millrace/page/1": `{"action":"decline"}`}))
	if second.GetKind() != millracev1.Error_KIND_CUSTOM || second.GetCode() != -32603 || !strings.Contains(second.GetMessage(), "did not agree") {
		t.Errorf("declined: %v", second)
	}
}

// What is announced is what edges understand.
func TestElicitationComplete(t *testing.T) {
	t.Parallel()
	server := startBus(t)
	w := newWorker(nil)
	if err := w.ElicitationComplete("s", "e-1"); err == nil {
		t.Error("nobody was told, and there is no error")
	}
	serve(t, server, w)
	news := make(chan *millracev1.Announcement, 4) // more than there are
	conn := connect(t, server)
	stop, err := bus.NewClient(conn, bus.ClientConfig{}).Hear(bus.Topic("edge"), func(payload []byte) {
		a := new(millracev1.Announcement)
		if err := proto.Unmarshal(payload, a); err != nil {
			t.Error(err)
		}
		news <- a
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := conn.NATS().FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.ElicitationComplete("s", ""); err == nil {
		t.Error("an elicitation without an ID")
	}
	for _, scope := range []string{"", "s"} { // nobody has to be told about the first
		if err := w.ElicitationComplete(scope, "e-1"); err != nil {
			t.Error(err)
		}
	}
	select {
	case a := <-news:
		if got := a.GetElicitationComplete(); got.GetScope() != "s" || got.GetElicitationId() != "e-1" {
			t.Errorf("announced: %v", a)
		}
	case <-ctx.Done():
		t.Fatal("nothing was announced")
	}
}

// A tool whose answers count once says so, and takes none that answer nothing.
func TestOnceOnly(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	for _, tool := range []worker.Tool{{Name: "often"}, {Name: "once", OnceOnly: true}} {
		worker.AddTool(w, tool, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
			answers, err := call.Ask(personForm("who"))
			if err != nil {
				return "", err
			}
			who, _, err := worker.Accepted[person](answers, "who")
			return who.Name, err
		})
	}
	client := pair(t, w)
	ada := map[string]string{"who": `{"action":"accept","content":{"name":"Ada"}}`}
	for tool, once := range map[string]bool{"often": false, "once": true} {
		first := round(t, client, tool, nil).GetNeedsInput()
		if first.GetOnceOnly() != once {
			t.Errorf("%s: %v", tool, first)
		}
		if got := round(t, client, tool, answered(first, ada)).GetResult(); !strings.Contains(string(got.GetContent()), "Ada") {
			t.Errorf("%s: %v", tool, got)
		}
		// Answers without a state belong to no round.
		if got := round(t, client, tool, answered(nil, ada)); (got.GetNeedsInput() != nil) != once {
			t.Errorf("%s without a state: %v", tool, got)
		}
	}
}

// In development, whoever calls sees what breaks the contract of a tool (B40).
func TestDevelopment(t *testing.T) {
	t.Parallel()
	const object = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`
	for _, development := range []bool{false, true} {
		var log journal
		w := worker.New(worker.Config{Pool: "test", Development: development, Logger: log.logger()})
		for name, result := range map[string]*worker.Result{
			"right":   {Structured: json.RawMessage(`{"n":1}`)},
			"nothing": {Content: []worker.Content{worker.Text("text only")}},
			"wrong":   {Structured: json.RawMessage(`{"n":"x"}`)},
			"error":   {IsError: true, Structured: json.RawMessage(`{"n":"x"}`)},
		} {
			w.AddRawTool(worker.Tool{Name: name, OutputSchema: json.RawMessage(object)}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
				return result, nil
			})
		}
		client := pair(t, w)
		for name, isError := range map[string]bool{"right": false, "error": true} {
			if got := outcome(t, client, name, `{}`).GetResult(); got == nil || got.GetIsError() != isError {
				t.Errorf("%s: %v", name, got)
			}
		}
		if log.String() != "" {
			t.Errorf("the log says:\n%s", &log)
		}
		for name, want := range map[string]string{"nothing": "no structured content", "wrong": `property \"n\" must be an integer, not a string`} {
			got := outcome(t, client, name, `{}`)
			if shown := got.GetResult(); development && (!shown.GetIsError() || !strings.Contains(string(shown.GetContent()), want) || shown.GetStructuredContent() != nil) {
				t.Errorf("%s in development: %v", name, got)
			} else if !development && got.GetError().GetKind() != millracev1.Error_KIND_INTERNAL {
				t.Errorf("%s: %v", name, got)
			}
			if logged := strings.ReplaceAll(log.String(), `\\\"`, `\"`); !strings.Contains(logged, want) {
				t.Errorf("%s: the log does not say %s:\n%s", name, want, logged)
			}
		}
	}
}

// A nil slice is written as [], so its schema has no null; a pointer to one has.
func TestInferredArrays(t *testing.T) {
	t.Parallel()
	type inner struct {
		L []string `json:"l"`
	}
	type plain struct {
		A []inner          `json:"a"`
		M map[string][]int `json:"m"`
		F [2]int           `json:"f"`
		P *inner           `json:"p"`
	}
	type pointed struct {
		A []int  `json:"a"`
		P *[]int `json:"p"`
	}
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "plain"}, func(context.Context, *worker.Call, struct{}) (*plain, error) {
		return &plain{A: []inner{{}}, M: map[string][]int{"x": nil}}, nil
	})
	worker.AddTool(w, worker.Tool{Name: "pointed"}, func(context.Context, *worker.Call, struct{}) (pointed, error) { return pointed{}, nil })
	worker.AddTool(w, worker.Tool{Name: "list"}, func(context.Context, *worker.Call, struct{}) ([]inner, error) { return nil, nil })
	client := pair(t, w)
	for name, want := range map[string]string{
		"plain":   `{"a":[{"l":[]}],"m":{"x":[]},"f":[0,0],"p":null}`,
		"pointed": `{"a":[],"p":null}`,
		"list":    `[]`,
	} {
		if got := outcome(t, client, name, `{}`); string(got.GetResult().GetStructuredContent()) != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
}
