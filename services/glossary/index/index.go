// Package index is the full-text index of the glossary: ranked search over
// titles, aliases and bodies in Polish and English, in memory.
package index

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/blevesearch/bleve/v2"
	"github.com/blevesearch/bleve/v2/document"
	"github.com/blevesearch/bleve/v2/index/scorch"
	"github.com/blevesearch/bleve/v2/mapping"
	"github.com/blevesearch/bleve/v2/search/query"
	bleveindex "github.com/blevesearch/bleve_index_api"
)

// ErrClosed is returned by an Index after Close.
var ErrClosed = errors.New("the index is closed")

// Weights of the fields: a word in a title says more than one in a body.
const (
	titleBoost = 3
	aliasBoost = 2
	bodyBoost  = 1
)

// maxWords bounds the work of one query; words after it are not looked at.
const maxWords = 32

// batchSize documents are analysed and added at a time.
const batchSize = 500

// maxSegments is how many changes are taken before Fragmented asks for a fresh
// index: in memory, bleve never joins the segments that changes leave behind,
// and every search visits all of them.
const maxSegments = 128

// Key names a document of the index.
type Key struct{ Slug, Lang string }

// Doc is what can be found of a document. Lang must be "en" or "pl".
type Doc struct {
	Key
	Title   string
	Aliases []string
	Body    string
}

// Query asks for the documents that match a text.
type Query struct {
	Text string
	// Lang restricts the search to one language; empty: all.
	Lang string
	// Limit is the most hits to return; values below 1 count as 1.
	Limit int
}

// Hit is one document that was found.
type Hit struct {
	Key
	// Score compares hits of one search: what the words make of it, from 0 to
	// 1 for the best, and added to that 3 if the query is the slug, 2 if it is
	// the title and 1 if it is an alias.
	Score float64
}

// Result holds the best hits, best first, and how many there are in all.
type Result struct {
	Total int
	Hits  []Hit
}

// Index is safe for concurrent use. It must be closed.
type Index struct {
	text *Text

	mu sync.RWMutex // held for reading during a search, so that Close waits
	// ix is nil after Close.
	ix bleve.Index
	// exact finds documents by the fingerprints of slug, title and aliases.
	exact    map[string]map[Key]int
	known    map[Key][]string // the fingerprints of a document, to remove them
	segments int
}

// New returns an empty index that analyses with text.
func New(text *Text) (*Index, error) {
	m := mapping.NewIndexMapping()
	m.ScoringModel = bleveindex.BM25Scoring
	ix, err := bleve.NewUsing("", m, scorch.Name, scorch.Name, nil)
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	return &Index{text: text, ix: ix, exact: map[string]map[Key]int{}, known: map[Key][]string{}}, nil
}

// Close waits for running searches and frees the index. It may be called again.
func (x *Index) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ix == nil {
		return nil
	}
	err := x.ix.Close()
	x.ix = nil
	return err
}

// Len returns the number of documents.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.known)
}

// Fragmented reports that so many changes were made that searches become slow
// and a fresh index should be built.
func (x *Index) Fragmented() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.segments > maxSegments
}

// Apply removes and then adds documents; adding replaces a document of the same
// key. It returns early, with some of the changes made, when ctx is done. It
// must not be called concurrently with itself.
func (x *Index) Apply(ctx context.Context, add []Doc, remove []Key) error {
	for len(add) > 0 || len(remove) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		var removing []Key
		var adding []Doc
		removing, remove = head(remove)
		if len(removing) < batchSize { // removals first: a key may be in both
			adding, add = head(add)
		}
		if err := x.apply(adding, removing); err != nil {
			return err
		}
	}
	return nil
}

func head[T any](s []T) (first, rest []T) {
	n := min(len(s), batchSize)
	return s[:n], s[n:]
}

func (x *Index) apply(add []Doc, remove []Key) error {
	x.mu.RLock()
	ix := x.ix
	x.mu.RUnlock()
	if ix == nil {
		return ErrClosed
	}
	batch := ix.NewBatch()
	for _, key := range remove {
		batch.Delete(key.id())
	}
	for _, doc := range add {
		if err := batch.IndexAdvanced(x.document(doc)); err != nil {
			return fmt.Errorf("index: %w", err)
		}
	}
	if err := ix.Batch(batch); err != nil {
		return fmt.Errorf("index: %w", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.segments++
	for _, key := range remove {
		x.forgetLocked(key)
	}
	for _, doc := range add {
		x.forgetLocked(doc.Key)
		x.learnLocked(doc)
	}
	return nil
}

func (k Key) id() string { return k.Lang + "/" + k.Slug }

func keyOf(id string) Key {
	// Languages have two letters.
	return Key{Lang: id[:2], Slug: id[3:]}
}

// document builds the fields itself, without the mapping: so a field can have
// an analyzer that is a value of ours and not a name in a global registry.
func (x *Index) document(doc Doc) *document.Document {
	d := document.NewDocument(doc.id())
	var aliases []byte
	for _, alias := range doc.Aliases {
		aliases = append(append(aliases, alias...), '\n')
	}
	a := analyzer{x.text, doc.Lang}
	for _, f := range []struct {
		name  string
		value []byte
	}{{"title", []byte(doc.Title)}, {"alias", aliases}, {"body", []byte(doc.Body)}} {
		d.AddField(document.NewTextFieldCustom(doc.Lang+"."+f.name, nil, f.value, bleveindex.IndexField, a))
	}
	return d
}

// Ranks of what a query can be equal to.
const (
	rankAlias = iota + 1
	rankTitle
	rankSlug
)

func (x *Index) learnLocked(doc Doc) {
	learn := func(name string, rank int) {
		fingerprint := Fingerprint(name)
		if fingerprint == "" {
			return
		}
		if x.exact[fingerprint] == nil {
			x.exact[fingerprint] = map[Key]int{}
		}
		x.exact[fingerprint][doc.Key] = max(x.exact[fingerprint][doc.Key], rank)
		x.known[doc.Key] = append(x.known[doc.Key], fingerprint)
	}
	learn(doc.Slug, rankSlug)
	learn(doc.Title, rankTitle)
	for _, alias := range doc.Aliases {
		learn(alias, rankAlias)
	}
}

func (x *Index) forgetLocked(key Key) {
	for _, fingerprint := range x.known[key] {
		delete(x.exact[fingerprint], key)
		if len(x.exact[fingerprint]) == 0 {
			delete(x.exact, fingerprint)
		}
	}
	delete(x.known, key)
}

// Exact returns the documents whose slug, title or alias is name up to case,
// diacritics and punctuation: slugs before titles before aliases, then by key.
func (x *Index) Exact(name string) []Key {
	x.mu.RLock()
	defer x.mu.RUnlock()
	hits := x.exactLocked(name, "")
	keys := make([]Key, len(hits))
	for i, hit := range hits {
		keys[i] = hit.Key
	}
	return keys
}

// exactLocked returns the exact hits with their rank as score.
func (x *Index) exactLocked(name, lang string) []Hit {
	var hits []Hit
	for key, rank := range x.exact[Fingerprint(name)] {
		if lang == "" || lang == key.Lang {
			hits = append(hits, Hit{key, float64(rank)})
		}
	}
	slices.SortFunc(hits, byScore)
	return hits
}

// byScore orders hits best first; equal ones by key, so that the order of a
// search does not change from call to call.
func byScore(a, b Hit) int {
	return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Slug, b.Slug), cmp.Compare(a.Lang, b.Lang))
}

// Search returns the documents that match at least one word of the query. It
// returns ErrClosed after Close, and the error of ctx when that is done first.
func (x *Index) Search(ctx context.Context, q Query) (Result, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.ix == nil {
		return Result{}, ErrClosed
	}
	limit := max(q.Limit, 1)
	exact := x.exactLocked(q.Text, q.Lang)
	clauses := x.clauses(q)
	if len(exact) > 0 {
		// A name of stop words only is found by its identifier.
		ids := make([]string, len(exact))
		for i, hit := range exact {
			ids[i] = hit.id()
		}
		clauses = append(clauses, query.NewDocIDQuery(ids))
	}
	if len(clauses) == 0 {
		return Result{}, nil
	}
	request := bleve.NewSearchRequestOptions(query.NewDisjunctionQuery(clauses), limit+len(exact), 0, false)
	request.SortBy([]string{"-_score", "_id"})
	found, err := x.ix.SearchInContext(ctx, request)
	if err != nil {
		if ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		return Result{}, fmt.Errorf("index: %w", err)
	}
	scores := make(map[Key]float64, len(found.Hits)+len(exact))
	for _, hit := range found.Hits {
		// Only now are scores comparable with what is added below.
		scores[keyOf(hit.ID)] = hit.Score / max(found.MaxScore, math.SmallestNonzeroFloat64)
	}
	for _, hit := range exact {
		scores[hit.Key] += hit.Score
	}
	hits := make([]Hit, 0, len(scores))
	for key, score := range scores {
		hits = append(hits, Hit{key, score})
	}
	slices.SortFunc(hits, byScore)
	return Result{Total: int(found.Total), Hits: hits[:min(limit, len(hits))]}, nil
}

// clauses returns one clause a word, and one for all words together, so that a
// text that has all of them comes before one that has some in a better place.
func (x *Index) clauses(q Query) []query.Query {
	langs := []string{english, polish}
	if q.Lang != "" {
		langs = []string{q.Lang}
	}
	var clauses []query.Query
	for i, word := range words(q.Text) {
		if i == maxWords {
			break
		}
		var terms []query.Query
		for _, lang := range langs {
			forms := x.text.forms(lang, word)
			// All words weigh the same, however many forms they have.
			boost := 1 / float64(max(1, len(forms)))
			for i, form := range forms {
				terms = append(terms, term(lang+".body", form, boost*bodyBoost))
				// Titles and aliases are in the base form, so a longer one that
				// happens to be inflected as the query is no better than others.
				if i > 0 || len(forms) == 1 {
					terms = append(terms,
						term(lang+".title", form, boost*titleBoost),
						term(lang+".alias", form, boost*aliasBoost))
				}
			}
		}
		if len(terms) > 0 {
			clauses = append(clauses, query.NewDisjunctionQuery(terms))
		}
	}
	if len(clauses) > 1 {
		clauses = append(clauses, query.NewConjunctionQuery(slices.Clone(clauses)))
	}
	return clauses
}

func term(field, text string, boost float64) query.Query {
	q := query.NewTermQuery(text)
	q.SetField(field)
	q.SetBoost(boost)
	return q
}
