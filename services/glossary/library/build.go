package library

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/services/glossary/folder"
	"github.com/millrace/millrace/services/glossary/index"
	"github.com/millrace/millrace/services/glossary/watch"
)

// ProgressFunc is told how many of the files are done. It is called by the
// goroutine that builds, in order.
type ProgressFunc func(done, total int)

// flushAt is how many documents are given to the index together: each time
// makes one segment, and fewer are faster to search.
const flushAt = 500

// Steps of progress: about twenty, but at least one in 200 files, so that a
// large folder does not look stuck.
const (
	progressSteps = 20
	longestStep   = 200
)

// built is what a build has read and made.
type built struct {
	files map[string]folder.File
	index *index.Index
}

func (b *built) snapshot() *folder.Snapshot { return folder.Resolve(b.files) }

// build reads all files and makes a new index of them. It touches nothing of
// the library that changes, so any goroutine may run it.
func (l *Library) build(ctx context.Context, progress ProgressFunc) (*built, error) {
	ix, err := index.New(l.text)
	if err != nil {
		return nil, fmt.Errorf("library: %w", err)
	}
	files, err := l.fill(ctx, ix, progress)
	if err != nil {
		_ = ix.Close() // the reason why it is not wanted is the better error
		return nil, err
	}
	return &built{files, ix}, nil
}

func (l *Library) fill(ctx context.Context, ix *index.Index, progress ProgressFunc) (map[string]folder.File, error) {
	listed, problems := folder.List(l.cfg.FS, ".")
	files := make(map[string]folder.File, len(listed)+len(problems))
	for _, problem := range problems {
		files[problem.File] = folder.File{Path: problem.File, Problems: []folder.Problem{problem}}
	}
	total := len(listed)
	report := func(done int) {
		if progress != nil && total > 0 {
			progress(done, total)
		}
	}
	step := min(total/progressSteps+1, longestStep)
	// In the order of paths, the first of two files with one key is served,
	// as Resolve decides.
	seen := make(map[folder.Key]bool, total)
	var docs []index.Doc
	report(0)
	for i, path := range listed {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		file, err := folder.Read(l.cfg.FS, path, l.cfg.MaxFileBytes)
		if err == nil { // otherwise it has gone since it was listed
			files[path] = file
		}
		if doc := file.Document; doc != nil && doc.Kind == folder.Term && !seen[doc.Key()] {
			seen[doc.Key()] = true
			docs = append(docs, indexed(doc))
		}
		if len(docs) >= flushAt {
			if err := ix.Apply(ctx, docs, nil); err != nil {
				return nil, err
			}
			docs = docs[:0]
		}
		if done := i + 1; done%step == 0 && done < total {
			report(done)
		}
	}
	if err := ix.Apply(ctx, docs, nil); err != nil {
		return nil, err
	}
	report(total)
	return files, nil
}

// Rebuild reads all files again into a new index, while the old one serves, and
// returns the view with it. If ctx is done first, the old view stays. One
// rebuild runs at a time; a second waits for its turn. progress may be nil.
func (l *Library) Rebuild(ctx context.Context, progress ProgressFunc) (*View, error) {
	select {
	case l.rebuilding <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.stopped:
		return nil, ErrStopped
	}
	defer func() { <-l.rebuilding }()

	if err := l.ask(ctx, func() { l.missed = &watch.Change{Paths: map[string]bool{}} }); err != nil {
		return nil, err
	}
	// The owner must learn how it ended even when the caller has gone.
	whatever := context.WithoutCancel(ctx)
	built, err := l.build(ctx, progress)
	if err != nil {
		if stopped := l.ask(whatever, func() { l.missed = nil }); stopped != nil {
			return nil, stopped
		}
		return nil, err
	}
	var view *View
	var failure error
	if stopped := l.ask(whatever, func() { view, failure = l.adopt(whatever, built) }); stopped != nil {
		failure = stopped
	}
	if failure != nil {
		_ = built.index.Close() // it never came into use
		return nil, failure
	}
	return view, nil
}

// adopt takes over what a rebuild has made, brought up to date with what has
// changed meanwhile.
func (l *Library) adopt(ctx context.Context, built *built) (*View, error) {
	missed := *l.missed
	l.missed = nil
	before := built.snapshot()
	old := l.files
	l.files = built.files
	after := before
	if l.refresh(missed) {
		after = folder.Resolve(l.files)
		if err := synchronise(ctx, built.index, before, after); err != nil {
			l.files = old
			return nil, err
		}
	}
	l.publish(after, built.index)
	return l.view.Load(), nil
}

// synchronise makes the index of one snapshot that of another.
func synchronise(ctx context.Context, ix *index.Index, from, to *folder.Snapshot) error {
	var add []index.Doc
	var remove []index.Key
	for key, entry := range to.Entries {
		if key.Kind == folder.Term && from.Entries[key].Document != entry.Document {
			add = append(add, indexed(entry.Document))
		}
	}
	for key := range from.Entries {
		if _, kept := to.Entries[key]; key.Kind == folder.Term && !kept {
			remove = append(remove, index.Key{Slug: key.Slug, Lang: key.Lang})
		}
	}
	return ix.Apply(ctx, add, remove)
}

func indexed(doc *folder.Document) index.Doc {
	return index.Doc{
		Key:     index.Key{Slug: doc.Slug, Lang: doc.Lang},
		Title:   doc.Title,
		Aliases: doc.Aliases,
		Body:    doc.Body,
	}
}
