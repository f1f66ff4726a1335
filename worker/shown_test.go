package worker_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
)

// Every exported name is used in an example that runs.
func TestEveryNameIsShown(t *testing.T) {
	t.Parallel()
	set := token.NewFileSet()
	parse := func(tests bool) (files []*ast.File) {
		names, err := fs.Glob(os.DirFS("."), "*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") != tests {
				continue
			}
			file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		return files
	}
	shown := map[string]bool{}
	for _, example := range doc.Examples(parse(true)...) {
		if example.Output == "" && !example.EmptyOutput {
			continue
		}
		ast.Inspect(example.Code, func(n ast.Node) bool {
			if name, ok := n.(*ast.Ident); ok {
				shown[name.Name] = true
			}
			return true
		})
	}
	if len(shown) == 0 {
		t.Fatal("there are no examples that run")
	}
	check := func(name *ast.Ident) {
		others := []string{"Error", "String", "MarshalJSON", "UnmarshalJSON"} // call these
		if name.IsExported() && !shown[name.Name] && !slices.Contains(others, name.Name) {
			t.Errorf("%s: no example shows %s", set.Position(name.Pos()), name.Name)
		}
	}
	for _, file := range parse(false) {
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Recv == nil || ofExported(decl) {
					check(decl.Name)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						check(spec.Name)
					case *ast.ValueSpec:
						for _, name := range spec.Names {
							check(name)
						}
					}
				}
			}
		}
	}
}

// ofExported reports whether the method is one of an exported type.
func ofExported(decl *ast.FuncDecl) bool {
	of := decl.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	name, ok := of.(*ast.Ident)
	return ok && name.IsExported()
}
