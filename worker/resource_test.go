package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// showing returns a handler that shows what it was asked for.
func showing(by string) worker.ReadFunc {
	return func(_ context.Context, _ *worker.Call, req worker.ReadRequest) (*worker.Contents, error) {
		vars, err := json.Marshal(req.Vars)
		return worker.TextContents("", fmt.Sprintf("%s %s %s", by, req.URI, vars)), err
	}
}

func failing(err error) worker.ReadFunc {
	return func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) { return nil, err }
}

func TestResources(t *testing.T) {
	t.Parallel()
	w := newWorker(nil)
	w.AddResource(worker.Resource{URI: "memo://notes/projekt", Name: "projekt", MIMEType: "text/markdown"}, showing("listed"))
	w.AddResource(worker.Resource{URI: "HTTP://Example.com:80/%7Ea/../b", Name: "odd"}, showing("odd"))
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "memo://notes/{name}", Name: "note"}, showing("note"))
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "term://{slug}{?lang,kind}", Name: "term", MIMEType: "text/markdown"}, showing("term"))
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "file://{+path}", Name: "file"}, showing("file"))
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "list://{items*}", Name: "list"}, showing("list"))
	client := pair(t, w)

	for _, c := range []struct{ uri, by, mimeType, text string }{
		{"memo://notes/projekt", "", "text/markdown", `listed memo://notes/projekt null`},
		{"memo://notes/projekt", "memo://notes/{name}", "text/markdown", `listed memo://notes/projekt null`},
		{"memo://notes/other", "memo://notes/{name}", "", `note memo://notes/other {"name":"other"}`},
		{"memo://notes/other", "", "", `note memo://notes/other {"name":"other"}`},
		{"memo://notes/other", "gone://{x}", "", `note memo://notes/other {"name":"other"}`},
		{"HTTP://Example.com:80/%7Ea/../b", "", "", `odd HTTP://Example.com:80/%7Ea/../b null`},
		{"term://sse", "term://{slug}{?lang,kind}", "text/markdown", `term term://sse {"slug":"sse"}`},
		{"term://a%20b?lang=pl", "", "text/markdown", `term term://a%20b?lang=pl {"lang":"pl","slug":"a b"}`},
		{"term://%C5%82%C4%85cze", "", "text/markdown", `term term://%C5%82%C4%85cze {"slug":"łącze"}`},
		{"file:///etc/hosts", "", "", `file file:///etc/hosts {"path":"/etc/hosts"}`},
		{"list://a,b,c", "", "", `list list://a,b,c {"items":"a,b,c"}`},
	} {
		want := map[string]string{"uri": c.uri, "text": c.text}
		if c.mimeType != "" {
			want["mimeType"] = c.mimeType
		}
		result := readResource(t, client, c.uri, c.by).GetResult()
		var got []map[string]string
		if err := json.Unmarshal(result.GetContents(), &got); err != nil || len(got) != 1 || mustJSON(t, got[0]) != mustJSON(t, want) {
			t.Errorf("%s by %q: %s, %v", c.uri, c.by, result.GetContents(), err)
		}
	}

	notFound := &millracev1.Error{Kind: millracev1.Error_KIND_RESOURCE_NOT_FOUND}
	for _, uri := range []string{
		"", "memo://notes/", "MEMO://notes/projekt/x", "memo://notes/projekt/", "http://example.com/~b", "term://a/b",
		"http://Example.com:80/%7Ea/../b", "term://łącze", "file://" + strings.Repeat("a", 9000),
	} {
		event := readResource(t, client, uri, "")
		// An empty variable is a match by RFC 6570.
		if uri == "memo://notes/" {
			if event.GetResult() == nil {
				t.Errorf("%s: %v", uri, event)
			}
			continue
		}
		if got := event.GetError(); mustJSON(t, got) != mustJSON(t, notFound) {
			t.Errorf("%.40s: %v, want not found", uri, event)
		}
	}
}

func TestResourceOutcomes(t *testing.T) {
	t.Parallel()
	var log journal
	const secret = "the inner text"
	w := newWorker(log.logger())
	add := func(name string, read worker.ReadFunc) {
		w.AddResource(worker.Resource{URI: "r:" + name, Name: name, MIMEType: "text/plain"}, read)
	}
	with := func(c *worker.Contents) worker.ReadFunc {
		return func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) { return c, nil }
	}
	add("empty-text", with(worker.TextContents("", "")))
	add("empty-blob", with(worker.BlobContents("image/png", nil)))
	add("nothing", with(&worker.Contents{}))
	add("folder", with(&worker.Contents{
		Items: []worker.ResourceContents{
			{URI: "r:folder/a", Text: "A", Meta: json.RawMessage(`{"k": 1}`)},
			{URI: "r:folder/b", MIMEType: "b/b", Blob: []byte("B")},
		},
		Meta: json.RawMessage(`{"m":1}`), TTL: 1500 * time.Millisecond, Public: true,
	}))
	add("gone", failing(fmt.Errorf("%w: was here", worker.ErrResourceNotFound)))
	add("custom", failing(&worker.ProtocolError{Code: 7, Message: "locked"}))
	add("fault", failing(errors.New(secret)))
	add("nil", with(nil))
	add("bad-meta", with(&worker.Contents{Meta: json.RawMessage(`1`)}))
	add("panic", func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) { panic(secret) })
	client := pair(t, w)

	for name, want := range map[string]*millracev1.ResourceResult{
		"empty-text": {Contents: []byte(`[{"uri":"r:empty-text","mimeType":"text/plain","text":""}]`)},
		"empty-blob": {Contents: []byte(`[{"uri":"r:empty-blob","mimeType":"image/png","blob":""}]`)},
		"nothing":    {Contents: []byte(`[]`)},
		"folder": {
			Contents: []byte(`[{"uri":"r:folder/a","mimeType":"text/plain","text":"A","_meta":{"k":1}},{"uri":"r:folder/b","mimeType":"b/b","blob":"Qg=="}]`),
			Meta:     []byte(`{"m":1}`), TtlMs: 1500, Public: true,
		},
	} {
		if got := readResource(t, client, "r:"+name, "").GetResult(); mustJSON(t, got) != mustJSON(t, want) {
			t.Errorf("%s: %v\nwant %v", name, got, want)
		}
	}
	for name, want := range map[string]*millracev1.Error{
		"gone":     {Kind: millracev1.Error_KIND_RESOURCE_NOT_FOUND},
		"custom":   {Kind: millracev1.Error_KIND_CUSTOM, Code: 7, Message: "locked"},
		"fault":    {Kind: millracev1.Error_KIND_INTERNAL},
		"nil":      {Kind: millracev1.Error_KIND_INTERNAL},
		"bad-meta": {Kind: millracev1.Error_KIND_INTERNAL},
		"panic":    {Kind: millracev1.Error_KIND_INTERNAL},
	} {
		if got := readResource(t, client, "r:"+name, "").GetError(); mustJSON(t, got) != mustJSON(t, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if inLog := strings.Contains(log.String(), `"resource":"r:`+name+`"`); inLog != (want.GetKind() == millracev1.Error_KIND_INTERNAL) {
			t.Errorf("%s: in the log: %v", name, inLog)
		}
	}
}

func TestResourceProgressAndCancel(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	w := newWorker(nil)
	w.AddResource(worker.Resource{URI: "r:slow", Name: "slow"}, func(ctx context.Context, call *worker.Call, _ worker.ReadRequest) (*worker.Contents, error) {
		call.Progress(1, 2, "")
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	})
	client := pair(t, w)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.ReadResource(ctx, &millracev1.ReadResourceRequest{Uri: "r:slow", Context: &millracev1.CallContext{WantsProgress: true}})
	if err != nil {
		t.Fatal(err)
	}
	if event, err := stream.Recv(); err != nil || string(event.GetProgress().GetTotal()) != "2" {
		t.Fatalf("%v, %v", event, err)
	}
	cancel()
	if event, err := stream.Recv(); status.Code(err) != codes.Canceled || errors.Is(err, io.EOF) {
		t.Errorf("%v, %v", event, err)
	}
	wait(t, ended, "the handler to see the cancellation")
}
