package catalog

import (
	"slices"
	"testing"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// scoped is a catalog of two pools, one of which has nothing that needs no
// scope.
func scoped() *Snapshot {
	open := manifest("open", "plain", "read", "write")
	open.Instructions = "open"
	open.Tools[1].Scopes = []string{"read"}
	open.Tools[2].Scopes = []string{"write", "read", "write"} // as a worker of another language may write it
	open.Resources = []*millracev1.Resource{
		{Uri: "x://all/closed", Definition: []byte(`{}`), Scopes: []string{"read"}},
		{Uri: "x://all/open", Definition: []byte(`{}`)},
	}
	open.ResourceTemplates = []*millracev1.ResourceTemplate{
		{UriTemplate: "x://{+any}", Definition: []byte(`{}`)},
		{UriTemplate: "x://closed/{n}", Definition: []byte(`{}`), Scopes: []string{"read"}},
		{UriTemplate: "x://closed/ajar/{n}", Definition: []byte(`{}`)},
	}
	closed := manifest("closed", "deep")
	closed.Instructions = "closed"
	closed.Tools[0].Scopes = []string{"deep"}
	closed.Prompts = []*millracev1.Prompt{{Name: "p", Definition: []byte(`{}`), Scopes: []string{"read", "deep"}}}
	bare := &millracev1.Manifest{Pool: "bare", Instructions: "bare"}
	return newSnapshot([]poolManifests{
		{name: "open", manifests: []*millracev1.Manifest{open}}, {name: "closed", manifests: []*millracev1.Manifest{closed}}, {name: "bare", manifests: []*millracev1.Manifest{bare}},
	}, false)
}

func caller(scopes ...string) *millracev1.Principal { return &millracev1.Principal{Scopes: scopes} }

func TestViews(t *testing.T) {
	t.Parallel()
	s := scoped()
	for _, c := range []struct {
		caller       *millracev1.Principal
		tools        []string
		prompts      int
		instructions string
	}{
		{nil, []string{"deep@closed", "plain@open", "read@open", "write@open"}, 1, "bare\n\nclosed\n\nopen"},
		{caller(), []string{"plain@open"}, 0, "bare\n\nopen"},
		{caller("other", ""), []string{"plain@open"}, 0, "bare\n\nopen"},
		{caller("read"), []string{"plain@open", "read@open"}, 0, "bare\n\nopen"},
		{caller("write"), []string{"plain@open"}, 0, "bare\n\nopen"},
		{caller("write", "x", "read"), []string{"plain@open", "read@open", "write@open"}, 0, "bare\n\nopen"},
		{caller("read", "deep", "write"), []string{"deep@closed", "plain@open", "read@open", "write@open"}, 1, "bare\n\nclosed\n\nopen"},
	} {
		v := s.For(c.caller)
		if got := offered(v); !slices.Equal(got, c.tools) {
			t.Errorf("%v sees %v, want %v", c.caller, got, c.tools)
		}
		for _, name := range []string{"plain", "read", "write", "deep"} {
			_, ok := v.Tool(name)
			if want := slices.ContainsFunc(v.Tools, func(t Tool) bool { return t.Name == name }); ok != want {
				t.Errorf("%v: Tool(%q) = %v, and the list says %v", c.caller, name, ok, want)
			}
		}
		_, ok := v.Prompt("p")
		if len(v.Prompts) != c.prompts || ok != (c.prompts == 1) {
			t.Errorf("%v sees %d prompts (by name: %v), want %d", c.caller, len(v.Prompts), ok, c.prompts)
		}
		if v.Instructions != c.instructions {
			t.Errorf("%v is told %q, want %q", c.caller, v.Instructions, c.instructions)
		}
		if v.Private != (c.caller != nil) {
			t.Errorf("%v: Private = %v", c.caller, v.Private)
		}
	}
}

func TestViewsOfResources(t *testing.T) {
	t.Parallel()
	s := scoped()
	for uri, want := range map[string]struct{ closed, open string }{
		"x://all/open":      {"listed", "listed"},
		"x://all/closed":    {"none", "listed"},
		"x://else":          {"x://{+any}", "x://{+any}"},
		"x://closed/7":      {"none", "x://closed/{n}"},
		"x://closed/ajar/7": {"x://closed/ajar/{n}", "x://closed/ajar/{n}"},
		"y://":              {"none", "none"},
	} {
		served := func(v *Snapshot) string {
			_, template, ok := v.Resource(uri)
			switch {
			case !ok:
				return "none"
			case template == "":
				return "listed"
			}
			return template
		}
		if got := served(s.For(caller())); got != want.closed {
			t.Errorf("%s without a scope is served by %s, want %s", uri, got, want.closed)
		}
		if got := served(s.For(caller("read"))); got != want.open {
			t.Errorf("%s with the scope is served by %s, want %s", uri, got, want.open)
		}
	}
	if _, ok := s.For(caller()).Template("x://closed/{n}"); ok {
		t.Error("a hidden template is found by its text")
	}
}

func TestViewsAreShared(t *testing.T) {
	t.Parallel()
	s := scoped()
	if s.For(nil) != s {
		t.Error("who is not authenticated sees the catalog itself")
	}
	if s.For(caller("read", "x1")) != s.For(caller("x2", "read", "write2")) {
		t.Error("scopes that nothing needs make a view of their own")
	}
	if s.For(caller("read")) == s.For(caller("read", "deep")) {
		t.Error("callers who see different things share a view")
	}
	less, more := s.For(caller()), s.For(caller("read"))
	if less.ToolsDigest == more.ToolsDigest || less.ResourcesDigest == more.ResourcesDigest || less.PromptsDigest != more.PromptsDigest {
		t.Error("the digests are not those of what is seen")
	}
	// A new tool that nobody may see is no news to those who may not.
	m := manifest("open", "plain")
	before := newSnapshot([]poolManifests{{name: "open", manifests: []*millracev1.Manifest{m}}}, false)
	m = manifest("open", "plain", "new")
	m.Tools[1].Scopes = []string{"read"}
	after := newSnapshot([]poolManifests{{name: "open", manifests: []*millracev1.Manifest{m}}}, false)
	if before.For(caller()).ToolsDigest != after.For(caller()).ToolsDigest || before.For(caller("read")).ToolsDigest == after.For(caller("read")).ToolsDigest {
		t.Error("a hidden tool is news, or a visible one is none")
	}
}
