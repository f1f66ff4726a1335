package glossary

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/services/glossary/folder"
	"github.com/millrace/millrace/services/glossary/library"
)

func TestReadResource(t *testing.T) {
	t.Parallel()
	f := start(t, Config{})
	for _, test := range []struct{ uri, template, begins string }{
		{"term://agent-readiness", "", "# Agent readiness\n\nAgent readiness is"},
		{"term://agent-readiness", "term://{slug}", "# Agent readiness\n\nAgent readiness is"},
		{"term://agent-readiness?lang=en", "term://{slug}?lang={lang}", "# Agent readiness\n"},
		{"term://agent-readiness?lang=pl", "term://{slug}?lang={lang}", "# Gotowość na agentów\n"},
		{"memo://notes/projekt", "", "# Projekt: asystent biblioteki osiedlowej\n\nNotatka"},
		{"memo://notes/projekt", "memo://notes/{name}", "# Projekt: asystent"},
	} {
		text, mimeType, failure := f.read(test.uri, test.template)
		if failure != nil || mimeType != "text/markdown" || !strings.HasPrefix(text, test.begins) {
			t.Errorf("%s (%s) reads as %.80q of type %q, %v", test.uri, test.template, text, mimeType, failure)
		}
	}
	for _, uri := range []string{
		"term://nothing", "term://Agent-Readiness", "term://agent%2Dreadiness", "term://agent-readiness/", "term://",
		"term://agent-readiness?lang=de", "term://agent-readiness?lang=", "term://agent-readiness?lang=pl&x=1",
		"term://projekt", "memo://notes/mcp", "memo://notes/", "memo://notes", "memo://notes/../projekt", "file:///etc/passwd", "",
	} {
		if text, _, failure := f.read(uri, ""); failure.GetKind() != millracev1.Error_KIND_RESOURCE_NOT_FOUND {
			t.Errorf("%q reads as %.40q, %v; want not found", uri, text, failure)
		}
	}
}

// titles returns the listed resources by URI.
func titles(t *testing.T, manifest *millracev1.Manifest) map[string]string {
	t.Helper()
	listed := map[string]string{}
	for _, resource := range manifest.GetResources() {
		var definition struct{ URI, Name, Title, Description, MimeType string }
		if err := json.Unmarshal(resource.GetDefinition(), &definition); err != nil {
			t.Fatal(err)
		}
		if definition.URI != resource.GetUri() || definition.MimeType != "text/markdown" || definition.Name == "" || definition.Description == "" {
			t.Errorf("resource %s", resource.GetDefinition())
		}
		listed[definition.URI] = definition.Title
	}
	return listed
}

func TestListedResources(t *testing.T) {
	t.Parallel()
	f := start(t, Config{})
	view := f.glossary.library.View()
	f.manifests("all terms and notes", func(manifest *millracev1.Manifest) bool {
		listed := titles(t, manifest)
		for _, slug := range view.Terms() {
			entry, _ := view.Entry(folder.Term, slug, "")
			if listed["term://"+slug] != entry.Title {
				t.Errorf("term://%s is listed as %q", slug, listed["term://"+slug])
			}
		}
		if listed["memo://notes/projekt"] == "" || len(listed) != len(view.Terms())+1 {
			t.Errorf("listed %v", listed)
		}
		var templates []string
		for _, template := range manifest.GetResourceTemplates() {
			templates = append(templates, template.GetUriTemplate())
		}
		if want := "memo://notes/{name} term://{slug} term://{slug}?lang={lang}"; strings.Join(templates, " ") != want {
			t.Errorf("templates %q, want %s", templates, want)
		}
		return true
	})
}

func TestListIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range maxListed + 10 {
		slug := fmt.Sprintf("term-%03d", i)
		write(t, dir, slug+".md", term(slug, "en", "Term", "Text."))
	}
	f := start(t, Config{Dir: dir})
	f.manifests("a bounded list", func(manifest *millracev1.Manifest) bool {
		listed := titles(t, manifest)
		if len(listed) != maxListed || listed["term://term-499"] == "" {
			t.Errorf("%d resources are listed", len(listed))
		}
		return true
	})
	if text, _, failure := f.read("term://term-505", "term://{slug}"); failure != nil {
		t.Errorf("a term that is not listed reads as %q, %v", text, failure)
	}
}

// TestEdit follows edits from the file to the client: answers and lists.
func TestEdit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "session.md", term("session", "pl", "Sesja", "O rozmowie."))
	f := start(t, Config{Dir: dir})
	var got getOutput
	f.call("get_term", `{"slug":"session"}`, &got)
	if got.Title != "Sesja" || got.Lang != "pl" || got.URI != "term://session" {
		t.Errorf("returned %+v", got)
	}

	write(t, dir, "session.md", term("session", "pl", "Nowa sesja", "O jeżozwierzach."))
	f.eventually("the edit", func(v *library.View) bool {
		entry, ok := v.Entry(folder.Term, "session", "")
		return ok && entry.Title == "Nowa sesja"
	})
	f.call("get_term", `{"slug":"session"}`, &got)
	if got.Title != "Nowa sesja" || got.Body != "O jeżozwierzach." {
		t.Errorf("returned %+v", got)
	}
	var hits searchOutput
	f.call("search_term", `{"query":"jezozwierz"}`, &hits)
	if len(hits.Hits) != 1 || hits.Hits[0].Slug != "session" {
		t.Errorf("found %+v", hits)
	}
	if text, _, _ := f.read("term://session", ""); !strings.Contains(text, "jeżozwierzach") {
		t.Errorf("reads as %q", text)
	}
	f.manifests("the new title", func(m *millracev1.Manifest) bool { return titles(t, m)["term://session"] == "Nowa sesja" })

	write(t, dir, "notes/plan.md", "---\nslug: plan\ntitle: Plan\nlang: pl\n---\nTekst.\n")
	f.manifests("the note", func(m *millracev1.Manifest) bool { return titles(t, m)["memo://notes/plan"] == "Plan" })

	if err := os.Remove(filepath.Join(dir, "session.md")); err != nil {
		t.Fatal(err)
	}
	f.manifests("the removal", func(m *millracev1.Manifest) bool { _, listed := titles(t, m)["term://session"]; return !listed })
	if out := f.callAny("get_term", `{"slug":"session"}`); !out.result.GetIsError() {
		t.Errorf("the removed term is served: %s", out.result.GetContent())
	}
	if _, _, failure := f.read("term://session", "term://{slug}"); failure.GetKind() != millracev1.Error_KIND_RESOURCE_NOT_FOUND {
		t.Errorf("the removed term is read: %v", failure)
	}
}
