package library_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/millrace/millrace/services/glossary/folder"
	"github.com/millrace/millrace/services/glossary/index"
	"github.com/millrace/millrace/services/glossary/library"
	"github.com/millrace/millrace/services/glossary/watch"
)

func TestFollow(t *testing.T) {
	t.Parallel()
	for name, configure := range map[string]func(*library.Config){
		"notified": func(cfg *library.Config) { cfg.Watch.Sweep = time.Hour },
		"polled":   func(cfg *library.Config) { cfg.Watch.PollOnly, cfg.Watch.Poll = true, 20*time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, "terms/session.md", term("session", "en", "Session", "About walruses."))
			cfg := library.Config{FS: os.DirFS(dir), Watch: watch.Config{Root: dir, Debounce: 10 * time.Millisecond}}
			configure(&cfg)
			follow(t, runConfig(t, cfg), dir)
		})
	}
}

func follow(t *testing.T, l *library.Library, dir string) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	path := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	finds := func(text, slug string) {
		t.Helper()
		found := search(t, l, text)
		if got := len(found) > 0 && found[0].Slug == slug; got != (slug != "") {
			t.Errorf("%q finds %v, want %q", text, found, slug)
		}
	}
	finds("walrus", "session")

	write(t, dir, "terms/session.md", term("session", "en", "Meeting", "About hedgehogs and more."))
	eventually(t, l, "an edit", title("session", "Meeting"))
	finds("hedgehog", "session")
	finds("walrus", "")

	write(t, dir, "terms/.swp", term("session", "en", "Atomic", "About porcupines, in a new file."))
	must(os.Rename(path("terms/.swp"), path("terms/session.md")))
	eventually(t, l, "an atomic replacement", title("session", "Atomic"))
	finds("porcupine", "session")

	write(t, dir, "terms/new/deep/tool.md", term("tool", "pl", "Narzędzie", "O jeżach."))
	eventually(t, l, "a file in a new folder", title("tool", "Narzędzie"))
	finds("jeż", "tool")

	must(os.Rename(path("terms/new"), path("terms/other")))
	eventually(t, l, "a renamed folder", func(v *library.View) bool {
		entry, ok := v.Entry(folder.Term, "tool", "pl")
		return ok && entry.Path == "terms/other/deep/tool.md"
	})
	finds("jeże", "tool")

	write(t, dir, "terms/session.md", "no front matter at all")
	eventually(t, l, "a file that was broken", title("session", ""))
	finds("porcupine", "")
	if problems := l.View().Problems(); len(problems) != 1 || problems[0].File != "terms/session.md" || problems[0].Line != 1 {
		t.Errorf("problems %v", problems)
	}
	finds("jeż", "tool")

	write(t, dir, "terms/session.md", term("session", "en", "Mended", "About walruses."))
	eventually(t, l, "a file that was mended", title("session", "Mended"))
	if problems := l.View().Problems(); len(problems) != 0 {
		t.Errorf("problems %v", problems)
	}

	must(os.Rename(path("terms/session.md"), path("terms/session.txt")))
	eventually(t, l, "a file that is no glossary file any more", title("session", ""))
	finds("walrus", "")

	must(os.RemoveAll(path("terms/other")))
	eventually(t, l, "a removed folder", title("tool", ""))

	write(t, dir, "notes/plan.md", "---\nslug: plan\ntitle: Plan\nlang: pl\n---\nO planie.\n")
	eventually(t, l, "a note", func(v *library.View) bool { return len(v.Notes()) == 1 })
	finds("planie", "") // notes are not terms
}

// TestDuplicates removes the file that is served of two with one key.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.md", term("session", "en", "First", "About walruses."))
	write(t, dir, "b.md", term("session", "en", "Second", "About hedgehogs."))
	l := run(t, dir)
	eventually(t, l, "the first", title("session", "First"))
	if found := search(t, l, "hedgehog"); len(found) > 0 {
		t.Errorf("the index has the file that is not served: %v", found)
	}
	if err := os.Remove(filepath.Join(dir, "a.md")); err != nil {
		t.Fatal(err)
	}
	eventually(t, l, "the second", title("session", "Second"))
	if found := search(t, l, "hedgehog"); len(found) != 1 {
		t.Errorf("found %v", found)
	}
	if problems := l.View().Problems(); len(problems) > 0 {
		t.Errorf("problems %v", problems)
	}
}

// TestChangesDuringRebuild edits files while a rebuild reads them: whatever it
// has read too early is read again before its view is served.
func TestChangesDuringRebuild(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const n = 50
	for i := range n {
		write(t, dir, fmt.Sprintf("t%02d.md", i), term(fmt.Sprintf("t%02d", i), "en", "Before", "About walruses."))
	}
	l := run(t, dir)
	view, err := l.Rebuild(context.Background(), func(done, total int) {
		if done == 0 || done > total/2 {
			return
		}
		// These have been read already.
		write(t, dir, "t00.md", term("t00", "en", fmt.Sprintf("After %d", done), "About hedgehogs."))
		eventually(t, l, "the edit during the rebuild", title("t00", fmt.Sprintf("After %d", done)))
	})
	if err != nil {
		t.Fatal(err)
	}
	entry, _ := view.Entry(folder.Term, "t00", "")
	if !strings.HasPrefix(entry.Title, "After ") {
		t.Errorf("the rebuild brought back %q", entry.Title)
	}
	if found := search(t, l, "hedgehog"); len(found) != 1 {
		t.Errorf("found %v", found)
	}
}

// TestManyEdits makes so many changes that the index is rebuilt by itself.
func TestManyEdits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.md", term("a", "en", "Edit", "Text."))
	cfg := library.Config{FS: os.DirFS(dir), Watch: watch.Config{Root: dir, Debounce: time.Millisecond, Sweep: time.Hour}}
	l := runConfig(t, cfg)
	for i := range 200 {
		name := fmt.Sprintf("Edit %d", i)
		write(t, dir, "a.md", term("a", "en", name, fmt.Sprintf("Text number n%d.", i)))
		eventually(t, l, name, title("a", name))
	}
	if found := search(t, l, "n199"); len(found) != 1 {
		t.Errorf("found %v", found)
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 20 {
		write(t, dir, fmt.Sprintf("t%02d.md", i), term(fmt.Sprintf("t%02d", i), "en", "Walrus", "Text."))
	}
	l := run(t, dir)
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for range 5 {
				if _, err := l.Rebuild(context.Background(), nil); err != nil {
					t.Errorf("Rebuild: %v", err)
				}
			}
		})
		workers.Go(func() {
			for range 50 {
				total, found, err := l.Search(context.Background(), index.Query{Text: "walruses", Limit: 50})
				if err != nil || total != 20 || len(found) != 20 {
					t.Errorf("found %d of %d, %v", len(found), total, err)
				}
			}
		})
	}
	workers.Wait()
}

func TestEmbedded(t *testing.T) {
	t.Parallel()
	// A file system in memory is not watched; a rebuild reads it again.
	files := fstest.MapFS{"a.md": {Data: []byte(term("a", "en", "Before", "Text."))}}
	l := runConfig(t, library.Config{FS: files})
	files["a.md"] = &fstest.MapFile{Data: []byte(term("a", "en", "After", "Text."))}
	if !title("a", "Before")(l.View()) {
		t.Error("it was read again by itself")
	}
	if _, err := l.Rebuild(context.Background(), nil); err != nil || !title("a", "After")(l.View()) {
		t.Errorf("it was not read again: %v", err)
	}
}

func TestStopped(t *testing.T) {
	t.Parallel()
	l, err := library.New(library.Config{FS: fstest.MapFS{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	<-l.Ready()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := l.Rebuild(context.Background(), nil); !errors.Is(err, library.ErrStopped) {
		t.Errorf("Rebuild: %v", err)
	}
	if _, _, err := l.Search(context.Background(), index.Query{Text: "a"}); !errors.Is(err, library.ErrStopped) {
		t.Errorf("Search: %v", err)
	}
}

// TestLog expects every problem once in the log, with file and line.
func TestLog(t *testing.T) {
	t.Parallel()
	var out lockedBuffer
	dir := t.TempDir()
	write(t, dir, "bad.md", "---\nslug: A\ntitle: T\nlang: en\nsource: s\n---\nText\n")
	write(t, dir, "large.md", term("large", "en", "Large", strings.Repeat("x", 2000)))
	l := runConfig(t, library.Config{
		FS:           os.DirFS(dir),
		Watch:        watch.Config{Root: dir, Debounce: 10 * time.Millisecond},
		MaxFileBytes: 1000,
		Logger:       slog.New(slog.NewTextHandler(&out, nil)),
	})
	write(t, dir, "good.md", term("good", "en", "Good", "Text."))
	eventually(t, l, "a good file", title("good", "Good"))
	if _, err := l.Rebuild(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`file=bad.md line=2 problem="the slug \"A\" must be`, `file=large.md line=1 problem="is larger than the limit of 1000 bytes`} {
		if n := strings.Count(out.String(), want); n != 1 {
			t.Errorf("%d times %s in the log:\n%s", n, want, out.String())
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
