package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// listing is what `millrace ls --json` prints.
type listing struct {
	Instances []struct {
		Pool, Instance, State string
		Slots, Used           int
	} `json:"instances"`
	Tools []struct{ Name, Pool string } `json:"tools"`
}

func (c cluster) ls(t *testing.T) listing {
	t.Helper()
	r := command(t, "", "ls", "--nats", c.nats, "--json")
	var l listing
	if err := json.Unmarshal([]byte(r.stdout), &l); err != nil || r.code != 0 {
		t.Fatalf("ls ended with %d (%v):\n%s\n%s", r.code, err, r.stdout, r.stderr)
	}
	return l
}

// awaitInstances waits until ls shows n ready instances, and the tools of the
// pool if there are any.
func (c cluster) awaitInstances(t *testing.T, n int) {
	t.Helper()
	var l listing
	eventually(t, fmt.Sprintf("ls shows %d instances", n), func() bool {
		l = c.ls(t)
		for _, i := range l.Instances {
			if i.Pool != "glossary" || i.State != "ready" || i.Slots == 0 {
				return false
			}
		}
		return len(l.Instances) == n && (n == 0 || len(l.Tools) == 3)
	})
}

// callMany makes n calls, some at a time, and returns the failures. In the
// midst of them it calls during, if given.
func callMany(t *testing.T, url string, n int, during ...func()) (failures []string) {
	t.Helper()
	var mu sync.Mutex
	var running sync.WaitGroup
	next := make(chan int) // unbuffered: handed to whoever is free
	for range 8 {
		running.Go(func() {
			for i := range next {
				body := callOnce(url, i)
				var a answer
				var r toolResult
				if json.Unmarshal([]byte(body), &a) != nil || json.Unmarshal(a.Result, &r) != nil ||
					string(a.ID) != fmt.Sprint(i) || len(r.Content) != 1 || !strings.Contains(r.Content[0].Text, "# MCP") {
					mu.Lock()
					failures = append(failures, body)
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		next <- i
		if i == n/4 {
			for _, f := range during {
				f()
			}
		}
	}
	close(next)
	running.Wait()
	return failures
}

func callOnce(url string, id int) (body string) {
	client := &http.Client{Timeout: 2 * patience}
	raw := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"get_term","arguments":{"slug":"mcp"}}}`, id)
	resp, err := client.Post(url, "application/json", strings.NewReader(raw))
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(all)
}

// TestCluster runs the roles as processes of their own: one edge, two workers.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	bus := tapBus(t, c.nats)
	s := serve(t, "edge", "--nats", c.nats)
	first := start(t, "glossary", "--nats", c.nats)
	second := start(t, "glossary", "--nats", c.nats)
	c.awaitInstances(t, 2)
	s.log(`(?s)msg="instance joined".*msg="instance joined"`)

	if failures := callMany(t, s.url, 100); len(failures) > 0 {
		t.Fatalf("%d of 100 calls failed, such as %s", len(failures), failures[0])
	}
	served := bus.served()
	if len(served) != 2 {
		t.Errorf("the calls were served by %v, want both instances", served)
	}

	// One more comes, and leaves in good order while calls run.
	extra := start(t, "glossary", "--nats", c.nats)
	c.awaitInstances(t, 3)
	if failures := callMany(t, s.url, 200, func() { extra.signal(syscall.SIGTERM) }); len(failures) > 0 {
		t.Errorf("%d of 200 calls failed while a worker left, such as %s", len(failures), failures[0])
	}
	if code := extra.exitCode(); code != 0 {
		t.Errorf("the worker ended with %d after SIGTERM", code)
	}
	c.awaitInstances(t, 2)

	// One is killed between calls: what follows loses nothing.
	first.signal(os.Kill)
	first.exitCode()
	if failures := callMany(t, s.url, 200); len(failures) > 0 {
		t.Errorf("%d of 200 calls failed after a worker was killed, such as %s", len(failures), failures[0])
	}
	c.awaitInstances(t, 1)

	// The last one leaves.
	second.signal(syscall.SIGTERM)
	if code := second.exitCode(); code != 0 {
		t.Errorf("the worker ended with %d after SIGTERM", code)
	}
	c.awaitInstances(t, 0)
	eventually(t, "the tools of a pool that has left are gone", func() bool {
		_, body := post(t, s.url, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, nil)
		return strings.Contains(body, `"tools":[]`)
	})
	if body := callOnce(s.url, 7); !strings.Contains(body, `"code":-32602`) || !strings.Contains(body, `unknown tool \"get_term\"`) {
		t.Errorf("a call to a tool that is gone gave %s", body)
	}

	// The last one of a pool is killed: the pool may come back, so its tools
	// stay listed, and calls fail at once and say why.
	third := start(t, "glossary", "--nats", c.nats)
	c.awaitInstances(t, 1)
	if failures := callMany(t, s.url, 10); len(failures) > 0 {
		t.Errorf("%d of 10 calls failed after a worker came back, such as %s", len(failures), failures[0])
	}
	third.signal(os.Kill)
	third.exitCode()
	begin := time.Now()
	body := callOnce(s.url, 8)
	took := time.Since(begin)
	t.Logf("without a worker the answer came after %v: %s", took, body)
	var a answer
	var data struct{ Reason string }
	if json.Unmarshal([]byte(body), &a) != nil || a.Error == nil || a.Error.Code != -32603 ||
		json.Unmarshal(a.Error.Data, &data) != nil || data.Reason != "unavailable" && data.Reason != "worker_lost" {
		t.Errorf("without a worker a call gave %s", body)
	}
	// Far above the second that is promised, which a busy machine may take,
	// and far below the time a call has.
	if took > 20*time.Second {
		t.Errorf("the error took %v: the call waited for its timeout", took)
	}
}

// TestReadiness: the health of an edge follows its connection to NATS.
func TestReadiness(t *testing.T) {
	t.Parallel()
	c, shutdown := startStoppableCluster(t)
	s := serve(t, "edge", "--nats", c.nats)
	base := strings.TrimSuffix(s.url, "/mcp")
	get := func(path string) (int, string) {
		resp, err := (&http.Client{Timeout: patience}).Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := get(path); status != http.StatusOK || body != "ok\n" {
			t.Errorf("%s: %d %q", path, status, body)
		}
	}
	if status, body := get("/mcp"); status != http.StatusMethodNotAllowed {
		t.Errorf("GET /mcp: %d %s", status, body)
	}
	if status, body := get("/"); status != http.StatusNotFound || !strings.Contains(body, "/mcp") {
		t.Errorf("GET /: %d %s, want 404 that names the endpoint", status, body)
	}
	shutdown()
	eventually(t, "an edge without NATS is not ready", func() bool {
		status, body := get("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "NATS")
	})
	if status, _ := get("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz without NATS: %d; restarting the edge would not help", status)
	}
	// B55: probes may ask with HEAD, and get no body.
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable} {
		resp, err := (&http.Client{Timeout: patience}).Head(base + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("HEAD %s without NATS: %d, want %d", path, resp.StatusCode, want)
		}
	}
}
