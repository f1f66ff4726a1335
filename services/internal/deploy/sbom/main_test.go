package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// The test binary itself is a Go binary with modules in it or without; what
// matters is in the document either way.
func TestDocument(t *testing.T) {
	t.Parallel()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, w := range []*bytes.Buffer{&first, &second} {
		if err := run([]string{binary, "1.2.3", "abc"}, w); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() {
		t.Error("the same binary gives two documents")
	}
	var got document
	if err := json.Unmarshal(first.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Format != "CycloneDX" || got.Metadata.Component.Version != "1.2.3" {
		t.Errorf("got %s %s", got.Format, got.Metadata.Component.Version)
	}
	if std := got.Components[0]; std.Name != "std" || !strings.HasPrefix(std.PURL, "pkg:golang/std@go1.") {
		t.Errorf("the first component is %+v", std)
	}
	if depends := got.Dependencies[0]; depends.Ref != got.Metadata.Component.Ref || len(depends.DependsOn) != len(got.Components) {
		t.Errorf("%d components, %d dependencies of %s", len(got.Components), len(depends.DependsOn), depends.Ref)
	}
}

func TestNoBinary(t *testing.T) {
	t.Parallel()
	if err := run([]string{"main.go", "1", "2"}, &bytes.Buffer{}); err == nil {
		t.Error("a source file passes for a binary")
	}
	if err := run(nil, &bytes.Buffer{}); err == nil {
		t.Error("no arguments are enough")
	}
}
