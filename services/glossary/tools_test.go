package glossary

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

func TestSearchTerm(t *testing.T) {
	t.Parallel()
	f := start(t, Config{})
	var out searchOutput
	result := f.call("search_term", `{"query":"context engineering"}`, &out)
	if out.Query != "context engineering" || len(out.Hits) != defaultHits || out.Total < len(out.Hits) {
		t.Errorf("query %q with %d hits of %d", out.Query, len(out.Hits), out.Total)
	}
	first := out.Hits[0]
	if first.Slug != "context-engineering" || first.Title == "" || first.Snippet == "" || first.Score <= 0 {
		t.Errorf("first hit %+v", first)
	}
	for i, hit := range out.Hits {
		want := "term://" + hit.Slug
		if hit.Lang == "pl" {
			want += "?lang=pl" // there is an English text too
		}
		if hit.URI != want {
			t.Errorf("%s/%s has the URI %s", hit.Lang, hit.Slug, hit.URI)
		}
		if i > 0 && hit.Score > out.Hits[i-1].Score {
			t.Errorf("scores %v and then %v", out.Hits[i-1].Score, hit.Score)
		}
		// Every hit can be read in its language.
		text, _, failure := f.read(hit.URI, "")
		if failure != nil || !strings.Contains(text, hit.Title) {
			t.Errorf("%s reads as %.40q, %v", hit.URI, text, failure)
		}
	}
	if text := result.text(); !strings.Contains(text, "Context engineering (en, term://context-engineering)") {
		t.Errorf("text %q", text)
	}

	f.call("search_term", `{"query":"protokol","lang":"pl","limit":3}`, &out)
	if len(out.Hits) != 3 || slices.ContainsFunc(out.Hits, func(h hit) bool { return h.Lang != "pl" }) {
		t.Errorf("hits %+v", out.Hits)
	}

	none := f.call("search_term", `{"query":"xyzzy"}`, &out)
	if want := `{"query":"xyzzy","total":0,"hits":[]}`; string(none.result.GetStructuredContent()) != want {
		t.Errorf("structured content %s, want %s", none.result.GetStructuredContent(), want)
	}
	if text := none.text(); !strings.Contains(text, `"xyzzy"`) {
		t.Errorf("text %q", text)
	}
}

func TestGetTerm(t *testing.T) {
	t.Parallel()
	f := start(t, Config{})
	tests := []struct{ arguments, slug, lang string }{
		{`{"slug":"agent-readiness"}`, "agent-readiness", "en"},
		{`{"slug":"agent-readiness","lang":"pl"}`, "agent-readiness", "pl"},
		{`{"slug":"Agent Readiness"}`, "agent-readiness", "en"},
		{`{"slug":" AGENT_READINESS "}`, "agent-readiness", "en"},
		{`{"slug":"term://agent-readiness"}`, "agent-readiness", "en"},
		{`{"slug":"backpressure"}`, "back-pressure", "en"},
		{`{"slug":"Model Context Protocol"}`, "mcp", "en"},
		{`{"slug":"Model Context Protocol","lang":"pl"}`, "mcp", "pl"},
		{`{"slug":"gotowosc na agentow"}`, "agent-readiness", "pl"},
		{`{"slug":"Równoważenie obciążenia"}`, "load-balancing", "pl"},
		{`{"slug":"Równoważenie obciążenia","lang":"en"}`, "load-balancing", "en"},
		// "agent" is a slug and must not be taken for an alias.
		{`{"slug":"agent"}`, "agent", "en"},
	}
	for _, test := range tests {
		var out getOutput
		result := f.call("get_term", test.arguments, &out)
		if out.Slug != test.slug || out.Lang != test.lang {
			t.Errorf("%s returns %s/%s, want %s/%s", test.arguments, out.Lang, out.Slug, test.lang, test.slug)
		}
		if out.Title == "" || out.Body == "" || out.Source == "" || len(out.Related) == 0 || !slices.Equal(out.Languages, []string{"en", "pl"}) {
			t.Errorf("%s returns %+v", test.arguments, out)
		}
		text := result.text()
		if !strings.HasPrefix(text, "# "+out.Title+"\n\n"+out.Body) || !strings.Contains(text, out.Source) {
			t.Errorf("%s has the text %q", test.arguments, text)
		}
		if read, mimeType, _ := f.read(out.URI, ""); read != text || mimeType != "text/markdown" {
			t.Errorf("%s reads as %q of type %s", out.URI, read, mimeType)
		}
	}
}

func TestGetTermUnknown(t *testing.T) {
	t.Parallel()
	f := start(t, Config{})
	for arguments, want := range map[string]string{
		`{"slug":"agent-readines"}`:            `there is no term "agent-readines"; did you mean agent-readiness`,
		`{"slug":"promt injection"}`:           `did you mean prompt-injection`,
		`{"slug":"engineering of the window"}`: `did you mean context-`,
		`{"slug":"xyzzyxyzzy"}`:                `there is no term "xyzzyxyzzy"; search_term finds`,
		`{"slug":"?"}`:                         `there is no term "?"`,
	} {
		out := f.callAny("get_term", arguments)
		if out.result == nil || !out.result.GetIsError() {
			t.Errorf("%s ended with %v, %v; want a tool error", arguments, out.result, out.failure)
			continue
		}
		if text := out.text(); !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", arguments, text, want)
		}
	}
}

func TestInvalidArguments(t *testing.T) {
	t.Parallel()
	f := start(t, Config{})
	for _, test := range []struct{ tool, arguments, detail string }{
		{"get_term", `{}`, "slug"},
		{"get_term", `{"slug":""}`, "slug"},
		{"get_term", `{"slug":1}`, "slug"},
		{"get_term", `{"slug":"agent","lang":"de"}`, "lang"},
		{"get_term", `{"slug":"agent","colour":"red"}`, "colour"},
		{"search_term", `{}`, "query"},
		{"search_term", `{"query":""}`, "query"},
		{"search_term", `{"query":"  "}`, "query"},
		{"search_term", `{"query":"a","limit":0}`, "limit"},
		{"search_term", `{"query":"a","limit":51}`, "limit"},
		{"search_term", `{"query":"a","limit":1.5}`, "limit"},
		{"search_term", `{"query":"a","lang":"PL"}`, "lang"},
		{"search_term", `{"query":` + strconv.Quote(strings.Repeat("a", 1001)) + `}`, "query"},
		{"reindex", `{"force":true}`, "force"},
	} {
		out := f.callAny(test.tool, test.arguments)
		if out.failure.GetKind() != millracev1.Error_KIND_INVALID_ARGUMENTS || !strings.Contains(out.failure.GetDetail(), test.detail) {
			t.Errorf("%s %.60s ended with %v, %v; want invalid arguments that name %q", test.tool, test.arguments, out.result, out.failure, test.detail)
		}
	}
}

func TestReindex(t *testing.T) {
	t.Parallel()
	f := start(t, Config{})
	var out reindexOutput
	result := f.call("reindex", `{}`, &out)
	view := f.glossary.library.View()
	if out.Terms != len(view.Terms()) || out.Notes != 1 || out.Problems == nil || len(out.Problems) != 0 || out.DurationMS < 0 {
		t.Errorf("result %+v", out)
	}
	checkProgress(t, result.progress, 5)
	if text := result.text(); !strings.Contains(text, fmt.Sprintf("%d terms and 1 note.", out.Terms)) {
		t.Errorf("text %q", text)
	}
}

// checkProgress expects growing values up to the total, at least so many.
func checkProgress(t *testing.T, progress []*millracev1.Progress, least int) {
	t.Helper()
	if len(progress) < least {
		t.Errorf("%d progress events, want %d", len(progress), least)
	}
	last := -1.0
	for _, event := range progress {
		value, err := strconv.ParseFloat(string(event.GetProgress()), 64)
		if err != nil || value <= last {
			t.Errorf("progress %s after %v", event.GetProgress(), last)
		}
		if event.GetMessage() == "" {
			t.Error("progress without a message")
		}
		last = value
		if string(event.GetTotal()) != string(progress[0].GetTotal()) {
			t.Errorf("total %s and then %s", progress[0].GetTotal(), event.GetTotal())
		}
	}
	if n := len(progress); n > 0 && string(progress[n-1].GetProgress()) != string(progress[n-1].GetTotal()) {
		t.Errorf("the last progress is %v", progress[n-1])
	}
}

// TestReindexLarge rebuilds an index of many terms through the bus, and cancels
// a second run half way.
func TestReindexLarge(t *testing.T) {
	t.Parallel()
	const n = 3000
	dir := t.TempDir()
	for i := range n {
		slug := fmt.Sprintf("term-%04d", i)
		write(t, dir, fmt.Sprintf("%d/%s.md", i/1000, slug), term(slug, "en", "Term "+slug, "A sentence of some words about sessions. Another one."))
	}
	f := start(t, Config{Dir: dir})
	var out reindexOutput
	result := f.call("reindex", `{}`, &out)
	if out.Terms != n || len(out.Problems) > 0 {
		t.Errorf("result %+v", out)
	}
	checkProgress(t, result.progress, 15)

	before := f.glossary.library.View()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err := f.try(ctx, "reindex", `{}`, func(p *millracev1.Progress) {
		if value, _ := strconv.Atoi(string(p.GetProgress())); value > 0 {
			cancel()
		}
	})
	if status.Code(err) != codes.Canceled {
		t.Errorf("the cancelled call ended with %v", err)
	}
	var hits searchOutput
	f.call("search_term", `{"query":"session"}`, &hits)
	if hits.Total != n {
		t.Errorf("%d hits after the cancelled reindex, want %d", hits.Total, n)
	}
	// The next one waits until the cancelled one has given up, and then works.
	f.call("reindex", `{}`, &out)
	if out.Terms != n {
		t.Errorf("result %+v", out)
	}
	if f.glossary.library.View() == before {
		t.Error("the view was not replaced")
	}
}

func TestReindexReportsProblems(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "good.md", term("good", "en", "Good", "Text."))
	for i := range maxProblems + 1 {
		write(t, dir, fmt.Sprintf("bad-%03d.md", i), "nothing")
	}
	f := start(t, Config{Dir: dir})
	var out reindexOutput
	result := f.call("reindex", `{}`, &out)
	if out.Terms != 1 || len(out.Problems) != maxProblems || out.Problems[0].File != "bad-000.md" || out.Problems[0].Line != 1 {
		t.Errorf("%d terms and problems %v", out.Terms, out.Problems)
	}
	if text := result.text(); !strings.Contains(text, "101 problems") || !strings.Contains(text, "- bad-000.md:1: has no front matter") || !strings.Contains(text, "and 1 more") {
		t.Errorf("text %q", text)
	}
	var hits searchOutput
	f.call("search_term", `{"query":"good"}`, &hits)
	if len(hits.Hits) != 1 {
		t.Errorf("the good file is not served: %+v", hits)
	}
}

// TestDefinitions checks what a client sees of the tools.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	f := start(t, Config{})
	f.manifests("the tools", func(manifest *millracev1.Manifest) bool {
		hints := map[string]string{}
		for _, tool := range manifest.GetTools() {
			var definition struct {
				Title, Description string
				Annotations        struct{ ReadOnlyHint, DestructiveHint, IdempotentHint, OpenWorldHint *bool }
				InputSchema        struct{ Required []string }
				OutputSchema       struct{ Required []string }
			}
			if err := json.Unmarshal(tool.GetDefinition(), &definition); err != nil {
				t.Fatal(err)
			}
			show := func(b *bool) string {
				if b == nil {
					return "-"
				}
				return strconv.FormatBool(*b)
			}
			a := definition.Annotations
			hints[tool.GetName()] = fmt.Sprintf("%s %s %s %s, needs %v, returns %v", show(a.ReadOnlyHint), show(a.DestructiveHint),
				show(a.IdempotentHint), show(a.OpenWorldHint), definition.InputSchema.Required, definition.OutputSchema.Required)
			if definition.Title == "" || definition.Description == "" {
				t.Errorf("%s has no title or description", tool.GetName())
			}
		}
		want := map[string]string{
			"search_term": "true - true false, needs [query], returns [query total hits]",
			"get_term":    "true - true false, needs [slug], returns [slug title lang aliases related source body uri languages]",
			"reindex":     "false false true false, needs [], returns [terms notes problems duration_ms]",
		}
		for name, hint := range want {
			if hints[name] != hint {
				t.Errorf("%s: %s\nwant %s", name, hints[name], hint)
			}
		}
		if len(hints) != len(want) || manifest.GetInstructions() == "" {
			t.Errorf("tools %v, instructions %q", hints, manifest.GetInstructions())
		}
		return true
	})
}
