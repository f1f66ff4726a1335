package folder_test

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/millrace/millrace/services/glossary/folder"
)

const good = "---\nslug: session\ntitle: Session\nlang: en\naliases: [MCP session, \"a: b\"]\nrelated: [tool]\nsource: a book\n---\n\nText.\n\nMore.\n"

func TestParse(t *testing.T) {
	t.Parallel()
	doc, problems := folder.Parse("terms/session.md", []byte(good))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if doc.Kind != folder.Term || doc.Slug != "session" || doc.Title != "Session" || doc.Lang != "en" || doc.Source != "a book" {
		t.Errorf("parsed as %+v", doc)
	}
	if !slices.Equal(doc.Aliases, []string{"MCP session", "a: b"}) || !slices.Equal(doc.Related, []string{"tool"}) {
		t.Errorf("lists parsed as %q and %q", doc.Aliases, doc.Related)
	}
	if doc.Body != "Text.\n\nMore." {
		t.Errorf("body %q", doc.Body)
	}
	for name, variant := range map[string]string{
		"Windows line ends":  strings.ReplaceAll(good, "\n", "\r\n"),
		"byte order mark":    "\xef\xbb\xbf" + good,
		"spaces after ---":   strings.ReplaceAll(good, "---\n", "--- \n"),
		"a ruler in the end": good + "\n---\n\nEnd.",
		"comments":           strings.Replace(good, "lang: en", "# a comment\nlang: en # here too", 1),
	} {
		again, problems := folder.Parse("terms/session.md", []byte(variant))
		if len(problems) > 0 || again.Slug != doc.Slug || !strings.HasPrefix(again.Body, doc.Body) {
			t.Errorf("%s: %+v, problems %v", name, again, problems)
		}
	}
}

func TestParseNote(t *testing.T) {
	t.Parallel()
	doc, problems := folder.Parse("notes/plan.md", []byte("---\nslug: plan\ntitle: Plan\nlang: pl\n---\nTekst"))
	if len(problems) > 0 {
		t.Fatalf("a note needs no source: %v", problems)
	}
	if doc.Kind != folder.Note {
		t.Error("it is not a note")
	}
}

func TestParseProblems(t *testing.T) {
	t.Parallel()
	replace := func(from, to string) string { return strings.Replace(good, from, to, 1) }
	tests := []struct {
		name, content string
		// want are the beginnings of all problems, "line: message".
		want []string
	}{
		{"empty file", "", []string{"1: has no front matter"}},
		{"no front matter", "# Session\n\nText.\n", []string{"1: has no front matter"}},
		{"front matter after a line", "\n" + good, []string{"1: has no front matter"}},
		{"never closed", "---\nslug: session\n\nText.\n", []string{"1: the front matter is never closed"}},
		{"YAML error", replace("title: Session", "title: [Session"), []string{"3: the front matter is not valid YAML: did not find expected"}},
		{"YAML error on the first line", replace("slug: session", "\tslug: session"), []string{"2: the front matter is not valid YAML: "}},
		{"YAML error on the last line", replace("source: a book", "source: a: b"), []string{"7: the front matter is not valid YAML: "}},
		{"two YAML documents", replace("lang: en", "lang: en\n..."), []string{"2: the front matter goes on after"}},
		{"no mapping", "---\n- one\n---\nText\n", []string{"2: the front matter must be a mapping"}},
		{"empty front matter", "---\n---\nText\n", []string{"2: the front matter must be a mapping"}},
		{"unknown field", replace("source:", "origin:"), []string{`7: the field "origin" is unknown: the fields are slug`, `8: the field "source" is missing`}},
		{"field in capitals", replace("title:", "Title:"), []string{`3: the field "Title" is unknown`, `8: the field "title" is missing`}},
		{"missing field", replace("lang: en\n", ""), []string{`7: the field "lang" is missing`}},
		{"field given twice", replace("lang: en\n", "lang: en\nlang: pl\n"), []string{`5: the field "lang" is given twice`}},
		{"bad slug", replace("slug: session", "slug: My Session"), []string{`2: the slug "My Session" must be`}},
		{"slug with an accent", replace("slug: session", "slug: łączność"), []string{`2: the slug "łączność" must be`}},
		{"slug with two hyphens", replace("slug: session", "slug: a--b"), []string{`2: the slug "a--b" must be`}},
		{"slug too long", replace("slug: session", "slug: "+strings.Repeat("a", 81)), []string{`2: the slug "aaa`}},
		{"slug is a number", replace("slug: session", "slug: 429"), []string{`2: "slug" must be a text`}},
		{"title is empty", replace("title: Session", "title:"), []string{`3: "title" is empty`}},
		{"title is blank", replace("title: Session", `title: " "`), []string{`3: "title" is empty`}},
		{"title of two lines", replace("title: Session", "title: |\n  one\n  two"), []string{`3: "title" must be one line`}},
		{"title is a list", replace("title: Session", "title: [Session]"), []string{`3: "title" must be a text`}},
		{"title is a boolean", replace("title: Session", "title: true"), []string{`3: "title" must be a text`}},
		{"unknown lang", replace("lang: en", "lang: de"), []string{`4: the lang "de" must be "en" or "pl"`}},
		{"aliases is a text", replace("aliases: [MCP session, \"a: b\"]", "aliases: MCP session"), []string{`5: "aliases" must be a list`}},
		{"alias is a number", replace("[MCP session, \"a: b\"]", "\n  - fine\n  - 429"), []string{`7: "aliases" must be a text`}},
		{"alias twice", replace("\"a: b\"", "MCP session"), []string{`5: "MCP session" is listed twice in "aliases"`}},
		{"YAML alias", replace("title: Session", "title: &x Session\naliases: *x"), []string{`4: "aliases" must be a list`, `6: the field "aliases" is given twice`}},
		{"no text", "---\nslug: a\ntitle: A\nlang: en\nsource: b\n---\n \n\n", []string{"6: has no text after the front matter"}},
		{"not UTF-8", replace("More.", "Mor\xff."), []string{"12: is not valid UTF-8"}},
		{"several", replace("lang: en\n", "lang: de\ncolour: red\n"), []string{`4: the lang "de"`, `5: the field "colour" is unknown`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			doc, problems := folder.Parse("terms/x.md", []byte(test.content))
			if doc != nil {
				t.Errorf("it was parsed as %+v", doc)
			}
			if len(problems) != len(test.want) {
				t.Fatalf("problems %v, want %d", problems, len(test.want))
			}
			for i, problem := range problems {
				if want := "terms/x.md:" + test.want[i]; !strings.HasPrefix(problem.String(), want) {
					t.Errorf("problem %q, want %q...", problem, want)
				}
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("---\nslug: [&a *a\n---\n"))
	f.Add([]byte("---\n? {a: b}\n: c\n---\nx"))
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, problems := folder.Parse("terms/x.md", data)
		if (doc == nil) == (len(problems) == 0) {
			t.Fatalf("document %v and problems %v", doc, problems)
		}
		for _, problem := range problems {
			if lines := strings.Count(string(data), "\n") + 1; problem.Line < 1 || problem.Line > lines {
				t.Errorf("%v is outside of the %d lines", problem, lines)
			}
		}
		if doc != nil && (!folder.IsSlug(doc.Slug) || doc.Title == "" || doc.Body == "" || doc.Source == "") {
			t.Errorf("incomplete: %+v", doc)
		}
	})
}

func TestListAndRead(t *testing.T) {
	t.Parallel()
	fsys := fstest.MapFS{
		"terms/en/session.md":     {Data: []byte(good)},
		"terms/en/.session.md":    {Data: []byte("hidden")},
		"terms/en/session.md~":    {Data: []byte("backup")},
		"terms/en/readme.txt":     {Data: []byte("no Markdown")},
		".git/description.md":     {Data: []byte("hidden folder")},
		"notes/plan.md":           {Data: []byte("---\nslug: plan\ntitle: Plan\nlang: pl\n---\nTekst")},
		"terms/large.md":          {Data: []byte(good + strings.Repeat("x", 1000))},
		"terms/folder.md/deep.md": {Data: []byte(good)},
	}
	paths, problems := folder.List(fsys, ".")
	if len(problems) > 0 {
		t.Error(problems)
	}
	want := []string{"notes/plan.md", "terms/en/session.md", "terms/folder.md/deep.md", "terms/large.md"}
	if !slices.Equal(paths, want) {
		t.Errorf("listed %q, want %q", paths, want)
	}
	if below, _ := folder.List(fsys, "terms/en"); len(below) != 1 || below[0] != "terms/en/session.md" {
		t.Errorf("listed %v below terms/en", below)
	}
	if gone, problems := folder.List(fsys, "nowhere"); len(gone)+len(problems) > 0 {
		t.Errorf("listed %v and %v of a folder that does not exist", gone, problems)
	}

	file, err := folder.Read(fsys, "terms/en/session.md", int64(len(good)))
	stamp, _ := folder.StampOf(fsys, "terms/en/session.md")
	if err != nil || file.Document == nil || file.Stamp != stamp || stamp.Size != int64(len(good)) {
		t.Errorf("read %+v, %v", file, err)
	}
	file, err = folder.Read(fsys, "terms/large.md", int64(len(good)))
	if err != nil || file.Document != nil || len(file.Problems) != 1 || !strings.Contains(file.Problems[0].Message, "larger than the limit of") {
		t.Errorf("a large file was read as %+v, %v", file, err)
	}
	if _, err := folder.Read(fsys, "nowhere.md", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want fs.ErrNotExist", err)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	files := map[string]folder.File{}
	add := func(path, content string) {
		doc, problems := folder.Parse(path, []byte(content))
		files[path] = folder.File{Path: path, Document: doc, Problems: problems}
	}
	head := func(slug, lang, more string) string {
		return "---\nslug: " + slug + "\ntitle: T\nlang: " + lang + "\nsource: s\n" + more + "---\nText\n"
	}
	add("terms/b.md", head("session", "en", ""))
	add("terms/a.md", head("session", "en", "related:\n  - tool\n  - tol\n  - session\n"))
	add("terms/c.md", head("session", "pl", ""))
	add("terms/d.md", head("tool", "en", ""))
	add("notes/session.md", head("session", "en", "related: [tool, note]\n"))
	add("notes/note.md", head("note", "en", ""))
	add("terms/bad.md", "nothing")
	snapshot := folder.Resolve(files)

	var got []string
	for _, problem := range snapshot.Problems {
		got = append(got, problem.String())
	}
	want := []string{
		`notes/session.md:6: the related slug "note" is not a term of this glossary`,
		`terms/a.md:8: the related slug "tol" is not a term of this glossary`,
		`terms/a.md:9: the related slug "session" is the term itself`,
		`terms/b.md:2: the slug "session" with lang "en" is already taken by terms/a.md`,
		`terms/bad.md:1: has no front matter: the first line must be "---"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("problems\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(snapshot.Entries) != 5 {
		t.Errorf("%d entries, want 5", len(snapshot.Entries))
	}
	entry := snapshot.Entries[folder.Key{Kind: folder.Term, Slug: "session", Lang: "en"}]
	if entry.Path != "terms/a.md" || !slices.Equal(entry.Related, []string{"tool"}) {
		t.Errorf("served from %s with related %q", entry.Path, entry.Related)
	}
}
