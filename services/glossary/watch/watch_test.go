package watch_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/services/glossary/watch"
)

// patience is how long a test waits for something that should happen soon, on a
// machine that may be busy with other tests.
const patience = 2 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fixture struct {
	*testing.T
	root    string
	changes <-chan watch.Change
}

func open(t *testing.T, cfg watch.Config) *fixture {
	t.Helper()
	w := watch.Open(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return &fixture{t, cfg.Root, w.Changes()}
}

// notified watches root by notifications alone.
func notified(t *testing.T, root string) *fixture {
	t.Helper()
	return open(t, watch.Config{Root: root, Debounce: 10 * time.Millisecond, Poll: time.Hour, Sweep: time.Hour})
}

func (f *fixture) path(name string) string { return filepath.Join(f.root, filepath.FromSlash(name)) }

func (f *fixture) write(name, content string) {
	f.Helper()
	if err := os.WriteFile(f.path(name), []byte(content), 0o644); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) mkdir(name string) {
	f.Helper()
	if err := os.MkdirAll(f.path(name), 0o755); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) rename(from, to string) {
	f.Helper()
	if err := os.Rename(f.path(from), f.path(to)); err != nil {
		f.Fatal(err)
	}
}

// reported waits until every name was reported.
func (f *fixture) reported(names ...string) {
	f.Helper()
	missing := map[string]bool{}
	for _, name := range names {
		missing[name] = true
	}
	deadline := time.After(patience)
	for len(missing) > 0 {
		select {
		case change := <-f.changes:
			for name := range change.Paths {
				delete(missing, name)
			}
		case <-deadline:
			f.Fatalf("not reported: %v", missing)
		}
	}
}

// reportedAll waits until a comparison of everything was asked for.
func (f *fixture) reportedAll() {
	f.Helper()
	deadline := time.After(patience)
	for {
		select {
		case change := <-f.changes:
			if change.All {
				return
			}
		case <-deadline:
			f.Fatal("no comparison was asked for")
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	f := notified(t, t.TempDir())
	f.write("a.md", "one")
	f.reported("a.md")
	f.write("a.md", "two")
	f.reported("a.md")
	f.write(".a.md.tmp", "three")
	f.rename(".a.md.tmp", "a.md") // as editors do
	f.reported("a.md")
	f.rename("a.md", "b.md")
	f.reported("a.md", "b.md")
	if err := os.Remove(f.path("b.md")); err != nil {
		t.Fatal(err)
	}
	f.reported("b.md")
}

func TestFolders(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "old", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := notified(t, root)
	f.write("old/deep/a.md", "x")
	f.reported("old/deep/a.md")
	f.mkdir("new/deeper")
	f.reported("new")
	f.write("new/deeper/b.md", "x")
	f.reported("new/deeper/b.md")
	f.rename("new", "newer")
	f.reported("new", "newer")
	f.write("newer/deeper/c.md", "x")
	f.reported("newer/deeper/c.md")
	f.rename("newer/deeper", "old/moved")
	f.reported("newer/deeper", "old/moved")
	f.write("old/moved/d.md", "x")
	f.reported("old/moved/d.md")
	if err := os.RemoveAll(f.path("old")); err != nil {
		t.Fatal(err)
	}
	f.reported("old")
	f.mkdir("old")
	f.reported("old")
	f.write("old/e.md", "x")
	f.reported("old/e.md")
}

// TestMountedVolume exchanges all files at once by a link, as Kubernetes does
// with the files of a ConfigMap.
func TestMountedVolume(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, version := range []string{"..v1", "..v2"} {
		if err := os.MkdirAll(filepath.Join(root, version), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("..v1", "..data")
	link("..data/a.md", "a.md")
	f := notified(t, root)
	link("..v2", "..next")
	f.rename("..next", "..data")
	f.reportedAll()
}

func TestRootGoesAndComes(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	f := open(t, watch.Config{Root: root, Debounce: 10 * time.Millisecond, Poll: 10 * time.Millisecond, Sweep: time.Hour})
	if err := os.Remove(root); err != nil {
		t.Fatal(err)
	}
	f.reportedAll()
	f.mkdir(".")
	f.write("a.md", "x")
	// Either polling or the new watch reports it, whichever is first.
	f.reportedAll()
	// In the end there is a watch again.
	deadline := time.After(patience)
	for i := 0; ; i++ {
		f.write("b.md", string(rune('a'+i%26)))
		select {
		case change := <-f.changes:
			if change.Paths["b.md"] {
				return
			}
		case <-deadline:
			t.Fatal("the folder is not watched again")
		}
	}
}

func TestPolling(t *testing.T) {
	t.Parallel()
	f := open(t, watch.Config{Root: t.TempDir(), Poll: time.Millisecond, PollOnly: true})
	for range 3 {
		f.reportedAll()
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	f := open(t, watch.Config{Root: t.TempDir(), Poll: time.Hour, Sweep: time.Millisecond})
	for range 3 {
		f.reportedAll()
	}
}

// TestBusyFile writes one file without a pause: the change must come through
// all the same.
func TestBusyFile(t *testing.T) {
	t.Parallel()
	f := open(t, watch.Config{Root: t.TempDir(), Debounce: 50 * time.Millisecond, Poll: time.Hour, Sweep: time.Hour})
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		f.write("log.md", "x")
		select {
		case <-f.changes:
			return
		default:
		}
	}
	t.Fatal("nothing was reported while the file was written")
}

// TestNobodyListens makes many changes that nobody receives: none is lost.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	f := notified(t, t.TempDir())
	var names []string
	for i := range 200 {
		name := "file-" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ".md"
		f.write(name, "x")
		names = append(names, name)
	}
	f.reported(names...)
}
