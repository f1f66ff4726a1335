package e2e

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// These tests are reports from the field about what stands between a client and
// a server; the names are those of the bank of cases.

// nginxConfig is that of Debian as far as it matters here: answers are buffered
// and compressed. Only its patience is shorter than 60 s, so that a stream that
// says nothing for as long is cut off while the test looks.
const nginxConfig = `
daemon off;
master_process off;
pid %[1]s/nginx.pid;
error_log stderr;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	gzip on;
	gzip_min_length 1;
	gzip_types application/json text/event-stream;
	server {
		listen unix:%[1]s/nginx.sock;
		location / {
			proxy_pass http://%[2]s;
			proxy_read_timeout 20s;
		}
	}
}
`

// behindNginx starts nginx before a server and returns a client whose requests
// go through it.
func behindNginx(t *testing.T, s *server) *http.Client {
	t.Helper()
	at, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, nginxConfig, dir, at.Host), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("nginx")
	if err != nil {
		program = "/usr/sbin/nginx" // where Debian has it, which not everybody has on the path
	}
	cmd := exec.Command(program, "-e", "stderr", "-c", config)
	var said text
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: install nginx, as .ci/run does", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("nginx said:\n%s", said.String())
		}
	})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "nginx.sock"))
	}
	eventually(t, "nginx takes connections", func() bool {
		conn, err := dial(t.Context(), "", "")
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	// It asks for gzip itself and would hide it otherwise.
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true}}
}

// proxied is a stream that is read as it comes.
type proxied struct {
	name string
	got  text
	done chan struct{} // closed at its end
}

// open sends a request and reads the stream that answers it.
func open(t *testing.T, client *http.Client, name, method, to, raw string, header http.Header) *proxied {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, to, strings.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header.Clone()
	req.Header.Set("Content-Type", "application/json")
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", "application/json, text/event-stream")
	}
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %d %v", name, resp.StatusCode, resp.Header)
	}
	if resp.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("%s: nginx does not compress it: %v", name, resp.Header)
	}
	p := &proxied{name: name, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		// The head of the format comes with the first event.
		if plain, err := gzip.NewReader(resp.Body); err == nil {
			_, _ = io.Copy(&p.got, plain) // what came is what counts
		}
	}()
	return p
}

// await waits until the stream has what the pattern says.
func (p *proxied) await(t *testing.T, pattern string) {
	t.Helper()
	if p.got.await(pattern, p.done) == nil {
		t.Fatalf("%s never had %s:\n%s", p.name, pattern, p.got.String())
	}
}

// TestB28BehindNginx: a proxy that buffers and compresses passes on what comes
// when it comes, and does not take silence for death. What comes at once is
// seen by what depends on it: the call goes on only when its progress is here.
func TestB28BehindNginx(t *testing.T) {
	t.Parallel()
	s := serve(t, "up", "--worker", "everything")
	client := behindNginx(t, s)
	base := "http://localhost"
	resp, _ := post(t, s.url, initializeLine(newestLegacy), nil)
	session := http.Header{"Mcp-Session-Id": {resp.Header.Get("Mcp-Session-Id")}}
	modern := http.Header{"Mcp-Protocol-Version": {newest}, "Mcp-Method": {"subscriptions/listen"}}
	events := session.Clone()
	events.Set("Accept", "text/event-stream")
	call := open(t, client, "a call", http.MethodPost, base+"/mcp",
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hold","arguments":{"name":"nginx"},"_meta":{"progressToken":1}}}`, session)
	get := open(t, client, "the GET stream", http.MethodGet, base+"/mcp", "", events)
	listen := open(t, client, "subscriptions/listen", http.MethodPost, base+"/mcp",
		`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},`+modernMeta+`}}`, modern)
	old := open(t, client, "HTTP+SSE", http.MethodGet, base+"/sse", "", http.Header{"Accept": {"text/event-stream"}})
	call.await(t, `notifications/progress`)
	listen.await(t, `subscriptions/acknowledged`)
	old.await(t, `event: endpoint\n`)
	post(t, s.url, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"test_trigger_tool_change"}}`, nil)
	for _, stream := range []*proxied{get, listen} {
		stream.await(t, `tools/list_changed`)
	}
	// Now nothing happens for longer than nginx waits.
	for _, stream := range []*proxied{call, get, listen, old} {
		stream.await(t, `(?s)(\n:[^\n]*\n.*){2}`)
	}
	post(t, s.url, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"held","arguments":{"name":"nginx"}}}`, nil)
	call.await(t, `Let go\.`)
	post(t, s.url, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"test_trigger_tool_change"}}`, nil)
	for _, stream := range []*proxied{get, listen} {
		stream.await(t, `(?s)tools/list_changed.*tools/list_changed`)
	}
}

// TestB28SlowHead: who sends a request byte by byte does not keep a connection.
func TestB28SlowHead(t *testing.T) {
	t.Parallel()
	s := serve(t, "up")
	at, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", at.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, conn) // however it ends
	}()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	head := "POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + strings.Repeat("x", 1000)
	for i := 0; ; i++ {
		select {
		case <-closed:
			return
		case <-deadline.C:
			t.Fatalf("after %v and %d bytes of a head the connection is still there", patience, i)
		case <-tick.C:
			_, _ = io.WriteString(conn, head[i%len(head):i%len(head)+1]) // it may be closed
		}
	}
}
