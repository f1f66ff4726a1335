package worker_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// broken is no UTF-8, and repaired is what a client sees of it.
const broken, repaired = "caf\xe9 au lait", "caf\uFFFD au lait"

// Progress and log messages whose texts are no UTF-8 reach the client, as many as
// there are, and so does the result behind them.
func TestReportsThatAreNoUTF8(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const reports = 3000 // would take the window several times
		w := newWorker(nil)
		worker.AddTool(w, worker.Tool{Name: "run"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
			for i := range reports {
				call.Progress(float64(i+1), worker.UnknownTotal, broken+strings.Repeat("x", 100))
				call.Log(worker.LevelInfo, broken, broken)
			}
			return broken, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		events, err := callTool(ctx, pair(t, w), &millracev1.CallToolRequest{
			Name: "run", Context: &millracev1.CallContext{WantsProgress: true, LogLevel: "info"},
		})
		if err != nil {
			t.Fatalf("after %d events: %v", len(events), err)
		}
		logs := 0
		for _, event := range events[:len(events)-1] {
			if p := event.GetProgress(); p != nil && !strings.HasPrefix(p.GetMessage(), repaired+"x") {
				t.Fatalf("progress %q", p.GetMessage())
			}
			if m := event.GetLog(); m != nil {
				logs++
				if m.GetLogger() != repaired || string(m.GetData()) != `"`+repaired+`"` {
					t.Fatalf("logged %q by %q", m.GetData(), m.GetLogger())
				}
			}
		}
		if len(events) != 2*reports+1 || logs != reports {
			t.Errorf("%d events, %d of them log messages", len(events), logs)
		}
		if got := string(events[len(events)-1].GetResult().GetContent()); !strings.Contains(got, repaired) {
			t.Errorf("result %q", got)
		}
	})
}

// Errors whose texts are no UTF-8 are errors of their kind all the same.
func TestErrorsThatAreNoUTF8(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	for name, err := range map[string]error{
		"protocol":  &worker.ProtocolError{Code: -32000, Message: broken, Data: broken},
		"arguments": worker.InvalidArguments(broken),
		"pages":     &worker.URLElicitationRequiredError{Message: broken, Pages: []worker.URLElicitation{{URL: "https://example.com/", Message: broken, ID: broken}}},
	} {
		worker.AddTool(w, worker.Tool{Name: name}, func(context.Context, *worker.Call, struct{}) (string, error) { return "", err })
	}
	client := pair(t, w)
	protocol := outcome(t, client, "protocol", "").GetError()
	if protocol.GetCode() != -32000 || protocol.GetMessage() != repaired || string(protocol.GetData()) != `"`+repaired+`"` {
		t.Errorf("protocol: %v", protocol)
	}
	arguments := outcome(t, client, "arguments", "").GetError()
	if arguments.GetKind() != millracev1.Error_KIND_INVALID_ARGUMENTS || arguments.GetDetail() != repaired {
		t.Errorf("arguments: %v", arguments)
	}
	pages := outcome(t, client, "pages", "").GetError()
	if pages.GetKind() != millracev1.Error_KIND_URL_ELICITATION_REQUIRED || pages.GetMessage() != repaired || len(pages.GetInput().GetRequests()) != 1 {
		t.Errorf("pages: %v", pages)
	}
}

// The keys of questions and of Once may be any text: who answers finds the question,
// and the handler the answer.
func TestKeysThatAreNoUTF8(t *testing.T) {
	t.Parallel()
	runs := 0 // the rounds take turns
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "ask"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		if _, err := worker.Once(call, "\xff\xfe", func() (int, error) { runs++; return runs, nil }); err != nil {
			return "", err
		}
		key := "who\xff\xfe"
		answers, err := call.Ask(personForm(key), worker.ListRoots("roots\xff"), worker.ElicitURL("page\xff", "m", "https://example.com/", "id"))
		if err != nil {
			return "", err
		}
		who, _, err := worker.Accepted[person](answers, key)
		return who.Name + " " + answers.Roots("roots\xff")[0].URI + " " + string(answers.Elicited("page\xff").Action), err
	})
	client := pair(t, w)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	round := func(resume *millracev1.Resume) *millracev1.CallToolResponse {
		t.Helper()
		events, err := callTool(ctx, client, &millracev1.CallToolRequest{Name: "ask", Resume: resume, Context: &millracev1.CallContext{
			ClientCapabilities: []byte(`{"elicitation":{"form":{},"url":{}},"roots":{}}`),
		}})
		if err != nil || len(events) != 1 {
			t.Fatalf("%v, %v", events, err)
		}
		return events[0]
	}
	asks := round(nil).GetNeedsInput()
	keys := slices.Sorted(maps.Keys(asks.GetRequests()))
	if !slices.Equal(keys, []string{"page\uFFFD", "roots\uFFFD", "who\uFFFD"}) {
		t.Fatalf("asked %q", keys)
	}
	done := round(&millracev1.Resume{State: asks.GetState(), Responses: map[string][]byte{
		keys[0]: []byte(`{"action":"accept"}`),
		keys[1]: []byte(`{"roots":[{"uri":"file:///x"}]}`),
		keys[2]: []byte(`{"action":"accept","content":{"name":"Ada"}}`),
	}})
	if got := string(done.GetResult().GetContent()); !strings.Contains(got, "Ada file:///x accept") {
		t.Errorf("%v", done)
	}
	if runs != 1 {
		t.Errorf("Once ran %d times", runs)
	}
}

// A prompt whose description is no UTF-8 is one all the same.
func TestAPromptThatIsNoUTF8(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	w.AddPrompt(worker.Prompt{Name: "p"}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{Description: broken, Messages: []worker.PromptMessage{{Content: worker.Text(broken)}}}, nil
	})
	got := getPrompt(t, pair(t, w), "p", "").GetResult()
	if got.GetDescription() != repaired || !strings.Contains(string(got.GetMessages()), repaired) {
		t.Errorf("%v", got)
	}
}

// What a worker says of itself may be any text.
func TestAWorkerThatIsNoUTF8(t *testing.T) {
	t.Parallel()
	server := startBus(t)
	w := worker.New(worker.Config{Pool: "test", Version: broken, Title: broken, Instructions: broken})
	w.AddPrompt(worker.Prompt{Name: "p", Title: broken, Description: broken}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		return nil, nil
	})
	w.AddRawTool(worker.Tool{Name: "bad", InputSchema: json.RawMessage(`{"type":"object","x` + broken)}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
		return nil, nil
	})
	serve(t, server, w)
	watcher := bus.NewWatcher(connect(t, server), bus.WatcherConfig{})
	start(t, watcher.Run, watcher.Synced())
	members := watcher.Members()
	if len(members) != 1 || members[0].Version != repaired || len(members[0].Manifests) == 0 {
		t.Fatalf("members %+v", members)
	}
	m := fetch(t, watcher, members[0].Manifests[0])
	if m.GetTitle() != repaired || m.GetInstructions() != repaired || len(m.GetPrompts()) != 1 || len(m.GetProblems()) != 1 {
		t.Errorf("manifest %v", m)
	}
}

// A name that is no UTF-8 could not be called: it is a mistake.
func TestNamesThatAreNoUTF8(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	get := func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) { return nil, nil }
	w.AddPrompt(worker.Prompt{Name: broken}, get)
	w.AddPrompt(worker.Prompt{Name: "p", Arguments: []worker.PromptArgument{{Name: broken}}}, get)
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "x://\xff{a}", Name: "t"}, func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
		return nil, nil
	})
	err := w.Run(t.Context(), connect(t, startBus(t)))
	if err == nil || strings.Count(err.Error(), "no UTF-8") != 3 {
		t.Errorf("Run says %v", err)
	}
}

// The end of a page's visit is told by the ID that the client has.
func TestAnElicitationIDThatIsNoUTF8(t *testing.T) {
	t.Parallel()
	server := startBus(t)
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "pay"}, func(context.Context, *worker.Call, struct{}) (string, error) {
		return "", &worker.URLElicitationRequiredError{Pages: []worker.URLElicitation{{URL: "https://example.com/", ID: "\xff\xfe"}}}
	})
	serve(t, server, w)
	heard := make(chan string, 1) // one is told
	conn := connect(t, server)
	stop, err := bus.NewClient(conn, bus.ClientConfig{}).Hear(bus.Topic("edge"), func(payload []byte) {
		a := new(millracev1.Announcement)
		if err := proto.Unmarshal(payload, a); err != nil {
			t.Error(err)
		}
		heard <- a.GetElicitationComplete().GetElicitationId()
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
	id := ""
	for _, request := range outcome(t, dial(t, server), "pay", "").GetError().GetInput().GetRequests() {
		var asked struct {
			Params struct {
				ElicitationID string `json:"elicitationId"`
			} `json:"params"`
		}
		if err := json.Unmarshal(request, &asked); err != nil {
			t.Fatal(err)
		}
		id = asked.Params.ElicitationID
	}
	if err := w.ElicitationComplete("s", "\xff\xfe"); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-heard:
		if id == "" || got != id {
			t.Errorf("the client knows the page as %q and hears that %q is over", id, got)
		}
	case <-ctx.Done():
		t.Error("nobody was told")
	}
}
