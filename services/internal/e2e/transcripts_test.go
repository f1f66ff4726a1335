package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// shell runs a line by bash, with millrace on PATH and with curl taking its
// options from a file in home.
func shell(t *testing.T, home, line string) result {
	t.Helper()
	cmd := exec.Command("bash", "-c", line)
	cmd.Env = environment(
		"PATH="+filepath.Dir(millrace(t))+string(os.PathListSeparator)+os.Getenv("PATH"),
		"CURL_HOME="+home,
	)
	return execute(t, "", cmd)
}

// curl runs a curl command exactly as a user types it, except for the port, and
// returns what came back.
func curl(t *testing.T, s *server, line string) (*http.Response, string) {
	t.Helper()
	at, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(line, "localhost:8080/mcp") {
		t.Fatalf("the transcript does not go to the default address: %s", line)
	}
	line = strings.Replace(line, "localhost:8080", "localhost:"+at.Port(), 1)
	// The command stays as it is typed: what the test wants to know besides
	// the body comes from a configuration file.
	home := t.TempDir()
	headers := filepath.Join(home, "headers")
	config := "silent\nshow-error\nnoproxy = \"*\"\nmax-time = 60\nwrite-out = \"\\n%{http_code}\"\ndump-header = \"" + headers + "\"\n"
	if err := os.WriteFile(filepath.Join(home, ".curlrc"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	r := shell(t, home, line)
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("%s\nended with %d: %s", line, r.code, r.stderr)
	}
	raw, err := os.ReadFile(headers)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		t.Fatalf("headers %q: %v", raw, err)
	}
	body, status, _ := cutLast(r.stdout, "\n")
	if !strings.HasPrefix(resp.Status, status+" ") {
		t.Errorf("curl saw status %s, the headers say %s", status, resp.Status)
	}
	return resp, body
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// answer is a JSON-RPC response with its id as it is written.
type answer struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	} `json:"error"`
}

func parseAnswer(t *testing.T, body string) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatalf("no JSON: %q: %v", body, err)
	}
	if a.JSONRPC != "2.0" || (a.Result == nil) == (a.Error == nil) {
		t.Errorf("no JSON-RPC response: %s", body)
	}
	return a
}

// resultOf reads a successful answer to a request with the id.
func resultOf(t *testing.T, body, id string, into any) {
	t.Helper()
	a := parseAnswer(t, body)
	if string(a.ID) != id {
		t.Errorf("the id is %s, want %s", a.ID, id)
	}
	if a.Error != nil {
		t.Fatalf("error %+v", a.Error)
	}
	if err := json.Unmarshal(a.Result, into); err != nil {
		t.Fatalf("result %s: %v", a.Result, err)
	}
}

type initializeResult struct {
	ProtocolVersion string `json:"protocolVersion"`
	Capabilities    struct {
		Tools, Resources *struct{}
	} `json:"capabilities"`
	ServerInfo struct{ Name, Version string } `json:"serverInfo"`
}

func (r *initializeResult) check(t *testing.T) {
	t.Helper()
	if r.ProtocolVersion != legacyWithoutHeader || r.Capabilities.Tools == nil || r.Capabilities.Resources == nil ||
		r.ServerInfo.Name != "millrace" || r.ServerInfo.Version == "" {
		t.Errorf("initialize gave %+v", r)
	}
}

type toolResult struct {
	Content []struct{ Type, Text string } `json:"content"`
	IsError bool                          `json:"isError"`
}

func (r *toolResult) check(t *testing.T, part string) {
	t.Helper()
	if r.IsError || len(r.Content) != 1 || r.Content[0].Type != "text" || !strings.Contains(r.Content[0].Text, part) {
		t.Errorf("the result is %+v, want one text with %q", r, part)
	}
}

// TestTranscripts runs the commands that people copy, as they type them.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	s := serve(t, "up")
	for _, transcript := range []struct {
		line  string
		check func(t *testing.T, resp *http.Response, body string)
	}{
		{
			`curl -X POST localhost:8080/mcp -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{"roots":{"listChanged":true},"sampling":{}},"clientInfo":{"name":"curl-test","version":"1.0"}}}'`,
			func(t *testing.T, resp *http.Response, body string) {
				var r initializeResult
				resultOf(t, body, "1", &r)
				r.check(t)
				id := resp.Header.Get("Mcp-Session-Id")
				if id == "" || strings.ContainsFunc(id, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
					t.Errorf("Mcp-Session-Id %q: it must be visible ASCII", id)
				}
			},
		},
		{
			`curl -X POST localhost:8080/mcp -H 'Content-Type: application/json' -d '{"jsonrpc":"2.0","id":2,"method":"tools/list"}'`,
			func(t *testing.T, _ *http.Response, body string) {
				var r struct {
					Tools []struct {
						Name        string          `json:"name"`
						InputSchema json.RawMessage `json:"inputSchema"`
					} `json:"tools"`
				}
				resultOf(t, body, "2", &r)
				var names []string
				for _, tool := range r.Tools {
					names = append(names, tool.Name)
					if !bytes.HasPrefix(tool.InputSchema, []byte("{")) {
						t.Errorf("%s has the input schema %s", tool.Name, tool.InputSchema)
					}
				}
				if strings.Join(names, " ") != "get_term reindex search_term" {
					t.Errorf("the tools are %q", names)
				}
			},
		},
		{
			`curl -X POST localhost:8080/mcp -H 'Content-Type: application/json' -d '{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"search_term","arguments":{"query":"context engineering"}}}'`,
			func(t *testing.T, _ *http.Response, body string) {
				var r toolResult
				resultOf(t, body, "3", &r)
				r.check(t, "1. Context engineering (en, term://context-engineering)")
			},
		},
		{
			`curl -X POST localhost:8080/mcp -H 'Content-Type: application/json' -d '{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"get_term","arguments":{"slug":"agent-readiness"}}}'`,
			func(t *testing.T, _ *http.Response, body string) {
				var r toolResult
				resultOf(t, body, "42", &r)
				r.check(t, "Agent readiness is")
			},
		},
		{
			`curl -X POST localhost:8080/mcp -H 'Content-Type: application/json' -d '{"jsonrpc":"2.0","id":4,"method":"resources/read","params":{"uri":"memo://notes/projekt"}}'`,
			func(t *testing.T, _ *http.Response, body string) {
				var r struct {
					Contents []struct{ URI, MimeType, Text string } `json:"contents"`
				}
				resultOf(t, body, "4", &r)
				if len(r.Contents) != 1 || r.Contents[0].URI != "memo://notes/projekt" || r.Contents[0].MimeType != "text/markdown" || r.Contents[0].Text == "" {
					t.Errorf("the result is %+v", r)
				}
			},
		},
	} {
		resp, body := curl(t, s, transcript.line)
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s\nstatus %s, content type %q", transcript.line, resp.Status, resp.Header.Get("Content-Type"))
		}
		transcript.check(t, resp, body)
	}

	resp, body := curl(t, s, `curl -X POST localhost:8080/mcp -H 'Content-Type: application/json' -d '{"jsonrpc":"2.0","method":"notifications/initialized"}'`)
	if resp.StatusCode != http.StatusAccepted || body != "" || resp.Header.Get("Content-Length") != "0" || resp.Header[textproto.CanonicalMIMEHeaderKey("Content-Type")] != nil {
		t.Errorf("notification: status %s, body %q, headers %v; want 202 and nothing in it", resp.Status, body, resp.Header)
	}
}

// TestStdioTranscript is the same for stdio.
func TestStdioTranscript(t *testing.T) {
	t.Parallel()
	r := shell(t, t.TempDir(), `echo '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"test","version":"1.0"}}}' | millrace stdio`)
	if r.code != 0 || strings.Count(r.stdout, "\n") != 1 || !strings.HasSuffix(r.stdout, "\n") {
		t.Fatalf("ended with %d and printed %q, want one line", r.code, r.stdout)
	}
	var answer initializeResult
	resultOf(t, r.stdout, "1", &answer)
	answer.check(t)
}
