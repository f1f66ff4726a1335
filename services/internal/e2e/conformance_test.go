package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestConformance is the gate of the official suite: one URL, every revision
// that the suite knows. What may fail is written in a file, with reasons.
func TestConformance(t *testing.T) {
	t.Parallel()
	baseline := readBaseline(t)
	s := serve(t, "up", "--worker", "glossary", "--worker", "everything")
	// One after another: the suite calls tools that change the lists.
	for _, c := range []struct {
		revision  string
		args      []string
		scenarios int // how many the pinned suite has at least
	}{
		{"2025-03-26", []string{"--suite", "all", "--spec-version", "2025-03-26"}, 1},
		{"2025-06-18", []string{"--suite", "all", "--spec-version", "2025-06-18"}, 27},
		{"2025-11-25", []string{"--requirements", "2025-11-25"}, 33},
		{"2026-07-28", []string{"--requirements", "2026-07-28"}, 50},
	} {
		t.Run(c.revision, func(t *testing.T) {
			ran := runConformance(t, s.url, c.args...)
			if len(ran) < c.scenarios {
				t.Errorf("%d scenarios ran, want at least %d", len(ran), c.scenarios)
			}
			for scenario, checks := range ran {
				checks.judge(t, scenario, baseline[c.revision+" "+scenario])
			}
			for entry := range baseline {
				revision, scenario, _ := strings.Cut(entry, " ")
				if _, there := ran[scenario]; revision == c.revision && !there {
					t.Errorf("the baseline names %s, which did not run", scenario)
				}
			}
		})
	}
}

// conformanceChecks are the rows of one scenario.
type conformanceChecks []struct {
	ID, Status, Description, ErrorMessage string
	Details                               json.RawMessage
}

// judge compares the rows of a scenario with the reason why it may fail, empty
// where it must pass.
func (c conformanceChecks) judge(t *testing.T, scenario, excuse string) {
	t.Helper()
	failures := 0
	for _, check := range c {
		switch check.Status {
		case "FAILURE":
			failures++
			if excuse == "" {
				t.Errorf("%s: %s: %s: %s\n%s", scenario, check.ID, check.Description, check.ErrorMessage, check.Details)
			}
		case "WARNING":
			t.Logf("%s: warning: %s: %s: %s", scenario, check.ID, check.Description, check.ErrorMessage)
		}
	}
	if failures == 0 && excuse != "" {
		t.Errorf("%s passes: remove it from the baseline", scenario)
	}
}

// runConformance runs the suite and returns the rows by scenario.
func runConformance(t *testing.T, url string, args ...string) map[string]conformanceChecks {
	t.Helper()
	p := clients(t)
	out := t.TempDir()
	cmd := exec.Command(p.node, append([]string{
		filepath.Join(p.modules, "@modelcontextprotocol", "conformance", "dist", "index.js"),
		"server", "--url", url, "-o", out,
	}, args...)...)
	r := execute(t, "", cmd)
	// The exit code only says whether something scored has failed.
	if r.code != 0 && r.code != 1 {
		t.Fatalf("the suite ended with %d:\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	dirs, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`^server-(.+)-\d{4}-\d\d-\d\dT[-\d]+Z$`)
	ran := map[string]conformanceChecks{}
	for _, dir := range dirs {
		name := named.FindStringSubmatch(dir.Name())
		if name == nil {
			t.Fatalf("the suite wrote %s, which is no result", dir.Name())
		}
		raw, err := os.ReadFile(filepath.Join(out, dir.Name(), "checks.json"))
		if err != nil {
			t.Fatal(err)
		}
		var checks conformanceChecks
		if err := json.Unmarshal(raw, &checks); err != nil {
			t.Fatalf("%s: %v", dir.Name(), err)
		}
		ran[name[1]] = checks
	}
	if len(ran) == 0 {
		t.Fatalf("the suite ran nothing:\n%s\n%s", r.stdout, r.stderr)
	}
	return ran
}

// readBaseline reads what may fail: the reason by "revision scenario".
func readBaseline(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "conformance-baseline.txt"))
	if err != nil {
		t.Fatal(err)
	}
	baseline := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		entry := regexp.MustCompile(`^(\d{4}-\d\d-\d\d) +(\S+) +(\d+|-) +(\S.*)\n$`).FindStringSubmatch(line)
		if entry == nil {
			t.Fatalf("the baseline has the line %q, want: revision scenario issue reason", line)
		}
		baseline[entry[1]+" "+entry[2]] = entry[4]
	}
	return baseline
}
