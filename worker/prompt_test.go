package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// getPrompt gets a prompt, which must have one event only.
func getPrompt(t *testing.T, client millracev1.WorkerServiceClient, name, args string) *millracev1.GetPromptResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := client.GetPrompt(ctx, &millracev1.GetPromptRequest{Name: name, Arguments: []byte(args)})
	if err != nil {
		t.Fatal(err)
	}
	event, err := stream.Recv()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if next, err := stream.Recv(); err == nil {
		t.Fatalf("%s: a second event %v", name, next)
	}
	return event
}

func TestPrompts(t *testing.T) {
	t.Parallel()
	var log journal
	const secret = "the inner text"
	w := newWorker(log.logger())
	w.AddPrompt(worker.Prompt{Name: "args", Arguments: []worker.PromptArgument{
		{Name: "a", Required: true}, {Name: "b", Required: true}, {Name: "c"},
	}}, func(_ context.Context, call *worker.Call, args map[string]string) (*worker.PromptResult, error) {
		if call.Method() != worker.MethodGetPrompt || call.Name() != "args" {
			t.Errorf("%s %s", call.Method(), call.Name())
		}
		return &worker.PromptResult{Messages: []worker.PromptMessage{{Content: worker.Text(mustJSON(t, args))}}}, nil
	})
	add := func(name string, result *worker.PromptResult, err error) {
		w.AddPrompt(worker.Prompt{Name: name}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
			return result, err
		})
	}
	add("full", &worker.PromptResult{
		Description: "d", Meta: json.RawMessage(`{"k":1}`),
		Messages: []worker.PromptMessage{
			{Content: worker.Text("u")},
			{Role: worker.RoleAssistant, Content: worker.Image([]byte("i"), "image/png")},
		},
	}, nil)
	add("none", &worker.PromptResult{}, nil)
	add("custom", nil, &worker.ProtocolError{Code: 7, Message: "locked"})
	add("invalid", nil, worker.InvalidArguments("a is before b"))
	add("fault", nil, errors.New(secret))
	add("nil", nil, nil)
	add("bad-role", &worker.PromptResult{Messages: []worker.PromptMessage{{Role: "system", Content: worker.Text(secret)}}}, nil)
	add("bad-content", &worker.PromptResult{Messages: []worker.PromptMessage{{}}}, nil)
	add("bad-meta", &worker.PromptResult{Meta: json.RawMessage(`1`)}, nil)
	w.AddPrompt(worker.Prompt{Name: "panic"}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) { panic(secret) })
	client := pair(t, w)

	result := func(messages string) *millracev1.PromptResult {
		return &millracev1.PromptResult{Messages: []byte(messages)}
	}
	for _, c := range []struct {
		name, args string
		want       any
	}{
		{"args", `{"a":"1","b":""}`, result(`[{"role":"user","content":{"type":"text","text":"{\"a\":\"1\",\"b\":\"\"}"}}]`)},
		{"args", `{"a":"1","b":"2","x":"3"}`, result(`[{"role":"user","content":{"type":"text","text":"{\"a\":\"1\",\"b\":\"2\",\"x\":\"3\"}"}}]`)},
		{"full", ``, &millracev1.PromptResult{
			Description: "d", Meta: []byte(`{"k":1}`),
			Messages: []byte(`[{"role":"user","content":{"type":"text","text":"u"}},{"role":"assistant","content":{"type":"image","data":"aQ==","mimeType":"image/png"}}]`),
		}},
		{"none", `{}`, result(`[]`)},
		{"custom", ``, &millracev1.Error{Kind: millracev1.Error_KIND_CUSTOM, Code: 7, Message: "locked"}},
	} {
		event := getPrompt(t, client, c.name, c.args)
		if got := mustJSON(t, event.GetResult()) + mustJSON(t, event.GetError()); !strings.Contains(got, mustJSON(t, c.want)) {
			t.Errorf("%s %s: %s\nwant %s", c.name, c.args, got, mustJSON(t, c.want))
		}
	}
	for args, detail := range map[string]string{
		``:                        `missing required argument "a", "b"`,
		`{"a":"1"}`:               `missing required argument "b"`,
		`{"a":"1","b":7}`:         `the argument "b" must be a string`,
		`{"a":"1","b":null}`:      `the argument "b" must be a string`,
		`[]`:                      `the arguments must be a JSON object`,
		`null`:                    `the arguments must be a JSON object`,
		`{"a":"1","a":"2"`:        `the arguments must be a JSON object`,
		`{"A":"1","b":"2"}`:       `missing required argument "a"`,
		`{"a":"1","b":["2"]}`:     `the argument "b" must be a string`,
		`{"a":"1","b":"2","c":1}`: `the argument "c" must be a string`,
	} {
		if e := getPrompt(t, client, "args", args).GetError(); e.GetKind() != millracev1.Error_KIND_INVALID_ARGUMENTS || e.GetDetail() != detail {
			t.Errorf("%s: %v, want %s", args, e, detail)
		}
	}
	for name, kind := range map[string]millracev1.Error_Kind{
		"unknown": millracev1.Error_KIND_UNKNOWN_PROMPT, "invalid": millracev1.Error_KIND_INVALID_ARGUMENTS,
		"fault": millracev1.Error_KIND_INTERNAL, "nil": millracev1.Error_KIND_INTERNAL, "panic": millracev1.Error_KIND_INTERNAL,
		"bad-role": millracev1.Error_KIND_INTERNAL, "bad-content": millracev1.Error_KIND_INTERNAL, "bad-meta": millracev1.Error_KIND_INTERNAL,
	} {
		e := getPrompt(t, client, name, ``).GetError()
		if e.GetKind() != kind || strings.Contains(mustJSON(t, e), secret) {
			t.Errorf("%s: %v", name, e)
		}
		if inLog := strings.Contains(log.String(), `"prompt":"`+name+`"`); inLog != (kind == millracev1.Error_KIND_INTERNAL) {
			t.Errorf("%s: in the log: %v", name, inLog)
		}
	}
}

func TestCompletions(t *testing.T) {
	t.Parallel()
	values := func(n int) []string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprint(i)
		}
		return all
	}
	always := func(c *worker.Completion, err error) worker.CompleteFunc {
		return func(context.Context, *worker.Call, worker.CompleteRequest) (*worker.Completion, error) { return c, err }
	}
	own := []string{"\xff", "b"}
	var log journal
	w := newWorker(log.logger())
	w.AddPrompt(worker.Prompt{Name: "p", Arguments: []worker.PromptArgument{
		{Name: "plain"},
		{Name: "from", Complete: worker.CompleteFrom("Python", "pytorch", "Go")},
		{Name: "nil", Complete: always(nil, nil)},
		{Name: "few", Complete: always(&worker.Completion{Values: values(2), Total: 7}, nil)},
		{Name: "exact", Complete: always(&worker.Completion{Values: values(2), Total: 2}, nil)},
		{Name: "more", Complete: always(&worker.Completion{Values: values(1), HasMore: true}, nil)},
		{Name: "hundred", Complete: always(&worker.Completion{Values: values(100)}, nil)},
		{Name: "many", Complete: always(&worker.Completion{Values: values(150)}, nil)},
		{Name: "most", Complete: always(&worker.Completion{Values: values(150), Total: 1000}, nil)},
		{Name: "text", Complete: always(&worker.Completion{Values: own, Total: -1}, nil)},
		{Name: "custom", Complete: always(nil, &worker.ProtocolError{Code: 7, Message: "no"})},
		{Name: "fault", Complete: always(nil, errors.New("inner"))},
		{Name: "panic", Complete: func(context.Context, *worker.Call, worker.CompleteRequest) (*worker.Completion, error) {
			panic("inner")
		}},
		{Name: "known", Complete: func(_ context.Context, call *worker.Call, req worker.CompleteRequest) (*worker.Completion, error) {
			return &worker.Completion{Values: []string{
				string(call.Method()), call.Name(), req.Argument, req.Value, req.Known["from"], call.Principal().Subject,
			}}, nil
		}},
	}}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) { return nil, nil })
	w.AddResourceTemplate(worker.ResourceTemplate{
		URITemplate: "t://{x}/{+y}{?z:3}", Name: "t",
		Complete: map[string]worker.CompleteFunc{"x": worker.CompleteFrom("one", "two"), "y": nil},
	}, failing(nil))
	client := pair(t, w)
	complete := func(req *millracev1.CompleteRequest) *millracev1.CompleteResponse {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		got, err := client.Complete(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, c := range []struct {
		argument, value string
		want            []string
		total           uint64
		more            bool
	}{
		{"plain", "x", nil, 0, false},
		{"from", "", []string{"Python", "pytorch", "Go"}, 0, false},
		{"from", "PY", []string{"Python", "pytorch"}, 0, false},
		{"from", "rust", nil, 0, false},
		{"nil", "", nil, 0, false},
		{"few", "", values(2), 7, true},
		{"exact", "", values(2), 2, false},
		{"more", "", values(1), 0, true},
		{"hundred", "", values(100), 0, false},
		{"many", "", values(100), 150, true},
		{"most", "", values(100), 1000, true},
		{"text", "", []string{"\uFFFD", "b"}, 0, false},
		{"known", "v", []string{"completion/complete", "p", "known", "v", "Go", "ada"}, 0, false},
	} {
		got := complete(&millracev1.CompleteRequest{
			Reference: &millracev1.CompleteRequest_Prompt{Prompt: "p"}, Argument: c.argument, Value: c.value,
			Known:   map[string]string{"from": "Go"},
			Context: &millracev1.CallContext{Principal: &millracev1.Principal{Subject: "ada"}},
		})
		if !slices.Equal(got.GetValues(), c.want) || got.GetTotal() != c.total || got.GetHasMore() != c.more || got.GetError() != nil {
			t.Errorf("%s %q: %v", c.argument, c.value, got)
		}
	}
	if own[0] != "\xff" {
		t.Error("the values of the author have changed")
	}
	template := func(name, argument string) *millracev1.CompleteResponse {
		return complete(&millracev1.CompleteRequest{Reference: &millracev1.CompleteRequest_UriTemplate{UriTemplate: name}, Argument: argument, Value: "o"})
	}
	if got := template("t://{x}/{+y}{?z:3}", "x"); !slices.Equal(got.GetValues(), []string{"one"}) {
		t.Errorf("x: %v", got)
	}
	for _, argument := range []string{"y", "z"} {
		if got := template("t://{x}/{+y}{?z:3}", argument); got.GetError() != nil || len(got.GetValues()) != 0 {
			t.Errorf("%s: %v", argument, got)
		}
	}
	if got := template("t://{other}", "x"); got.GetError().GetKind() != millracev1.Error_KIND_RESOURCE_NOT_FOUND {
		t.Errorf("an unknown template: %v", got)
	}
	if got := template("t://{x}/{+y}{?z:3}", "a"); got.GetError().GetDetail() != `there is no argument "a" (known: "x", "y", "z")` {
		t.Errorf("an unknown variable: %v", got)
	}
	for argument, kind := range map[string]millracev1.Error_Kind{
		"custom": millracev1.Error_KIND_CUSTOM, "fault": millracev1.Error_KIND_INTERNAL, "panic": millracev1.Error_KIND_INTERNAL,
		"none": millracev1.Error_KIND_INVALID_ARGUMENTS,
	} {
		got := complete(&millracev1.CompleteRequest{Reference: &millracev1.CompleteRequest_Prompt{Prompt: "p"}, Argument: argument})
		if got.GetError().GetKind() != kind || strings.Contains(mustJSON(t, got), "inner") {
			t.Errorf("%s: %v", argument, got)
		}
	}
	if got := complete(&millracev1.CompleteRequest{Reference: &millracev1.CompleteRequest_Prompt{Prompt: "q"}}); got.GetError().GetKind() != millracev1.Error_KIND_UNKNOWN_PROMPT {
		t.Errorf("an unknown prompt: %v", got)
	}
}

// A handler that ends its goroutine ends its call only.
func TestGoexit(t *testing.T) {
	t.Parallel()
	var log journal
	w := newWorker(log.logger())
	worker.AddTool(w, worker.Tool{Name: "exit"}, func(context.Context, *worker.Call, struct{}) (string, error) {
		runtime.Goexit()
		return "", nil
	})
	w.AddResource(worker.Resource{URI: "r:exit", Name: "exit"}, func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
		runtime.Goexit()
		return nil, nil
	})
	exit := func(context.Context, *worker.Call, worker.CompleteRequest) (*worker.Completion, error) {
		runtime.Goexit()
		return nil, nil
	}
	w.AddPrompt(worker.Prompt{Name: "exit", Arguments: []worker.PromptArgument{{Name: "a", Complete: exit}}},
		func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
			runtime.Goexit()
			return nil, nil
		})
	returning(w, "fine", "", nil)
	client := pair(t, w)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	type event interface{ GetError() *millracev1.Error }
	check := func(name string, first event, err error) {
		if err != nil || first.GetError().GetKind() != millracev1.Error_KIND_INTERNAL {
			t.Errorf("%s: %v, %v", name, first, err)
		}
	}
	tool, err := client.CallTool(ctx, &millracev1.CallToolRequest{Name: "exit"})
	if err != nil {
		t.Fatal(err)
	}
	event1, err := tool.Recv()
	check("tool", event1, err)
	if _, err := tool.Recv(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the call does not end: %v", err)
	}
	read, err := client.ReadResource(ctx, &millracev1.ReadResourceRequest{Uri: "r:exit"})
	if err != nil {
		t.Fatal(err)
	}
	event2, err := read.Recv()
	check("resource", event2, err)
	get, err := client.GetPrompt(ctx, &millracev1.GetPromptRequest{Name: "exit"})
	if err != nil {
		t.Fatal(err)
	}
	event3, err := get.Recv()
	check("prompt", event3, err)
	_, err = client.Complete(ctx, &millracev1.CompleteRequest{Reference: &millracev1.CompleteRequest_Prompt{Prompt: "exit"}, Argument: "a"})
	if status.Code(err) != codes.Internal || errors.Is(err, io.EOF) {
		t.Errorf("completion: %v", err)
	}
	if outcome(t, client, "fine", ``).GetResult() == nil || strings.Count(log.String(), "ended its goroutine") != 3 {
		t.Errorf("afterwards:\n%s", &log)
	}
}
