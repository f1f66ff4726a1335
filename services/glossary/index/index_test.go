package index_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/services/glossary/index"
)

func TestMain(m *testing.M) {
	// bleve starts the goroutines of its analysis queue when it is imported.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/blevesearch/bleve_index_api.AnalysisWorker"))
}

func newText(t *testing.T) *index.Text {
	t.Helper()
	text, err := index.NewText()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func newIndex(t *testing.T, docs ...index.Doc) *index.Index {
	t.Helper()
	return newIndexOf(t, newText(t), docs...)
}

func newIndexOf(t *testing.T, text *index.Text, docs ...index.Doc) *index.Index {
	t.Helper()
	ix, err := index.New(text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ix.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	if err := ix.Apply(context.Background(), docs, nil); err != nil {
		t.Fatal(err)
	}
	return ix
}

func doc(slug, lang, title, body string, aliases ...string) index.Doc {
	return index.Doc{Key: index.Key{Slug: slug, Lang: lang}, Title: title, Aliases: aliases, Body: body}
}

// find returns the keys of the hits as "lang/slug".
func find(t *testing.T, ix *index.Index, text, lang string) []string {
	t.Helper()
	result, err := ix.Search(context.Background(), index.Query{Text: text, Lang: lang, Limit: 50})
	if err != nil {
		t.Fatalf("Search(%q): %v", text, err)
	}
	keys := []string{}
	for _, hit := range result.Hits {
		keys = append(keys, hit.Lang+"/"+hit.Slug)
	}
	if result.Total != len(keys) {
		t.Errorf("Search(%q): total %d with %d hits", text, result.Total, len(keys))
	}
	return keys
}

func TestFold(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"łączność":          "lacznosc",
		"ZAŻÓŁĆ GĘŚLĄ":      "zazolc gesla",
		"zaz\u0307o\u0301ł": "zazol", // decomposed
		"Straße":            "strasse",
		"Ærø đ":             "aero d",
		"plain":             "plain",
		"":                  "",
	} {
		if got := index.Fold(in); got != want {
			t.Errorf("Fold(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	for _, same := range [][]string{
		{"agent-readiness", "Agent readiness", " AGENT_READINESS ", "agent  readiness?"},
		{"lacznosc", "Łączność", "ŁĄCZNOŚĆ."},
		{"json rpc 2 0", "JSON-RPC 2.0"},
		{"", "?!", " "},
	} {
		for _, name := range same[1:] {
			if got := index.Fingerprint(name); got != index.Fingerprint(same[0]) {
				t.Errorf("%q and %q differ: %q", same[0], name, got)
			}
		}
	}
}

// TestForms lists forms of one word; a text with any of them must be found by
// every other, with and without diacritics.
func TestForms(t *testing.T) {
	t.Parallel()
	text := newText(t)
	for lang, words := range map[string]string{
		"pl": `łączność łączności łącznością
			sesja sesji sesję sesją sesje sesjach sesjami
			narzędzie narzędzia narzędzi narzędziem narzędziami narzędziach
			zasób zasobu zasoby zasobów zasobem zasobami
			serwer serwera serwerze serwery serwerów serwerem
			protokół protokołu protokole protokoły protokołów
			żądanie żądania żądań żądaniem żądaniami
			kolejka kolejki kolejkę kolejką kolejkami
			agent agenta agentem agenci agentów agentami
			bezstanowy bezstanowego bezstanowym bezstanowa bezstanowe
			wstrzyknięcie wstrzyknięcia wstrzyknięciem wstrzyknięciami
			okno okna oknem oknami
			krawędź krawędzi krawędzią krawędziami
			ograniczanie ograniczania ograniczaniem ograniczać ograniczenie ograniczeń ograniczeniami
			anulowanie anulowania anulować anulowany
			model modelu modele modeli modelem modelami`,
		"en": `session sessions session's
			tool tools tool’s
			annotation annotations annotated
			cancel cancelled cancelling cancels
			negotiation negotiations negotiating
			idempotent idempotency
			injection injections injected
			résumé resume`,
	} {
		for line := range strings.SplitSeq(words, "\n") {
			forms := strings.Fields(line)
			var docs []index.Doc
			for i, form := range forms {
				docs = append(docs, doc(fmt.Sprint("word-", i), lang, "Title", "first "+form+" last"))
			}
			ix := newIndexOf(t, text, docs...)
			for _, form := range forms {
				for _, query := range []string{form, index.Fold(form), strings.ToUpper(form)} {
					if found := find(t, ix, query, ""); len(found) != len(forms) {
						t.Errorf("%q finds %d of the %d forms %q", query, len(found), len(forms), forms)
					}
				}
			}
		}
	}
}

func TestRanking(t *testing.T) {
	t.Parallel()
	ix := newIndex(t,
		doc("body", "en", "Something", "A session is mentioned in a text that speaks of other things as well."),
		doc("alias", "en", "Other thing", "Nothing of the kind.", "session of work"),
		doc("title", "en", "Session of a client", "Nothing of the kind."),
		doc("session", "en", "The exact slug", "Nothing of the kind."),
		doc("exact-title", "en", "Session", "Nothing of the kind."),
		doc("exact-alias", "en", "Unlike", "Nothing of the kind.", "SESSION"),
		doc("both", "en", "Context", "Context and engineering."),
		doc("one", "en", "Window", "Context only."),
	)
	want := []string{"en/session", "en/exact-title", "en/exact-alias", "en/title", "en/alias", "en/body"}
	if got := find(t, ix, "Session", ""); !slices.Equal(got, want) {
		t.Errorf("order %q, want %q", got, want)
	}
	want = []string{"en/both", "en/one"}
	if got := find(t, ix, "engineering context", ""); !slices.Equal(got, want) {
		t.Errorf("order %q, want %q", got, want)
	}
}

func TestLanguages(t *testing.T) {
	t.Parallel()
	ix := newIndex(t, doc("agent", "en", "Agent", "A program."), doc("agent", "pl", "Agent", "Program."))
	for lang, want := range map[string][]string{"": {"en/agent", "pl/agent"}, "en": {"en/agent"}, "pl": {"pl/agent"}} {
		if got := find(t, ix, "agent", lang); !slices.Equal(got, want) {
			t.Errorf("lang %q: %q, want %q", lang, got, want)
		}
	}
}

func TestNothing(t *testing.T) {
	t.Parallel()
	ix := newIndex(t, doc("the-one", "en", "The", "It is what it is."), doc("agent", "pl", "Agent", "Program."))
	for _, query := range []string{"", " ", "?!", "zzz", "is it", "a\x00b", strings.Repeat("word ", 2000)} {
		if got := find(t, ix, query, ""); len(got) > 0 {
			t.Errorf("%.20q finds %q", query, got)
		}
	}
	// A name of stop words only is found by the exact match.
	if got := find(t, ix, "the", ""); !slices.Equal(got, []string{"en/the-one"}) {
		t.Errorf("the: %q", got)
	}
	if got := find(t, newIndex(t), "agent", ""); len(got) > 0 {
		t.Errorf("an empty index finds %q", got)
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	var docs []index.Doc
	for i := range 30 {
		docs = append(docs, doc(fmt.Sprintf("term-%02d", i), "en", "Term", "Common words."))
	}
	ix := newIndex(t, docs...)
	for limit, want := range map[int]int{-1: 1, 0: 1, 1: 1, 7: 7, 50: 30} {
		result, err := ix.Search(context.Background(), index.Query{Text: "common word", Limit: limit})
		if err != nil || len(result.Hits) != want || result.Total != 30 {
			t.Errorf("limit %d: %d hits of %d, %v; want %d of 30", limit, len(result.Hits), result.Total, err, want)
		}
	}
	// All of them are exact hits, so they are all looked at, and equal.
	result, err := ix.Search(context.Background(), index.Query{Text: "TERM", Limit: 3})
	if err != nil || result.Total != 30 || len(result.Hits) != 3 || result.Hits[0].Slug != "term-00" || result.Hits[2].Slug != "term-02" {
		t.Errorf("exact hits: %+v, %v", result, err)
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	ix := newIndex(t, doc("a", "en", "Old", "Earlier.", "first"), doc("b", "en", "Other", "Stays."))
	if err := ix.Apply(context.Background(), []index.Doc{doc("a", "en", "New", "Later.", "second")}, nil); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int{"old": 0, "earlier": 0, "first": 0, "new": 1, "later": 1, "second": 1, "stays": 1} {
		if got := find(t, ix, query, ""); len(got) != want {
			t.Errorf("%q finds %q, want %d", query, got, want)
		}
	}
	// A key in both lists is replaced.
	if err := ix.Apply(context.Background(), []index.Doc{doc("a", "en", "Newest", "x")}, []index.Key{{"a", "en"}, {"b", "en"}}); err != nil {
		t.Fatal(err)
	}
	if got := find(t, ix, "newest stays", ""); !slices.Equal(got, []string{"en/a"}) || ix.Len() != 1 {
		t.Errorf("found %q among %d", got, ix.Len())
	}
	if keys := ix.Exact("second"); len(keys) > 0 {
		t.Errorf("a name that is gone is known: %v", keys)
	}
}

func TestFragmented(t *testing.T) {
	t.Parallel()
	ix := newIndex(t)
	for i := range 1000 {
		if ix.Fragmented() {
			if i < 10 {
				t.Errorf("fragmented after %d changes", i)
			}
			return
		}
		if err := ix.Apply(context.Background(), []index.Doc{doc("a", "en", "Title", "Body.")}, nil); err != nil {
			t.Fatal(err)
		}
	}
	t.Error("not fragmented after 1000 changes")
}

func TestCancelAndClose(t *testing.T) {
	t.Parallel()
	ix := newIndex(t, doc("a", "en", "Title", "Body."))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := ix.Apply(ctx, []index.Doc{doc("b", "en", "Title", "Body.")}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Apply: %v", err)
	}
	if _, err := ix.Search(ctx, index.Query{Text: "title"}); !errors.Is(err, context.Canceled) {
		t.Errorf("Search: %v", err)
	}
	for range 2 {
		if err := ix.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ix.Search(context.Background(), index.Query{Text: "title"}); !errors.Is(err, index.ErrClosed) {
		t.Errorf("Search after Close: %v", err)
	}
	if err := ix.Apply(context.Background(), nil, []index.Key{{"a", "en"}}); !errors.Is(err, index.ErrClosed) {
		t.Errorf("Apply after Close: %v", err)
	}
}

func TestSnippet(t *testing.T) {
	t.Parallel()
	text := newText(t)
	body := "Pierwsze zdanie mówi\no **niczym**. Drugie mówi o `sesjach` klienta.\n\nTrzecie o sesji."
	for query, want := range map[string]string{
		"sesja klientów": "Drugie mówi o sesjach klienta.",
		"SESJA":          "Drugie mówi o sesjach klienta.",
		"trzeci":         "Trzecie o sesji.",
		"coś innego":     "Pierwsze zdanie mówi o niczym.",
		"":               "Pierwsze zdanie mówi o niczym.",
	} {
		if got := text.Snippet("pl", body, query, 100); got != want {
			t.Errorf("Snippet for %q: %q, want %q", query, got, want)
		}
	}
	long := text.Snippet("pl", strings.Repeat("żółć, ", 100), "", 50)
	if n := utf8.RuneCountInString(long); n > 50 || !strings.HasSuffix(long, "żółć…") {
		t.Errorf("a long sentence became %q", long)
	}
}
