// Package library keeps a glossary in memory: the documents of a folder and
// their index, kept equal to the files while they change.
//
// Library is an actor. One goroutine owns the files; readers take the current
// View, which never changes, without waiting for it.
package library

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/services/glossary/folder"
	"github.com/millrace/millrace/services/glossary/index"
	"github.com/millrace/millrace/services/glossary/watch"
)

// ErrStopped is returned when the library is not running any more.
var ErrStopped = errors.New("the glossary is stopping")

// Config describes a library. FS is required.
type Config struct {
	// FS is the folder.
	FS fs.FS
	// Watch says where FS lies on disk; an empty Root means that the files do
	// not change.
	Watch watch.Config
	// MaxFileBytes limits the size of one file. Default 1 MiB.
	MaxFileBytes int64
	// Logger takes the problems of the files. Nil: discarded.
	Logger *slog.Logger
	// OnChange is called with every new view, the first included, by the
	// goroutine that owns the files: it must not wait for the library. Only
	// then is the library ready or the older view superseded. Nil: nobody is
	// told.
	OnChange func(*View)
}

// Library must be run to be of use. Its methods may be called concurrently.
type Library struct {
	cfg  Config
	log  *slog.Logger
	text *index.Text

	// view is stored by the owner only. Nil until the first build is done.
	view  atomic.Pointer[View]
	ready chan struct{} // closed by Run when view is set
	// requests are run by the owner, one at a time. It has no buffer, so a
	// sender waits until the owner is free. Never closed: see stopped.
	requests chan func()
	stopped  chan struct{} // closed by Run when the owner takes no more requests
	// rebuilding holds the right to rebuild (capacity 1); others wait.
	rebuilding chan struct{}

	// What follows belongs to the goroutine of Run.
	files map[string]folder.File
	// missed collects the changes during a rebuild, whose reading of the files
	// may have been too early for them; nil while there is none.
	missed     *watch.Change
	compacting bool
	helpers    sync.WaitGroup
}

// New returns a library that has not read anything yet.
func New(cfg Config) (*Library, error) {
	text, err := index.NewText()
	if err != nil {
		return nil, fmt.Errorf("library: %w", err)
	}
	cfg.MaxFileBytes = cmp.Or(cfg.MaxFileBytes, folder.DefaultMaxFileBytes)
	return &Library{
		cfg:        cfg,
		log:        cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		text:       text,
		ready:      make(chan struct{}),
		requests:   make(chan func()),
		stopped:    make(chan struct{}),
		rebuilding: make(chan struct{}, 1),
		files:      map[string]folder.File{},
	}, nil
}

// Ready returns a channel that is closed when the first view is there.
func (l *Library) Ready() <-chan struct{} { return l.ready }

// View returns the current view; nil before Ready.
func (l *Library) View() *View { return l.view.Load() }

// Run reads the folder and then follows its changes until ctx is done. It
// returns nil then, and an error if the first reading failed; either way
// everything it started has stopped. A library can be run once.
func (l *Library) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var changes <-chan watch.Change
	if l.cfg.Watch.Root != "" {
		// Before the reading, so that no change falls between the two.
		watcher := watch.Open(l.cfg.Watch)
		changes = watcher.Changes()
		l.helpers.Go(func() { _ = watcher.Run(ctx) }) // it returns nil
	}
	defer func() {
		cancel()
		close(l.stopped)
		l.helpers.Wait()
		if view := l.view.Load(); view != nil {
			_ = view.index.Close() // nothing is left to be written
		}
	}()

	built, err := l.build(ctx, nil)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	l.files = built.files
	l.publish(built.snapshot(), built.index)
	close(l.ready)
	for {
		select {
		case <-ctx.Done():
			return nil
		case request := <-l.requests:
			request()
		case change := <-changes:
			l.update(ctx, change)
		}
	}
}

// ask lets the owner run request and waits for it. Once it has begun, it is
// waited for even if ctx is done, because the caller shares data with it.
func (l *Library) ask(ctx context.Context, request func()) error {
	done := make(chan struct{})
	select {
	case l.requests <- func() { defer close(done); request() }:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.stopped:
		return ErrStopped
	}
}

// update brings files, index and view up to date with a change.
func (l *Library) update(ctx context.Context, change watch.Change) {
	if l.missed != nil {
		l.missed.All = l.missed.All || change.All
		for path := range change.Paths {
			l.missed.Paths[path] = true
		}
	}
	if !l.refresh(change) {
		return
	}
	old := l.view.Load()
	snapshot := folder.Resolve(l.files)
	if err := synchronise(ctx, old.index, old.snapshot, snapshot); err != nil {
		if ctx.Err() != nil {
			return
		}
		// The documents are right all the same; only search lags behind.
		l.log.Error("the index could not be updated", "error", err)
	}
	l.publish(snapshot, old.index)
	if old.index.Fragmented() && !l.compacting {
		l.compacting = true
		l.helpers.Go(func() {
			if _, err := l.Rebuild(ctx, nil); err != nil && ctx.Err() == nil {
				l.log.Error("the index could not be rebuilt", "error", err)
			}
			// ErrStopped means that nobody looks at the mark any more.
			_ = l.ask(ctx, func() { l.compacting = false })
		})
	}
}

// refresh reads again what has changed, and nothing else, into l.files. It
// reports whether anything did.
func (l *Library) refresh(change watch.Change) bool {
	changed := false
	for path := range change.Paths {
		if !folder.Ignored(path) && l.refreshPath(path) {
			changed = true
		}
	}
	if change.All && l.refreshBelow(".") {
		changed = true
	}
	return changed
}

// refreshPath looks at one path that has an event: a file is read even if its
// stamp is the same, for two writes can fall into one tick of the clock.
func (l *Library) refreshPath(path string) bool {
	info, err := fs.Stat(l.cfg.FS, path)
	switch {
	case err != nil || info.IsDir():
		return l.refreshBelow(path)
	case folder.IsGlossaryFile(path) && info.Mode().IsRegular():
		return l.read(path)
	}
	return false
}

// refreshBelow compares the files at and below root with what is known.
func (l *Library) refreshBelow(root string) bool {
	changed := false
	listed, problems := folder.List(l.cfg.FS, root)
	found := make(map[string]bool, len(listed))
	for _, path := range listed {
		found[path] = true
		stamp, err := folder.StampOf(l.cfg.FS, path)
		if known, ok := l.files[path]; err != nil || !ok || known.Stamp != stamp {
			changed = l.read(path) || changed
		}
	}
	for _, problem := range problems {
		found[problem.File] = true
		known := l.files[problem.File]
		if len(known.Problems) != 1 || known.Problems[0] != problem {
			l.files[problem.File] = folder.File{Path: problem.File, Problems: []folder.Problem{problem}}
			changed = true
		}
	}
	for path := range l.files {
		if !found[path] && (root == "." || path == root || strings.HasPrefix(path, root+"/")) {
			delete(l.files, path)
			changed = true
		}
	}
	return changed
}

// read reads one file; one that has gone is forgotten.
func (l *Library) read(path string) bool {
	file, err := folder.Read(l.cfg.FS, path, l.cfg.MaxFileBytes)
	if err != nil {
		_, known := l.files[path]
		delete(l.files, path)
		return known
	}
	l.files[path] = file
	return true
}

// publish makes the view current. An index that is not in it is closed.
func (l *Library) publish(snapshot *folder.Snapshot, ix *index.Index) {
	old := l.view.Load()
	view := newView(snapshot, ix)
	l.logProblems(old, view)
	l.view.Store(view)
	if l.cfg.OnChange != nil {
		l.cfg.OnChange(view)
	}
	if old == nil {
		return
	}
	close(old.superseded)
	if old.index != ix {
		_ = old.index.Close() // nothing is left to be written
	}
}

// logProblems writes each problem once, when it appears.
func (l *Library) logProblems(old, view *View) {
	known := map[folder.Problem]bool{}
	if old != nil {
		for _, problem := range old.snapshot.Problems {
			known[problem] = true
		}
	}
	for _, problem := range view.snapshot.Problems {
		if !known[problem] {
			l.log.Warn("a glossary file has a problem", "file", problem.File, "line", problem.Line, "problem", problem.Message)
		}
	}
}
