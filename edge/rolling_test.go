package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/worker"
)

// roll starts an instance of the pool "roll" and returns what stops it. Its tool
// "same" has the same contract in all versions, "other" one for each contract;
// "slow" takes a while.
func (s *system) roll(version, contract string) (stop func()) {
	w := worker.New(worker.Config{Pool: "roll", Version: version, Logger: slog.New(slog.DiscardHandler)})
	answer := func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
		return &worker.Result{Content: []worker.Content{worker.Text("ran " + version)}}, nil
	}
	schema := func(member string) json.RawMessage {
		return json.RawMessage(`{"type":"object","properties":{"` + member + `":{"type":"string"}}}`)
	}
	w.AddRawTool(worker.Tool{Name: "same", Description: "Of " + version, InputSchema: schema("x")}, answer)
	w.AddRawTool(worker.Tool{Name: "other", InputSchema: schema(contract)}, answer)
	w.AddRawTool(worker.Tool{Name: "slow", InputSchema: schema("x")}, func(ctx context.Context, c *worker.Call, args json.RawMessage) (*worker.Result, error) {
		select {
		case <-time.After(5 * time.Second):
			return answer(ctx, c, args)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	conn := s.conn("roll")
	stop = run(s.t, "roll", func(ctx context.Context) error { return w.Run(ctx, conn) })
	<-w.Ready()
	return stop
}

// callText calls a tool and returns the whole answer.
func (s *system) callText(tool string) string {
	return body(s.t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`","arguments":{}}}`))
}

// listed is the version whose contract of "other" is listed.
func (s *system) listed() string {
	tool, ok := s.edge.Catalog().Snapshot().Tool("other")
	switch {
	case !ok:
		return "none"
	case bytes.Contains(tool.Definition, []byte(`"two"`)):
		return "2.0.0"
	default:
		return "1.0.0"
	}
}

// TestRollingUpdate replaces the instances of a pool by those of another version
// with another contract, one by one, under load: every call is answered, by a
// version that has the contract that is listed; where the contract is the same,
// all versions answer; and clients are told once.
func TestRollingUpdate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		old := []func(){s.roll("1.0.0", "one"), s.roll("1.0.0", "one"), s.roll("1.0.0", "one")}
		if err := s.edge.WaitReady(context.Background(), "roll"); err != nil {
			t.Fatal(err)
		}
		session := s.session("2025-11-25", `{}`)
		changes := s.listen(session)
		changes.waiting()

		var calls, old1, mixed atomic.Int64
		done := make(chan struct{})
		var callers sync.WaitGroup
		for i := range 4 {
			callers.Go(func() {
				for {
					select {
					case <-done:
						return
					case <-time.After(time.Duration(15+i) * time.Millisecond):
					}
					before := s.listed()
					got := s.callText("other")
					if after := s.listed(); !strings.Contains(got, `"ran `+before+`"`) && !strings.Contains(got, `"ran `+after+`"`) {
						t.Errorf("%s was listed, then %s, and the answer is %s", before, after, got)
					}
					same := s.callText("same")
					switch {
					case !strings.Contains(same, `"ran `):
						t.Errorf("same: %s", same)
					case strings.Contains(same, "2.0.0") && s.listed() == "1.0.0", strings.Contains(same, "1.0.0") && s.listed() == "2.0.0":
						mixed.Add(1)
					case strings.Contains(same, "1.0.0"):
						old1.Add(1)
					}
					calls.Add(1)
				}
			})
		}
		slow := make(chan string, 1) // one answer
		var young []func()
		for i, stop := range old {
			time.Sleep(2 * time.Second)
			young = append(young, s.roll("2.0.0", "two"))
			time.Sleep(5 * time.Second)
			if i == 0 {
				go func() { slow <- s.callText("slow") }()
				time.Sleep(10 * time.Millisecond)
			}
			stop()
		}
		time.Sleep(time.Second)
		close(done)
		callers.Wait()
		if got := <-slow; !strings.Contains(got, `"ran `) {
			t.Errorf("a call that ran while its instance was stopped: %s", got)
		}
		if s.listed() != "2.0.0" || calls.Load() < 500 || old1.Load() == 0 || mixed.Load() == 0 {
			t.Errorf("%s is listed; %d calls, %d by the old version, %d by another than the listed", s.listed(), calls.Load(), old1.Load(), mixed.Load())
		}
		wantMessages(t, "changes", changes.waiting(), toolsChanged)
		for _, stop := range young {
			stop()
		}
	})
}

// TestRollingUpdateOfTheSame: a new version that offers the same is no news.
func TestRollingUpdateOfTheSame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		stop, stopWorker := s.stopWorker, s.stopWorker
		session := s.session("2025-11-25", `{}`)
		changes := s.listen(session)
		changes.waiting()
		for range 3 {
			_, stop = s.startWorker()
			time.Sleep(5 * time.Second)
			stopWorker()
			stopWorker = stop
			time.Sleep(5 * time.Second)
		}
		wantMessages(t, "changes", changes.waiting())
		if got := s.callText("danger"); !strings.Contains(got, "done") {
			t.Error(got)
		}
		stop()
	})
}

// TestContractChangesUnderTheCall: an instance has replaced a tool before the
// edge knows: nothing runs by the old contract, and the call is served by the new.
func TestContractChangesUnderTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		type none struct{}
		type some struct {
			X string `json:"x,omitempty"`
		}
		for i := range 20 {
			s.worker.RemoveTool("danger")
			ran := func(context.Context, *worker.Call) (string, error) {
				s.ran.add()
				return fmt.Sprint("contract ", i), nil
			}
			if i%2 == 0 {
				worker.AddTool(s.worker, worker.Tool{Name: "danger"}, func(ctx context.Context, c *worker.Call, _ some) (string, error) { return ran(ctx, c) })
			} else {
				worker.AddTool(s.worker, worker.Tool{Name: "danger"}, func(ctx context.Context, c *worker.Call, _ none) (string, error) { return ran(ctx, c) })
			}
			if got, want := s.callText("danger"), fmt.Sprint("contract ", i); !strings.Contains(got, want) {
				t.Errorf("after change %d: %s", i, got)
			}
		}
		if got := s.ran.value(); got != 20 {
			t.Errorf("%d executions of 20 calls", got)
		}
	})
}

// TestNamespacedConflict: what another pool keeps can be called by its other
// name, with everything that belongs to it.
func TestNamespacedConflict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{NamespaceConflicts: true})
		w := worker.New(worker.Config{Pool: "zoo", Version: "1.0.0", Logger: slog.New(slog.DiscardHandler)})
		w.AddRawTool(worker.Tool{
			Name:        "region",
			InputSchema: json.RawMessage(`{"type":"object","properties":{"place":{"type":"string","x-mcp-header":"Place"}}}`),
		}, func(_ context.Context, c *worker.Call, args json.RawMessage) (*worker.Result, error) {
			return &worker.Result{Content: []worker.Content{worker.Text("zoo " + string(args))}}, nil
		})
		w.AddPrompt(worker.Prompt{Name: "greeting", Arguments: []worker.PromptArgument{{Name: "animal", Complete: worker.CompleteFrom("bear", "beaver")}}},
			func(_ context.Context, _ *worker.Call, args map[string]string) (*worker.PromptResult, error) {
				return &worker.PromptResult{Messages: []worker.PromptMessage{{Role: "user", Content: worker.Text("Pet the " + args["animal"])}}}, nil
			})
		conn := s.conn("zoo")
		run(t, "zoo", func(ctx context.Context) error { return w.Run(ctx, conn) })
		if err := s.edge.WaitReady(context.Background(), "zoo"); err != nil {
			t.Fatal(err)
		}
		if ok, reason := s.edge.Ready(); !ok {
			t.Errorf("not ready: %s", reason)
		}
		modern := func(method, name, params string, headers ...string) string {
			headers = append(headers, mcp.HeaderProtocolVersion+": "+mcp.Modern().Date, mcp.HeaderMethod+": "+method)
			if name != "" {
				headers = append(headers, mcp.HeaderName+": "+name)
			}
			return body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+params+`,"_meta":{"io.modelcontextprotocol/protocolVersion":"`+mcp.Modern().Date+`","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, headers...))
		}
		for _, c := range []struct{ what, got, want string }{
			{"the call", s.callText("zoo.region"), `zoo {}`},
			{"the owner's", s.callText("region"), `"{}"`},
			{
				"with its header", modern("tools/call", "zoo.region", `"name":"zoo.region","arguments":{"place":"Oz"}`, "Mcp-Param-Place: Oz"),
				`zoo {\"place\":\"Oz\"}`,
			},
			{"with a wrong one", modern("tools/call", "zoo.region", `"name":"zoo.region","arguments":{"place":"Oz"}`, "Mcp-Param-Place: Id"), `"error"`},
			{"the prompt", modern("prompts/get", "zoo.greeting", `"name":"zoo.greeting","arguments":{"animal":"bear"}`), "Pet the bear"},
			{
				"its completion", modern("completion/complete", "", `"ref":{"type":"ref/prompt","name":"zoo.greeting"},"argument":{"name":"animal","value":"be"}`),
				`"values":["bear","beaver"]`,
			},
			{"the list", body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)), `"name":"zoo.region"`},
			{"what does not exist", s.callText("zoo.echo"), "unknown tool"},
		} {
			if !strings.Contains(c.got, c.want) {
				t.Errorf("%s: %s; want %s", c.what, c.got, c.want)
			}
		}
	})
}
