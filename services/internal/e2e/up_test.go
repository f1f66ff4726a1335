package e2e

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestTakenPort: a port that is taken is an error that names the address,
// before anything starts.
func TestTakenPort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	addr := taken.Addr().String()
	c := startCluster(t)
	for name, args := range map[string][]string{
		"up":      {"up", "--listen", addr},
		"up/nats": {"up", "--listen", "127.0.0.1:0", "--nats-listen", addr},
		"edge":    {"edge", "--nats", c.nats, "--listen", addr},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := command(t, "", args...)
			if r.code != 5 || !strings.Contains(r.stderr, addr) {
				t.Errorf("ended with %d and said %q, want 5 and the address %s", r.code, r.stderr, addr)
			}
			if r.stdout != "" || strings.Contains(r.stderr, "level=INFO") {
				t.Errorf("something had started: %s%s", r.stdout, r.stderr)
			}
		})
	}
}

// TestDrain: SIGTERM lets a running call finish, and ends with code 0.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := serve(t, "up", "--dir", largeFolder(t, 400))
	resp := postStream(t, s.url, `{"jsonrpc":"2.0","id":"long","method":"tools/call","params":{"name":"reindex","arguments":{},"_meta":{"progressToken":"p"}}}`, http.Header{})
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("status %s, content type %q", resp.Status, resp.Header.Get("Content-Type"))
	}
	var last string
	progress := 0
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		last = data
		if strings.Contains(data, "notifications/progress") {
			if progress == 0 {
				s.signal(syscall.SIGTERM)
			}
			progress++
		}
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the stream was cut off: %v", err)
	}
	var r toolResult
	resultOf(t, last, `"long"`, &r)
	r.check(t, " terms and ")
	if progress < 5 {
		t.Errorf("%d progress notifications, want at least 5", progress)
	}
	if code := s.exitCode(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	if strings.Contains(s.stderr.String(), "cut off") {
		t.Errorf("a call was cut off:\n%s", s.stderr.String())
	}
	if _, err := http.Get(s.url); err == nil {
		t.Error("the server still answers")
	}
}

// TestEditedFile: who edits a file of the glossary gets the new answer.
func TestEditedFile(t *testing.T) {
	t.Parallel()
	dir := largeFolder(t, 0)
	s := serve(t, "up", "--dir", dir)
	write := func(name, title string) {
		t.Helper()
		page := "---\nslug: edited\ntitle: " + title + "\nlang: en\naliases: []\nrelated: []\nsource: here\n---\n\nText.\n"
		if err := os.WriteFile(filepath.Join(dir, "terms", "en", name), []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	answers := func(method, params, part string) func() bool {
		return func() bool {
			_, body := post(t, s.url, door{}.request("1", method, params), nil)
			return strings.Contains(body, part)
		}
	}
	const get = `"name":"get_term","arguments":{"slug":"edited"}`
	write("edited.md", "First version")
	eventually(t, "a new file is served", answers("tools/call", get, "# First version"))
	eventually(t, "a new file is listed", answers("resources/list", "", `"term://edited"`))
	write("edited.md", "Second version")
	eventually(t, "a changed file is served", answers("tools/call", get, "# Second version"))
	write("bad.md", "[unclosed")
	s.log(`level=WARN .*bad\.md`)
	eventually(t, "the rest is served beside a bad file", answers("tools/call", get, "# Second version"))
	if err := os.Remove(filepath.Join(dir, "terms", "en", "edited.md")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a removed file is gone", answers("tools/call", get, "there is no term"))
}

// TestIdleStop: with nothing to drain, SIGTERM and SIGINT end every role with
// code 0.
func TestIdleStop(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for name, begin := range map[string]func(t *testing.T) *process{
		"up":   func(t *testing.T) *process { t.Helper(); return serve(t, "up").process },
		"edge": func(t *testing.T) *process { t.Helper(); return serve(t, "edge", "--nats", c.nats).process },
		"glossary": func(t *testing.T) *process {
			t.Helper()
			p := start(t, "glossary", "--nats", c.nats)
			c.awaitInstances(t, 1)
			return p
		},
	} {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			// One after another: each glossary is alone on its NATS.
			t.Run(name+"/"+s.String(), func(t *testing.T) {
				p := begin(t)
				p.signal(s)
				if code := p.exitCode(); code != 0 {
					t.Errorf("ended with %d", code)
				}
				if p.stdout.String() != "" {
					t.Errorf("stdout holds %q", p.stdout.String())
				}
				if out := p.stderr.String(); strings.Contains(out, "level=ERROR") {
					t.Errorf("errors in the log:\n%s", out)
				}
			})
		}
	}
}
