package e2e

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// oldDoor is a deployment of two edges behind a proxy that serves them under a
// path prefix and keeps the two halves of HTTP+SSE apart: every GET goes to one
// edge and every POST to the other.
type oldDoor struct {
	cluster

	url string // of the stream
}

// serveOldDoor starts it with one worker, whose command and arguments are given.
func serveOldDoor(t *testing.T, worker ...string) *oldDoor {
	t.Helper()
	d := &oldDoor{cluster: startCluster(t)}
	start(t, append(worker, "--nats", d.nats)...)
	eventually(t, "the worker offers its tools", func() bool { return len(d.ls(t).Tools) > 0 })
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("a key that both edges have"), 0o600); err != nil {
		t.Fatal(err)
	}
	var edges [2]*url.URL
	for i := range edges {
		s := serve(t, "edge", "--nats", d.nats, "--session-key-file", key)
		var err error
		if edges[i], err = url.Parse(s.url); err != nil {
			t.Fatal(err)
		}
	}
	const prefix = "/team/x"
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		to := edges[0]
		if r.In.Method == http.MethodPost {
			to = edges[1]
		}
		path, ok := strings.CutPrefix(r.In.URL.Path, prefix)
		if !ok {
			path = "/outside"
		}
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.URL.Path = to.Scheme, to.Host, path
	}})
	t.Cleanup(proxy.Close)
	d.url = proxy.URL + prefix + "/sse"
	return d
}

// oldClients are the libraries that have a client of HTTP+SSE, in the revisions
// they agree on over it: what begins with the newest one goes back to the
// handshake.
func oldClients() []clientCase {
	var old []clientCase
	for _, c := range clientCases() {
		switch {
		case strings.HasPrefix(c.name, "npm-client"):
			continue // has no such transport
		case c.speaks == newest:
			c.speaks = newestLegacy
		}
		old = append(old, c)
	}
	return append(old,
		clientCase{name: "go-sdk-oldest", command: func(p *programs) []string { return []string{p.goSDK, "--mode", oldest} }, speaks: oldest},
		clientCase{name: "mcp-go-oldest", command: func(p *programs) []string { return []string{p.mcpGo, "--mode", oldest} }, speaks: oldest},
	)
}

// oldest is the revision that HTTP+SSE is from.
const oldest = "2024-11-05"

// TestHTTPSSEClients runs the clients of HTTP+SSE through what the clients of
// other transports go through, behind a path prefix (B63), and with each message
// posted to another edge than the one that holds the stream.
func TestHTTPSSEClients(t *testing.T) {
	t.Parallel()
	glossary, everything := serveOldDoor(t, "glossary"), serveOldDoor(t, "everything")
	for _, c := range oldClients() {
		t.Run(c.name+"/glossary", func(t *testing.T) {
			t.Parallel()
			checkScenario(t, runClient(t, c, "sse", glossary.url))
		})
		if strings.HasPrefix(c.name, "mcp-go") {
			// It takes every message with an id for a response, so it never
			// answers what it is asked over this transport.
			continue
		}
		t.Run(c.name+"/everything", func(t *testing.T) {
			t.Parallel()
			r := runClient(t, c, "--scenario", "everything", "sse", everything.url)
			dropped := 0
			for i := range r.Calls {
				// The TypeScript client takes an answer at once and the progress
				// that it has read together with it later, and then drops that.
				// The edge keeps them apart, but not on a machine that is busy.
				if call := &r.Calls[i]; call.Dropped > 0 && c.name == "npm-sdk" {
					dropped += call.Dropped
					call.Progress, call.Dropped = call.Arrived, 0
				}
			}
			t.Logf("the library dropped %d progress notifications", dropped)
			checkEverything(t, r)
		})
	}
}

// TestHTTPSSEClientsCancel: a call that a client gives up is cancelled at the
// worker, though the notification reaches another edge than the stream.
func TestHTTPSSEClientsCancel(t *testing.T) {
	t.Parallel()
	d := serveOldDoor(t, "glossary", "--dir", largeFolder(t, 1500))
	bus := tapBus(t, d.nats)
	for _, c := range oldClients() {
		if strings.HasPrefix(c.name, "mcp-go") {
			continue // does not tell
		}
		// One after another, so that each cancellation has its client.
		t.Run(c.name, func(t *testing.T) {
			before := bus.cancelled()
			r := runClient(t, c, "--scenario", "cancel", "sse", d.url)
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
