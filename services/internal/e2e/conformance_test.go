package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestConformance is the gate of the official suite: one URL, every revision
// that the suite knows. There is no list of what may fail: every row of every
// scenario passes, and the suite says so itself by its exit code.
func TestConformance(t *testing.T) {
	t.Parallel()
	checkConformance(t, serve(t, "up", "--worker", "glossary", "--worker", "everything").url)
}

// checkConformance runs the suite against a server that has the worker
// everything.
func checkConformance(t *testing.T, url string) {
	t.Helper()
	declared := declaredExtensions(t, url)
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
			ran, extension := runConformance(t, url, c.args...)
			if len(ran) < c.scenarios {
				t.Errorf("%d scenarios ran, want at least %d", len(ran), c.scenarios)
			}
			for scenario, checks := range ran {
				// The suite runs the scenarios of extensions against every
				// server, and what it asks there is a matter of the extension:
				// a server that does not declare it rightly knows neither its
				// methods nor its results. They are judged from the day on
				// which server/discover declares it.
				if extension[scenario] && !declared[extensionOf(t, scenario)] {
					continue
				}
				checks.judge(t, c.revision, scenario)
			}
		})
	}
}

// declaredExtensions returns the extensions that server/discover declares.
func declaredExtensions(t *testing.T, url string) map[string]bool {
	t.Helper()
	var discovered struct {
		Result struct {
			ResultType   string
			Capabilities struct{ Extensions map[string]any }
		}
	}
	_, raw := post(t, url, `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"`+newest+
		`","io.modelcontextprotocol/clientInfo":{"name":"e2e","version":"1.0.0"},"io.modelcontextprotocol/clientCapabilities":{}}}}`,
		http.Header{"Mcp-Protocol-Version": {newest}, "Mcp-Method": {"server/discover"}})
	if err := json.Unmarshal([]byte(raw), &discovered); err != nil || discovered.Result.ResultType != "complete" {
		t.Fatalf("server/discover: %v in %s", err, raw)
	}
	declared := map[string]bool{}
	for name := range discovered.Result.Capabilities.Extensions {
		declared[name] = true
	}
	return declared
}

// extensionOf returns the identifier of the extension that a scenario is of.
// The suite says only that it is one of some extension.
func extensionOf(t *testing.T, scenario string) string {
	t.Helper()
	for prefix, extension := range map[string]string{"tasks-": "io.modelcontextprotocol/tasks"} {
		if strings.HasPrefix(scenario, prefix) {
			return extension
		}
	}
	t.Errorf("%s is of an extension that nobody knows: name it here", scenario)
	return ""
}

// conformanceChecks are the rows of one scenario.
type conformanceChecks []struct {
	ID, Status, Description, ErrorMessage string
	Details                               json.RawMessage
}

// allowedWarnings are the rows that the suite does not let a server avoid: the
// reason by revision, scenario and row.
func allowedWarnings() map[string]string {
	return map[string]string{}
}

// judge looks at each row of a scenario. SKIPPED is a row about something that
// the suite does not find, so it must not appear either.
func (c conformanceChecks) judge(t *testing.T, revision, scenario string) {
	t.Helper()
	for _, check := range c {
		switch check.Status {
		case "SUCCESS", "INFO":
		default:
			if check.Status == "WARNING" && allowedWarnings()[revision+" "+scenario+" "+check.ID] != "" {
				continue
			}
			t.Errorf("%s: %s: %s: %s: %s\n%s", scenario, check.Status, check.ID, check.Description, check.ErrorMessage, check.Details)
		}
	}
	if len(c) == 0 {
		t.Errorf("%s has no rows", scenario)
	}
}

// runConformance runs the suite and returns the rows by scenario, and which
// scenarios the suite itself calls those of an extension.
func runConformance(t *testing.T, url string, args ...string) (ran map[string]conformanceChecks, extension map[string]bool) {
	t.Helper()
	p := clients(t)
	out := t.TempDir()
	cmd := exec.Command(p.node, append([]string{
		filepath.Join(p.modules, "@modelcontextprotocol", "conformance", "dist", "index.js"),
		"server", "--url", url, "-o", out,
	}, args...)...)
	r := execute(t, "", cmd)
	// The exit code says whether something scored has failed.
	if r.code != 0 {
		t.Fatalf("the suite ended with %d:\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	dirs, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`^server-(.+)-\d{4}-\d\d-\d\dT[-\d]+Z$`)
	ran = map[string]conformanceChecks{}
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
	extension = map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^ +\S (\S+) \(extension\)$`).FindAllStringSubmatch(r.stdout, -1) {
		extension[line[1]] = true
	}
	return ran, extension
}
