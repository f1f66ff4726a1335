package rules

import (
	"maps"
	"slices"
	"strings"
)

// fixture is a small tree and what one rule says about it.
type fixture struct {
	rule  string
	name  string
	files map[string]string
	want  []string
}

func fixtures() []fixture {
	return slices.Concat(importFixtures(), documentFixtures(), contentFixtures())
}

func importFixtures() []fixture {
	return []fixture{
		{
			rule: "import law", name: "edge imports worker",
			files: map[string]string{
				"edge/a.go":      "package edge\n\nimport _ \"github.com/millrace/millrace/worker\"\n",
				"edge/b_test.go": "package edge\n\nimport _ \"github.com/millrace/millrace/worker\"\n",
			},
			want: []string{"edge/a.go:3: ./edge must not import ./worker: an edge serves workers of any release and language; only the schemas are shared"},
		},
		{
			rule: "import law", name: "a test beside its package, a test package, a foreign module",
			files: map[string]string{
				"edge/sse/a_test.go":       "package sse_test\n\nimport _ \"github.com/millrace/millrace/edge/sse\"\n",
				"proto/bus/bustest/run.go": "package bustest\n\nimport _ \"github.com/millrace/millrace/proto/localnats\"\n",
				"edge/c.go":                "package edge\n\nimport _ \"github.com/millrace/millrace-worker/worker\"\n",
				"deploy/bench/relay/d.go":  "package main\n\nimport _ \"github.com/nats-io/nats.go\"\n",
			},
		},
		{
			rule: "import law names what exists", name: "everything exists but one",
			files: lawTree("./edge/catalog"),
			want:  []string{"the import law names ./edge/catalog, which does not exist or is imported nowhere"},
		},
		{
			rule: "import law names what exists", name: "everything exists",
			files: lawTree(""),
		},
		{
			rule: "services keep apart", name: "insides and siblings",
			files: map[string]string{
				"services/millrace/a.go":             "package main\n\nimport _ \"github.com/millrace/millrace/services/glossary\"\n",
				"services/millrace/b.go":             "package main\n\nimport _ \"github.com/millrace/millrace/services/glossary/index\"\n",
				"services/glossary/a.go":             "package glossary\n\nimport _ \"github.com/millrace/millrace/services/glossary/index\"\n",
				"services/glossary/b.go":             "package glossary\n\nimport _ \"github.com/millrace/millrace/services/bridge\"\n",
				"services/internal/clients/a.go":     "package clients\n\nimport _ \"github.com/millrace/millrace/services/glossary/index\"\n",
				"services/glossary/index/a_test.go":  "package index\n\nimport _ \"github.com/millrace/millrace/services/bridge\"\n",
				"services/glossary/index/example.go": "package index\n\nimport _ \"github.com/millrace/millrace/worker\"\n",
			},
			want: []string{
				"services/glossary/b.go:3: ./services/glossary must not import ./services/bridge: services meet on the bus, and only the binary constructs them",
				"services/millrace/b.go:3: ./services/millrace must not import ./services/glossary/index: services meet on the bus, and only the binary constructs them",
			},
		},
		{
			rule: "packages lie in the fixed folders", name: "root, cmd and pkg",
			files: map[string]string{
				"a.go":          "package millrace\n",
				"cmd/x/main.go": "package main\n",
				"edge/a.go":     "package edge\n",
				"testdata/a.go": "package ignored\n",
			},
			want: []string{
				`a.go:1: no package belongs in ".": proto, edge, worker and services are the architecture, deploy and docs hold programs beside it`,
				`cmd/x/main.go:1: no package belongs in "cmd": proto, edge, worker and services are the architecture, deploy and docs hold programs beside it`,
			},
		},
		{
			rule: "package names say something", name: "folder, package and test package",
			files: map[string]string{
				"edge/helpers/a.go":  "package assist\n",
				"edge/a_test.go":     "package util_test\n",
				"edge/baseline/a.go": "package baseline\n",
			},
			want: []string{
				`edge/a_test.go:1: package name "util" says nothing: name it after what it is about`,
				`edge/helpers/a.go:1: package name "helpers" says nothing: name it after what it is about`,
			},
		},
	}
}

// lawTree is a tree that holds every package the import law names but one.
func lawTree(without string) map[string]string {
	files := map[string]string{}
	foreign := map[string]bool{}
	for _, row := range importLaw() {
		for _, pattern := range slices.Concat(row.from, row.except, row.never, row.but) {
			name := strings.TrimSuffix(pattern, "/...")
			dir, ours := strings.CutPrefix(name, "./")
			switch {
			case name == "." || name == without:
			case ours:
				files[dir+"/a.go"] = "package a\n"
			default:
				foreign[name] = true
			}
		}
	}
	imports := "package a\n"
	for _, name := range slices.Sorted(maps.Keys(foreign)) {
		imports += "import _ \"" + name + "\"\n"
	}
	files["services/millrace/imports.go"] = imports
	return files
}

func documentFixtures() []fixture {
	return []fixture{
		{
			rule: "one package documentation", name: "none, two, generated, test",
			files: map[string]string{
				"edge/none/a.go":   "//go:build linux\n\npackage none\n",
				"edge/two/a.go":    "// Package two is told here.\npackage two\n",
				"edge/two/b.go":    "// Package two is told there.\npackage two\n",
				"edge/one/a.go":    "// Package one is told once.\npackage one\n",
				"edge/one/b.go":    "package one\n",
				"edge/x/a.go":      "// Code generated by x. DO NOT EDIT.\n\npackage x\n",
				"edge/t/a_test.go": "package t\n",
			},
			want: []string{
				"edge/none: package none has no package documentation",
				"edge/two: package two is documented more than once: a.go, b.go",
			},
		},
		{
			rule: "exported names are documented", name: "each kind of name",
			files: map[string]string{
				"edge/a.go": `package edge

type Bare struct{ Field int }

// Told has a comment.
type Told struct{}

func (Told) Method()    {}
func (*Told) Pointer()  {}
func (hidden) Visible() {}

type hidden struct{}

//go:noinline
func Directive() {}

const Lone = 1

// The kinds.
const (
	First = iota
	Second
)

var (
	Loose int
	Noted int // counts
	quiet int
)

type (
	Grouped int
	// Given has one.
	Given[T any] struct{ field T }
)

func (Given[T]) Do() {}

// Contract is small.
type Contract interface {
	Bound()
}
`,
				"edge/internal/a.go": "package internal\n\nfunc Bare() {}\n",
				"edge/a_test.go":     "package edge\n\nfunc Bare2() {}\n",
				"edge/x.go":          "// Code generated by x. DO NOT EDIT.\n\npackage edge\n\nfunc Bare3() {}\n",
			},
			want: []string{
				"edge/a.go:15: exported Directive has no comment: say its contract",
				"edge/a.go:17: exported Lone has no comment: say its contract",
				"edge/a.go:26: exported Loose has no comment: say its contract",
				"edge/a.go:32: exported Grouped has no comment: say its contract",
				"edge/a.go:37: exported Do has no comment: say its contract",
				"edge/a.go:3: exported Bare has no comment: say its contract",
				"edge/a.go:8: exported Method has no comment: say its contract",
				"edge/a.go:9: exported Pointer has no comment: say its contract",
			},
		},
		{
			rule: "files stay short", name: "at and over the limit",
			files: map[string]string{
				"edge/a.go":  "package edge\n" + strings.Repeat("\n", maxLines-1),
				"edge/b.go":  "package edge\n" + strings.Repeat("\n", maxLines),
				"edge/pb.go": "// Code generated by x. DO NOT EDIT.\n\npackage edge\n" + strings.Repeat("\n", maxLines),
			},
			want: []string{"edge/b.go:1: 801 lines, more than 800: the file holds more than one idea, split it by idea"},
		},
	}
}

func contentFixtures() []fixture {
	const table = "edge/mcp/revision.go"
	return []fixture{
		{
			rule: "revisions are dated in one table", name: "strings outside the table",
			files: map[string]string{
				table:                        "package mcp\n\nconst newest = \"2026-07-28\"\n",
				"edge/a.go":                  "package edge\n\n// Since 2025-11-25.\nconst a = \"2025-11-25\"\n\nconst b = `before 2025-03-26`\n",
				"edge/a_test.go":             "package edge\n\nconst c = \"2025-11-25\"\n",
				"services/internal/x/a.go":   "package x\n\nconst c = \"2025-11-25\"\n",
				"worker/a.go":                "package worker\n\nconst layout = \"2006-01-02\"\n",
				"services/glossary/index.go": "package glossary\n\nvar d struct {\n\tD string `help:\"since 2024-11-05\"`\n}\n",
			},
			want: []string{
				"edge/a.go:4: date 2025-11-25 outside edge/mcp/revision.go: ask the revision table for the fact",
				"edge/a.go:6: date 2025-03-26 outside edge/mcp/revision.go: ask the revision table for the fact",
				"services/glossary/index.go:4: date 2024-11-05 outside edge/mcp/revision.go: ask the revision table for the fact",
			},
		},
		{
			rule: "revisions are dated in one table", name: "the table is gone",
			files: map[string]string{"edge/a.go": "package edge\n"},
			want:  []string{"edge/mcp/revision.go does not exist: say in this rule where revisions are dated now"},
		},
		{
			rule: "events are framed in one package", name: "bytes outside the package",
			files: map[string]string{
				"edge/sse/a.go":    "package sse\n\nconst a = \"data: \"\n",
				"edge/b.go":        "package edge\n\nconst b = \"\\ndat\\x61:\"\n",
				"edge/b_test.go":   "package edge\n\nconst c = \"data: {}\"\n",
				"worker/a.go":      "package worker\n\nvar d struct {\n\tData int `json:\"data\"` // data: the payload\n}\n",
				"edge/json/tag.go": "package json\n\nconst e = `\ndata: x`\n",
			},
			want: []string{
				`edge/b.go:3: the bytes "data:" outside edge/sse, the only writer and reader of events`,
				`edge/json/tag.go:3: the bytes "data:" outside edge/sse, the only writer and reader of events`,
			},
		},
		{
			rule: "events are framed in one package", name: "the package is gone",
			files: map[string]string{"edge/a.go": "package edge\n"},
			want:  []string{"edge/sse does not exist: say in this rule which package frames events now"},
		},
		{
			rule: "tests do not sleep", name: "outside and inside fake time",
			files: map[string]string{
				"edge/a_test.go": `package edge

import (
	"testing"
	"testing/synctest"
	clock "time"
)

func TestReal(t *testing.T) {
	clock.Sleep(1)
	defer clock.Sleep(1)
	f := clock.Sleep
	f(1)
}

func TestFake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		go func() { clock.Sleep(1) }()
	})
	synctest.Test(t, named)
	synctest.Wait(func() { clock.Sleep(1) })
}

func named(t *testing.T) { clock.Sleep(1) }

func TestWrapped(t *testing.T) {
	outer(t, func() { clock.Sleep(1) }, func() { clock.Sleep(1) })
}

func outer(t *testing.T, fake, real func()) {
	inner(t, func() { fake() })
	real()
}
`,
				"edge/b_test.go": `package edge

import "testing/synctest"

func inner(t *testing.T, f func()) {
	synctest.Test(t, func(*testing.T) { f() })
}
`,
				"proto/bus/bustest/a.go": "package bustest\n\nimport \"time\"\n\nfunc wait() { time.Sleep(1) }\n",
				"proto/bus/a.go":         "package bus\n\nimport \"time\"\n\nfunc wait() { time.Sleep(1) }\n",
			},
			want: []string{
				"edge/a_test.go:10: time.Sleep on the real clock in a test: wait for the event, or run inside synctest.Test",
				"edge/a_test.go:11: time.Sleep on the real clock in a test: wait for the event, or run inside synctest.Test",
				"edge/a_test.go:12: time.Sleep on the real clock in a test: wait for the event, or run inside synctest.Test",
				"edge/a_test.go:21: time.Sleep on the real clock in a test: wait for the event, or run inside synctest.Test",
				"edge/a_test.go:24: time.Sleep on the real clock in a test: wait for the event, or run inside synctest.Test",
				"edge/a_test.go:27: time.Sleep on the real clock in a test: wait for the event, or run inside synctest.Test",
				"proto/bus/bustest/a.go:5: time.Sleep on the real clock in a test: wait for the event, or run inside synctest.Test",
			},
		},
	}
}
