package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc/stats"

	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

// What a handler knows about its call.
func ExampleCall() {
	w := worker.New(worker.Config{Pool: "info"})
	worker.AddTool(w, worker.Tool{Name: "whoami"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		fmt.Println(call.Method(), call.Name(), string(call.Arguments()))
		principal := call.Principal() // nil for an anonymous caller
		fmt.Println(principal.Subject, "of", principal.Issuer, principal.Scopes)
		fmt.Println(string(call.Meta()), call.Scope(), call.ProtocolVersion(), call.ClientInfo() == nil)
		return "", nil
	})

	client := workertest.Client{
		Principal:       &worker.Principal{Issuer: "https://id.example.com", Subject: "ada", Scopes: []string{"read"}},
		Meta:            json.RawMessage(`{"example.com/trace":1}`),
		Scope:           "conversation-1",
		ProtocolVersion: "next",
	}
	client.Call(demo{}, w, "whoami", struct{}{})
	// Output:
	// tools/call whoami {}
	// ada of https://id.example.com [read]
	// {"example.com/trace":1} conversation-1 next true
}

// A handler that does not know how much there is to do.
func ExampleCall_WantsProgress() {
	w := worker.New(worker.Config{Pool: "jobs"})
	worker.AddTool(w, worker.Tool{Name: "scan"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		for i := range 3 {
			if call.WantsProgress() { // spares the text
				call.Progress(float64(i+1), worker.UnknownTotal, fmt.Sprintf("file %d", i+1))
			}
		}
		return "scanned", nil
	})

	for _, client := range []workertest.Client{{}, {NoProgress: true}} {
		fmt.Println(len(client.Call(demo{}, w, "scan", struct{}{}).Progress))
	}
	// Output:
	// 3
	// 0
}

// Messages for the people at the client, at the levels of syslog.
func ExampleCall_Log() {
	w := worker.New(worker.Config{Pool: "jobs"})
	worker.AddTool(w, worker.Tool{Name: "work"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		for _, level := range []worker.Level{
			worker.LevelDebug, worker.LevelInfo, worker.LevelNotice, worker.LevelWarning,
			worker.LevelError, worker.LevelCritical, worker.LevelAlert, worker.LevelEmergency,
		} {
			if call.Logs(level) { // spares the data
				call.Log(level, "engine", map[string]any{"level": int(level)})
			}
		}
		return "", nil
	})

	client := workertest.Client{LogLevel: "critical"}
	for _, m := range client.Call(demo{}, w, "work", struct{}{}).Logs {
		fmt.Printf("%s %s %s\n", m.GetLevel(), m.GetLogger(), m.GetData())
	}
	// Output:
	// critical engine {"level":5}
	// alert engine {"level":6}
	// emergency engine {"level":7}
}

// The same with a logger of the standard library.
func ExampleCall_Logger() {
	w := worker.New(worker.Config{Pool: "jobs"})
	worker.AddTool(w, worker.Tool{Name: "work"}, func(ctx context.Context, call *worker.Call, _ struct{}) (string, error) {
		log := call.Logger().With("job", 7)
		log.Info("started", "user", "ada")
		log.Log(ctx, slog.LevelError+4, "broken")
		return "", nil
	})

	for _, m := range workertest.Call(demo{}, w, "work", struct{}{}).Logs {
		fmt.Printf("%s %s\n", m.GetLevel(), m.GetData())
	}
	// Output:
	// info {"msg":"started","job":7,"user":"ada"}
	// critical {"msg":"broken","job":7}
}

// A log line for every call, with how it ended.
func ExampleWorker_Use() {
	w := worker.New(worker.Config{Pool: "math"})
	w.Use(func(next worker.Handler) worker.Handler {
		return func(ctx context.Context, call *worker.Call) error {
			began := time.Now()
			err := next(ctx, call)
			_ = time.Since(began) // for the log; an example cannot tell
			fmt.Println(call.Method(), call.Name(), call.Outcome(err))
			return err
		}
	})
	worker.AddTool(w, worker.Tool{Name: "half"}, func(_ context.Context, _ *worker.Call, in struct {
		N int `json:"n"`
	},
	) (int, error) {
		if in.N%2 != 0 {
			return 0, errors.New("n is odd: give an even one")
		}
		return in.N / 2, nil
	})

	for _, args := range []string{`{"n":4}`, `{"n":3}`, `{"n":"four"}`} {
		workertest.Call(demo{}, w, "half", json.RawMessage(args))
	}
	// Output:
	// tools/call half result
	// tools/call half tool_error
	// tools/call half refused
}

// A check of rights comes before the arguments are looked at.
func ExampleHandler() {
	requireScope := func(scope string) func(worker.Handler) worker.Handler {
		return func(next worker.Handler) worker.Handler {
			return func(ctx context.Context, call *worker.Call) error {
				if p := call.Principal(); p == nil || !slices.Contains(p.Scopes, scope) {
					return &worker.ProtocolError{Code: -31403, Message: "you may not do that"}
				}
				return next(ctx, call)
			}
		}
	}
	w := worker.New(worker.Config{Pool: "files"})
	w.Use(requireScope("files:write"))
	worker.AddTool(w, worker.Tool{Name: "delete"}, func(context.Context, *worker.Call, struct{}) (string, error) {
		return "deleted", nil
	})

	reader := workertest.Client{Principal: &worker.Principal{Subject: "bob", Scopes: []string{"files:read"}}}
	fmt.Println(reader.Call(demo{}, w, "delete", struct{}{}).Error.GetMessage())
	writer := workertest.Client{Principal: &worker.Principal{Subject: "ada", Scopes: []string{"files:write"}}}
	fmt.Println(writer.Call(demo{}, w, "delete", struct{}{}).Text())
	// Output:
	// you may not do that
	// deleted
}

// Metrics: a bounded number of labels, whatever clients ask for.
func ExampleOutcome() {
	type label struct {
		subject string
		outcome worker.Outcome
	}
	counts := map[label]int{}
	w := worker.New(worker.Config{Pool: "notes"})
	w.Use(func(next worker.Handler) worker.Handler {
		return func(ctx context.Context, call *worker.Call) error {
			err := next(ctx, call)
			subject := call.Name()
			if call.Method() == worker.MethodReadResource && call.URITemplate() != "" {
				subject = call.URITemplate()
			}
			outcome := call.Outcome(err)
			switch outcome {
			case worker.OutcomeResult, worker.OutcomeNeedsInput:
				// as it should be
			case worker.OutcomeToolError, worker.OutcomeRefused, worker.OutcomeCancelled:
				// the client's affair
			case worker.OutcomeInternal:
				// worth an alert
			}
			counts[label{subject, outcome}]++
			return err
		}
	})
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "memo://{name}", Name: "memo"},
		func(_ context.Context, _ *worker.Call, req worker.ReadRequest) (*worker.Contents, error) {
			if req.Vars["name"] == "hello" {
				return worker.TextContents("text/plain", "Hello!"), nil
			}
			return nil, worker.ErrResourceNotFound
		})

	client := workertest.Client{}
	for _, uri := range []string{"memo://hello", "memo://a", "memo://b"} {
		client.Read(demo{}, w, uri)
	}
	fmt.Println(counts)
	// Output:
	// map[{memo://{name} refused}:2 {memo://{name} result}:1]
}

// The methods in which middleware may want to tell calls apart.
func ExampleMethod() {
	for _, method := range []worker.Method{
		worker.MethodCallTool, worker.MethodReadResource, worker.MethodGetPrompt, worker.MethodComplete,
	} {
		fmt.Println(method)
	}
	// Output:
	// tools/call
	// resources/read
	// prompts/get
	// completion/complete
}

// A call that takes long does not have to hold a connection for as long.
func ExampleCall_CloseStream() {
	w := worker.New(worker.Config{Pool: "shop"})
	worker.AddTool(w, worker.Tool{Name: "restock"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		call.CloseStream(5 * time.Second) // the client comes back for the rest
		return "restocked", nil
	})

	out := workertest.Call(demo{}, w, "restock", struct{}{})
	fmt.Println(out.Text(), out.Closed)
	// Output:
	// restocked 1
}

// countedCalls is a stats handler as tracers of the gRPC ecosystem are.
type countedCalls struct{ ended int }

func (*countedCalls) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (c *countedCalls) HandleRPC(_ context.Context, event stats.RPCStats) {
	if _, ok := event.(*stats.End); ok {
		c.ended++
	}
}

func (*countedCalls) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (*countedCalls) HandleConn(context.Context, stats.ConnStats) {}

// Handlers of gRPC statistics are given before the worker runs, as is middleware;
// its load can be looked at at any time.
func ExampleWorker_UseStats() {
	w := worker.New(worker.Config{Pool: "measured"})
	w.UseStats(&countedCalls{})
	load := w.Load() // nothing, as the worker does not run
	fmt.Println(w.Pool(), load.Slots, load.Used, load.Refused)
	// Output:
	// measured 0 0 0
}
