package workertest_test

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

type in struct {
	N int `json:"n"`
}

func newWorker() *worker.Worker {
	w := worker.New(worker.Config{Pool: "test"})
	worker.AddTool(w, worker.Tool{Name: "count"}, func(_ context.Context, call *worker.Call, in in) (in, error) {
		for i := range in.N {
			call.Progress(float64(i+1), float64(in.N), "step")
		}
		return in, nil
	})
	return w
}

func TestCall(t *testing.T) {
	t.Parallel()
	w := newWorker()
	for _, args := range []any{in{N: 2}, map[string]int{"n": 2}, json.RawMessage(`{"n":2}`)} {
		out := workertest.Call(t, w, "count", args)
		if out.Error != nil || string(out.Result.GetStructuredContent()) != `{"n":2}` || out.Text() != `{"n":2}` {
			t.Errorf("outcome: %+v", out)
		}
		if len(out.Progress) != 2 || string(out.Progress[1].GetProgress()) != "2" || string(out.Progress[1].GetTotal()) != "2" {
			t.Errorf("progress: %v", out.Progress)
		}
	}
	out := workertest.Call(t, w, "count", map[string]string{"n": "two"})
	if out.Result != nil || out.Text() != "" || out.Error.GetDetail() != `property "n" must be an integer, not a string` {
		t.Errorf("outcome: %+v", out)
	}
}

// failure is a testing.TB on which a call fails instead of the test.
type failure struct {
	testing.TB
	failed string
}

func (f *failure) Helper() {}

func (f *failure) Context() context.Context { return context.Background() }

func (f *failure) Fatalf(format string, _ ...any) {
	f.failed = format
	panic(f) // Fatalf does not return
}

func TestCallFails(t *testing.T) {
	t.Parallel()
	broken := newWorker()
	broken.AddRawTool(worker.Tool{Name: "count"}, nil)
	endless := newWorker()
	worker.AddTool(endless, worker.Tool{Name: "ask"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		_, err := call.Ask(worker.ListRoots("r"))
		return "", err
	})
	for name, call := range map[string]func(testing.TB){
		"mistakes":  func(t testing.TB) { workertest.Call(t, broken, "count", in{}) },
		"arguments": func(t testing.TB) { workertest.Call(t, newWorker(), "count", make(chan int)) },
		"rounds": func(t testing.TB) {
			(&workertest.Client{MaxRounds: 3, Answers: map[string]any{"r": 0}}).Call(t, endless, "ask", struct{}{})
		},
		"answer": func(t testing.TB) {
			(&workertest.Client{Answers: map[string]any{"r": make(chan int)}}).Call(t, endless, "ask", struct{}{})
		},
		"complete": func(t testing.TB) {
			new(workertest.Client).CompletePrompt(t, broken, "p", worker.CompleteRequest{})
		},
	} {
		fake := &failure{TB: t}
		func() {
			defer func() { _ = recover() }()
			call(fake)
		}()
		if fake.failed == "" {
			t.Errorf("%s: the test did not fail", name)
		}
	}
}

// Everything a client says about itself reaches the handler, and everything
// the handler says reaches the test.
func TestClient(t *testing.T) {
	t.Parallel()
	w := worker.New(worker.Config{Pool: "test"})
	say := func(call *worker.Call) string {
		call.Progress(1, 2, "half")
		call.Log(worker.LevelDebug, "l", "d")
		subject := ""
		if p := call.Principal(); p != nil {
			subject = p.Subject
		}
		return strings.Join([]string{
			subject, call.Scope(), call.ProtocolVersion(), string(call.Meta()), strconv.FormatBool(call.Can(worker.CapabilityRoots)),
		}, "|")
	}
	worker.AddTool(w, worker.Tool{Name: "say"}, func(_ context.Context, call *worker.Call, _ struct{}) (*worker.Result, error) {
		return &worker.Result{Content: []worker.Content{worker.Text(say(call)), worker.Image(nil, "image/png"), worker.Text("end")}}, nil
	})
	w.AddResource(worker.Resource{URI: "r:say", Name: "say"}, func(_ context.Context, call *worker.Call, _ worker.ReadRequest) (*worker.Contents, error) {
		return &worker.Contents{Items: []worker.ResourceContents{{Text: say(call)}, {Blob: []byte{1}}, {Text: "end"}}}, nil
	})
	w.AddPrompt(worker.Prompt{Name: "say"}, func(_ context.Context, call *worker.Call, _ map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{Messages: []worker.PromptMessage{
			{Content: worker.Text(say(call))}, {Content: worker.Image(nil, "image/png")}, {Content: worker.Text("end")},
		}}, nil
	})
	full := &workertest.Client{
		Principal: &worker.Principal{Subject: "ada"}, Scope: "s", ProtocolVersion: "v", Meta: json.RawMessage(`{}`),
		Capabilities: json.RawMessage(`{"roots":null}`), LogLevel: "none", NoProgress: true,
	}
	for _, c := range []struct {
		client  *workertest.Client
		want    string
		reports int
	}{{new(workertest.Client), "||||true\nend", 1}, {full, "ada|s|v|{}|false\nend", 0}} {
		for _, out := range []*workertest.Outcome{
			c.client.Call(t, w, "say", struct{}{}), c.client.Read(t, w, "r:say"), c.client.Get(t, w, "say", nil),
		} {
			if out.Text() != c.want || len(out.Progress) != c.reports || len(out.Logs) != c.reports {
				t.Errorf("%q, want %q; %v, %v, %v", out.Text(), c.want, out.Progress, out.Logs, out.Error)
			}
		}
	}
	if text := new(workertest.Outcome).Text(); text != "" {
		t.Errorf("no outcome says %q", text)
	}
}
