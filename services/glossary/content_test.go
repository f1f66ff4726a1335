package glossary

import (
	"context"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/services/glossary/folder"
	"github.com/millrace/millrace/services/glossary/index"
	"github.com/millrace/millrace/services/glossary/library"
)

// embeddedLibrary runs a library of the embedded content.
func embeddedLibrary(t *testing.T) *library.Library {
	t.Helper()
	g, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.library.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	<-g.library.Ready()
	return g.library
}

func TestContent(t *testing.T) {
	t.Parallel()
	view := embeddedLibrary(t).View()
	for _, problem := range view.Problems() {
		t.Errorf("content/%v", problem)
	}
	if n := len(view.Terms()); n < 32 {
		t.Errorf("%d terms, want 32 at least", n)
	}
	for _, slug := range view.Terms() {
		if languages := view.Languages(folder.Term, slug); !slices.Equal(languages, []string{"en", "pl"}) {
			t.Errorf("%s is in %q only", slug, languages)
			continue
		}
		en, _ := view.Entry(folder.Term, slug, "en")
		pl, _ := view.Entry(folder.Term, slug, "pl")
		if !slices.Equal(en.Related, pl.Related) || len(en.Related) == 0 {
			t.Errorf("%s: related %q and %q", slug, en.Related, pl.Related)
		}
		for _, entry := range []folder.Entry{en, pl} {
			if entry.Path != path.Join("terms", entry.Lang, slug+".md") {
				t.Errorf("%s is at %s", slug, entry.Path)
			}
			if n := strings.Count(entry.Body, ". ") + strings.Count(entry.Body, ".\n"); n < 2 {
				t.Errorf("%s is very short: %d sentences", entry.Path, n+1)
			}
		}
	}
	for slug := range strings.FieldsSeq("agent-readiness context-engineering mcp json-rpc sse streamable-http stdio oauth-for-agents session") {
		if !slices.Contains(view.Terms(), slug) {
			t.Errorf("the term %s is missing", slug)
		}
	}
	if !slices.Equal(view.Notes(), []string{"projekt"}) {
		t.Errorf("notes %q", view.Notes())
	}
}

// TestNoForgottenFile finds files that would be embedded but are not served.
func TestNoForgottenFile(t *testing.T) {
	t.Parallel()
	err := fs.WalkDir(embedded, "content", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !folder.IsGlossaryFile(name) {
			t.Errorf("%s is no glossary file", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSearchContent(t *testing.T) {
	t.Parallel()
	l := embeddedLibrary(t)
	tests := []struct {
		query, lang string
		// want is the slug of the best hit; empty: nothing is found. A text
		// that begins with "en/" or "pl/" asks for the language too.
		want string
	}{
		// The slug, the title and the aliases, in any spelling.
		{"agent-readiness", "", "en/agent-readiness"},
		{"Agent Readiness", "", "agent-readiness"},
		{"context engineering", "", "context-engineering"},
		{"CONTEXT ENGINEERING", "", "context-engineering"},
		{"context_engineering", "", "context-engineering"},
		{"mcp", "", "mcp"},
		{"Model Context Protocol", "", "mcp"},
		{"json rpc", "", "json-rpc"},
		{"JSON-RPC 2.0", "", "json-rpc"},
		{"server-sent events", "en", "sse"},
		{"backpressure", "", "back-pressure"},
		{"subagent", "", "sub-agent"},
		{"MRTR", "", "multi-round-trip-request"},
		{"LLM", "", "large-language-model"},
		{"readOnlyHint", "", "tool-annotations"},
		{"429 too many requests", "", "rate-limiting"},
		// English, inflected or in other words.
		{"sessions", "en", "session"},
		{"guardrails for agents", "en", "guardrail"},
		{"embeddings", "en", "embedding"},
		{"cancelling requests", "en", "cancellation"},
		{"poisoned tools", "en", "tool-poisoning"},
		{"injecting prompts", "en", "prompt-injection"},
		{"balanced load", "en", "load-balancing"},
		{"negotiating capabilities", "en", "capability-negotiation"},
		{"an attack with the Origin header", "en", "dns-rebinding"},
		{"token bucket", "en", "rate-limiting"},
		{"Norm Hardy", "en", "confused-deputy"},
		{"asks the user with a form", "en", "elicitation"},
		// Polish, with and without diacritics, inflected.
		{"gotowość na agentów", "", "pl/agent-readiness"},
		{"gotowosc na agentow", "", "pl/agent-readiness"},
		{"GOTOWOŚĆ AGENTOWA", "", "pl/agent-readiness"},
		{"inżynieria kontekstu", "", "pl/context-engineering"},
		{"inzynierii kontekstu", "", "pl/context-engineering"},
		{"inżynierię kontekstów", "pl", "context-engineering"},
		{"sesja", "", "pl/session"},
		{"sesji", "", "pl/session"},
		{"sesję", "", "pl/session"},
		{"SESJAMI", "", "pl/session"},
		{"narzedzia", "pl", "tool"},
		{"zasobów", "pl", "resource"},
		{"zasobow", "pl", "resource"},
		{"wstrzykniecie promptu", "", "pl/prompt-injection"},
		{"wstrzyknięcia promptów", "pl", "prompt-injection"},
		{"zatrute narzędzia", "pl", "tool-poisoning"},
		{"rownowazenie obciazenia", "", "pl/load-balancing"},
		{"równoważeniu obciążeń", "pl", "load-balancing"},
		{"bezstanowego protokołu", "", "pl/stateless-protocol"},
		{"czlowiekiem w petli", "pl", "human-in-the-loop"},
		{"krawędzi", "pl", "edge"},
		{"procesy robocze", "pl", "worker"},
		{"przeciwcisnienia", "pl", "back-pressure"},
		{"grupy kolejkowe", "pl", "queue-group"},
		{"okna kontekstu", "pl", "context-window"},
		{"wiadro żetonów", "", "pl/rate-limiting"},
		{"dopytać użytkownika", "pl", "elicitation"},
		{"anulować żądanie", "pl", "cancellation"},
		{"rownowazyc obciazenie", "pl", "load-balancing"},
		// A decomposed ó and ż.
		{"ro\u0301wnowaz\u0307enie obcia\u0328z\u0307enia", "", "pl/load-balancing"},
		// Nothing to be found.
		{"xyzzy", "", ""},
		{"kwantowy hydrofor", "", ""},
		{"the", "", ""},
		{"?!", "", ""},
		{"gotowość", "en", ""},
	}
	for _, test := range tests {
		total, found, err := l.Search(context.Background(), index.Query{Text: test.query, Lang: test.lang, Limit: 5})
		if err != nil {
			t.Fatal(err)
		}
		if test.want == "" {
			if total != 0 || len(found) != 0 {
				t.Errorf("%q (%s) finds %s/%s and %d more", test.query, test.lang, found[0].Lang, found[0].Slug, total-1)
			}
			continue
		}
		var hits []string
		seen := map[string]bool{}
		for _, f := range found {
			name := f.Lang + "/" + f.Slug
			if seen[name] {
				t.Errorf("%q (%s) finds %s twice", test.query, test.lang, name)
			}
			seen[name] = true
			hits = append(hits, name)
			if test.lang != "" && f.Lang != test.lang {
				t.Errorf("%q (%s) finds %s", test.query, test.lang, name)
			}
			if f.Snippet == "" || f.Score <= 0 {
				t.Errorf("%q (%s) finds %s with score %v and snippet %q", test.query, test.lang, name, f.Score, f.Snippet)
			}
		}
		if len(hits) == 0 || hits[0] != test.want && hits[0][3:] != test.want {
			t.Errorf("%q (%s) finds %q, want %s first", test.query, test.lang, hits, test.want)
		}
	}
}
