package library_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/services/glossary/folder"
	"github.com/millrace/millrace/services/glossary/index"
	"github.com/millrace/millrace/services/glossary/library"
	"github.com/millrace/millrace/services/glossary/watch"
)

// patience is how long a test waits for something that should happen soon, on a
// machine that may be busy with other tests.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	// bleve starts the goroutines of its analysis queue when it is imported.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/blevesearch/bleve_index_api.AnalysisWorker"))
}

// run starts a library over dir and waits until it serves.
func run(t testing.TB, dir string) *library.Library {
	t.Helper()
	return runConfig(t, library.Config{FS: os.DirFS(dir), Watch: watch.Config{Root: dir}})
}

func runConfig(t testing.TB, cfg library.Config) *library.Library {
	t.Helper()
	l, err := library.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-l.Ready():
	case err := <-done:
		done <- err
		t.Fatalf("Run ended before it was ready: %v", err)
	case <-time.After(patience):
		t.Fatal("the library is not ready")
	}
	return l
}

// eventually waits for views until one fits.
func eventually(t testing.TB, l *library.Library, what string, fits func(*library.View) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		view := l.View()
		if fits(view) {
			return
		}
		select {
		case <-view.Superseded():
		case <-deadline:
			t.Fatalf("did not come about: %s; problems: %v", what, view.Problems())
		}
	}
}

func write(t testing.TB, dir, name, content string) {
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

func title(slug, want string) func(*library.View) bool {
	return func(v *library.View) bool {
		entry, ok := v.Entry(folder.Term, slug, "")
		return ok == (want != "") && (!ok || entry.Title == want)
	}
}

func search(t testing.TB, l *library.Library, text string) []library.Found {
	t.Helper()
	_, found, err := l.Search(context.Background(), index.Query{Text: text, Limit: 50})
	if err != nil {
		t.Fatalf("Search(%q): %v", text, err)
	}
	return found
}
