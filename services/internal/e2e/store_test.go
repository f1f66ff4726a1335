package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// keySession opens a session and returns the headers of its requests.
func keySession(t *testing.T, url string) http.Header {
	t.Helper()
	resp, body := post(t, url, initializeLine("2025-11-25"), http.Header{})
	id := resp.Header.Get("Mcp-Session-Id")
	if resp.StatusCode != http.StatusOK || id == "" {
		t.Fatalf("initialize: %s, session %q: %s", resp.Status, id, body)
	}
	return http.Header{"Mcp-Session-Id": {id}, "Mcp-Protocol-Version": {"2025-11-25"}}
}

// wantSession pings in a session and demands that it is known or not.
func wantSession(t *testing.T, url string, session http.Header, known bool) {
	t.Helper()
	want := http.StatusNotFound
	if known {
		want = http.StatusOK
	}
	if resp, body := post(t, url, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, session); resp.StatusCode != want {
		t.Errorf("%s instead of %d: %s", resp.Status, want, body)
	}
}

// Sessions, also that they have ended, survive a restart on the same folder.
func TestDataFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := serve(t, "up", "--data", dir)
	open, closed := keySession(t, s.url), keySession(t, s.url)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, s.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = closed
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	wantSession(t, s.url, closed, false)

	second := command(t, "", "up", "--listen", "127.0.0.1:0", "--data", dir)
	if second.code != 5 || !strings.Contains(second.stderr, "in use") {
		t.Errorf("a second server on the folder ended with %d: %s", second.code, second.stderr)
	}
	s.signal(syscall.SIGTERM)
	if code := s.exitCode(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	again := serve(t, "up", "--data", dir)
	wantSession(t, again.url, open, true)
	wantSession(t, again.url, closed, false)
	wantSession(t, serve(t, "up").url, open, false)
}

// Edges without a key file share the key that the first one has left in
// JetStream; those with key files accept each other's in any order.
func TestSessionKeys(t *testing.T) {
	t.Parallel()
	node := start(t, "nats", "--listen", "127.0.0.1:0")
	nats := node.log(`msg="?NATS[^\n]* url=(\S+)`)[0]
	a, b := serve(t, "edge", "--nats", nats), serve(t, "edge", "--nats", nats)
	wantSession(t, b.url, keySession(t, a.url), true)
	wantSession(t, a.url, keySession(t, b.url), true)

	files := make([]string, 2)
	for i, secret := range []string{"the key of last year", "the key of this year"} {
		files[i] = filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(files[i], []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := serve(t, "edge", "--nats", nats, "--session-key-file", files[0])
	both := serve(t, "edge", "--nats", nats, "--session-key-file", files[0], "--session-key-file", files[1])
	turned := serve(t, "edge", "--nats", nats, "--session-key-file", files[1], "--session-key-file", files[0])
	wantSession(t, both.url, keySession(t, old.url), true)
	wantSession(t, turned.url, keySession(t, old.url), true)
	wantSession(t, old.url, keySession(t, both.url), true)
	wantSession(t, both.url, keySession(t, turned.url), true)
	wantSession(t, old.url, keySession(t, turned.url), false)
	wantSession(t, a.url, keySession(t, old.url), false)
}

// Without JetStream an edge serves all the same, and says what it lacks.
func TestEdgeWithoutJetStream(t *testing.T) {
	t.Parallel()
	s := serve(t, "edge", "--nats", startCluster(t).nats)
	s.log(`level=WARN msg="no key for sessions can be shared`)
	wantSession(t, s.url, keySession(t, s.url), true)
}
