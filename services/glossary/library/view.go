package library

import (
	"context"
	"errors"
	"slices"

	"github.com/millrace/millrace/services/glossary/folder"
	"github.com/millrace/millrace/services/glossary/index"
)

// View is the glossary at one moment. It does not change, except that its index
// follows the library and is closed when a rebuild has replaced it.
type View struct {
	snapshot   *folder.Snapshot
	index      *index.Index
	superseded chan struct{} // closed by the owner when the next view is served

	terms, notes []string
	languages    map[folder.Kind]map[string][]string
}

func newView(snapshot *folder.Snapshot, ix *index.Index) *View {
	v := &View{
		snapshot:   snapshot,
		index:      ix,
		superseded: make(chan struct{}),
		languages:  map[folder.Kind]map[string][]string{folder.Term: {}, folder.Note: {}},
	}
	for key := range snapshot.Entries {
		languages := v.languages[key.Kind]
		if languages[key.Slug] == nil {
			if key.Kind == folder.Term {
				v.terms = append(v.terms, key.Slug)
			} else {
				v.notes = append(v.notes, key.Slug)
			}
		}
		languages[key.Slug] = append(languages[key.Slug], key.Lang)
	}
	for _, languages := range v.languages {
		for _, list := range languages {
			slices.Sort(list) // English, the default, comes first
		}
	}
	slices.Sort(v.terms)
	slices.Sort(v.notes)
	return v
}

// Superseded returns a channel that is closed when a newer view is served.
func (v *View) Superseded() <-chan struct{} { return v.superseded }

// Terms returns the slugs of all terms, sorted. The slice must not be changed.
func (v *View) Terms() []string { return v.terms }

// Notes returns the slugs of all notes, sorted. The slice must not be changed.
func (v *View) Notes() []string { return v.notes }

// Languages returns in which languages there is a document, the default
// language first; none if there is no such document.
func (v *View) Languages(kind folder.Kind, slug string) []string {
	return v.languages[kind][slug]
}

// Entry returns a document; lang may be empty for the default language, which
// is English if there is such a text and the other one if not.
func (v *View) Entry(kind folder.Kind, slug, lang string) (folder.Entry, bool) {
	if lang == "" {
		languages := v.languages[kind][slug]
		if len(languages) == 0 {
			return folder.Entry{}, false
		}
		lang = languages[0]
	}
	entry, ok := v.snapshot.Entries[folder.Key{Kind: kind, Slug: slug, Lang: lang}]
	return entry, ok
}

// Problems returns what is wrong with the files, sorted by file and line. The
// slice must not be changed.
func (v *View) Problems() []folder.Problem { return v.snapshot.Problems }

// Named returns the terms whose slug, title or alias is name in any spelling,
// slugs first, then titles, then aliases.
func (v *View) Named(name string) []index.Key { return v.index.Exact(name) }

// Found is a term that a search has found.
type Found struct {
	folder.Entry
	Score float64
	// Snippet is the sentence that fits the query best.
	Snippet string
}

// snippetLength is the longest snippet, in characters.
const snippetLength = 240

// Search returns the best hits, and how many there are in all. It must not be
// called before Ready.
func (l *Library) Search(ctx context.Context, q index.Query) (total int, found []Found, err error) {
	for {
		view := l.view.Load()
		result, err := view.index.Search(ctx, q)
		if errors.Is(err, index.ErrClosed) {
			// A rebuild has replaced the index since we took the view.
			if l.view.Load() != view {
				continue
			}
			return 0, nil, ErrStopped
		}
		if err != nil {
			return 0, nil, err
		}
		// The index may be a moment ahead of the view.
		view = l.view.Load()
		for _, hit := range result.Hits {
			if entry, ok := view.Entry(folder.Term, hit.Slug, hit.Lang); ok {
				snippet := l.text.Snippet(hit.Lang, entry.Body, q.Text, snippetLength)
				found = append(found, Found{entry, hit.Score, snippet})
			}
		}
		return result.Total, found, nil
	}
}
