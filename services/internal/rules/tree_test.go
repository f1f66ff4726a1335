package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// module is the path before the import paths of our own packages.
const module = "github.com/millrace/millrace"

// source is one parsed Go file.
type source struct {
	path      string // from the top of the repository, slashes
	dir       string // of path; "." is the top
	generated bool
	lines     int
	syntax    *ast.File
}

// isTestFile says whether only `go test` compiles the file.
func (s source) isTestFile() bool { return strings.HasSuffix(s.path, "_test.go") }

// isTestCode says whether the file serves tests alone: a test file, a file of a
// package made for tests (bustest, workertest), one of services/internal, which
// holds what only the repository's own tests use, or one of deploy/bench, which
// looks at servers from outside and at those of others.
func (s source) isTestCode() bool {
	return s.isTestFile() || strings.HasSuffix(path.Base(s.dir), "test") ||
		matchesAny([]string{"./services/internal/...", "./deploy/bench/..."}, "./"+s.dir)
}

// tree is every Go file of the repository, whatever its build constraints and
// whichever module it belongs to.
type tree struct {
	fset  *token.FileSet
	files []source
}

// load parses the tree below root. Folders that the go command ignores are
// ignored here as well, and so are the packages of npm.
func load(root fs.FS) (tree, error) {
	loaded := tree{fset: token.NewFileSet()}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			base := entry.Name()
			if name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") ||
				base == "testdata" || base == "vendor" || base == "node_modules") {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(loaded.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		loaded.files = append(loaded.files, source{
			path:      name,
			dir:       path.Dir(name),
			generated: ast.IsGenerated(syntax),
			lines:     bytes.Count(text, []byte("\n")),
			syntax:    syntax,
		})
		return nil
	})
	return loaded, err
}

// findings collects what one rule has to say, as "file:line: text" where there
// is a place and as plain text where something is absent.
type findings struct {
	fset *token.FileSet
	list []string
}

func (f *findings) at(pos token.Pos, format string, args ...any) {
	place := f.fset.Position(pos)
	f.list = append(f.list, fmt.Sprintf("%s:%d: ", place.Filename, place.Line)+fmt.Sprintf(format, args...))
}

func (f *findings) absent(format string, args ...any) {
	f.list = append(f.list, fmt.Sprintf(format, args...))
}

// imports yields the import paths of a file; ours begin with "./".
func (s source) imports() map[string]token.Pos {
	paths := make(map[string]token.Pos, len(s.syntax.Imports))
	for _, spec := range s.syntax.Imports {
		paths[local(unquote(spec.Path))] = spec.Pos()
	}
	return paths
}

// local shortens an import path of this module to the form "./edge/sse".
func local(importPath string) string {
	if rest, ok := strings.CutPrefix(importPath, module); ok && (rest == "" || rest[0] == '/') {
		return "." + rest
	}
	return importPath
}

// matches reports whether an import path (ours begin with "./") is the one that
// pattern names, or lies below it where pattern ends in "/...".
func matches(pattern, importPath string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return importPath == prefix || strings.HasPrefix(importPath, prefix+"/")
	}
	return pattern == importPath
}

func matchesAny(patterns []string, importPath string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, importPath) })
}

// unquote returns the value of a string literal that the parser accepted.
func unquote(literal *ast.BasicLit) string {
	value, err := strconv.Unquote(literal.Value)
	if err != nil {
		panic(fmt.Sprintf("the parser accepted the string literal %s: %v", literal.Value, err))
	}
	return value
}

// strings yields the string literals of a file other than import paths.
func (s source) strings(yield func(*ast.BasicLit, string)) {
	ast.Inspect(s.syntax, func(node ast.Node) bool {
		if _, ok := node.(*ast.ImportSpec); ok {
			return false
		}
		if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			yield(literal, unquote(literal))
		}
		return true
	})
}

// uses yields each mention of packageName.name in the file, where packageName
// is what the file calls the package at importPath.
func (s source) uses(importPath, name string) []*ast.SelectorExpr {
	var found []*ast.SelectorExpr
	for _, spec := range s.syntax.Imports {
		if unquote(spec.Path) != importPath {
			continue
		}
		called := path.Base(importPath)
		if spec.Name != nil {
			called = spec.Name.Name
		}
		ast.Inspect(s.syntax, func(node ast.Node) bool {
			selector, ok := node.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if left, ok := selector.X.(*ast.Ident); ok && left.Name == called && selector.Sel.Name == name {
				found = append(found, selector)
			}
			return true
		})
	}
	return found
}
