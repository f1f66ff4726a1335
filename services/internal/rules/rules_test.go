package rules

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// root is the top of the repository, seen from this package.
const root = "../../.."

// rule is one house rule about the parsed tree.
type rule struct {
	name  string
	check func(tree, *findings)
}

func rules() []rule {
	return []rule{
		{"import law", checkImportLaw},
		{"import law names what exists", checkLawNames},
		{"services keep apart", checkServiceInsides},
		{"packages lie in the fixed folders", checkLayout},
		{"package names say something", checkNames},
		{"one package documentation", checkPackageDocs},
		{"exported names are documented", checkExportedDocs},
		{"files stay short", checkFileLength},
		{"revisions are dated in one table", checkRevisionDates},
		{"events are framed in one package", checkEventBytes},
		{"tests do not sleep", checkSleeps},
	}
}

func TestHouseRules(t *testing.T) {
	t.Parallel()
	loaded, err := load(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	if len(loaded.files) == 0 {
		t.Fatalf("no Go files below %s", root)
	}
	for _, rule := range rules() {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			found := findings{fset: loaded.fset}
			rule.check(loaded, &found)
			slices.Sort(found.list)
			for _, finding := range found.list {
				t.Error(finding)
			}
		})
	}
}

// TestRulesCanFail runs every rule over small trees that break it, and over
// their neighbours that must pass.
func TestRulesCanFail(t *testing.T) {
	t.Parallel()
	fails := map[string]bool{}
	for _, c := range fixtures() {
		fails[c.rule] = fails[c.rule] || len(c.want) > 0
		t.Run(c.rule+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			files := fstest.MapFS{}
			for name, text := range c.files {
				files[name] = &fstest.MapFile{Data: []byte(text)}
			}
			loaded, err := load(files)
			if err != nil {
				t.Fatal(err)
			}
			index := slices.IndexFunc(rules(), func(r rule) bool { return r.name == c.rule })
			if index < 0 {
				t.Fatalf("there is no rule %q", c.rule)
			}
			found := findings{fset: loaded.fset}
			rules()[index].check(loaded, &found)
			slices.Sort(found.list)
			if !slices.Equal(found.list, c.want) {
				t.Errorf("findings\n%q\nwant\n%q", found.list, c.want)
			}
		})
	}
	for _, rule := range rules() {
		if !fails[rule.name] {
			t.Errorf("no case proves that the rule %q can fail", rule.name)
		}
	}
}

// TestEveryLawRowBinds proves each row of the import law by breaking it: for
// every bound and every forbidden package, a file with that one import.
func TestEveryLawRowBinds(t *testing.T) {
	t.Parallel()
	for _, row := range importLaw() {
		if row.why == "" {
			t.Errorf("no reason is given why %v must not import %v", row.from, row.never)
		}
		for _, from := range row.from {
			for _, never := range row.never {
				breaksLaw(t, row, from, never)
			}
		}
	}
}

func breaksLaw(t *testing.T, row law, from, never string) {
	t.Helper()
	// A package that stands for the pattern; of all of ours, some package.
	stand := func(pattern, anyOfOurs string) string {
		if pattern == "./..." {
			return anyOfOurs
		}
		return strings.TrimSuffix(pattern, "/...")
	}
	dir := strings.TrimPrefix(stand(from, "./worker"), "./")
	imported := stand(never, "./edge/catalog")
	if rest, ok := strings.CutPrefix(imported, "./"); ok {
		imported = module + "/" + rest
	}
	report := func(dir, name string) bool {
		loaded, err := load(fstest.MapFS{
			path.Join(dir, name): {Data: []byte("package p\nimport _ " + strconv.Quote(imported) + "\n")},
		})
		if err != nil {
			t.Fatal(err)
		}
		found := findings{fset: loaded.fset}
		checkImportLaw(loaded, &found)
		return slices.ContainsFunc(found.list, func(text string) bool { return strings.HasSuffix(text, row.why) })
	}
	if !report(dir, "p.go") {
		t.Errorf("%s may import %s, but must not: %s", dir, imported, row.why)
	}
	if got := report(dir, "p_test.go"); got != row.tests {
		t.Errorf("a test of %s that imports %s: reported %t, want %t (%s)", dir, imported, got, row.tests, row.why)
	}
	for _, except := range row.except {
		if report(strings.TrimPrefix(stand(except, ""), "./"), "p.go") {
			t.Errorf("%s must be allowed to import %s: it is an exception of the row (%s)", except, imported, row.why)
		}
	}
}
