package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// listed is what this package reads of `go list -json`.
type listed struct {
	ImportPath string   `json:"ImportPath"`
	ForTest    string   `json:"ForTest"` // the package whose tests this variant is compiled for
	Dir        string   `json:"Dir"`
	GoFiles    []string `json:"GoFiles"`
	Imports    []string `json:"Imports"`
	Deps       []string `json:"Deps"`
	Export     string   `json:"Export"` // file with the types of the package
	DepOnly    bool     `json:"DepOnly"`
}

// list asks the go command for all packages of this module, their tests and
// what they depend on, compiled, by import path.
func list(t *testing.T) map[string]listed {
	t.Helper()
	// go test reuses a result while the files that the test opened are the same,
	// and does not see what the go command opens.
	if _, err := load(os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,ForTest,Dir,GoFiles,Imports,Deps,Export,DepOnly", "-deps", "-test", "-export", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.Bytes())
	}
	packages := map[string]listed{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatalf("reading %v: %v", cmd.Args, err)
		}
		packages[p.ImportPath] = p
	}
}

// TestPackages holds the compiled packages against the rules that need more
// than their own text: what comes along with them, and the types of values.
func TestPackages(t *testing.T) {
	t.Parallel()
	packages := list(t)

	t.Run("edge and worker come without a NATS server", func(t *testing.T) {
		t.Parallel()
		for _, finding := range serverInside(packages) {
			t.Error(finding)
		}
	})
	t.Run("NATS calls wait with a context", func(t *testing.T) {
		t.Parallel()
		checked := 0
		for _, p := range packages {
			// Packages are seen once, with their tests where they have some. The
			// generated main of a test binary is no package of ours.
			_, hasVariant := packages[variant(p.ImportPath, p.ImportPath)]
			if p.DepOnly || hasVariant || strings.HasSuffix(p.ImportPath, ".test") || !slices.Contains(p.Deps, natsClient) {
				continue
			}
			checked++
			fset := token.NewFileSet()
			files, err := parse(fset, p)
			if err != nil {
				t.Fatal(err)
			}
			timed, err := timedCalls(fset, files, exportedTypes(fset, packages, p.ForTest))
			if err != nil {
				t.Fatalf("%s: %v", p.ImportPath, err)
			}
			for _, finding := range timed {
				t.Error(finding)
			}
		}
		if checked == 0 {
			t.Errorf("no package depends on %s: the rule sees nothing", natsClient)
		}
	})
}

// variant is how the go command names a package that is compiled anew for the
// tests of another (or with its own test files).
func variant(importPath, forTest string) string {
	return importPath + " [" + forTest + ".test]"
}

// exportedTypes reads the types of imported packages from what the go command
// compiled, as a test of forTest sees them.
func exportedTypes(fset *token.FileSet, packages map[string]listed, forTest string) types.Importer {
	return importer.ForCompiler(fset, "gc", func(importPath string) (io.ReadCloser, error) {
		p, ok := packages[variant(importPath, forTest)]
		if !ok {
			p = packages[importPath]
		}
		return os.Open(p.Export)
	})
}

func parse(fset *token.FileSet, p listed) ([]*ast.File, error) {
	files := make([]*ast.File, 0, len(p.GoFiles))
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// serverInside names the packages below edge and worker that link a NATS
// server, and the package that brings it in.
func serverInside(packages map[string]listed) []string {
	var found []string
	seen := false
	for _, p := range packages {
		isServer := func(importPath string) bool { return matches(natsServer+"/...", importPath) }
		seen = seen || isServer(p.ImportPath)
		bound := matchesAny([]string{"./edge/...", "./worker/..."}, local(p.ImportPath))
		if !bound || p.ForTest != "" || strings.HasSuffix(p.ImportPath, ".test") {
			continue
		}
		for _, via := range append([]string{p.ImportPath}, p.Deps...) {
			if !isServer(via) && slices.ContainsFunc(packages[via].Imports, isServer) {
				found = append(found, fmt.Sprintf("%s links a NATS server through %s: edges and workers of a cluster must not carry one", local(p.ImportPath), local(via)))
			}
		}
	}
	if !seen {
		found = append(found, natsServer+" is not among the dependencies: say in this rule which server must stay outside now")
	}
	slices.Sort(found)
	return found
}

// timedCalls finds the methods of nats.go that draw from its process-wide pool
// of timers. A timer that was made in one bubble of fake time crashes the next
// bubble that is handed it; the variants with a context use none.
func timedCalls(fset *token.FileSet, files []*ast.File, resolve types.Importer) ([]string, error) {
	timed := regexp.MustCompile(`^\(\*` + regexp.QuoteMeta(natsClient) + `\.(Conn|EncodedConn|Subscription)\)\.(Flush|FlushTimeout|Request|RequestMsg|NextMsg)$`)
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: resolve}
	if _, err := config.Check("checked", fset, files, &info); err != nil {
		return nil, err
	}
	var found []string
	for name, object := range info.Uses {
		method, ok := object.(*types.Func)
		if !ok || !timed.MatchString(method.FullName()) {
			continue
		}
		place := fset.Position(name.Pos())
		found = append(found, fmt.Sprintf("%s:%d: %s shares timers between bubbles of fake time: use the variant WithContext", place.Filename, place.Line, method.FullName()))
	}
	slices.Sort(found)
	return found, nil
}

// TestTimedCallsAreFound proves that the rule sees calls, promoted methods and
// method values, and passes the variants with a context and equal names.
func TestTimedCallsAreFound(t *testing.T) {
	t.Parallel()
	const client = `package nats

type Conn struct{}

func (*Conn) Flush() error            { return nil }
func (*Conn) FlushWithContext() error { return nil }
func (*Conn) Request()                {}

type Subscription struct{}

func (*Subscription) NextMsg() {}
`
	const user = `package bus

import "github.com/nats-io/nats.go"

type conn struct{ *nats.Conn }

type writer struct{}

func (writer) Flush() {}

func use(c conn, s *nats.Subscription, w writer) {
	c.Flush()
	c.FlushWithContext()
	request := c.Conn.Request
	request()
	s.NextMsg()
	w.Flush()
}
`
	fset := token.NewFileSet()
	parsed := func(name, text string) []*ast.File {
		file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		return []*ast.File{file}
	}
	nats, err := new(types.Config).Check(natsClient, fset, parsed("nats.go", client), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := timedCalls(fset, parsed("bus.go", user), fixedImporter{nats})
	if err != nil {
		t.Fatal(err)
	}
	const why = " shares timers between bubbles of fake time: use the variant WithContext"
	want := []string{
		"bus.go:12: (*github.com/nats-io/nats.go.Conn).Flush" + why,
		"bus.go:14: (*github.com/nats-io/nats.go.Conn).Request" + why,
		"bus.go:16: (*github.com/nats-io/nats.go.Subscription).NextMsg" + why,
	}
	if !slices.Equal(got, want) {
		t.Errorf("findings\n%q\nwant\n%q", got, want)
	}
}

// fixedImporter knows one package.
type fixedImporter struct{ only *types.Package }

func (f fixedImporter) Import(string) (*types.Package, error) { return f.only, nil }

func TestServerInsideIsFound(t *testing.T) {
	t.Parallel()
	const server, localnats = natsServer + "/server", module + "/proto/localnats"
	packages := map[string]listed{
		server:    {ImportPath: server},
		localnats: {ImportPath: localnats, Imports: []string{server}, Deps: []string{server}},
	}
	add := func(importPath, forTest string, deps ...string) {
		packages[importPath] = listed{ImportPath: importPath, ForTest: forTest, Imports: deps, Deps: append(deps, server)}
	}
	add(module+"/edge/catalog", "", localnats)
	add(module+"/worker", "", server)
	add(module+"/services/millrace", "", localnats)
	tested := module + "/edge/sse"
	add(variant(tested, tested), tested, localnats)
	want := []string{
		"./edge/catalog links a NATS server through ./proto/localnats: edges and workers of a cluster must not carry one",
		"./worker links a NATS server through ./worker: edges and workers of a cluster must not carry one",
	}
	if got := serverInside(packages); !slices.Equal(got, want) {
		t.Errorf("findings\n%q\nwant\n%q", got, want)
	}
	if got := serverInside(nil); len(got) != 1 {
		t.Errorf("without any server: %q, want one finding", got)
	}
}
