package worker

import (
	"context"
	"encoding/json"
	"testing"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// The worker's own share of a short call: check, decode, run, encode, check.
func BenchmarkCall(b *testing.B) {
	type in struct {
		Query string `json:"query"`
		Limit int    `json:"limit,omitempty"`
		Lang  string `json:"lang,omitempty"`
	}
	type out struct {
		Total int      `json:"total"`
		Hits  []string `json:"hits"`
	}
	w := New(Config{Pool: "bench"})
	AddTool(w, Tool{Name: "typed"}, func(_ context.Context, _ *Call, in in) (out, error) {
		return out{Total: in.Limit, Hits: []string{in.Query, in.Lang}}, nil
	})
	w.AddRawTool(Tool{Name: "raw"}, func(context.Context, *Call, json.RawMessage) (*Result, error) {
		return &Result{Content: []Content{Text("done")}}, nil
	})
	args := json.RawMessage(`{"query":"context engineering","limit":10,"lang":"en"}`)
	for _, name := range []string{"typed", "raw"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			t := w.tool(name)
			for b.Loop() {
				call := w.newCall(b.Context(), MethodCallTool, name, nil)
				call.args = args
				call.serve = func(ctx context.Context) error {
					_, err := t.run(ctx, w.codec, call)
					return err
				}
				if err := w.handle(call); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// nowhere is a stream that ends here.
type nowhere struct{}

func (nowhere) progress(*millracev1.Progress) error { return nil }
func (nowhere) log(*millracev1.LogMessage) error    { return nil }

// The worker's own share of a report of progress.
func BenchmarkProgressAlone(b *testing.B) {
	call := New(Config{Pool: "bench"}).newCall(b.Context(), MethodCallTool, "steps", nil)
	call.from, call.sink = &millracev1.CallContext{WantsProgress: true}, nowhere{}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		call.Progress(float64(i), UnknownTotal, "step")
	}
}
