package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

type search struct {
	Query string `json:"query"`
	Limit int    `json:"limit,omitempty"`
}

type hits struct {
	Total int      `json:"total"`
	Slugs []string `json:"slugs"`
}

type spoken struct {
	N int `json:"n"`
}

func (s spoken) Content() []worker.Content { return []worker.Content{worker.Text("n is small")} }

// returning adds a tool without arguments that returns out and err.
func returning[Out any](w *worker.Worker, name string, out Out, err error) {
	worker.AddTool(w, worker.Tool{Name: name}, func(context.Context, *worker.Call, struct{}) (Out, error) {
		return out, err
	})
}

// Every way a handler can end a call, and what of it crosses the bus.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	var log journal
	w := newWorker(log.logger())
	worker.AddTool(w, worker.Tool{Name: "search"}, func(_ context.Context, _ *worker.Call, in search) (hits, error) {
		return hits{Total: in.Limit, Slugs: []string{in.Query}}, nil
	})
	returning(w, "string", "hello <b>", nil)
	returning(w, "empty-string", "", nil)
	returning(w, "nil-slice", hits{}, nil)
	returning(w, "list", []int{1, 2}, nil)
	returning[any](w, "nothing", nil, nil)
	returning(w, "nil-result", (*worker.Result)(nil), nil)
	returning(w, "spoken", spoken{N: 1}, nil)
	returning(w, "number", struct {
		N json.Number `json:"n"`
	}{"9007199254740993"}, nil)
	returning(w, "blocks", &worker.Result{
		Content: []worker.Content{worker.Text(""), worker.Image([]byte{1, 2}, "image/png"), worker.Audio(nil, "audio/wav")},
		Meta:    json.RawMessage(`{"a":1}`), Extra: json.RawMessage(`{"b":2}`),
	}, nil)
	returning(w, "no-blocks", &worker.Result{Content: []worker.Content{}, Structured: json.RawMessage(`{ "a" : 1.10 }`)}, nil)
	returning(w, "failed", &worker.Result{Content: []worker.Content{worker.Text("no")}, IsError: true}, nil)
	returning(w, "tool-error", "", fmt.Errorf("try another slug: %w", errors.New("none")))
	returning(w, "protocol-error", "", fmt.Errorf("wrapped: %w", &worker.ProtocolError{Code: -31000, Message: "gone", Data: map[string]int{"x": 1}}))
	returning(w, "protocol-error-0", "", &worker.ProtocolError{Message: "plain"})
	returning(w, "arguments-error", "", worker.InvalidArguments("from is after to"))

	const secret = "the inner text"
	returning(w, "nan", math.NaN(), nil)
	returning(w, "channel", &worker.Result{Structured: make(chan int)}, nil)
	returning(w, "bad-raw", &worker.Result{Structured: json.RawMessage(`{`)}, nil)
	returning(w, "bad-block", &worker.Result{Content: []worker.Content{{}}}, nil)
	returning(w, "bad-meta", &worker.Result{Meta: json.RawMessage(`[]`)}, nil)
	returning(w, "bad-data", "", &worker.ProtocolError{Message: secret, Data: func() {}})
	worker.AddTool(w, worker.Tool{Name: "panic"}, func(context.Context, *worker.Call, struct{}) (string, error) {
		panic(secret)
	})
	worker.AddTool(w, worker.Tool{Name: "nil-pointer"}, func(context.Context, *worker.Call, struct{}) (string, error) {
		var in *search
		return in.Query, nil
	})
	worker.AddTool(w, worker.Tool{Name: "mismatch", OutputSchema: json.RawMessage(`{"type":"object","required":["a"]}`)},
		func(context.Context, *worker.Call, struct{}) (map[string]string, error) {
			return map[string]string{"b": secret}, nil
		})
	worker.AddTool(w, worker.Tool{Name: "unstructured", OutputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *worker.Call, struct{}) (*worker.Result, error) { return &worker.Result{}, nil })
	worker.AddTool(w, worker.Tool{Name: "failed-unstructured", OutputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *worker.Call, struct{}) (*worker.Result, error) {
			return &worker.Result{IsError: true}, nil
		})
	client := pair(t, w)

	type result struct {
		content, structured string
		isError             bool
		meta, extra         string
	}
	for name, want := range map[string]result{
		"string":       {content: `[{"type":"text","text":"hello <b>"}]`},
		"empty-string": {content: `[{"type":"text","text":""}]`},
		"nil-slice": {
			content:    `[{"type":"text","text":"{\"total\":0,\"slugs\":[]}"}]`,
			structured: `{"total":0,"slugs":[]}`,
		},
		"list":       {content: `[{"type":"text","text":"[1,2]"}]`, structured: `[1,2]`},
		"nothing":    {content: `[]`},
		"nil-result": {content: `[]`},
		"spoken":     {content: `[{"type":"text","text":"n is small"}]`, structured: `{"n":1}`},
		"number":     {content: `[{"type":"text","text":"{\"n\":9007199254740993}"}]`, structured: `{"n":9007199254740993}`},
		"blocks": {
			content: `[{"type":"text","text":""},{"type":"image","data":"AQI=","mimeType":"image/png"},{"type":"audio","data":"","mimeType":"audio/wav"}]`,
			meta:    `{"a":1}`, extra: `{"b":2}`,
		},
		"no-blocks":           {content: `[]`, structured: `{ "a" : 1.10 }`},
		"failed":              {content: `[{"type":"text","text":"no"}]`, isError: true},
		"failed-unstructured": {content: `[]`, isError: true},
		"tool-error":          {content: `[{"type":"text","text":"try another slug: none"}]`, isError: true},
	} {
		r := outcome(t, client, name, `{}`).GetResult()
		got := result{string(r.GetContent()), string(r.GetStructuredContent()), r.GetIsError(), string(r.GetMeta()), string(r.GetExtra())}
		if got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
	r := outcome(t, client, "search", `{"query":"sse","limit":3}`).GetResult()
	if got := string(r.GetStructuredContent()); got != `{"total":3,"slugs":["sse"]}` {
		t.Errorf("search: %s", got)
	}

	for name, want := range map[string]*millracev1.Error{
		"protocol-error":   {Kind: millracev1.Error_KIND_CUSTOM, Code: -31000, Message: "gone", Data: []byte(`{"x":1}`)},
		"protocol-error-0": {Kind: millracev1.Error_KIND_CUSTOM, Code: -32603, Message: "plain"},
		"arguments-error":  {Kind: millracev1.Error_KIND_INVALID_ARGUMENTS, Detail: "from is after to"},
		"unheard-of":       {Kind: millracev1.Error_KIND_UNKNOWN_TOOL},
	} {
		if got := outcome(t, client, name, ``).GetError(); mustJSON(t, got) != mustJSON(t, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}

	if log.String() != "" {
		t.Errorf("the log is not empty before the first fault:\n%s", &log)
	}
	internal := []string{"nan", "channel", "bad-raw", "bad-block", "bad-meta", "bad-data", "panic", "nil-pointer", "mismatch", "unstructured"}
	for _, name := range internal {
		got := outcome(t, client, name, ``).GetError()
		if want := (&millracev1.Error{Kind: millracev1.Error_KIND_INTERNAL}); mustJSON(t, got) != mustJSON(t, want) {
			t.Errorf("%s: %v, want only the kind", name, got)
		}
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != len(internal) {
		t.Fatalf("%d lines in the log, want %d:\n%s", len(lines), len(internal), &log)
	}
	for i, name := range internal {
		var line struct{ Level, Tool, Pool, Error, Stack string }
		if err := json.Unmarshal([]byte(lines[i]), &line); err != nil {
			t.Fatal(err)
		}
		if line.Level != "ERROR" || line.Tool != name || line.Pool != "test" || line.Error == "" {
			t.Errorf("%s is logged as %s", name, lines[i])
		}
		panicked := name == "panic" || name == "nil-pointer"
		if strings.Contains(line.Stack, "tool_test.go") != panicked {
			t.Errorf("%s: stack in the log: %q", name, line.Stack)
		}
	}
}

func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "typed"}, func(context.Context, *worker.Call, search) (string, error) {
		t.Error("the handler of typed ran")
		return "", nil
	})
	w.AddRawTool(worker.Tool{Name: "raw", InputSchema: json.RawMessage(`{"type":"object","required":["slug"],"properties":{"slug":{"type":"string"}}}`)},
		func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
			t.Error("the handler of raw ran")
			return nil, nil
		})
	client := pair(t, w)
	for _, c := range []struct{ tool, args, detail string }{
		{"raw", ``, `missing required property "slug"`},
		{"raw", `{}`, `missing required property "slug"`},
		{"raw", `{"slug":1}`, `property "slug" must be a string, not an integer`},
		{"typed", `{"limit":1}`, `missing required property "query"`},
		{"typed", `{"query":"a","limit":"ten"}`, `property "limit" must be an integer, not a string`},
		{"typed", `{"query":"a","limits":1}`, `unknown property "limits" (known: "query", "limit")`},
		{"typed", `{"query":"a","limit":9223372036854775808}`, `property "limit" is out of range`},
	} {
		got := outcome(t, client, c.tool, c.args).GetError()
		want := &millracev1.Error{Kind: millracev1.Error_KIND_INVALID_ARGUMENTS, Detail: c.detail}
		if mustJSON(t, got) != mustJSON(t, want) {
			t.Errorf("%s %s: %v, want detail %s", c.tool, c.args, got, c.detail)
		}
	}
}

// Bank case B04: no number changes on the way through a worker.
func TestRawArgumentsAreNotTouched(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	w.AddRawTool(worker.Tool{Name: "echo"}, func(_ context.Context, _ *worker.Call, args json.RawMessage) (*worker.Result, error) {
		return &worker.Result{Content: []worker.Content{worker.Text(string(args))}, Structured: args}, nil
	})
	client := pair(t, w)
	args := `{"a":9007199254740993, "b":9223372036854775807,"c":1.10,"d":-0.0,"e":1e2,"f":0.30000000000000004,` +
		`"g":123456789012345678901234567890, "z":"\u00e9\/"}`
	r := outcome(t, client, "echo", args).GetResult()
	if got := string(r.GetStructuredContent()); got != args {
		t.Errorf("structured content: %s", got)
	}
	if got, want := string(r.GetContent()), `[{"type":"text","text":`+mustJSON(t, args)+`}]`; got != want {
		t.Errorf("content: %s\nwant     %s", got, want)
	}
}

func TestTypedIntegersAreExact(t *testing.T) {
	t.Parallel()
	type numbers struct {
		I int64  `json:"i"`
		U uint64 `json:"u"`
	}
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "echo"}, func(_ context.Context, _ *worker.Call, in numbers) (numbers, error) { return in, nil })
	client := pair(t, w)
	for args, want := range map[string]string{
		`{"i":9007199254740993,"u":18446744073709551615}`: `{"i":9007199254740993,"u":18446744073709551615}`,
		`{"i":-9223372036854775808,"u":1e2}`:              `{"i":-9223372036854775808,"u":100}`,
	} {
		if got := string(outcome(t, client, "echo", args).GetResult().GetStructuredContent()); got != want {
			t.Errorf("%s came back as %s", args, got)
		}
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "steps"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		call.Progress(0, 0, "")
		call.Progress(0, 5, "not more than the last")
		call.Progress(1, worker.UnknownTotal, "one")
		call.Progress(math.NaN(), 5, "no number")
		call.Progress(math.Inf(1), 5, "no number")
		call.Progress(0.5, 5, "less")
		call.Progress(2.5, 5, "")
		call.Progress(1e21, math.Inf(1), "")
		return "done", nil
	})
	client := pair(t, w)
	req := &millracev1.CallToolRequest{Name: "steps", Context: &millracev1.CallContext{WantsProgress: true}}
	events, err := callTool(t.Context(), client, req)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		if p := e.GetProgress(); p != nil {
			got = append(got, fmt.Sprintf("%s/%s %s", p.GetProgress(), p.GetTotal(), p.GetMessage()))
		} else {
			got = append(got, string(e.GetResult().GetContent()))
		}
	}
	want := []string{"0/0 ", "1/ one", "2.5/5 ", "1e+21/ ", `[{"type":"text","text":"done"}]`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// Nobody asked: nothing but the result.
	outcome(t, client, "steps", ``)
}

// Progress from many goroutines stays in order, stands before the result, and
// what comes after the handler's return is dropped.
func TestProgressFromManyGoroutines(t *testing.T) {
	t.Parallel()
	used := make(chan *worker.Call, 1)
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "many"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() { call.Progress(float64(i), 50, "") })
		}
		wg.Wait()
		used <- call
		return "done", nil
	})
	client := pair(t, w)
	req := &millracev1.CallToolRequest{Name: "many", Context: &millracev1.CallContext{WantsProgress: true}}
	events, err := callTool(t.Context(), client, req)
	if err != nil {
		t.Fatal(err)
	}
	last := -1.0
	for i, e := range events[:len(events)-1] {
		var done float64
		if err := json.Unmarshal(e.GetProgress().GetProgress(), &done); err != nil || done <= last {
			t.Errorf("event %d: %v after %v, %v", i, done, last, err)
		}
		last = done
	}
	if last != 49 {
		t.Errorf("the last progress was %v", last)
	}
	if events[len(events)-1].GetResult() == nil {
		t.Errorf("the last event is %v", events[len(events)-1])
	}
	(<-used).Progress(1000, 50, "late") // neither blocks nor panics
}

// Progress arrives while the tool runs.
func TestProgressIsNotHeldBack(t *testing.T) {
	t.Parallel()
	seen := make(chan struct{})
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "wait"}, func(ctx context.Context, call *worker.Call, _ struct{}) (string, error) {
		call.Progress(1, 2, "half")
		select {
		case <-seen:
			return "done", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	})
	client := pair(t, w)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := client.CallTool(ctx, &millracev1.CallToolRequest{Name: "wait", Context: &millracev1.CallContext{WantsProgress: true}})
	if err != nil {
		t.Fatal(err)
	}
	if event, err := stream.Recv(); err != nil || event.GetProgress() == nil {
		t.Fatalf("first event: %v, %v", event, err)
	}
	close(seen)
	if event, err := stream.Recv(); err != nil || event.GetResult() == nil {
		t.Fatalf("second event: %v, %v", event, err)
	}
	if event, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("third event: %v, %v", event, err)
	}
}

func TestCancelReachesTheHandler(t *testing.T) {
	t.Parallel()
	var log journal
	began, ended := make(chan struct{}), make(chan error, 1)
	w := newWorker(log.logger())
	worker.AddTool(w, worker.Tool{Name: "wait"}, func(ctx context.Context, call *worker.Call, _ struct{}) (string, error) {
		close(began)
		<-ctx.Done()
		call.Progress(1, 1, "after the end")
		ended <- ctx.Err()
		return "", ctx.Err()
	})
	client := pair(t, w)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-began
		cancel()
	}()
	events, err := callTool(ctx, client, &millracev1.CallToolRequest{Name: "wait", Context: &millracev1.CallContext{WantsProgress: true}})
	if status.Code(err) != codes.Canceled || len(events) != 0 {
		t.Errorf("%v, %v", events, err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the handler saw %v", err)
	}
	if log.String() != "" {
		t.Errorf("a cancelled call is no fault, but the log says:\n%s", &log)
	}
}

// A handler's own context error, while the call goes on, is an error like any
// other.
func TestContextErrorOfTheHandlersOwn(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	returning(w, "upstream", "", context.DeadlineExceeded)
	client := pair(t, w)
	if r := outcome(t, client, "upstream", ``).GetResult(); !r.GetIsError() {
		t.Errorf("result: %v", r)
	}
}

func TestCallContext(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "who"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		p := call.Principal()
		if p == nil {
			return fmt.Sprintf("nobody %q %q", call.Meta(), call.ClientInfo()), nil
		}
		return fmt.Sprint(p.Issuer, p.Subject, p.Scopes, call.ProtocolVersion(), call.Scope(), string(call.ClientInfo()), string(call.Meta())), nil
	})
	client := pair(t, w)
	r := outcome(t, client, "who", ``).GetResult()
	if got, want := string(r.GetContent()), `[{"type":"text","text":"nobody \"\" \"\""}]`; got != want {
		t.Errorf("anonymous: %s", got)
	}
	events, err := callTool(t.Context(), client, &millracev1.CallToolRequest{
		Name: "who",
		Context: &millracev1.CallContext{
			Principal:       &millracev1.Principal{Issuer: "iss", Subject: "sub", Scopes: []string{"a", "b"}},
			ProtocolVersion: "v", Scope: "s", ClientInfo: []byte(`{}`),
		},
		Meta: []byte(`{"progressToken":1}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(events[0].GetResult().GetContent()); !strings.Contains(got, `isssub[a b]vs{}{\"progressToken\":1}`) {
		t.Errorf("known: %s", got)
	}
}
