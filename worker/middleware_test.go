package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

type contextKey struct{}

// covered returns a worker with a tool, resource, template, prompt and
// completion that all end as told.
func covered(end func(ctx context.Context, call *worker.Call) error) *worker.Worker {
	w := newWorker(nil)
	w.AddRawTool(worker.Tool{Name: "tool", InputSchema: json.RawMessage(`{"type":"object","required":["a"]}`)},
		func(ctx context.Context, call *worker.Call, _ json.RawMessage) (*worker.Result, error) {
			return nil, end(ctx, call)
		})
	w.AddRawTool(worker.Tool{Name: "failed"}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
		return &worker.Result{IsError: true}, nil
	})
	read := func(ctx context.Context, call *worker.Call, _ worker.ReadRequest) (*worker.Contents, error) {
		return worker.TextContents("", ""), end(ctx, call)
	}
	w.AddResource(worker.Resource{URI: "r:1", Name: "r"}, read)
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "t:{x}", Name: "t"}, read)
	w.AddPrompt(worker.Prompt{Name: "prompt", Arguments: []worker.PromptArgument{{
		Name: "a", Complete: func(ctx context.Context, call *worker.Call, _ worker.CompleteRequest) (*worker.Completion, error) {
			return nil, end(ctx, call)
		},
	}}}, func(ctx context.Context, call *worker.Call, _ map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{}, end(ctx, call)
	})
	return w
}

// everyCall makes one call of each kind.
func everyCall(t *testing.T, w *worker.Worker) (kinds []millracev1.Error_Kind) {
	t.Helper()
	client := &workertest.Client{Principal: &worker.Principal{Subject: "ada"}, Meta: json.RawMessage(`{"m":1}`)}
	for _, out := range []*workertest.Outcome{
		client.Call(t, w, "tool", json.RawMessage(`{ "a":1}`)), client.Read(t, w, "r:1"), client.Read(t, w, "t:2"),
		client.Get(t, w, "prompt", map[string]string{"a": "1"}),
	} {
		kinds = append(kinds, out.Error.GetKind())
	}
	return append(kinds, client.CompletePrompt(t, w, "prompt", worker.CompleteRequest{Argument: "a"}).GetError().GetKind())
}

func TestMiddlewareSeesEveryCall(t *testing.T) {
	t.Parallel()
	var seen []string
	w := covered(func(ctx context.Context, _ *worker.Call) error {
		seen = append(seen, fmt.Sprint("handler ", ctx.Value(contextKey{})))
		return nil
	})
	use := func(name string) {
		w.Use(func(next worker.Handler) worker.Handler {
			return func(ctx context.Context, call *worker.Call) error {
				seen = append(seen, fmt.Sprintf("%s %s %s %s %s %s %s", name, call.Method(), call.Name(), call.URITemplate(), call.Arguments(), call.Principal().Subject, call.Meta()))
				err := next(context.WithValue(ctx, contextKey{}, name), call)
				seen = append(seen, name+" "+string(call.Outcome(err)))
				return err
			}
		})
	}
	use("outer")
	use("inner")
	everyCall(t, w)
	var want []string
	for _, c := range []string{
		`tools/call tool  { "a":1} ada {"m":1}`, `resources/read r:1   ada {"m":1}`, `resources/read t:2 t:{x}  ada {"m":1}`,
		`prompts/get prompt  {"a":"1"} ada {"m":1}`, `completion/complete prompt   ada `,
	} {
		want = append(want, "outer "+c, "inner "+c, "handler inner", "inner result", "outer result")
	}
	if !slices.Equal(seen, want) {
		t.Errorf("seen:\n%s\nwant:\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
	}
	seen = nil
	workertest.Call(t, w, "unknown", struct{}{})
	if seen != nil {
		t.Errorf("an unknown tool: %q", seen)
	}
}

func TestMiddlewareRefuses(t *testing.T) {
	t.Parallel()
	ran := false
	w := covered(func(context.Context, *worker.Call) error {
		ran = true
		return nil
	})
	w.Use(func(worker.Handler) worker.Handler {
		return func(context.Context, *worker.Call) error {
			return &worker.ProtocolError{Code: 403, Message: "not for you"}
		}
	})
	want := slices.Repeat([]millracev1.Error_Kind{millracev1.Error_KIND_CUSTOM}, 5)
	if got := everyCall(t, w); !slices.Equal(got, want) || ran {
		t.Errorf("%v, ran: %v", got, ran)
	}
	// Rights come before the arguments are looked at.
	if out := workertest.Call(t, w, "tool", struct{}{}); out.Error.GetCode() != 403 {
		t.Errorf("wrong arguments: %v", out.Error)
	}
}

func TestMiddlewareMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		middleware func(next worker.Handler) worker.Handler
		tool       string // what the tool ends with: an error of its own, or as the others
	}{
		"no result": {func(worker.Handler) worker.Handler { return func(context.Context, *worker.Call) error { return nil } }, ""},
		"panic":     {func(worker.Handler) worker.Handler { return func(context.Context, *worker.Call) error { panic("oh") } }, ""},
		"plain error": {func(worker.Handler) worker.Handler {
			return func(context.Context, *worker.Call) error { return errors.New("for the model") }
		}, "for the model"},
		"error after a result": {func(next worker.Handler) worker.Handler {
			return func(ctx context.Context, call *worker.Call) error {
				return errors.Join(next(ctx, call), errors.New("late"))
			}
		}, "late"},
		"swallowed error": {func(next worker.Handler) worker.Handler {
			return func(ctx context.Context, call *worker.Call) error {
				_ = next(ctx, call)
				return nil
			}
		}, ""},
	} {
		w := covered(func(context.Context, *worker.Call) error {
			if name == "error after a result" {
				return nil
			}
			return errors.New("an error")
		})
		w.Use(c.middleware)
		want := slices.Repeat([]millracev1.Error_Kind{millracev1.Error_KIND_INTERNAL}, 5)
		if c.tool != "" {
			want[0] = millracev1.Error_KIND_UNSPECIFIED
		}
		if got := everyCall(t, w); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if out := workertest.Call(t, w, "tool", map[string]int{"a": 1}); out.Text() != c.tool {
			t.Errorf("%s: %q, want %q", name, out.Text(), c.tool)
		}
	}

	w := covered(nil)
	w.Use(nil)
	w.Use(func(worker.Handler) worker.Handler { return nil })
	if err := w.Run(t.Context(), connect(t, startBus(t))); err == nil || strings.Count(err.Error(), "middleware") != 2 {
		t.Errorf("mistakes: %v", err)
	}
	var log journal
	w = newWorker(log.logger())
	serve(t, startBus(t), w)
	w.Use(func(next worker.Handler) worker.Handler { return next })
	if !strings.Contains(log.String(), "after Run") {
		t.Errorf("middleware while running:\n%s", &log)
	}
}

func TestOutcomeNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err             error
		tool, elsewhere worker.Outcome
	}{
		{nil, worker.OutcomeResult, worker.OutcomeResult},
		{errors.New("x"), worker.OutcomeToolError, worker.OutcomeInternal},
		{&worker.ProtocolError{}, worker.OutcomeRefused, worker.OutcomeRefused},
		{fmt.Errorf("w: %w", worker.InvalidArguments("x")), worker.OutcomeRefused, worker.OutcomeRefused},
		{&worker.MissingCapabilityError{}, worker.OutcomeRefused, worker.OutcomeRefused},
		{worker.ErrResourceNotFound, worker.OutcomeToolError, worker.OutcomeRefused},
		{worker.ErrNeedsInput, worker.OutcomeNeedsInput, worker.OutcomeNeedsInput},
	} {
		var got []worker.Outcome
		w := covered(func(context.Context, *worker.Call) error { return c.err })
		w.Use(func(next worker.Handler) worker.Handler {
			return func(ctx context.Context, call *worker.Call) error {
				err := next(ctx, call)
				got = append(got, call.Outcome(err))
				return err
			}
		})
		everyCall(t, w)
		if want := append([]worker.Outcome{c.tool}, slices.Repeat([]worker.Outcome{c.elsewhere}, 4)...); !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", c.err, got, want)
		}
	}
	var got []worker.Outcome
	w := covered(func(context.Context, *worker.Call) error { panic("oh") })
	w.Use(func(next worker.Handler) worker.Handler {
		return func(ctx context.Context, call *worker.Call) error {
			err := next(ctx, call)
			got = append(got, call.Outcome(err))
			return err
		}
	})
	workertest.Call(t, w, "tool", map[string]int{"a": 1})
	workertest.Call(t, w, "tool", struct{}{})
	workertest.Call(t, w, "failed", struct{}{})
	if want := []worker.Outcome{worker.OutcomeInternal, worker.OutcomeRefused, worker.OutcomeToolError}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestOutcomeOfACancelledCall(t *testing.T) {
	t.Parallel()
	began := make(chan struct{})
	outcomes := make(chan worker.Outcome, 1) // of the only call
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "wait"}, func(ctx context.Context, _ *worker.Call, _ struct{}) (string, error) {
		close(began)
		<-ctx.Done()
		return "", ctx.Err()
	})
	w.Use(func(next worker.Handler) worker.Handler {
		return func(ctx context.Context, call *worker.Call) error {
			err := next(ctx, call)
			outcomes <- call.Outcome(err)
			return err
		}
	})
	client := pair(t, w)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := client.CallTool(ctx, &millracev1.CallToolRequest{Name: "wait"}); err != nil {
		t.Fatal(err)
	}
	wait(t, began, "the handler")
	cancel()
	if got := <-outcomes; got != worker.OutcomeCancelled {
		t.Errorf("outcome: %s", got)
	}
}

// Middleware may ask as well.
func TestMiddlewareAsks(t *testing.T) {
	t.Parallel()
	w := covered(func(context.Context, *worker.Call) error { return nil })
	w.Use(func(next worker.Handler) worker.Handler {
		return func(ctx context.Context, call *worker.Call) error {
			if _, err := call.Ask(personForm("who")); err != nil {
				return err
			}
			return next(ctx, call)
		}
	})
	client := &workertest.Client{Answers: map[string]any{"who": workertest.Decline()}}
	if out := client.Call(t, w, "tool", map[string]int{"a": 1}); out.Result == nil || len(out.Asked) != 1 {
		t.Errorf("%v, %v", out.Error, out.Asked)
	}
}
