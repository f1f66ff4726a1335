package rules

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

// maxLines is the length of a file that one can still hold in the head.
const maxLines = 800

func checkFileLength(t tree, found *findings) {
	for _, file := range t.files {
		if !file.generated && file.lines > maxLines {
			found.at(file.syntax.Package, "%d lines, more than %d: the file holds more than one idea, split it by idea", file.lines, maxLines)
		}
	}
}

// checkNames refuses package names that say nothing about what is inside, and
// so take in anything.
func checkNames(t tree, found *findings) {
	empty := []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "shared"}
	for _, file := range t.files {
		name := strings.TrimSuffix(file.syntax.Name.Name, "_test")
		for _, part := range append(strings.Split(file.dir, "/"), name) {
			if slices.Contains(empty, part) {
				found.at(file.syntax.Package, "package name %q says nothing: name it after what it is about", part)
				break
			}
		}
	}
}

// checkPackageDocs wants one package documentation per package: none leaves a
// newcomer alone, two contradict each other.
func checkPackageDocs(t tree, found *findings) {
	type pkg struct{ dir, name string }
	docs := map[pkg][]string{}
	for _, file := range t.files {
		// The documentation of a generated package is that of its schema.
		if file.isTestFile() || file.generated {
			continue
		}
		key := pkg{file.dir, file.syntax.Name.Name}
		docs[key] = append(docs[key], documented(file)...)
	}
	for key, files := range docs {
		switch {
		case len(files) == 0:
			found.absent("%s: package %s has no package documentation", key.dir, key.name)
		case len(files) > 1:
			found.absent("%s: package %s is documented more than once: %s", key.dir, key.name, strings.Join(files, ", "))
		}
	}
}

func documented(file source) []string {
	if file.syntax.Doc.Text() == "" {
		return nil
	}
	return []string{path.Base(file.path)}
}

// checkExportedDocs wants a comment on every exported type, function, method,
// constant and variable that other modules can see. The comment of a group
// stands for its constants and variables, and that of a type for the fields of
// a struct and the methods of an interface: reviewers judge whether it does.
func checkExportedDocs(t tree, found *findings) {
	for _, file := range t.files {
		internal := slices.Contains(strings.Split(file.dir, "/"), "internal")
		if file.isTestFile() || file.generated || internal {
			continue
		}
		for _, decl := range file.syntax.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if decl.Name.IsExported() && ast.IsExported(receiver(decl)) && decl.Doc.Text() == "" {
					found.undocumented(decl.Name)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					checkSpecDoc(spec, decl, found)
				}
			}
		}
	}
}

func checkSpecDoc(spec ast.Spec, decl *ast.GenDecl, found *findings) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		if decl.Doc.Text()+spec.Doc.Text()+spec.Comment.Text() != "" {
			return
		}
		for _, name := range spec.Names {
			if name.IsExported() {
				found.undocumented(name)
			}
		}
	case *ast.TypeSpec:
		if !spec.Name.IsExported() {
			return
		}
		// Without parentheses the comment belongs to the declaration.
		if spec.Doc.Text() == "" && (decl.Lparen.IsValid() || decl.Doc.Text() == "") {
			found.undocumented(spec.Name)
		}
	}
}

// receiver returns the name of the type a method belongs to. A function that is
// no method gives a name that counts as exported.
func receiver(decl *ast.FuncDecl) string {
	if decl.Recv == nil || len(decl.Recv.List) == 0 {
		return "Function"
	}
	expr := decl.Recv.List[0].Type
	for {
		switch typed := expr.(type) {
		case *ast.StarExpr:
			expr = typed.X
		case *ast.IndexExpr:
			expr = typed.X
		case *ast.IndexListExpr:
			expr = typed.X
		case *ast.Ident:
			return typed.Name
		default:
			return ""
		}
	}
}

func (f *findings) undocumented(name *ast.Ident) {
	f.at(name.Pos(), "exported %s has no comment: say its contract", name.Name)
}

// revisionTable is the one file where revisions of the protocol stand as dates.
const revisionTable = "edge/mcp/revision.go"

// checkRevisionDates refuses dates in strings: code that compares revisions
// spreads their differences, which are columns of the table.
func checkRevisionDates(t tree, found *findings) {
	date := regexp.MustCompile(`20\d\d-\d\d-\d\d`)
	exists := false
	for _, file := range t.files {
		exists = exists || file.path == revisionTable
		if file.isTestCode() || file.path == revisionTable {
			continue
		}
		file.strings(func(literal *ast.BasicLit, value string) {
			for _, match := range date.FindAllString(value, -1) {
				// Go writes layouts of times as this day.
				if match != "2006-01-02" {
					found.at(literal.Pos(), "date %s outside %s: ask the revision table for the fact", match, revisionTable)
				}
			}
		})
	}
	if !exists {
		found.absent("%s does not exist: say in this rule where revisions are dated now", revisionTable)
	}
}

// checkEventBytes keeps the framing of Server-Sent Events in one package.
func checkEventBytes(t tree, found *findings) {
	const owner = "edge/sse"
	exists := false
	for _, file := range t.files {
		exists = exists || file.dir == owner
		if file.isTestCode() || file.dir == owner {
			continue
		}
		file.strings(func(literal *ast.BasicLit, value string) {
			if strings.Contains(value, "data:") {
				found.at(literal.Pos(), `the bytes "data:" outside %s, the only writer and reader of events`, owner)
			}
		})
	}
	if !exists {
		found.absent("%s does not exist: say in this rule which package frames events now", owner)
	}
}

// checkSleeps refuses real waiting in tests: it is slow where the machine is
// fast and wrong where it is slow. Inside a bubble of fake time it costs nothing.
func checkSleeps(t tree, found *findings) {
	packages := map[string][]source{}
	for _, file := range t.files {
		packages[file.dir] = append(packages[file.dir], file)
	}
	for _, files := range packages {
		bubbles := findBubbles(files)
		for _, file := range files {
			if !file.isTestCode() {
				continue
			}
			for _, sleep := range file.uses("time", "Sleep") {
				if !bubbles.hold(sleep) {
					found.at(sleep.Pos(), "time.Sleep on the real clock in a test: wait for the event, or run inside synctest.Test")
				}
			}
		}
	}
}

// bubbles are function literals that run in fake time, for certain: those that
// are handed to synctest.Test, and those that are handed to a function of the
// package which mentions that parameter only inside such a literal.
type bubbles struct {
	literals []*ast.FuncLit
	entrants map[entrant]bool
}

// entrant is a parameter whose value runs in fake time.
type entrant struct {
	function string
	position int
}

func (b *bubbles) hold(node ast.Node) bool {
	return slices.ContainsFunc(b.literals, func(literal *ast.FuncLit) bool {
		return literal.Pos() <= node.Pos() && node.End() <= literal.End()
	})
}

func findBubbles(files []source) *bubbles {
	// Functions that lead to fake time may call each other: search until nothing is new.
	b := &bubbles{entrants: map[entrant]bool{}}
	for known := -1; known != len(b.literals)+len(b.entrants); {
		known = len(b.literals) + len(b.entrants)
		b.literals = nil
		for _, file := range files {
			b.addLiterals(file)
		}
		for _, file := range files {
			b.addEntrants(file)
		}
	}
	return b
}

func (b *bubbles) addLiterals(file source) {
	tests := map[token.Pos]bool{}
	for _, selector := range file.uses("testing/synctest", "Test") {
		tests[selector.Pos()] = true
	}
	ast.Inspect(file.syntax, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		function, _ := call.Fun.(*ast.Ident)
		for position, argument := range call.Args {
			literal, ok := argument.(*ast.FuncLit)
			if ok && (tests[call.Fun.Pos()] || function != nil && b.entrants[entrant{function.Name, position}]) {
				b.literals = append(b.literals, literal)
			}
		}
		return true
	})
}

func (b *bubbles) addEntrants(file source) {
	for _, decl := range file.syntax.Decls {
		function, ok := decl.(*ast.FuncDecl)
		if !ok || function.Recv != nil || function.Body == nil {
			continue
		}
		position := 0
		for _, field := range function.Type.Params.List {
			for _, name := range field.Names {
				if b.holdEach(function.Body, name.Name) {
					b.entrants[entrant{function.Name.Name, position}] = true
				}
				position++
			}
		}
	}
}

// holdEach says whether name is mentioned in body, and only in fake time.
func (b *bubbles) holdEach(body *ast.BlockStmt, name string) bool {
	mentioned, outside := false, false
	ast.Inspect(body, func(node ast.Node) bool {
		if ident, ok := node.(*ast.Ident); ok && ident.Name == name {
			mentioned = true
			outside = outside || !b.hold(ident)
		}
		return true
	})
	return mentioned && !outside
}
