package folder

import (
	"cmp"
	"maps"
	"slices"
)

// Key names a document: a slug is unique within a language, among the terms as
// among the notes.
type Key struct {
	Kind Kind
	Slug string
	Lang string
}

// Key returns the name of the document.
func (d *Document) Key() Key { return Key{d.Kind, d.Slug, d.Lang} }

// Entry is a document that is served.
type Entry struct {
	*Document
	// Path is the file it was read from.
	Path string
	// Related are the related slugs that exist. It hides Document.Related,
	// which may name others.
	Related []string
}

// Snapshot is a consistent view of all files. It is never changed.
type Snapshot struct {
	// Entries by key.
	Entries map[Key]Entry
	// Problems of all files, sorted by file and line.
	Problems []Problem
}

// Resolve checks the files against each other. Of two files with the same slug
// and language the one whose path sorts lower is served and the other reported.
// A related slug that no term has is reported and left out; its document is
// served, so that deleting one term does not take others with it.
func Resolve(files map[string]File) *Snapshot {
	snapshot := &Snapshot{Entries: make(map[Key]Entry, len(files))}
	slugs := make(map[string]bool, len(files))
	for _, path := range slices.Sorted(maps.Keys(files)) {
		file := files[path]
		snapshot.Problems = append(snapshot.Problems, file.Problems...)
		doc := file.Document
		if doc == nil {
			continue
		}
		if first, taken := snapshot.Entries[doc.Key()]; taken {
			snapshot.fail(path, doc.slugLine, "the slug \""+doc.Slug+"\" with lang \""+doc.Lang+"\" is already taken by "+first.Path)
			continue
		}
		snapshot.Entries[doc.Key()] = Entry{doc, path, nil}
		if doc.Kind == Term {
			slugs[doc.Slug] = true
		}
	}
	for key, entry := range snapshot.Entries {
		entry.Related = entry.Document.Related
		for i, slug := range entry.Document.Related {
			if slugs[slug] && slug != entry.Slug {
				continue
			}
			if slugs[slug] {
				snapshot.fail(entry.Path, entry.relatedLines[i], "the related slug \""+slug+"\" is the term itself")
			} else {
				snapshot.fail(entry.Path, entry.relatedLines[i], "the related slug \""+slug+"\" is not a term of this glossary")
			}
			entry.Related = slices.DeleteFunc(slices.Clone(entry.Related), func(s string) bool { return s == slug })
		}
		snapshot.Entries[key] = entry
	}
	slices.SortStableFunc(snapshot.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), a.Line-b.Line, cmp.Compare(a.Message, b.Message))
	})
	return snapshot
}

func (s *Snapshot) fail(file string, line int, message string) {
	s.Problems = append(s.Problems, Problem{file, line, message})
}
