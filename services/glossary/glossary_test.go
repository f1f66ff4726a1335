package glossary

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

func TestNewRefusesDir(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		filepath.Join(t.TempDir(), "nowhere"): "no such file or directory",
		file:                                  "is not a folder",
	} {
		if _, err := New(Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New with the folder %s: %v, want %q", dir, err, want)
		}
	}
}

func TestEmptyDir(t *testing.T) {
	t.Parallel()
	f := start(t, Config{Dir: t.TempDir()})
	var found searchOutput
	f.call("search_term", `{"query":"anything"}`, &found)
	var rebuilt reindexOutput
	f.call("reindex", `{}`, &rebuilt)
	if found.Total != 0 || rebuilt.Terms != 0 || rebuilt.Problems == nil {
		t.Errorf("found %+v, rebuilt %+v", found, rebuilt)
	}
}

// TestStopBeforeReady stops a glossary at once: it must end without serving.
func TestStopBeforeReady(t *testing.T) {
	t.Parallel()
	f := start(t, Config{}) // for its NATS server
	g, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Run(ctx, f.connect()); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// TestDrain stops the glossary while a rebuild runs: the call ends with its
// result, and only then does Run return.
func TestDrain(t *testing.T) {
	t.Parallel()
	f := start(t, Config{})
	var stop sync.Once
	out, err := f.try(context.Background(), "reindex", `{}`, func(*millracev1.Progress) { stop.Do(f.stop) })
	if err != nil || out.result == nil || out.result.GetIsError() {
		t.Errorf("the running call ended with %v, %v, %v", out.result, out.failure, err)
	}
	<-f.ended
}

func TestConcurrentCalls(t *testing.T) {
	t.Parallel()
	f := start(t, Config{})
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for range 10 {
				out, err := f.try(context.Background(), "search_term", `{"query":"sesja"}`, nil)
				if err != nil || out.result.GetIsError() || !strings.Contains(out.text(), "term://session?lang=pl") {
					t.Errorf("search: %v, %v, %v", out.result, out.failure, err)
				}
			}
		})
		callers.Go(func() {
			for range 2 {
				out, err := f.try(context.Background(), "reindex", `{}`, nil)
				if err != nil || out.result == nil || out.result.GetIsError() {
					t.Errorf("reindex: %v, %v, %v", out.result, out.failure, err)
				}
			}
		})
	}
	callers.Wait()
}

func TestSimilar(t *testing.T) {
	t.Parallel()
	slugs := []string{"agent", "agent-readiness", "sse", "session", "stdio", "tool"}
	for name, want := range map[string][]string{
		"agnet":           {"agent"},
		"agents":          {"agent"},
		"agent-readyness": {"agent-readiness"},
		"sesion":          {"session"},
		"sse":             {"sse"},
		"toll":            {"tool"},
		"elephants":       nil,
		"":                nil,
	} {
		if got := similar(name, slugs, 5); !slices.Equal(got, want) {
			t.Errorf("similar(%q) = %q, want %q", name, got, want)
		}
	}
	if got := similar("a", []string{"b", "c", "d"}, 2); len(got) != 2 {
		t.Errorf("similar returned %q, want two", got)
	}
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}} {
		if got := distance(test.a, test.b, 10); got != test.want {
			t.Errorf("distance(%q, %q) = %d, want %d", test.a, test.b, got, test.want)
		}
		if got := distance(test.a, test.b, 1); got <= 1 && test.want > 1 {
			t.Errorf("distance(%q, %q) with limit 1 = %d", test.a, test.b, got)
		}
	}
}
