package everything

import (
	"bytes"
	"context"
	"encoding/json"
	"image/png"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// answers are those of a client that says yes to everything.
func answers() map[string]any {
	return map[string]any{
		"answer":           workertest.Message("a poem"),
		"contact":          workertest.Accept(map[string]string{"username": "ada", "email": "ada@example.com"}),
		"defaults":         workertest.Accept(map[string]any{"name": "John Doe", "age": 30, "score": 95.5, "status": "active", "verified": true}),
		"enums":            workertest.Accept(map[string]any{"untitledSingle": "option1", "titledMulti": []string{"value1"}}),
		"page":             workertest.Accept(nil),
		"user_name":        workertest.Accept(map[string]string{"name": "Ada"}),
		"capital_question": workertest.Message("Paris"),
		"client_roots":     workertest.Roots("file:///a", "file:///b"),
		"confirm":          workertest.Accept(map[string]bool{"ok": true}),
		"greeting":         workertest.Message("Hi"),
		"step1":            workertest.Accept(map[string]string{"name": "Ada"}),
		"step2":            workertest.Accept(map[string]string{"color": "green"}),
		"user_context":     workertest.Accept(map[string]string{"context": "tests"}),
	}
}

// Each tool once, with what the suite compares.
func TestTools(t *testing.T) {
	t.Parallel()
	w := New(Config{}).worker
	client := &workertest.Client{Answers: answers()}
	for _, c := range []struct {
		tool, args string
		text       string   // of the result
		content    string   // a part of the content
		asked      []string // key and method of the questions, round by round
	}{
		{tool: "test_simple_text", text: "This is a simple text response for testing."},
		{tool: "test_image_content", content: `{"type":"image","data":"` + redPixel + `","mimeType":"image/png"}`},
		{tool: "test_audio_content", content: `"mimeType":"audio/wav"`},
		{tool: "test_embedded_resource", content: `{"type":"resource","resource":{"uri":"test://embedded-resource","mimeType":"text/plain","text":"`},
		{tool: "test_multiple_content_types", content: `"type":"image"`},
		{tool: "test_annotated_content", content: `"annotations":{"audience":["user","assistant"],"priority":0.5},"_meta":{"example.com/shown":true}}`},
		{tool: "json_schema_2020_12_tool", args: `{"name":"n","contactMethod":"phone","phone":"1"}`, content: "called with"},
		{tool: "test_x_mcp_header", args: `{"region":"Hello","query":"test-default"}`, text: "region Hello, query test-default"},
		{tool: "test_tool_with_progress", text: "Tool with progress executed."},
		{tool: "test_tool_with_logging", text: "Tool with logging executed."},
		{tool: "test_logging_tool", text: "Logged."},
		{tool: "test_reconnection", text: "Reconnection test completed."},
		{tool: "count", args: `{"n":2,"delay_ms":1}`, text: `{"count":2}`},
		{tool: "echo", args: `{ "n": 9007199254740993 }`, text: `{ "n": 9007199254740993 }`},
		{tool: "big", args: `{"bytes":3,"as":"blob"}`, content: `"blob":"MDEy"`},
		{tool: "big", args: `{"bytes":3,"as":"structured"}`, content: `"text":""`},
		{tool: "slow", args: `{"ms":1}`, text: "That took 1 ms."},
		{tool: "test_sampling", args: `{"prompt":"write"}`, text: "LLM response: a poem", asked: []string{"answer sampling/createMessage"}},
		{tool: "test_elicitation", args: `{"message":"who?"}`, content: "action accept, content", asked: []string{"contact elicitation/create"}},
		{tool: "test_elicitation_sep1034_defaults", content: "action accept", asked: []string{"defaults elicitation/create"}},
		{tool: "test_elicitation_sep1330_enums", content: "action accept", asked: []string{"enums elicitation/create"}},
		{tool: "test_elicitation_url", content: "action accept", asked: []string{"page elicitation/create"}},
		{tool: "test_streaming_elicitation", content: "action accept", asked: []string{"user_name elicitation/create"}},
		{tool: "test_missing_capability", text: "The client has sampling."},
		{tool: "test_input_required_result_elicitation", text: "Hello, Ada!", asked: []string{"user_name elicitation/create"}},
		{tool: "test_input_required_result_sampling", text: "The model says: Paris", asked: []string{"capital_question sampling/createMessage"}},
		{tool: "test_input_required_result_list_roots", text: "The client has 2 roots.", asked: []string{"client_roots roots/list"}},
		{tool: "test_input_required_result_request_state", text: "state-ok (confirmed: true)", asked: []string{"confirm elicitation/create"}},
		{tool: "test_input_required_result_tampered_state", content: "as it was", asked: []string{"confirm elicitation/create"}},
		{
			tool: "test_input_required_result_multiple_inputs", content: "greeting Hi; 2 roots",
			asked: []string{"client_roots roots/list", "greeting sampling/createMessage", "user_name elicitation/create"},
		},
		{
			tool: "test_input_required_result_multi_round", text: "Ada likes green.",
			asked: []string{"step1 elicitation/create", "step2 elicitation/create"},
		},
		{
			tool: "test_input_required_result_capabilities", text: "The client answered 3 questions.",
			asked: []string{"capital_question sampling/createMessage", "client_roots roots/list", "user_name elicitation/create"},
		},
		{tool: "log_all", text: "Sent one message at each level."},
		{tool: "test_trigger_resource_update", content: "Announced"},
		{tool: "test_trigger_resource_change", content: "Added"},
		{tool: "test_trigger_resource_change", content: "Removed"},
		{tool: "held", args: `{"name":"nobody"}`, text: `{"started":false,"ended":false,"cancelled":false}`},
		{tool: "danger", text: `{"count":1}`},
		{tool: "danger", args: `{"ms":1}`, text: `{"count":2}`},
		{tool: "danger_count", text: `{"count":2}`},
	} {
		out := client.Call(t, w, c.tool, json.RawMessage(c.args))
		if out.Error != nil || out.Result.GetIsError() || c.text != "" && out.Text() != c.text || !strings.Contains(string(out.Result.GetContent()), c.content) {
			t.Errorf("%s: %v, %v", c.tool, out.Error, out.Result)
		}
		var asked []string
		for _, q := range out.Asked {
			asked = append(asked, q.Key+" "+q.Method)
		}
		if !slices.Equal(asked, c.asked) {
			t.Errorf("%s: asked %q, want %q", c.tool, asked, c.asked)
		}
	}
}

// What a cancellation does to hold is seen in services/internal/e2e.
func TestHold(t *testing.T) {
	t.Parallel()
	e := New(Config{})
	ended := make(chan *workertest.Outcome, 1) // one outcome
	go func() { ended <- workertest.Call(t, e.worker, "hold", map[string]string{"name": "one"}) }()
	<-e.holding("one").started
	held := func() string { return workertest.Call(t, e.worker, "held", map[string]string{"name": "one"}).Text() }
	if got, want := held(), `{"started":true,"ended":false,"cancelled":false}`; got != want {
		t.Errorf("while it runs: %s, want %s", got, want)
	}
	if out := <-ended; out.Text() != "Let go." {
		t.Errorf("hold: %v, %v", out.Error, out.Result)
	}
	if got, want := held(), `{"started":true,"ended":true,"cancelled":false}`; got != want {
		t.Errorf("when it has ended: %s, want %s", got, want)
	}
	if out := workertest.Call(t, e.worker, "hold", map[string]string{"name": "one"}); out.Error.GetKind() != millracev1.Error_KIND_INVALID_ARGUMENTS {
		t.Errorf("the same name again: %v, %v", out.Error, out.Result)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	exited := false
	w := New(Config{Exit: func() { exited = true }}).worker
	if out := workertest.Call(t, w, "test_error_handling", json.RawMessage(nil)); !out.Result.GetIsError() || !strings.Contains(out.Text(), "intentionally") {
		t.Errorf("error handling: %v, %v", out.Error, out.Result)
	}
	for _, args := range []string{``, `{"how":"panic"}`, `{"how":"goexit"}`} {
		if out := workertest.Call(t, w, "crash", json.RawMessage(args)); out.Error.GetKind() != millracev1.Error_KIND_INTERNAL {
			t.Errorf("crash %s: %v, %v", args, out.Error, out.Result)
		}
	}
	workertest.Call(t, w, "crash", json.RawMessage(`{"how":"exit"}`))
	if !exited {
		t.Error("crash did not end the process")
	}
	if out := workertest.Call(t, New(Config{}).worker, "crash", json.RawMessage(`{"how":"exit"}`)); !out.Result.GetIsError() {
		t.Errorf("a process that may not be ended: %v, %v", out.Error, out.Result)
	}
	if out := workertest.Call(t, w, "big", map[string]int{"bytes": maxBig + 1}); out.Error.GetKind() != millracev1.Error_KIND_INVALID_ARGUMENTS {
		t.Errorf("too big: %v", out.Error)
	}
	if out := workertest.Call(t, w, "big", map[string]any{"bytes": 1, "as": "picture"}); out.Error.GetKind() != millracev1.Error_KIND_INVALID_ARGUMENTS {
		t.Errorf("no such shape: %v", out.Error)
	}
	none := &workertest.Client{Capabilities: struct{}{}}
	if out := none.Call(t, w, "test_missing_capability", json.RawMessage(nil)); out.Error.GetKind() != millracev1.Error_KIND_MISSING_CAPABILITY || string(out.Error.GetData()) != `{"sampling":{}}` {
		t.Errorf("missing capability: %v, %v", out.Error, out.Result)
	}
	if out := none.Call(t, w, "test_input_required_result_capabilities", json.RawMessage(nil)); len(out.Asked) != 0 || out.Result == nil {
		t.Errorf("a client that can do nothing: %v, %v", out.Error, out.Asked)
	}
	sampler := &workertest.Client{Capabilities: map[string]any{"sampling": struct{}{}}}
	if out := sampler.Call(t, w, "test_input_required_result_capabilities", json.RawMessage(nil)); len(out.Unanswered) != 1 || out.Unanswered[0].Method != "sampling/createMessage" {
		t.Errorf("a client that can sample: %v, %v", out.Error, out.Asked)
	}
}

// A malformed answer is asked for again, and declining is an answer.
func TestAnswers(t *testing.T) {
	t.Parallel()
	w := New(Config{}).worker
	for _, bad := range []any{0, "no", []int{}, map[string]any{}, map[string]any{"action": "accept"}, workertest.Accept(map[string]int{"name": 1})} {
		client := &workertest.Client{Answer: func(q workertest.Question) (any, bool) {
			if q.Round == 1 {
				return bad, true
			}
			return workertest.Accept(map[string]any{"name": "Ada", "more": 1}), true
		}}
		if out := client.Call(t, w, "test_input_required_result_elicitation", json.RawMessage(nil)); out.Text() != "Hello, Ada!" || len(out.Asked) != 2 {
			t.Errorf("after %v: %q, %v", bad, out.Text(), out.Asked)
		}
	}
	for _, no := range []any{workertest.Decline(), workertest.Cancel()} {
		client := &workertest.Client{Answers: map[string]any{"user_name": no}}
		if out := client.Call(t, w, "test_input_required_result_elicitation", json.RawMessage(nil)); out.Text() != "Hello, stranger!" {
			t.Errorf("%v: %q", no, out.Text())
		}
	}
}

func TestReports(t *testing.T) {
	t.Parallel()
	w := New(Config{}).worker
	out := workertest.Call(t, w, "test_tool_with_progress", json.RawMessage(nil))
	var done []string
	for _, p := range out.Progress {
		done = append(done, string(p.GetProgress())+"/"+string(p.GetTotal()))
	}
	if !slices.Equal(done, []string{"0/100", "50/100", "100/100"}) {
		t.Errorf("progress: %q", done)
	}
	if out = workertest.Call(t, w, "test_tool_with_logging", json.RawMessage(nil)); len(out.Logs) != 3 || string(out.Logs[2].GetData()) != `"Tool execution completed"` || out.Logs[0].GetLevel() != "info" {
		t.Errorf("logs: %v", out.Logs)
	}
	for level, want := range map[string]int{"debug": 8, "error": 4, "emergency": 1, "none": 0} {
		client := &workertest.Client{LogLevel: level}
		if out := client.Call(t, w, "log_all", json.RawMessage(nil)); len(out.Logs) != want {
			t.Errorf("at %s: %d messages, want %d", level, len(out.Logs), want)
		}
		if out := client.Call(t, w, "test_logging_tool", json.RawMessage(nil)); len(out.Logs) != map[string]int{"debug": 1}[level] || out.Result == nil {
			t.Errorf("at %s: %v", level, out.Logs)
		}
	}
	text := workertest.Call(t, w, "big", map[string]int{"bytes": 1000}).Text()
	if len(text) != 1000 || text != Big(1000) {
		t.Errorf("big: %d bytes", len(text))
	}
}

func TestResourcesAndPrompts(t *testing.T) {
	t.Parallel()
	w := New(Config{}).worker
	client := &workertest.Client{Answers: answers()}
	for uri, want := range map[string]string{
		"test://static-text":       `"mimeType":"text/plain","text":"This is the content`,
		"test://static-binary":     `"mimeType":"image/png","blob":"` + redPixel,
		watchedURI:                 `"text":"Watched`,
		"test://template/123/data": `"mimeType":"application/json","text":"{\"data\":\"Data for ID: 123\",\"id\":\"123\"`,
	} {
		if out := client.Read(t, w, uri); !strings.Contains(string(out.Contents.GetContents()), want) {
			t.Errorf("%s: %v, %v", uri, out.Error, out.Contents)
		}
	}
	if out := client.Read(t, w, "test://nothing"); out.Error.GetKind() != millracev1.Error_KIND_RESOURCE_NOT_FOUND {
		t.Errorf("nothing: %v", out.Error)
	}
	for _, c := range []struct {
		prompt string
		args   map[string]string
		want   string
	}{
		{"test_simple_prompt", nil, `[{"role":"user","content":{"type":"text","text":"This is a simple prompt for testing."}}]`},
		{"test_prompt_with_arguments", map[string]string{"arg1": "hello", "arg2": "world"}, `arg1='hello', arg2='world'`},
		{"test_prompt_with_embedded_resource", map[string]string{"resourceUri": "test://example"}, `{"type":"resource","resource":{"uri":"test://example"`},
		{"test_prompt_with_image", nil, `"type":"image"`},
		{"test_input_required_result_prompt", nil, `Take this into account: tests`},
	} {
		if out := client.Get(t, w, c.prompt, c.args); !strings.Contains(string(out.Prompt.GetMessages()), c.want) {
			t.Errorf("%s: %v, %v", c.prompt, out.Error, out.Prompt)
		}
	}
	for _, c := range []struct {
		req  worker.CompleteRequest
		want []string
	}{
		{worker.CompleteRequest{Argument: "arg1", Value: "Par"}, []string{"paris", "park", "party"}},
		{worker.CompleteRequest{Argument: "arg2"}, nil},
		{worker.CompleteRequest{Argument: "arg2", Known: map[string]string{"arg1": "park"}}, []string{"park-one", "park-two"}},
	} {
		if got := client.CompletePrompt(t, w, "test_prompt_with_arguments", c.req); !slices.Equal(got.GetValues(), c.want) {
			t.Errorf("%v: %v", c.req, got)
		}
	}
	if got := client.CompleteTemplate(t, w, templateURI, worker.CompleteRequest{Argument: "id", Value: "12"}); !slices.Equal(got.GetValues(), []string{"12", "123"}) {
		t.Errorf("template: %v", got)
	}
}

// What the suite looks at in the lists, and how the triggers change them.
func TestListsOnTheBus(t *testing.T) {
	t.Parallel()
	server, err := localnats.Start(localnats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.ConnConfig{InProcess: server})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	e := New(Config{Version: "1.0.0"})
	watcher := bus.NewWatcher(conn, bus.WatcherConfig{})
	client := bus.NewClient(conn, bus.ClientConfig{})
	ended := make(chan error, 3) // one of each actor
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	for _, run := range []func(context.Context) error{
		func(ctx context.Context) error { return e.Run(ctx, conn) }, watcher.Run, client.Run,
	} {
		go func() { ended <- run(running) }()
	}
	defer func() {
		stop()
		for range 3 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()
	<-e.Ready()
	<-client.Ready()

	// manifest waits for the next one that want accepts.
	manifest := func(want func(*millracev1.Manifest) bool) *millracev1.Manifest {
		for {
			for _, m := range watcher.Members() {
				data, err := watcher.Fetch(ctx, m.Manifests[0])
				if err != nil {
					continue // it may be gone already
				}
				out := new(millracev1.Manifest)
				if err := proto.Unmarshal(data, out); err != nil {
					t.Fatal(err)
				}
				if want(out) {
					return out
				}
			}
			select {
			case <-watcher.Changes():
			case <-ctx.Done():
				t.Fatal("the expected manifest does not come")
			}
		}
	}
	hasTool := func(m *millracev1.Manifest, name string) bool {
		return slices.ContainsFunc(m.GetTools(), func(t *millracev1.Tool) bool { return t.GetName() == name })
	}
	hasPrompt := func(m *millracev1.Manifest, name string) bool {
		return slices.ContainsFunc(m.GetPrompts(), func(p *millracev1.Prompt) bool { return p.GetName() == name })
	}
	first := manifest(func(*millracev1.Manifest) bool { return true })
	for _, tool := range first.GetTools() {
		var definition struct{ Name, Description string }
		if err := json.Unmarshal(tool.GetDefinition(), &definition); err != nil || definition.Description == "" {
			t.Errorf("%s: %s, %v", tool.GetName(), tool.GetDefinition(), err)
		}
		if tool.GetName() == "json_schema_2020_12_tool" {
			var want bytes.Buffer
			if err := json.Compact(&want, []byte(richSchema)); err != nil || !bytes.Contains(tool.GetDefinition(), want.Bytes()) {
				t.Errorf("the schema has changed: %s", tool.GetDefinition())
			}
		}
		if tool.GetName() == "test_x_mcp_header" && !bytes.Contains(tool.GetDefinition(), []byte(`"x-mcp-header":"Region"`)) {
			t.Errorf("no header: %s", tool.GetDefinition())
		}
	}
	for _, prompt := range first.GetPrompts() {
		if !bytes.Contains(prompt.GetDefinition(), []byte(`"description":"`)) {
			t.Errorf("no description: %s", prompt.GetDefinition())
		}
		if prompt.GetName() == "test_prompt_with_arguments" && !slices.Equal(prompt.GetCompleted(), []string{"arg1", "arg2"}) {
			t.Errorf("completed: %q", prompt.GetCompleted())
		}
	}

	service := millracev1.NewWorkerServiceClient(client.Pool(Pool))
	trigger := func(name string) {
		stream, err := service.CallTool(ctx, &millracev1.CallToolRequest{Name: name})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for _, there := range []bool{true, false} {
		trigger("test_trigger_tool_change")
		manifest(func(m *millracev1.Manifest) bool { return hasTool(m, "test_dynamic_tool") == there })
		trigger("test_trigger_prompt_change")
		manifest(func(m *millracev1.Manifest) bool { return hasPrompt(m, "test_dynamic_prompt") == there })
	}

	updates := make(chan struct{}, 1)
	stopListening, err := client.Listen(bus.TopicResourceUpdated, watchedURI, func() { updates <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer stopListening()
	if err := conn.NATS().FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	trigger("test_trigger_resource_update")
	select {
	case <-updates:
	case <-ctx.Done():
		t.Error("nobody heard of the update")
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	if _, err := png.Decode(bytes.NewReader(pixel())); err != nil {
		t.Error(err)
	}
	if sound := decoded(silence); !bytes.HasPrefix(sound, []byte("RIFF")) || !bytes.Contains(sound, []byte("WAVEfmt ")) {
		t.Errorf("the sound is no WAV file: %q", sound)
	}
}
