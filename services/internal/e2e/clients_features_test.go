package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// clientFeatures is how the scenario features went, besides its calls.
type clientFeatures struct {
	Logged []string `json:"logged"`
	Told   []struct {
		Method  string `json:"method"`
		Subject string `json:"subject"`
	} `json:"told"`
	Refused map[string]string `json:"refused"`
}

// works says which features a report shows, by the columns of the table. What
// does not work is there with the reason.
func (r *clientReport) works() map[string]error {
	calls := map[string]*clientCall{}
	for i := range r.Calls {
		calls[r.Calls[i].Tool] = &r.Calls[i]
	}
	said := func(tool, text string) error {
		c := calls[tool]
		if c == nil || c.Result == nil || c.Result.IsError || len(c.Result.Content) != 1 || !strings.Contains(c.Result.Content[0].Text, text) {
			return fmt.Errorf("%s: %s, want %q", tool, show(c), text)
		}
		return nil
	}
	told := func(method, subject string) error {
		for _, n := range r.Features.Told {
			if n.Method == method && n.Subject == subject {
				return nil
			}
		}
		return fmt.Errorf("not told of %s: %v", method, r.Features)
	}
	worked := map[string]error{
		"progress":     said("count", `{"count":20}`),
		"cancellation": said("held", `{"started":true,"ended":true,"cancelled":true}`),
		"elicitation":  said("test_elicitation", "ada@example.com"),
		"sampling":     said("test_sampling", "answer to a question"),
		"roots":        said("test_input_required_result_list_roots", "The client has 2 roots."),
		"logging":      said("log_all", "Sent one message at each level."),
		"updates":      told("resources/updated", "test://watched-resource"),
	}
	if c := calls["count"]; c != nil && len(c.Progress) != 20-c.Dropped {
		worked["progress"] = fmt.Errorf("%d progress notifications, want %d", len(c.Progress), 20-c.Dropped)
	}
	if c := calls["hold"]; c == nil || c.Error == nil {
		worked["cancellation"] = fmt.Errorf("the call that was given up: %s", show(c))
	}
	if want := []string{"warning", "error", "critical", "alert", "emergency"}; !slices.Equal(r.Features.Logged, want) {
		worked["logging"] = fmt.Errorf("logged at %q, want %q", r.Features.Logged, want)
	}
	for _, list := range []string{"tools", "prompts", "resources"} {
		if err := told(list+"/list_changed", ""); err != nil || worked["list changes"] == nil {
			worked["list changes"] = err
		}
	}
	for step, reason := range r.Features.Refused {
		worked[step] = fmt.Errorf("refused: %s", reason)
	}
	return worked
}

// show writes a call for a message.
func show(c *clientCall) string {
	if c == nil {
		return "not called"
	}
	raw, err := json.Marshal(c)
	return fmt.Sprint(string(raw), err)
}

// features are the columns of the table.
func features() []string {
	return []string{"progress", "cancellation", "elicitation", "sampling", "roots", "logging", "list changes", "updates"}
}

// cannot says why a client cannot have a feature, empty where it can.
func (c *clientCase) cannot(feature, transport string) string {
	switch {
	case feature == "elicitation" && c.speaks < firstWithElicitation:
		return "The revision has no elicitation."
	case feature == "cancellation" && transport == "http" && c.keepsCallOnHTTP:
		return "Up to 2025-11-25 the library tells a server over HTTP nothing when its user gives up a call, and a closed connection is no cancellation there."
	}
	return ""
}

// checkFeatures runs a client through the scenario features.
func checkFeatures(t *testing.T, c *clientCase, transport string, target ...string) {
	t.Helper()
	r := runClient(t, *c, append([]string{"--scenario", "features", transport}, target...)...)
	worked := r.works()
	for _, feature := range features() {
		err, reason := worked[feature], c.cannot(feature, transport)
		switch {
		case err != nil && reason == "":
			t.Errorf("%s: %v", feature, err)
		case err == nil && reason != "":
			t.Errorf("%s works, although: %s", feature, reason)
		}
		delete(worked, feature)
	}
	for step, err := range worked {
		t.Errorf("%s: %v", step, err)
	}
}

// TestClientFeatures runs every client in every mode through what a server
// tells or asks by itself, over both transports; what a cancellation does is
// looked at in the worker. docs/clients.md says what works, and why something
// does not: a mark there that is not true fails.
func TestClientFeatures(t *testing.T) {
	t.Parallel()
	cases := clientCases()
	s := serve(t, "up", "--worker", "everything")
	for i := range cases {
		c := &cases[i]
		// All are told of what one of them changes, which is no harm: each
		// waits for what it has caused, and sees that it is told.
		t.Run(c.name+"/http", func(t *testing.T) {
			t.Parallel()
			checkFeatures(t, c, "http", s.url)
		})
		t.Run(c.name+"/stdio", func(t *testing.T) {
			t.Parallel()
			checkFeatures(t, c, "stdio", millrace(t), "stdio", "--worker", "everything", "--log-level", "warn")
		})
	}
}

// TestClientsTable: docs/clients.md is what the clients above are checked for.
func TestClientsTable(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	fmt.Fprintf(&table, "| Client | Mode | Revision | Transport | %s |\n|---|---|---|---|%s\n", strings.Join(features(), " | "), strings.Repeat("---|", len(features())))
	var reasons []string
	cases := clientCases()
	for i := range cases {
		c := &cases[i]
		for _, transport := range []string{"http", "stdio"} {
			fmt.Fprintf(&table, "| %s | %s | %s | %s |", c.library, c.mode, c.speaks, strings.ToUpper(transport[:1])+transport[1:])
			for _, feature := range features() {
				mark := "yes"
				if reason := c.cannot(feature, transport); reason != "" {
					if !slices.Contains(reasons, reason) {
						reasons = append(reasons, reason)
					}
					mark = fmt.Sprintf("no (%d)", slices.Index(reasons, reason)+1)
				}
				fmt.Fprintf(&table, " %s |", mark)
			}
			table.WriteString("\n")
		}
	}
	table.WriteString("\n")
	for i, reason := range reasons {
		fmt.Fprintf(&table, "%d. %s\n", i+1, reason)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "clients.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(strings.ReplaceAll(table.String(), "| Http |", "| HTTP |"), "| Stdio |", "| stdio |")
	if !strings.Contains(string(page), want) {
		t.Errorf("docs/clients.md has not this table:\n%s", want)
	}
}

// TestClientVersions: the table names the versions that are installed.
func TestClientVersions(t *testing.T) {
	t.Parallel()
	p := clients(t)
	raw, err := os.ReadFile(filepath.Join(clientsDir, "node", "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct{ Dependencies map[string]string }
	if err := json.Unmarshal(raw, &manifest); err != nil {
		t.Fatal(err)
	}
	mod := execute(t, "", exec.Command("go", "version", "-m", p.goSDK, p.mcpGo)).stdout
	cases := clientCases()
	for i := range cases {
		name, version, _ := strings.Cut(cases[i].library, " ")
		inGo := strings.Contains(mod, fmt.Sprintf("github.com/%s\tv%s\t", name, version))
		if manifest.Dependencies[name] != version && !inGo {
			t.Errorf("%s %s is not what is installed", name, version)
		}
	}
}
