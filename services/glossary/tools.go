package glossary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/services/glossary/folder"
	"github.com/millrace/millrace/services/glossary/index"
	"github.com/millrace/millrace/services/glossary/library"
	"github.com/millrace/millrace/worker"
)

// Limits of search_term. The schema below names them too.
const (
	defaultHits = 10
	maxHits     = 50
)

// The input schemas say more than can be inferred from the types: limits and
// the choice of languages.
const (
	searchSchema = `{
		"type": "object",
		"properties": {
			"query": {
				"type": "string",
				"minLength": 1,
				"maxLength": 1000,
				"description": "What to look for: a term or some words, in English or Polish. Case, diacritics and inflection do not matter."
			},
			"limit": {
				"type": "integer",
				"minimum": 1,
				"maximum": 50,
				"default": 10,
				"description": "The most hits to return."
			},
			"lang": {
				"type": "string",
				"enum": ["pl", "en"],
				"description": "Only texts in this language; without it, both."
			}
		},
		"required": ["query"],
		"additionalProperties": false
	}`
	getSchema = `{
		"type": "object",
		"properties": {
			"slug": {
				"type": "string",
				"minLength": 1,
				"maxLength": 200,
				"description": "The slug of the term, as search_term returns it; its title or an alias will do."
			},
			"lang": {
				"type": "string",
				"enum": ["pl", "en"],
				"description": "The language of the text; without it English if there is an English text."
			}
		},
		"required": ["slug"],
		"additionalProperties": false
	}`
	reindexSchema = `{"type": "object", "additionalProperties": false}`
)

func (g *Glossary) addTools() {
	worker.AddTool(g.worker, worker.Tool{
		Name:        "search_term",
		Title:       "Search the glossary",
		Description: "Searches the glossary of agents and the Model Context Protocol, in English and Polish. Returns the best hits with a sentence of each; get_term returns the whole text.",
		InputSchema: json.RawMessage(searchSchema),
		Annotations: &worker.Annotations{ReadOnlyHint: new(true), IdempotentHint: new(true), OpenWorldHint: new(false)},
	}, g.searchTerm)
	worker.AddTool(g.worker, worker.Tool{
		Name:        "get_term",
		Title:       "Read a term",
		Description: "Returns one term of the glossary: its text, other names, related terms and source.",
		InputSchema: json.RawMessage(getSchema),
		Annotations: &worker.Annotations{ReadOnlyHint: new(true), IdempotentHint: new(true), OpenWorldHint: new(false)},
	}, g.getTerm)
	worker.AddTool(g.worker, worker.Tool{
		Name:        "reindex",
		Title:       "Rebuild the index",
		Description: "Reads all files of the glossary again and rebuilds the search index. Changed files are noticed without it; it reports progress and can be cancelled, and the old index serves until the new one is complete.",
		InputSchema: json.RawMessage(reindexSchema),
		Annotations: &worker.Annotations{ReadOnlyHint: new(false), DestructiveHint: new(false), IdempotentHint: new(true), OpenWorldHint: new(false)},
		Timeout:     time.Hour,
	}, g.reindex)
}

type searchInput struct {
	Query string `json:"query"`
	Limit int    `json:"limit"`
	Lang  string `json:"lang"`
}

type searchOutput struct {
	Query string `json:"query" jsonschema:"the query as it was asked"`
	Total int    `json:"total" jsonschema:"how many texts match, beyond the hits listed"`
	Hits  []hit  `json:"hits" jsonschema:"the best matches, best first"`
}

type hit struct {
	Slug    string  `json:"slug"`
	Title   string  `json:"title"`
	Lang    string  `json:"lang"`
	Score   float64 `json:"score" jsonschema:"compares hits of one search only"`
	Snippet string  `json:"snippet" jsonschema:"the sentence that fits the query best"`
	URI     string  `json:"uri" jsonschema:"the resource with the whole text"`
}

// Content implements worker.Contenter.
func (out searchOutput) Content() []worker.Content {
	var b strings.Builder
	if len(out.Hits) == 0 {
		fmt.Fprintf(&b, "Nothing in the glossary matches %q.", out.Query)
	} else {
		fmt.Fprintf(&b, "%d of %d matches for %q:\n", len(out.Hits), out.Total, out.Query)
	}
	for i, hit := range out.Hits {
		fmt.Fprintf(&b, "\n%d. %s (%s, %s)\n   %s\n", i+1, hit.Title, hit.Lang, hit.URI, hit.Snippet)
	}
	return []worker.Content{worker.Text(b.String())}
}

func (g *Glossary) searchTerm(ctx context.Context, _ *worker.Call, in searchInput) (searchOutput, error) {
	if strings.TrimSpace(in.Query) == "" {
		return searchOutput{}, worker.InvalidArguments(`the property "query" is blank: it must hold at least one word`)
	}
	if in.Limit == 0 {
		in.Limit = defaultHits
	}
	total, found, err := g.library.Search(ctx, index.Query{Text: in.Query, Lang: in.Lang, Limit: min(in.Limit, maxHits)})
	if err != nil {
		return searchOutput{}, g.failed("search_term", err)
	}
	out := searchOutput{Query: in.Query, Total: total, Hits: make([]hit, len(found))}
	view := g.library.View()
	for i, f := range found {
		uri := termScheme + f.Slug
		if len(view.Languages(folder.Term, f.Slug)) > 0 { // it may have gone since
			uri = termURI(view, f.Slug, f.Lang)
		}
		out.Hits[i] = hit{f.Slug, f.Title, f.Lang, f.Score, f.Snippet, uri}
	}
	return out, nil
}

type getInput struct {
	Slug string `json:"slug"`
	Lang string `json:"lang"`
}

type getOutput struct {
	Slug      string   `json:"slug"`
	Title     string   `json:"title"`
	Lang      string   `json:"lang" jsonschema:"the language of this text"`
	Aliases   []string `json:"aliases" jsonschema:"other names of the term"`
	Related   []string `json:"related" jsonschema:"slugs of related terms"`
	Source    string   `json:"source" jsonschema:"where the facts can be checked"`
	Body      string   `json:"body" jsonschema:"the text, in Markdown"`
	URI       string   `json:"uri" jsonschema:"the resource with this text"`
	Languages []string `json:"languages" jsonschema:"the languages there is a text in"`

	page string // the text for people
}

// Content implements worker.Contenter.
func (out getOutput) Content() []worker.Content {
	return []worker.Content{worker.Text(out.page)}
}

func (g *Glossary) getTerm(ctx context.Context, _ *worker.Call, in getInput) (getOutput, error) {
	view := g.library.View()
	slug, lang, err := g.find(ctx, view, in)
	if err != nil {
		return getOutput{}, err
	}
	entry, ok := view.Entry(folder.Term, slug, lang)
	languages := view.Languages(folder.Term, slug)
	if !ok {
		return getOutput{}, fmt.Errorf("the term %q has no text in the language %q, only in %q", slug, lang, languages[0])
	}
	return getOutput{
		Slug:      entry.Slug,
		Title:     entry.Title,
		Lang:      entry.Lang,
		Aliases:   entry.Aliases,
		Related:   entry.Related,
		Source:    entry.Source,
		Body:      entry.Body,
		URI:       termURI(view, entry.Slug, entry.Lang),
		Languages: languages,
		page:      page(entry),
	}, nil
}

// find returns the slug of an existing term and the language to serve, empty
// for the default one: the slug itself in any spelling, or else the term that
// has the name as title or alias. Who asks by a name that only one language has
// gets that language.
func (g *Glossary) find(ctx context.Context, view *library.View, in getInput) (slug, lang string, err error) {
	name := strings.TrimPrefix(in.Slug, termScheme) // models pass URIs too
	slug = strings.ReplaceAll(index.Fingerprint(name), " ", "-")
	if len(view.Languages(folder.Term, slug)) > 0 {
		return slug, in.Lang, nil
	}
	for _, key := range view.Named(name) {
		if len(view.Languages(folder.Term, key.Slug)) == 0 {
			continue // the index is a moment ahead of the view
		}
		if in.Lang != "" {
			return key.Slug, in.Lang, nil
		}
		return key.Slug, key.Lang, nil
	}
	message := fmt.Sprintf("there is no term %q", in.Slug)
	if near := g.near(ctx, view, name); len(near) > 0 {
		message += "; did you mean " + strings.Join(near, ", ") + "?"
	} else {
		message += "; search_term finds terms by words"
	}
	return "", "", errors.New(message)
}

// maxNear is how many terms are suggested for one that does not exist.
const maxNear = 5

// near returns slugs that are spelt like name, then such that a search finds.
func (g *Glossary) near(ctx context.Context, view *library.View, name string) []string {
	near := similar(strings.ReplaceAll(index.Fingerprint(name), " ", "-"), view.Terms(), maxNear)
	if len(near) == maxNear {
		return near
	}
	// Suggestions are a courtesy: without them the answer is still right.
	_, found, _ := g.library.Search(ctx, index.Query{Text: shortened(name), Limit: 2 * maxNear})
	seen := map[string]bool{}
	for _, slug := range near {
		seen[slug] = true
	}
	for _, f := range found {
		if !seen[f.Slug] && len(near) < maxNear {
			seen[f.Slug] = true
			near = append(near, f.Slug)
		}
	}
	return near
}

// shortened bounds the work for a name that cannot be a term anyway.
func shortened(name string) string {
	const longest = 100
	if utf8.RuneCountInString(name) <= longest {
		return name
	}
	return string([]rune(name)[:longest])
}

type reindexOutput struct {
	Terms      int              `json:"terms" jsonschema:"how many terms are served"`
	Notes      int              `json:"notes" jsonschema:"how many notes are served"`
	Problems   []folder.Problem `json:"problems" jsonschema:"what is wrong with the files, 100 at most"`
	DurationMS int64            `json:"duration_ms" jsonschema:"how long it took, in milliseconds"`

	more int // problems beyond those listed
}

// Content implements worker.Contenter.
func (out reindexOutput) Content() []worker.Content {
	var b strings.Builder
	fmt.Fprintf(&b, "Indexed in %d ms: %s and %s.", out.DurationMS, count(out.Terms, "term"), count(out.Notes, "note"))
	if len(out.Problems) > 0 {
		fmt.Fprintf(&b, "\n\nThe files have %s:\n", count(len(out.Problems)+out.more, "problem"))
	}
	for _, problem := range out.Problems {
		b.WriteString("\n- " + problem.String())
	}
	if out.more > 0 {
		fmt.Fprintf(&b, "\n- and %d more", out.more)
	}
	return []worker.Content{worker.Text(b.String())}
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// maxProblems bounds the result; the log has all of them.
const maxProblems = 100

type reindexInput struct{}

func (g *Glossary) reindex(ctx context.Context, call *worker.Call, _ reindexInput) (reindexOutput, error) {
	start := time.Now()
	view, err := g.library.Rebuild(ctx, func(done, total int) {
		call.Progress(float64(done), float64(total), fmt.Sprintf("%d of %d files", done, total))
	})
	if err != nil {
		return reindexOutput{}, g.failed("reindex", err)
	}
	problems := view.Problems()
	out := reindexOutput{
		Terms:      len(view.Terms()),
		Notes:      len(view.Notes()),
		Problems:   problems[:min(len(problems), maxProblems)],
		DurationMS: time.Since(start).Milliseconds(),
	}
	out.more = len(problems) - len(out.Problems)
	return out, nil
}

// failed logs a fault inside and hides what it says, for the text of an error
// that a tool returns is shown to the client. The end of the call may be told.
func (g *Glossary) failed(tool string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, library.ErrStopped) {
		return err
	}
	g.log.Error("a tool failed", "tool", tool, "error", err)
	return &worker.ProtocolError{Message: "internal error"}
}
