package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// blocking is a tool that runs until it is let go, and says when it began.
type blocking struct {
	began chan string
	free  chan struct{}
}

func newBlocking() *blocking {
	return &blocking{began: make(chan string, 16), free: make(chan struct{})}
}

func (b *blocking) add(w *worker.Worker, instance string) {
	worker.AddTool(w, worker.Tool{Name: "block"}, func(ctx context.Context, _ *worker.Call, _ struct{}) (string, error) {
		b.began <- instance
		select {
		case <-b.free:
			return instance, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	})
}

type answer struct {
	events []*millracev1.CallToolResponse
	err    error
}

func (b *blocking) call(t *testing.T, client millracev1.WorkerServiceClient) <-chan answer {
	t.Helper()
	answers := make(chan answer, 1) // the caller may not look
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	go func() {
		events, err := callTool(ctx, client, &millracev1.CallToolRequest{Name: "block"})
		answers <- answer{events, err}
	}()
	return answers
}

func (b *blocking) waitBegan(t *testing.T) string {
	t.Helper()
	select {
	case instance := <-b.began:
		return instance
	case <-time.After(patience):
		t.Fatal("the tool does not begin")
		return ""
	}
}

func TestFullSlots(t *testing.T) {
	t.Parallel()
	server := startBus(t)
	block := newBlocking()
	for _, name := range []string{"a", "b"} {
		w := worker.New(worker.Config{Pool: "test", Slots: 1})
		block.add(w, name)
		serve(t, server, w)
	}
	client := dial(t, server)
	first := block.call(t, client)
	one := block.waitBegan(t)
	second := block.call(t, client)
	if other := block.waitBegan(t); other == one {
		t.Errorf("both calls run on %s, which has one slot", one)
	}
	_, err := callTool(t.Context(), client, &millracev1.CallToolRequest{Name: "block"})
	if status.Code(err) != codes.ResourceExhausted || bus.Reason(err) != "OVERLOADED" {
		t.Errorf("a third call: %v, reason %q", err, bus.Reason(err))
	}
	close(block.free)
	for _, answers := range []<-chan answer{first, second} {
		if a := <-answers; a.err != nil || len(a.events) != 1 || a.events[0].GetResult() == nil {
			t.Errorf("a call in a slot: %v, %v", a.events, a.err)
		}
	}
}

func TestDrainLetsCallsEnd(t *testing.T) {
	t.Parallel()
	server := startBus(t)
	block := newBlocking()
	w := newWorker(nil)
	block.add(w, "a")
	run := serve(t, server, w)
	client := dial(t, server)
	answers := block.call(t, client)
	block.waitBegan(t)
	run.stop()
	// No new call gets in. It may be refused as busy or find nobody.
	for {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := callTool(ctx, client, &millracev1.CallToolRequest{Name: "unheard-of"})
		cancel()
		if code := status.Code(err); code == codes.Unavailable || code == codes.ResourceExhausted {
			break
		} else if err != nil {
			t.Fatalf("while draining: %v", err)
		}
	}
	select {
	case <-run.ended:
		t.Fatalf("Run returned %v while a call was running", run.err)
	default:
	}
	close(block.free)
	if a := <-answers; a.err != nil || len(a.events) != 1 || a.events[0].GetResult() == nil {
		t.Errorf("the running call: %v, %v", a.events, a.err)
	}
	wait(t, run.ended, "Run to return")
	if run.err != nil {
		t.Errorf("Run: %v", run.err)
	}
}

func TestDrainEndsWithGrace(t *testing.T) {
	t.Parallel()
	server := startBus(t)
	block := newBlocking()
	w := worker.New(worker.Config{Pool: "test", Grace: 20 * time.Millisecond})
	block.add(w, "a")
	run := serve(t, server, w)
	answers := block.call(t, dial(t, server))
	block.waitBegan(t)
	run.stop()
	wait(t, run.ended, "Run to return")
	if a := <-answers; status.Code(a.err) != codes.Unavailable {
		t.Errorf("the call that did not end: %v, %v", a.events, a.err)
	}
}

func TestServe(t *testing.T) {
	t.Parallel()
	server, err := localnats.Start(localnats.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	w := newWorker(nil)
	returning(w, "hello", "hi", nil)
	start(t, func(ctx context.Context) error { return w.Serve(ctx, server.ClientURL()) }, w.Ready())
	if r := outcome(t, dial(t, server), "hello", ``).GetResult(); r == nil {
		t.Error("no result")
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newWorker(nil).Serve(ctx, "nats://user:secret@127.0.0.1:1"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("Serve without a server returned %v", err)
	}
}

// The pool of the edges is not a worker's to join.
func TestPoolOfTheEdges(t *testing.T) {
	t.Parallel()
	err := worker.New(worker.Config{Pool: "_edge"}).Run(t.Context(), connect(t, startBus(t)))
	if err == nil || !strings.Contains(err.Error(), "name of the edges") {
		t.Errorf("%v", err)
	}
}

func TestMistakesAreReportedTogether(t *testing.T) {
	t.Parallel()
	var log journal
	w := worker.New(worker.Config{Pool: "not a pool", Logger: log.logger()})
	fn := func(context.Context, *worker.Call, struct{}) (string, error) { return "", nil }
	worker.AddTool(w, worker.Tool{Name: "fine"}, fn)
	worker.AddTool(w, worker.Tool{Name: "fine"}, fn)
	worker.AddTool(w, worker.Tool{Name: "has space"}, fn)
	worker.AddTool(w, worker.Tool{}, fn)
	worker.AddTool(w, worker.Tool{Name: "meta", Meta: json.RawMessage(`[]`)}, fn)
	worker.AddTool(w, worker.Tool{Name: "icon", Icons: []worker.Icon{{}}}, fn)
	worker.AddTool(w, worker.Tool{Name: "timeout", Timeout: -1}, fn)
	worker.AddTool(w, worker.Tool{Name: "slots", Slots: -1}, fn)
	worker.AddTool(w, worker.Tool{Name: "channel"}, func(context.Context, *worker.Call, struct{ C chan int }) (string, error) { return "", nil })
	worker.AddTool(w, worker.Tool{Name: "text-in"}, func(context.Context, *worker.Call, string) (string, error) { return "", nil })
	w.AddRawTool(worker.Tool{Name: "no-handler"}, nil)
	read := failing(nil)
	w.AddResource(worker.Resource{URI: "", Name: "x"}, read)
	w.AddResource(worker.Resource{URI: "a:\n", Name: "x"}, read)
	w.AddResource(worker.Resource{URI: "a:nameless"}, read)
	w.AddResource(worker.Resource{URI: "a:handlerless", Name: "x"}, nil)
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "a:{", Name: "x"}, read)
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "a:{b}", Name: "x"}, read)
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "a:{b}", Name: "x"}, read)
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "c:{b}", Name: "x", Complete: map[string]worker.CompleteFunc{"c": nil}}, read)
	w.AddPrompt(worker.Prompt{}, prompting(nil))
	w.AddPrompt(worker.Prompt{Name: "twice"}, prompting(nil))
	w.AddPrompt(worker.Prompt{Name: "twice"}, prompting(nil))
	w.AddPrompt(worker.Prompt{Name: "handlerless"}, nil)
	w.AddPrompt(worker.Prompt{Name: "arguments", Arguments: []worker.PromptArgument{{Name: "a"}, {Name: "a"}}}, prompting(nil))
	w.AddPrompt(worker.Prompt{Name: "nameless", Arguments: []worker.PromptArgument{{}}}, prompting(nil))
	w.AddPrompt(worker.Prompt{Name: "meta", Meta: json.RawMessage(`[]`)}, prompting(nil))

	server := startBus(t)
	err := w.Run(t.Context(), connect(t, server))
	if err == nil {
		t.Fatal("Run returned nil")
	}
	got := strings.Split(err.Error(), "\n")
	want := []string{
		`worker: Config.Pool "not a pool" must be`,
		`worker: tool "fine": a tool of this name was added before`,
		`worker: tool "has space": the name must be`,
		`worker: tool "": the name must be`,
		`worker: tool "meta": _meta must be a JSON object`,
		`worker: tool "icon": an icon has no Src`,
		`worker: tool "timeout": a negative Timeout`,
		`worker: tool "slots": a negative or very large number of Slots`,
		`worker: tool "channel": input schema: `,
		`worker: tool "text-in": input schema: the arguments are an object`,
		`worker: tool "no-handler": the handler is nil`,
		`worker: resource "": the URI is empty`,
		`worker: resource "a:\n": the URI is no text`,
		`worker: resource "a:nameless": the name is empty`,
		`worker: resource "a:handlerless": the handler is nil`,
		`worker: resource template "a:{": it is no URI template`,
		`worker: resource template "a:{b}": this template was added before`,
		`worker: resource template "c:{b}": Complete has "c", which is no variable`,
		`worker: prompt "": the name is empty`,
		`worker: prompt "twice": a prompt of this name was added before`,
		`worker: prompt "handlerless": the handler is nil`,
		`worker: prompt "arguments": the name "a" of an argument is empty or used twice`,
		`worker: prompt "nameless": the name "" of an argument is empty or used twice`,
		`worker: prompt "meta": _meta must be a JSON object`,
	}
	if len(got) != len(want) {
		t.Fatalf("%d mistakes, want %d:\n%v", len(got), len(want), err)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("mistake %d: %s\nwant     %s…", i, got[i], want[i])
		}
	}
	if log.String() != "" {
		t.Errorf("mistakes before Run belong to Run, but the log says:\n%s", &log)
	}
}

func TestRunTwice(t *testing.T) {
	t.Parallel()
	server := startBus(t)
	w := newWorker(nil)
	serve(t, server, w)
	if err := w.Run(t.Context(), connect(t, server)); err == nil {
		t.Error("the second Run returned nil")
	}
}

// prompting returns a handler of prompts that returns err.
func prompting(err error) worker.PromptFunc {
	return func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{}, err
	}
}

// full returns a worker with one of everything, added in a given order.
func full(backwards bool) *worker.Worker {
	w := worker.New(worker.Config{Pool: "test", Version: "1.2.3", Title: "Test", Instructions: "Use it well."})
	size := int64(0)
	adds := []func(){
		func() {
			worker.AddTool(w, worker.Tool{
				Name: "search", Title: "Search", Description: "Finds <things>.",
				Annotations: &worker.Annotations{ReadOnlyHint: new(true), DestructiveHint: new(false), OpenWorldHint: new(false)},
				Icons:       []worker.Icon{{Src: "https://example.com/i.png", MIMEType: "image/png", Sizes: []string{"48x48"}, Theme: "dark"}},
				Meta:        json.RawMessage(`{ "b": 1.10, "a": null }`), Timeout: 1500 * time.Millisecond,
			}, func(context.Context, *worker.Call, search) (hits, error) { return hits{}, nil })
		},
		func() {
			worker.AddTool(w, worker.Tool{Name: "again", Annotations: &worker.Annotations{Title: "Again", IdempotentHint: new(true)}},
				func(context.Context, *worker.Call, struct{}) (string, error) { return "", nil })
		},
		func() {
			w.AddRawTool(worker.Tool{Name: "raw"}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) { return nil, nil })
		},
		func() {
			w.AddRawTool(worker.Tool{
				Name:         "given",
				InputSchema:  json.RawMessage(`{ "type": "object", "z": 1, "properties": { "n": { "const": 9007199254740993 } } }`),
				OutputSchema: json.RawMessage(`{"type":"array"}`),
			}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) { return nil, nil })
		},
		func() {
			w.AddResource(worker.Resource{URI: "a:2", Name: "two", Size: &size, Annotations: json.RawMessage(`{"priority":0}`)}, failing(nil))
		},
		func() { w.AddResource(worker.Resource{URI: "a:1", Name: "one", MIMEType: "text/plain"}, failing(nil)) },
		func() {
			w.AddResourceTemplate(worker.ResourceTemplate{
				URITemplate: "t:{x}{y}", Name: "t", Title: "T", Description: "d",
				Annotations: worker.ContentAnnotations{Audience: []worker.Role{worker.RoleUser}, Priority: new(0.0), LastModified: time.Unix(0, 0)}.JSON(),
				Complete:    map[string]worker.CompleteFunc{"y": worker.CompleteFrom(), "x": worker.CompleteFrom()},
			}, failing(nil))
		},
		func() {
			w.AddPrompt(worker.Prompt{
				Name: "summarise", Title: "Summarise", Description: "Makes <it> short.",
				Arguments: []worker.PromptArgument{
					{Name: "text", Title: "Text", Description: "what to summarise", Required: true},
					{Name: "language", Complete: worker.CompleteFrom("pl", "en")},
				},
				Icons: []worker.Icon{{Src: "data:image/png;base64,AA=="}}, Meta: json.RawMessage(`{ "k": 1 }`),
			}, prompting(nil))
		},
		func() { w.AddPrompt(worker.Prompt{Name: "again"}, prompting(nil)) },
	}
	for i := range adds {
		if backwards {
			i = len(adds) - 1 - i
		}
		adds[i]()
	}
	return w
}

// watch returns a watcher that is in sync.
func watch(t *testing.T, server *localnats.Server) *bus.Watcher {
	t.Helper()
	watcher := bus.NewWatcher(connect(t, server), bus.WatcherConfig{})
	start(t, watcher.Run, watcher.Synced())
	return watcher
}

// manifests waits until enough says the hashes that are announced are enough,
// and returns the first of each member.
func manifests(t *testing.T, watcher *bus.Watcher, enough func([]bus.Hash) bool) []bus.Hash {
	t.Helper()
	deadline := time.After(patience)
	for {
		var hashes []bus.Hash
		for _, member := range watcher.Members() {
			hashes = append(hashes, member.Manifests...)
		}
		if enough(hashes) {
			return hashes
		}
		select {
		case <-watcher.Changes():
		case <-deadline:
			t.Fatalf("the manifests stay %x", hashes)
		}
	}
}

func fetch(t *testing.T, watcher *bus.Watcher, hash bus.Hash) *millracev1.Manifest {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	data, err := watcher.Fetch(ctx, hash)
	if err != nil {
		t.Fatal(err)
	}
	var m millracev1.Manifest
	if err := proto.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return &m
}

func TestManifest(t *testing.T) {
	t.Parallel()
	server := startBus(t)
	serve(t, server, full(false))
	serve(t, server, full(true))
	watcher := watch(t, server)
	hashes := manifests(t, watcher, func(h []bus.Hash) bool { return len(h) == 2 })
	if hashes[0] != hashes[1] {
		t.Error("the order of additions changes the manifest")
	}
	m := fetch(t, watcher, hashes[0])

	var got strings.Builder
	fmt.Fprintf(&got, "pool %s\nversion %s\ntitle %s\ninstructions %s\n", m.GetPool(), m.GetVersion(), m.GetTitle(), m.GetInstructions())
	for _, tool := range m.GetTools() {
		fmt.Fprintf(&got, "tool %s read_only=%v idempotent=%v timeout_us=%d\n  %s\n",
			tool.GetName(), tool.GetReadOnly(), tool.GetIdempotent(), tool.GetTimeoutUs(), tool.GetDefinition())
	}
	for _, r := range m.GetResources() {
		fmt.Fprintf(&got, "resource %s\n  %s\n", r.GetUri(), r.GetDefinition())
	}
	for _, r := range m.GetResourceTemplates() {
		fmt.Fprintf(&got, "template %s completed=%q\n  %s\n", r.GetUriTemplate(), r.GetCompleted(), r.GetDefinition())
	}
	for _, p := range m.GetPrompts() {
		fmt.Fprintf(&got, "prompt %s completed=%q\n  %s\n", p.GetName(), p.GetCompleted(), p.GetDefinition())
	}
	golden := filepath.Join("testdata", "manifest.golden")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the manifest is not that of %s:\n%s", golden, got.String())
	}
}

// A schema that cannot be used takes its tool down, and nothing else.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	var log journal
	server := startBus(t)
	w := newWorker(log.logger())
	text := func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
		return &worker.Result{Content: []worker.Content{worker.Text("ran")}}, nil
	}
	fine, bad := json.RawMessage(`{"type":"object"}`), json.RawMessage(`{"type":"object","$ref":"https://example.com/s"}`)
	w.AddRawTool(worker.Tool{Name: "fine", InputSchema: fine}, text)
	w.AddRawTool(worker.Tool{Name: "in", InputSchema: bad}, text)
	w.AddRawTool(worker.Tool{Name: "both", InputSchema: json.RawMessage(`{`), OutputSchema: json.RawMessage(`{"type":"none"}`)}, text)
	w.AddRawTool(worker.Tool{Name: "dialect", InputSchema: json.RawMessage(`{"type":"object","$schema":"urn:x"}`)}, text)
	serve(t, server, w)
	client := dial(t, server)
	watcher := watch(t, server)
	hash := manifests(t, watcher, func(h []bus.Hash) bool { return len(h) == 1 })[0]
	m := fetch(t, watcher, hash)
	if len(m.GetTools()) != 1 || m.GetTools()[0].GetName() != "fine" {
		t.Errorf("offered: %v", m.GetTools())
	}
	want := map[string]string{
		"both":    `input schema: the schema is not valid JSON; output schema: it has a type "none", which there is not`,
		"dialect": `input schema: its dialect "urn:x" is not supported: use draft 2020-12 or draft-07`,
		"in":      `input schema: its $ref "https://example.com/s" leads out of the schema: other documents are never fetched, so copy it into $defs`,
	}
	var names []string
	for _, p := range m.GetProblems() {
		names = append(names, p.GetItem())
		if p.GetReason() != want[p.GetItem()] {
			t.Errorf("%s: %s\nwant %s", p.GetItem(), p.GetReason(), want[p.GetItem()])
		}
		if !strings.Contains(log.String(), `"tool":"`+p.GetItem()+`"`) {
			t.Errorf("the log does not name %s", p.GetItem())
		}
	}
	if fmt.Sprint(names) != "[both dialect in]" {
		t.Errorf("problems of %s", names)
	}
	kind := func(name string) millracev1.Error_Kind {
		events, err := callTool(t.Context(), client, &millracev1.CallToolRequest{Name: name})
		if err != nil || len(events) != 1 {
			t.Fatalf("%s: %v, %v", name, events, err)
		}
		return events[0].GetError().GetKind()
	}
	if got := kind("fine"); got != millracev1.Error_KIND_UNSPECIFIED {
		t.Errorf("fine: %s", got)
	}
	if got := kind("in"); got != millracev1.Error_KIND_UNKNOWN_TOOL {
		t.Errorf("in: %s", got)
	}
	// A tool is replaced by a better one as any other.
	w.AddRawTool(worker.Tool{Name: "in", InputSchema: fine}, text)
	if !strings.Contains(log.String(), "was added before") {
		t.Error("a second tool of the name is no mistake")
	}
	w.RemoveTool("in")
	w.AddRawTool(worker.Tool{Name: "in", InputSchema: fine}, text)
	if got := kind("in"); got != millracev1.Error_KIND_UNSPECIFIED {
		t.Errorf("the better one: %s", got)
	}
	if got := w.Problems(); len(got) != 2 || got[0].Tool != "both" || got[1].Reason != want["dialect"] {
		t.Errorf("Problems = %v", got)
	}
}

func TestChangesWhileRunning(t *testing.T) {
	t.Parallel()
	var log journal
	server := startBus(t)
	w := newWorker(log.logger())
	serve(t, server, w)
	client := dial(t, server)
	watcher := watch(t, server)
	last := manifests(t, watcher, func(h []bus.Hash) bool { return len(h) == 1 })[0]
	empty := last
	next := func() *millracev1.Manifest {
		t.Helper()
		last = manifests(t, watcher, func(h []bus.Hash) bool { return len(h) == 1 && h[0] != last })[0]
		return fetch(t, watcher, last)
	}

	returning(w, "late", "here", nil)
	if m := next(); len(m.GetTools()) != 1 || m.GetTools()[0].GetName() != "late" {
		t.Errorf("after AddTool: %v", m)
	}
	if outcome(t, client, "late", ``).GetResult() == nil {
		t.Error("the new tool gives no result")
	}

	w.AddResource(worker.Resource{URI: "a:1", Name: "one"}, showing("first"))
	if m := next(); len(m.GetResources()) != 1 {
		t.Errorf("after AddResource: %v", m)
	}
	w.AddResource(worker.Resource{URI: "a:1", Name: "two"}, showing("second"))
	if m := next(); len(m.GetResources()) != 1 || !strings.Contains(string(m.GetResources()[0].GetDefinition()), "two") {
		t.Errorf("after a replacement: %v", m)
	}
	if got := string(readResource(t, client, "a:1", "").GetResult().GetContents()); !strings.Contains(got, "second") {
		t.Errorf("the replaced resource reads %s", got)
	}
	w.RemoveResource("a:1")
	w.RemoveResource("a:never")
	if m := next(); len(m.GetResources()) != 0 {
		t.Errorf("after RemoveResource: %v", m)
	}
	if readResource(t, client, "a:1", "").GetError().GetKind() != millracev1.Error_KIND_RESOURCE_NOT_FOUND {
		t.Error("the removed resource is still there")
	}
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "t:{x}", Name: "t"}, showing("t"))
	if m := next(); len(m.GetResourceTemplates()) != 1 {
		t.Errorf("after AddResourceTemplate: %v", m)
	}
	if last == empty {
		t.Error("the hash is that of the empty worker")
	}
	w.AddPrompt(worker.Prompt{Name: "p"}, prompting(nil))
	if m := next(); len(m.GetPrompts()) != 1 || getPrompt(t, client, "p", ``).GetResult() == nil {
		t.Errorf("after AddPrompt: %v", m)
	}
	w.RemovePrompt("p")
	w.RemovePrompt("never")
	if m := next(); len(m.GetPrompts()) != 0 || getPrompt(t, client, "p", ``).GetError() == nil {
		t.Errorf("after RemovePrompt: %v", m)
	}
	w.RemoveResourceTemplate("t:{x}")
	w.RemoveResourceTemplate("never")
	if m := next(); len(m.GetResourceTemplates()) != 0 || readResource(t, client, "t:1", "").GetError() == nil {
		t.Errorf("after RemoveResourceTemplate: %v", m)
	}
	w.RemoveTool("late")
	w.RemoveTool("never")
	last = manifests(t, watcher, func(h []bus.Hash) bool { return len(h) == 1 && h[0] == empty })[0]
	if outcome(t, client, "late", ``).GetError().GetKind() != millracev1.Error_KIND_UNKNOWN_TOOL {
		t.Error("the removed tool is still there")
	}
	returning(w, "late", "again", nil)
	if m := next(); len(m.GetTools()) != 1 {
		t.Errorf("after the tool came back: %v", m)
	}

	if log.String() != "" {
		t.Errorf("the log says:\n%s", &log)
	}
	returning(w, "late", "again", nil)
	if !strings.Contains(log.String(), "was added before") {
		t.Errorf("a mistake while running is not in the log:\n%s", &log)
	}
}

func TestResourceUpdated(t *testing.T) {
	t.Parallel()
	var log journal
	server := startBus(t)
	w := newWorker(log.logger())
	w.ResourceUpdated("r:1") // before Run: nobody listens
	run := serve(t, server, w)
	conn := connect(t, server)
	updates := make(chan struct{}, 1)
	stop, err := bus.NewClient(conn, bus.ClientConfig{}).Listen(bus.TopicResourceUpdated, "r:1", func() { updates <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := conn.NATS().FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	w.ResourceUpdated("r:2")
	w.ResourceUpdated("r:1")
	wait(t, updates, "the update")
	run.stop()
	wait(t, run.ended, "Run to return")
	w.ResourceUpdated("r:1")
	if log.String() != "" {
		t.Errorf("the log says:\n%s", &log)
	}
}
