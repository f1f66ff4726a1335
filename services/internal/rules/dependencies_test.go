package rules

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// register is the document where every direct dependency gives its reason.
const register = "docs/dependencies.md"

func TestDependenciesAreRegistered(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, register))
	if err != nil {
		t.Fatal(err)
	}
	// As in list: a result is reused until a file that the test itself opened changes.
	if _, err := os.ReadFile(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	var file struct {
		Require []struct {
			Path     string `json:"Path"`
			Indirect bool   `json:"Indirect"`
		} `json:"Require"`
	}
	if err := json.Unmarshal(out, &file); err != nil {
		t.Fatal(err)
	}
	var direct []string
	for _, required := range file.Require {
		if !required.Indirect {
			direct = append(direct, required.Path)
		}
	}
	for _, finding := range unregistered(string(text), direct) {
		t.Error(finding)
	}
}

// unregistered compares the first column of the table with the modules.
func unregistered(text string, modules []string) []string {
	var rows, found []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(text, -1) {
		rows = append(rows, row[1])
	}
	for _, name := range modules {
		if !slices.Contains(rows, name) {
			found = append(found, fmt.Sprintf("go.mod requires %s, and %s does not say why", name, register))
		}
	}
	for _, name := range rows {
		if !slices.Contains(modules, name) {
			found = append(found, fmt.Sprintf("%s explains %s, which go.mod does not require directly", register, name))
		}
	}
	return found
}

func TestUnregisteredIsFound(t *testing.T) {
	t.Parallel()
	const table = "| Module | What |\n|---|---|\n| `a.org/used` | x |\n| `a.org/gone` | y |\n"
	got := unregistered(table, []string{"a.org/used", "a.org/new"})
	want := []string{
		"go.mod requires a.org/new, and docs/dependencies.md does not say why",
		"docs/dependencies.md explains a.org/gone, which go.mod does not require directly",
	}
	if !slices.Equal(got, want) {
		t.Errorf("findings\n%q\nwant\n%q", got, want)
	}
}
