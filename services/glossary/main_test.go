package glossary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/services/glossary/library"
)

// patience is how long a test waits for something that should happen soon, on a
// machine that may be busy with other tests.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	// bleve starts the goroutines of its analysis queue when it is imported.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/blevesearch/bleve_index_api.AnalysisWorker"))
}

// fixture is a glossary that runs on a NATS server in this process, and a
// client of it as an edge has one.
type fixture struct {
	*testing.T
	glossary *Glossary
	client   millracev1.WorkerServiceClient
	nats     *localnats.Server
	stop     context.CancelFunc // tells the glossary to stop
	ended    chan struct{}      // closed when it has stopped
}

func start(t *testing.T, cfg Config) *fixture {
	t.Helper()
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server, err := localnats.Start(localnats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	f := &fixture{T: t, glossary: g, nats: server}
	conn := f.connect()
	f.stop, f.ended = f.run(func(ctx context.Context) error { return g.Run(ctx, conn) }, g.Ready())
	client := bus.NewClient(f.connect(), bus.ClientConfig{})
	f.run(client.Run, client.Ready())
	f.client = millracev1.NewWorkerServiceClient(client.Pool(Pool))
	return f
}

func (f *fixture) connect() *bus.Conn {
	f.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.ConnConfig{InProcess: f.nats})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(conn.Close)
	return conn
}

// run runs an actor until the test ends.
func (f *fixture) run(run func(context.Context) error, ready <-chan struct{}) (stop context.CancelFunc, ended chan struct{}) {
	f.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended = make(chan struct{})
	var failure error
	go func() {
		defer close(ended)
		failure = run(ctx)
	}()
	f.Cleanup(func() {
		stop()
		<-ended
		if failure != nil {
			f.Errorf("an actor ended with %v", failure)
		}
	})
	select {
	case <-ready:
	case <-ended:
		f.Fatal("an actor ended before it was ready")
	case <-time.After(patience):
		f.Fatal("an actor does not get ready")
	}
	return stop, ended
}

// outcome is how a call of a tool ended.
type outcome struct {
	result   *millracev1.ToolResult
	failure  *millracev1.Error
	progress []*millracev1.Progress
}

// try calls a tool; onProgress may be nil.
func (f *fixture) try(ctx context.Context, tool, arguments string, onProgress func(*millracev1.Progress)) (outcome, error) {
	var out outcome
	stream, err := f.client.CallTool(ctx, &millracev1.CallToolRequest{
		Context:   &millracev1.CallContext{WantsProgress: true},
		Name:      tool,
		Arguments: []byte(arguments),
	})
	if err != nil {
		return out, err
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		switch {
		case event.GetProgress() != nil:
			if out.result != nil {
				f.Error("progress came after the result")
			}
			out.progress = append(out.progress, event.GetProgress())
			if onProgress != nil {
				onProgress(event.GetProgress())
			}
		case event.GetResult() != nil:
			out.result = event.GetResult()
		case event.GetError() != nil:
			out.failure = event.GetError()
		}
	}
}

// call calls a tool that must succeed and decodes its structured content.
func (f *fixture) call(tool, arguments string, into any) outcome {
	f.Helper()
	out := f.callAny(tool, arguments)
	if out.result == nil || out.result.GetIsError() {
		f.Fatalf("%s %s ended with %v, %s", tool, arguments, out.failure, out.result.GetContent())
	}
	if err := json.Unmarshal(out.result.GetStructuredContent(), into); err != nil {
		f.Fatal(err)
	}
	return out
}

func (f *fixture) callAny(tool, arguments string) outcome {
	f.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := f.try(ctx, tool, arguments, nil)
	if err != nil {
		f.Fatalf("%s %s: %v", tool, arguments, err)
	}
	return out
}

// text returns the text of the first block of content.
func (o outcome) text() string {
	var blocks []struct{ Text string }
	if err := json.Unmarshal(o.result.GetContent(), &blocks); err != nil || len(blocks) == 0 {
		return ""
	}
	return blocks[0].Text
}

// read reads a resource; the text is empty if there is an error.
func (f *fixture) read(uri, template string) (text, mimeType string, failure *millracev1.Error) {
	f.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := f.client.ReadResource(ctx, &millracev1.ReadResourceRequest{
		Context: &millracev1.CallContext{}, Uri: uri, UriTemplate: template,
	})
	if err != nil {
		f.Fatal(err)
	}
	event, err := stream.Recv()
	if err != nil {
		f.Fatalf("reading %s: %v", uri, err)
	}
	if event.GetError() != nil {
		return "", "", event.GetError()
	}
	var contents []struct{ URI, MimeType, Text string }
	if err := json.Unmarshal(event.GetResult().GetContents(), &contents); err != nil || len(contents) != 1 {
		f.Fatalf("contents of %s: %s, %v", uri, event.GetResult().GetContents(), err)
	}
	if !event.GetResult().GetPublic() || event.GetResult().GetTtlMs() != 0 {
		f.Errorf("caching of %s: %v", uri, event.GetResult())
	}
	if contents[0].URI != uri {
		f.Errorf("contents of %s name %s", uri, contents[0].URI)
	}
	return contents[0].Text, contents[0].MimeType, nil
}

// manifests follows what the glossary announces, as the catalog of an edge does,
// until a manifest fits.
func (f *fixture) manifests(what string, fits func(*millracev1.Manifest) bool) {
	f.Helper()
	watcher := bus.NewWatcher(f.connect(), bus.WatcherConfig{})
	f.run(watcher.Run, watcher.Synced())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		for _, member := range watcher.Members() {
			for _, hash := range member.Manifests {
				data, err := watcher.Fetch(ctx, hash)
				if err != nil {
					continue // it was replaced meanwhile
				}
				manifest := &millracev1.Manifest{}
				if err := proto.Unmarshal(data, manifest); err != nil {
					f.Fatal(err)
				}
				if fits(manifest) {
					return
				}
			}
		}
		select {
		case <-watcher.Changes():
		case <-ctx.Done():
			f.Fatalf("was not announced: %s", what)
		}
	}
}

// eventually waits for views until one fits.
func (f *fixture) eventually(what string, fits func(*library.View) bool) {
	f.Helper()
	deadline := time.After(patience)
	for {
		view := f.glossary.library.View()
		if fits(view) {
			return
		}
		select {
		case <-view.Superseded():
		case <-deadline:
			f.Fatalf("did not come about: %s", what)
		}
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func term(slug, lang, title, body string) string {
	return fmt.Sprintf("---\nslug: %s\ntitle: %s\nlang: %s\nsource: a test\n---\n\n%s\n", slug, title, lang, body)
}
