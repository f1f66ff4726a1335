package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// newestLegacy and newest are the revisions that clients of each era agree on
// with us; legacyWithoutHeader is one that names arguments in errors.
const (
	newest               = "2026-07-28"
	newestLegacy         = "2025-11-25"
	firstWithElicitation = "2025-06-18"
	legacyWithoutHeader  = "2025-03-26"
)

// clientCase is one client library in one of its modes.
type clientCase struct {
	name    string
	command func(p *programs) []string
	// speaks is the revision it must agree on.
	speaks string
	// library and mode are what the table in docs/clients.md calls it.
	library, mode string
	// keepsCallOnHTTP: the library does not tell a server over HTTP that its
	// user has given up a call.
	keepsCallOnHTTP bool
}

func node(script, mode string) func(p *programs) []string {
	return func(p *programs) []string {
		return []string{p.node, filepath.Join(p.scripts, script), "--mode", mode}
	}
}

// clientCases are all clients in all modes.
func clientCases() []clientCase {
	goSDK := func(mode string) func(p *programs) []string {
		return func(p *programs) []string { return []string{p.goSDK, "--mode", mode} }
	}
	mcpGo := func(mode string) func(p *programs) []string {
		return func(p *programs) []string { return []string{p.mcpGo, "--mode", mode} }
	}
	return []clientCase{
		{name: "npm-sdk", library: "@modelcontextprotocol/sdk 1.32.2", mode: "default", command: node("sdk.mjs", ""), speaks: newestLegacy},
		{name: "npm-client-pinned", library: "@modelcontextprotocol/client 2.4.0", mode: "pinned", command: node("client.mjs", "pin:"+newest), speaks: newest},
		{name: "npm-client-auto", library: "@modelcontextprotocol/client 2.4.0", mode: "auto", command: node("client.mjs", "auto"), speaks: newest},
		{name: "npm-client-legacy", library: "@modelcontextprotocol/client 2.4.0", mode: "legacy", command: node("client.mjs", "legacy"), speaks: newestLegacy},
		{name: "go-sdk", library: "modelcontextprotocol/go-sdk 1.8.0", mode: "default", command: goSDK(""), speaks: newest},
		{name: "go-sdk-legacy", library: "modelcontextprotocol/go-sdk 1.8.0", mode: "2025-11-25", command: goSDK(newestLegacy), speaks: newestLegacy},
		{name: "go-sdk-old", library: "modelcontextprotocol/go-sdk 1.8.0", mode: "2025-03-26", command: goSDK(legacyWithoutHeader), speaks: legacyWithoutHeader},
		{name: "mcp-go", library: "mark3labs/mcp-go 1.2.1", mode: "default", command: mcpGo(""), speaks: newest},
		{name: "mcp-go-legacy", library: "mark3labs/mcp-go 1.2.1", mode: "2025-11-25", command: mcpGo(newestLegacy), speaks: newestLegacy, keepsCallOnHTTP: true},
		{name: "mcp-go-old", library: "mark3labs/mcp-go 1.2.1", mode: "2025-03-26", command: mcpGo(legacyWithoutHeader), speaks: legacyWithoutHeader, keepsCallOnHTTP: true},
	}
}

// clientReport is what a client program prints.
type clientReport struct {
	Client          string       `json:"client"`
	ProtocolVersion string       `json:"protocolVersion"`
	Tools           []string     `json:"tools"`
	Resources       []string     `json:"resources"`
	Templates       []string     `json:"templates"`
	Calls           []clientCall `json:"calls"`
	Read            struct {
		Contents []struct {
			URI  string `json:"uri"`
			Text string `json:"text"`
			Blob []byte `json:"blob"`
		} `json:"contents"`
	} `json:"read"`
	Prompt struct {
		Messages []struct {
			Role    string `json:"role"`
			Content struct {
				Text string `json:"text"`
			} `json:"content"`
		} `json:"messages"`
	} `json:"prompt"`
	Completion struct {
		Completion struct {
			Values []string `json:"values"`
		} `json:"completion"`
	} `json:"completion"`
	Features clientFeatures `json:"features"`
	Errors   []clientError  `json:"errors"`
}

type clientCall struct {
	Tool   string `json:"tool"`
	Result *struct {
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"content"`
		Structured map[string]any `json:"structuredContent"`
		IsError    bool           `json:"isError"`
	} `json:"result"`
	Error *clientError `json:"error"`
	// Progress is what the user of the library got, Arrived what the library
	// read where that is not the same, and Dropped how much it lost.
	Progress             []clientProgress `json:"progress"`
	Arrived              []clientProgress `json:"arrived"`
	Dropped              int              `json:"dropped"`
	ProgressBeforeResult bool             `json:"progressBeforeResult"`
}

type clientProgress struct {
	Progress float64 `json:"progress"`
	Total    float64 `json:"total"`
	Message  string  `json:"message"`
}

type clientError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// runClient runs a client program against a target and reads its report.
func runClient(t *testing.T, c clientCase, args ...string) clientReport {
	t.Helper()
	argv := append(c.command(clients(t)), args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = environment("HOME=" + t.TempDir()) // some keep files there
	r := execute(t, "", cmd)
	var report clientReport
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || r.code != 0 {
		t.Fatalf("%v ended with %d (%v)\nstdout: %s\nstderr: %s", argv, r.code, err, r.stdout, r.stderr)
	}
	if len(report.Errors) > 0 {
		t.Fatalf("the client failed: %+v\nstderr: %s", report.Errors, r.stderr)
	}
	if report.ProtocolVersion != c.speaks {
		t.Errorf("agreed on revision %q, want %q", report.ProtocolVersion, c.speaks)
	}
	if strings.Contains(r.stderr, "level=ERROR") {
		t.Errorf("errors in the log:\n%s", r.stderr)
	}
	return report
}

// TestClients runs every client in every mode through the whole scenario,
// against one server over HTTP and against a server of its own over stdio.
func TestClients(t *testing.T) {
	t.Parallel()
	s := serve(t, "up")
	for _, c := range clientCases() {
		t.Run(c.name+"/http", func(t *testing.T) {
			t.Parallel()
			checkScenario(t, runClient(t, c, "http", s.url))
		})
		t.Run(c.name+"/stdio", func(t *testing.T) {
			t.Parallel()
			checkScenario(t, runClient(t, c, "stdio", millrace(t), "stdio", "--log-level", "warn"))
		})
	}
}

func checkScenario(t *testing.T, r clientReport) {
	t.Helper()
	if want := []string{"get_term", "reindex", "search_term"}; !slices.Equal(r.Tools, want) {
		t.Errorf("tools %q, want %q", r.Tools, want)
	}
	for _, uri := range []string{"memo://notes/projekt", "term://agent-readiness"} {
		if !slices.Contains(r.Resources, uri) {
			t.Errorf("%s is not among the resources %q", uri, r.Resources)
		}
	}
	for _, template := range []string{"memo://notes/{name}", "term://{slug}"} {
		if !slices.Contains(r.Templates, template) {
			t.Errorf("%s is not among the templates %q", template, r.Templates)
		}
	}
	if len(r.Read.Contents) != 1 || r.Read.Contents[0].URI != "memo://notes/projekt" || !strings.Contains(r.Read.Contents[0].Text, "Projekt") {
		t.Errorf("read %+v", r.Read)
	}
	want := []struct {
		tool  string
		check func(*testing.T, *clientCall)
	}{
		{"search_term", textContains("term://context-engineering")},
		{"get_term", textContains("# Agent readiness")},
		{"get_term", missingSlug(r.ProtocolVersion)},
		{"no_such_tool", func(t *testing.T, c *clientCall) {
			if c.Error == nil || c.Error.Code != -32602 || !strings.Contains(c.Error.Message, "no_such_tool") {
				t.Errorf("unknown tool: %+v, error %+v, want -32602 that names it", c.Result, c.Error)
			}
		}},
		{"reindex", wholeProgress},
		{"get_term", textContains("# MCP")},
	}
	if len(r.Calls) != len(want) {
		t.Fatalf("%d calls, want %d", len(r.Calls), len(want))
	}
	for i := range want {
		if r.Calls[i].Tool != want[i].tool {
			t.Errorf("call %d was %s, want %s", i, r.Calls[i].Tool, want[i].tool)
			continue
		}
		want[i].check(t, &r.Calls[i])
	}
}

func textContains(part string) func(*testing.T, *clientCall) {
	return func(t *testing.T, c *clientCall) {
		t.Helper()
		if c.Error != nil || c.Result == nil || c.Result.IsError || len(c.Result.Content) != 1 || !strings.Contains(c.Result.Content[0].Text, part) {
			t.Errorf("%s: result %+v, error %+v, want a text with %q", c.Tool, c.Result, c.Error, part)
		}
	}
}

// missingSlug: up to 2025-06-18 arguments that do not fit are a protocol error;
// since 2025-11-25 a result that a model can read.
func missingSlug(version string) func(*testing.T, *clientCall) {
	return func(t *testing.T, c *clientCall) {
		t.Helper()
		switch {
		case version < newestLegacy:
			if c.Error == nil || c.Error.Code != -32602 || !strings.Contains(c.Error.Message, "slug") {
				t.Errorf("missing slug: result %+v, error %+v, want -32602 that names it", c.Result, c.Error)
			}
		case c.Error != nil || c.Result == nil || !c.Result.IsError || !strings.Contains(c.Result.Content[0].Text, "slug"):
			t.Errorf("missing slug: result %+v, error %+v, want a result with isError that names it", c.Result, c.Error)
		}
	}
}

func wholeProgress(t *testing.T, c *clientCall) {
	t.Helper()
	if c.Error != nil || c.Result == nil || c.Result.IsError {
		t.Errorf("reindex: result %+v, error %+v", c.Result, c.Error)
	}
	if len(c.Progress) < 5 {
		t.Errorf("%d progress notifications, want at least 5", len(c.Progress))
	}
	if !c.ProgressBeforeResult {
		t.Error("progress came after the result")
	}
	for i := range c.Progress {
		p := c.Progress[i]
		if p.Total == 0 || p.Progress > p.Total || i > 0 && p.Progress <= c.Progress[i-1].Progress {
			t.Errorf("progress %d is %+v after %+v: it must rise up to its total", i, p, c.Progress[max(0, i-1)])
		}
	}
}

// TestClientsCancel: a call that a client gives up is cancelled at the worker,
// and the connection goes on. The bus is watched for that: the client would not
// notice the difference.
func TestClientsCancel(t *testing.T) {
	t.Parallel()
	s := serve(t, "up", "--nats-listen", "127.0.0.1:0", "--dir", largeFolder(t, 1500))
	nats := s.log(`msg="NATS takes workers[^"]*" url=(\S+)`)[0]
	bus := tapBus(t, nats)
	for _, c := range clientCases() {
		for transport, target := range map[string][]string{
			"http":  {"http", s.url},
			"stdio": {"stdio", millrace(t), "stdio", "--log-level", "warn", "--nats", nats},
		} {
			if transport == "http" && c.keepsCallOnHTTP {
				continue
			}
			// One after another, so that each cancellation has its client.
			t.Run(c.name+"/"+transport, func(t *testing.T) {
				before := bus.cancelled()
				r := runClient(t, c, append([]string{"--scenario", "cancel"}, target...)...)
				if len(r.Calls) != 2 {
					t.Fatalf("%d calls, want 2", len(r.Calls))
				}
				if c := r.Calls[0]; c.Error == nil || len(c.Progress) < 2 {
					t.Errorf("reindex was not cancelled: result %+v after %d progress notifications", c.Result, len(c.Progress))
				}
				textContains("# Agent readiness")(t, &r.Calls[1])
				eventually(t, "the worker ends the call as cancelled", func() bool { return bus.cancelled() > before })
			})
		}
	}
}

// largeFolder is a folder with the built-in content and n more terms, so that
// reindexing takes a while.
func largeFolder(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, "services/glossary/content"))); err != nil {
		t.Fatal(err)
	}
	writeTerms(t, filepath.Join(dir, "terms", "en"), n)
	return dir
}
