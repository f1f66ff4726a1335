package worker_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

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
		{
			worker.RawContent(json.RawMessage(`{ "type":"text", "n":1.10 } `)).WithMeta(json.RawMessage(`{ "a": 1.0 }`)),
			`{ "type":"text", "n":1.10 ,"_meta":{"a":1.0}}`,
		},
		{worker.RawContent(json.RawMessage(`{ }`)).WithMeta(json.RawMessage(`{}`)), `{ "_meta":{}}`},
		{worker.Text("t").WithMeta(nil), `{"type":"text","text":"t"}`},
		{worker.Text("t").Annotated(worker.ContentAnnotations{}), `{"type":"text","text":"t","annotations":{}}`},
		{
			worker.Text("}").Annotated(worker.ContentAnnotations{
				Audience: []worker.Role{worker.RoleAssistant}, Priority: new(1.0), LastModified: time.Date(2026, 1, 2, 4, 0, 0, 1, time.FixedZone("", 3600)),
			}).WithMeta(json.RawMessage(`{"k":1}`)),
			`{"type":"text","text":"}","annotations":{"audience":["assistant"],"priority":1,"lastModified":"2026-01-02T03:00:00Z"},"_meta":{"k":1}}`,
		},
		{
			worker.ResourceLink(worker.Resource{URI: "a:b", Name: "n", Title: "T", Icons: []worker.Icon{{Src: "data:,"}}, Annotations: worker.ContentAnnotations{Priority: new(0.5)}.JSON()}),
			`{"type":"resource_link","uri":"a:b","name":"n","title":"T","annotations":{"priority":0.5},"icons":[{"src":"data:,"}]}`,
		},
	} {
		got, err := c.block.MarshalJSON()
		if err != nil || string(got) != c.want {
			t.Errorf("got  %s, %v\nwant %s", got, err, c.want)
		}
	}
	for name, block := range map[string]worker.Content{
		"zero":                   {},
		"raw empty":              worker.RawContent(nil),
		"raw array":              worker.RawContent(json.RawMessage(`[]`)),
		"raw broken":             worker.RawContent(json.RawMessage(`{`)),
		"link with a line break": worker.ResourceLink(worker.Resource{URI: "x\n", Name: "x"}),
		"resource no URI":        worker.EmbeddedResource(worker.ResourceContents{Text: "x"}),
		"annotated zero":         worker.Content{}.Annotated(worker.ContentAnnotations{}),
		"annotated twice":        worker.Text("").Annotated(worker.ContentAnnotations{}).Annotated(worker.ContentAnnotations{}),
		"meta twice":             worker.RawContent(json.RawMessage(`{"_meta":{}}`)).WithMeta(json.RawMessage(`{}`)),
		"meta array":             worker.Text("").WithMeta(json.RawMessage(`[]`)),
		"audience":               worker.Text("").Annotated(worker.ContentAnnotations{Audience: []worker.Role{""}}),
		"priority":               worker.Text("").Annotated(worker.ContentAnnotations{Priority: new(1.1)}),
		"resource meta":          worker.EmbeddedResource(worker.ResourceContents{URI: "a:b", Meta: json.RawMessage(`1`)}),
	} {
		if got, err := block.MarshalJSON(); err == nil {
			t.Errorf("%s: %s, want an error", name, got)
		}
	}
}

func TestBadAnnotations(t *testing.T) {
	t.Parallel()
	if got := (worker.ContentAnnotations{Priority: new(-1.0)}).JSON(); got != nil {
		t.Errorf("annotations: %s", got)
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
