package worker_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

func TestContent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		block worker.Content
		want  string
	}{
		{worker.Text(""), `{"type":"text","text":""}`},
		{worker.Text("a\r\n\u2028\x00\xff<"), `{"type":"text","text":"a\r\n\u2028\u0000` + "\ufffd" + `<"}`},
		{worker.Image(nil, "image/png"), `{"type":"image","data":"","mimeType":"image/png"}`},
		{worker.Audio([]byte("a"), "audio/wav"), `{"type":"audio","data":"YQ==","mimeType":"audio/wav"}`},
		{
			worker.ResourceLink(worker.Resource{URI: "term://sse", Name: "sse", MIMEType: "text/markdown", Size: new(int64)}),
			`{"type":"resource_link","uri":"term://sse","name":"sse","mimeType":"text/markdown","size":0}`,
		},
		{
			worker.EmbeddedResource(worker.ResourceContents{URI: "a:b", Text: ""}),
			`{"type":"resource","resource":{"uri":"a:b","text":""}}`,
		},
		{
			worker.EmbeddedResource(worker.ResourceContents{URI: "a:b", MIMEType: "x/y", Blob: []byte{}}),
			`{"type":"resource","resource":{"uri":"a:b","mimeType":"x/y","blob":""}}`,
		},
		{worker.RawContent(json.RawMessage(`{ "type":"text", "text":"t", "n":1.10 }`)), `{ "type":"text", "text":"t", "n":1.10 }`},
	} {
		got, err := c.block.MarshalJSON()
		if err != nil || string(got) != c.want {
			t.Errorf("got  %s, %v\nwant %s", got, err, c.want)
		}
	}
	for name, block := range map[string]worker.Content{
		"zero":            {},
		"raw empty":       worker.RawContent(nil),
		"raw array":       worker.RawContent(json.RawMessage(`[]`)),
		"raw broken":      worker.RawContent(json.RawMessage(`{`)),
		"link relative":   worker.ResourceLink(worker.Resource{URI: "x", Name: "x"}),
		"resource no URI": worker.EmbeddedResource(worker.ResourceContents{Text: "x"}),
		"resource meta":   worker.EmbeddedResource(worker.ResourceContents{URI: "a:b", Meta: json.RawMessage(`1`)}),
	} {
		if got, err := block.MarshalJSON(); err == nil {
			t.Errorf("%s: %s, want an error", name, got)
		}
	}
}

// A schema of the author's own leaves the Go type free.
func TestTypedToolWithGivenSchema(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	given := worker.Tool{InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`)}
	given.Name = "raw"
	worker.AddTool(w, given, func(_ context.Context, _ *worker.Call, in json.RawMessage) (json.RawMessage, error) { return in, nil })
	given.Name = "any"
	worker.AddTool(w, given, func(_ context.Context, _ *worker.Call, in any) (any, error) { return in, nil })
	given.Name = "map"
	worker.AddTool(w, given, func(_ context.Context, _ *worker.Call, in map[string]json.Number) (map[string]json.Number, error) {
		return in, nil
	})
	client := pair(t, w)
	for name, want := range map[string]string{
		"raw": `{ "n":9007199254740993 }`,
		"any": `{"n":9007199254740992}`, // as documented: any is float64
		"map": `{"n":9007199254740993}`,
	} {
		if got := string(outcome(t, client, name, `{ "n":9007199254740993 }`).GetResult().GetStructuredContent()); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if outcome(t, client, name, `{"n":"x"}`).GetError().GetKind() != millracev1.Error_KIND_INVALID_ARGUMENTS {
			t.Errorf("%s: the given schema was not applied", name)
		}
	}
}

// Bank case B07: what an edge lets through, a worker can read.
func TestDeepArguments(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	type tree struct {
		X any `json:"x,omitempty"`
	}
	worker.AddTool(w, worker.Tool{Name: "typed"}, func(_ context.Context, _ *worker.Call, in tree) (tree, error) { return in, nil })
	w.AddRawTool(worker.Tool{
		Name:        "recursive",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"x":{"$ref":"#"}},"additionalProperties":false}`),
	}, func(_ context.Context, _ *worker.Call, args json.RawMessage) (*worker.Result, error) {
		return &worker.Result{Structured: args}, nil
	})
	client := pair(t, w)
	nested := func(depth int, innermost string) string {
		return strings.Repeat(`{"x":`, depth) + innermost + strings.Repeat(`}`, depth)
	}
	for _, depth := range []int{60, 126, 512, 999} {
		args := nested(depth, `{}`)
		for _, tool := range []string{"typed", "recursive"} {
			if got := string(outcome(t, client, tool, args).GetResult().GetStructuredContent()); got != args {
				t.Errorf("%s at depth %d: %.60s", tool, depth, got)
			}
		}
		e := outcome(t, client, "recursive", nested(depth, `1`)).GetError()
		if e.GetKind() != millracev1.Error_KIND_INVALID_ARGUMENTS {
			t.Errorf("a fault at depth %d: %v", depth, e)
		}
	}
	for _, depth := range []int{1001, 9000, 100_000} {
		for _, tool := range []string{"typed", "recursive"} {
			e := outcome(t, client, tool, nested(depth, `{}`)).GetError()
			if e.GetDetail() != "the arguments must not be nested deeper than 1000 levels" {
				t.Errorf("%s at depth %d: %v", tool, depth, e)
			}
		}
	}
}
