// Package watch tells which files below a folder may have changed, soon after
// they did: by the file system's own notifications where they work, and by
// asking for a comparison of the whole folder at intervals where they do not.
package watch

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Defaults of Config.
const (
	DefaultDebounce = 100 * time.Millisecond
	DefaultPoll     = 500 * time.Millisecond
	DefaultSweep    = 10 * time.Second
)

// Config describes what to watch. Only Root has no useful zero value.
type Config struct {
	// Root is the folder; it may vanish and come back.
	Root string
	// Debounce is how long a change waits for others that belong to it, such
	// as the three steps in which editors save. Default 100 ms.
	Debounce time.Duration
	// Poll is the interval of comparisons while some folder cannot be watched.
	// Default 500 ms.
	Poll time.Duration
	// Sweep is the interval of comparisons while all folders are watched, for
	// what the notifications have missed. Default 10 s.
	Sweep time.Duration
	// PollOnly does without notifications: on network mounts they are often
	// missing without an error.
	PollOnly bool
	// Logger takes word of folders that cannot be watched. Nil: discarded.
	Logger *slog.Logger
}

// Change is what may have changed since the last one.
type Change struct {
	// Paths are relative to the root, with slashes: files and folders that
	// were made, written, renamed or removed. The map is the receiver's.
	Paths map[string]bool
	// All says that anything may have changed, and Paths are not all.
	All bool
}

// Watcher is an actor: Run does its work. It must be run once it was opened.
type Watcher struct {
	cfg Config
	log *slog.Logger
	// notify is nil where the notifications cannot be had.
	notify *fsnotify.Watcher
	// changes is sent to by Run only and never closed. It has no buffer: while
	// nobody receives, Run goes on collecting, so nothing is lost or blocked.
	changes chan Change

	// The rest is owned by Run.
	watched map[string]bool // absolute folders
	gap     bool            // some folder is not watched
	next    Change          // waiting to be sent
}

// Open begins to watch: a change after Open is reported by Run.
func Open(cfg Config) *Watcher {
	cfg.Debounce = cmp.Or(cfg.Debounce, DefaultDebounce)
	cfg.Poll = cmp.Or(cfg.Poll, DefaultPoll)
	cfg.Sweep = cmp.Or(cfg.Sweep, DefaultSweep)
	cfg.Root = filepath.Clean(cfg.Root)
	w := &Watcher{
		cfg:     cfg,
		log:     cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		changes: make(chan Change),
		watched: map[string]bool{},
		next:    Change{Paths: map[string]bool{}},
		gap:     true,
	}
	if cfg.PollOnly {
		return w
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("file changes are found by polling: no notifications", "root", cfg.Root, "error", err)
		return w
	}
	w.notify = notify
	w.watchAll()
	return w
}

// Changes returns the channel on which Run reports.
func (w *Watcher) Changes() <-chan Change { return w.changes }

// Run reports changes until ctx is done; then it returns nil, with everything
// stopped. Whoever receives from Changes may stop doing so at any time.
func (w *Watcher) Run(ctx context.Context) error {
	var events chan fsnotify.Event
	var failures chan error
	if w.notify != nil {
		events, failures = w.notify.Events, w.notify.Errors
		// Close can only fail when the watcher is closed already.
		defer func() { _ = w.notify.Close() }()
	}
	compare := time.NewTimer(w.interval())
	defer compare.Stop()
	debounce := time.NewTimer(w.cfg.Debounce)
	debounce.Stop()
	defer debounce.Stop()
	var first time.Time // when the oldest change in next came; zero: none
	var out chan Change // nil until next is due
	for {
		gap := w.gap
		select {
		case <-ctx.Done():
			return nil
		case event := <-events:
			if !w.take(event) || out != nil {
				break
			}
			if first.IsZero() {
				first = time.Now()
			}
			// A file that is written all the time must not hold up the others.
			debounce.Reset(min(w.cfg.Debounce, maxDebounces*w.cfg.Debounce-time.Since(first)))
		case err := <-failures:
			// Most likely the queue of the kernel ran over.
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				w.log.Warn("watching files", "root", w.cfg.Root, "error", err)
			}
			w.watchAll()
			w.next.All, out = true, w.changes
		case <-compare.C:
			if w.gap {
				w.watchAll()
			}
			w.next.All, out = true, w.changes
			compare.Reset(w.interval())
		case <-debounce.C:
			out = w.changes
		case out <- w.next:
			w.next, first, out = Change{Paths: map[string]bool{}}, time.Time{}, nil
		}
		if gap != w.gap {
			compare.Reset(w.interval())
		}
	}
}

// maxDebounces bounds how often one wait can be prolonged by further changes.
const maxDebounces = 4

func (w *Watcher) interval() time.Duration {
	if w.gap {
		return w.cfg.Poll
	}
	return w.cfg.Sweep
}

// take notes the event and reports whether it can matter.
func (w *Watcher) take(event fsnotify.Event) bool {
	if event.Op == fsnotify.Chmod {
		return false
	}
	name := filepath.Clean(event.Name)
	if event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
		w.forget(name)
	}
	if event.Has(fsnotify.Create) {
		w.watch(name)
	}
	relative, err := filepath.Rel(w.cfg.Root, name)
	if err != nil || strings.HasPrefix(filepath.Base(name), "..") || relative == "." {
		// The folder itself, or the link that a mounted Kubernetes volume
		// exchanges: all files change with it, none has an event.
		w.next.All = true
		return true
	}
	w.next.Paths[filepath.ToSlash(relative)] = true
	return true
}

// watchAll watches every folder there is.
func (w *Watcher) watchAll() {
	if w.notify == nil {
		return
	}
	w.gap = false
	w.watch(w.cfg.Root)
}

// watch watches name, if it is a folder, and the folders in it. It watches each
// before looking into it, so that nothing made meanwhile is missed.
func (w *Watcher) watch(name string) {
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		if name == w.cfg.Root {
			w.gap = true
		}
		return
	}
	if name != w.cfg.Root && strings.HasPrefix(filepath.Base(name), ".") {
		return
	}
	if !w.watched[name] {
		if err := w.notify.Add(name); err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				w.gap = true
				w.log.Warn("file changes are found by polling: a folder cannot be watched", "folder", name, "error", err)
			}
			return
		}
		w.watched[name] = true
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return // the reader of the files reports it
	}
	for _, entry := range entries {
		if entry.IsDir() {
			w.watch(filepath.Join(name, entry.Name()))
		}
	}
}

// forget stops watching a folder that has gone, and what was in it: a renamed
// folder would go on reporting under its old name.
func (w *Watcher) forget(name string) {
	below := name + string(filepath.Separator)
	for folder := range w.watched {
		if folder == name || strings.HasPrefix(folder, below) {
			// It fails when the kernel has dropped the watch already.
			_ = w.notify.Remove(folder)
			delete(w.watched, folder)
		}
	}
	if name == w.cfg.Root {
		w.gap = true
	}
}
