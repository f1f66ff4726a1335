package e2e

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/edge/mcp"
)

// collector takes what processes export by OTLP over HTTP, and only looks for
// names in it.
type collector struct {
	url string

	mu  sync.Mutex
	got strings.Builder
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, err := io.Copy(&c.got, r.Body); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

func (c *collector) has(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Contains(c.got.String(), name)
}

// measured starts a role with an admin listener, whose address it returns, and
// with traces.
func measured(t *testing.T, c *collector, args ...string) (*process, string) {
	t.Helper()
	args = append([]string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, millrace(t)}, args...)
	p := startBinary(t, "/usr/bin/env", nil, append(args, "--admin", "127.0.0.1:0")...)
	return p, p.log(`msg="admin listener serves" url=(\S+)`)[0]
}

// get returns a GET as far as its header.
func get(t *testing.T, url string, header http.Header) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header.Clone()
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * patience}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// readiness is what /readyz of an admin listener says.
func readiness(t *testing.T, admin string) string {
	t.Helper()
	resp := get(t, admin+"/readyz", nil)
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Status[:3] + " " + strings.TrimSpace(string(text))
}

// modern is a request of the modern era with its headers. params are the members
// of its parameters.
func modern(method, name, params string) (string, http.Header) {
	header := http.Header{mcp.HeaderProtocolVersion: {mcp.Modern().Date}, mcp.HeaderMethod: {method}}
	if name != "" {
		header.Set(mcp.HeaderName, name)
	}
	meta := `"_meta":{"progressToken":1,"` + mcp.MetaProtocolVersion + `":"` + mcp.Modern().Date + `","` + mcp.MetaClientCapabilities + `":{}}`
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `,` + meta + `}}`, header
}

// stream reads a stream of events. The header of resp is here already.
type stream struct {
	t     *testing.T
	lines *bufio.Scanner
}

func newStream(t *testing.T, resp *http.Response) *stream {
	t.Helper()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("status %s, content type %q", resp.Status, resp.Header.Get("Content-Type"))
	}
	return &stream{t, bufio.NewScanner(resp.Body)}
}

// next is the data of the next event; empty at the end of the stream, which must
// be a good one.
func (s *stream) next() string {
	s.t.Helper()
	for s.lines.Scan() {
		if data, ok := strings.CutPrefix(s.lines.Text(), "data: "); ok {
			return data
		}
	}
	if err := s.lines.Err(); err != nil {
		s.t.Errorf("the stream was cut off: %v", err)
	}
	return ""
}

// last reads to the end of the stream.
func (s *stream) last() (data string) {
	s.t.Helper()
	for next := s.next(); next != ""; next = s.next() {
		data = next
	}
	return data
}

// TestDrainOfAnEdge: an edge that is told to stop is unready first, ends the
// streams that only wait while a call goes on, lets that end, and exports what it
// has seen of it last.
func TestDrainOfAnEdge(t *testing.T) {
	t.Parallel()
	c, traces := startCluster(t), newCollector(t)
	worker, _ := measured(t, traces, "everything", "--nats", c.nats)
	worker.log(`msg="worker serves"`)
	p, admin := measured(t, traces, "edge", "--nats", c.nats, "--listen", "127.0.0.1:0", "--wait-for", "everything")
	url := p.log(`msg="serving MCP" url=(\S+)`)[0]
	other := serve(t, "edge", "--nats", c.nats, "--wait-for", "everything")
	if got := readiness(t, admin); got != "200 ok" {
		t.Errorf("before: %s", got)
	}

	body, header := modern("subscriptions/listen", "", `"notifications":{"toolsListChanged":true}`)
	listening := newStream(t, postStream(t, url, body, header))
	listening.next() // acknowledged
	resp, _ := post(t, url, initializeLine(mcp.Legacy().Date), nil)
	session := http.Header{"Mcp-Session-Id": {resp.Header.Get("Mcp-Session-Id")}, "Accept": {"text/event-stream"}}
	waiting := newStream(t, get(t, url, session))
	old := newStream(t, get(t, strings.TrimSuffix(url, "/mcp")+"/sse", http.Header{"Accept": {"text/event-stream"}}))
	old.next() // endpoint
	body, header = modern("tools/call", "hold", `"name":"hold","arguments":{"name":"drained"}`)
	call := newStream(t, postStream(t, url, body, header))
	if got := call.next(); !strings.Contains(got, "notifications/progress") {
		t.Fatalf("the call does not run: %s", got)
	}

	p.signal(syscall.SIGTERM)
	eventually(t, "the process is unready", func() bool { return readiness(t, admin) == "503 stopping" })
	if got := listening.last(); !strings.Contains(got, `"result"`) {
		t.Errorf("the subscription ended with %s", got)
	}
	waiting.last()
	old.last()
	// All that while the call runs; now it may end.
	if got := readiness(t, admin); got != "503 stopping" {
		t.Errorf("while the call runs: %s", got)
	}
	body, header = modern("tools/call", "held", `"name":"held","arguments":{"name":"drained"}`)
	if _, got := post(t, other.url, body, header); !strings.Contains(got, `"cancelled":false`) {
		t.Errorf("the call does not run any more: %s", got)
	}
	if got := call.last(); !strings.Contains(got, "Let go.") {
		t.Errorf("the call ended with %s", got)
	}
	if code := p.exitCode(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	if strings.Contains(p.stderr.String(), "cut off") {
		t.Errorf("a call was cut off:\n%s", p.stderr.String())
	}
	for _, name := range []string{"millrace-edge", "tools/call hold", "subscriptions/listen", "millrace.v1.WorkerService/CallTool"} {
		if !traces.has(name) {
			t.Errorf("the span or service %q was not exported", name)
		}
	}
}

// TestDrainServesOn: an edge that is told to stop is unready and still takes
// requests on new connections, which it then closes: a load balancer learns of it
// by asking, and sends some until it has.
func TestDrainServesOn(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	s := serve(t, "edge", "--nats", c.nats, "--drain-delay", "10s")
	ready := strings.TrimSuffix(s.url, "/mcp") + "/readyz"
	s.signal(syscall.SIGTERM)
	eventually(t, "the edge is unready", func() bool { return get(t, ready, nil).StatusCode == http.StatusServiceUnavailable })
	client := &http.Client{Transport: &http.Transport{}, Timeout: patience} // which would keep its connection
	resp, err := client.Post(s.url, "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !resp.Close {
		t.Errorf("an edge that drains answers %s, and closes the connection: %v", resp.Status, resp.Close)
	}
	old := newStream(t, get(t, strings.TrimSuffix(s.url, "/mcp")+"/sse", http.Header{"Accept": {"text/event-stream"}}))
	if endpoint := old.next(); !strings.Contains(endpoint, "messages?s=") {
		t.Errorf("a connection of HTTP+SSE to an edge that drains begins with %s", endpoint)
	}
	s.signal(syscall.SIGKILL) // the rest of the delay is nothing to wait for
	s.exitCode()
}

// TestDrainIsBounded: a call that does not end is cut off, and the process ends
// well.
func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	start(t, "everything", "--nats", c.nats).log(`msg="worker serves"`)
	s := serve(t, "edge", "--nats", c.nats, "--wait-for", "everything")
	body, header := modern("tools/call", "hold", `"name":"hold","arguments":{"name":"for ever"}`)
	call := newStream(t, postStream(t, s.url, body, header))
	if got := call.next(); !strings.Contains(got, "notifications/progress") {
		t.Fatalf("the call does not run: %s", got)
	}
	s.signal(syscall.SIGTERM)
	if code := s.exitCode(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	s.log("calls cut off")
}

// TestDrainOfAWorker: a worker that is told to stop is unready first, lets its
// calls end, and exports what it has seen of them last.
func TestDrainOfAWorker(t *testing.T) {
	t.Parallel()
	c, traces := startCluster(t), newCollector(t)
	p, admin := measured(t, traces, "everything", "--nats", c.nats)
	p.log(`msg="worker serves"`)
	e := serve(t, "edge", "--nats", c.nats, "--wait-for", "everything")
	if got := readiness(t, admin); got != "200 ok" {
		t.Errorf("before: %s", got)
	}
	body, header := modern("tools/call", "count", `"name":"count","arguments":{"n":8,"delay_ms":300}`)
	call := newStream(t, postStream(t, e.url, body, header))
	if got := call.next(); !strings.Contains(got, "notifications/progress") {
		t.Fatalf("the call does not run: %s", got)
	}
	p.signal(syscall.SIGTERM)
	eventually(t, "the process is unready", func() bool { return readiness(t, admin) == "503 stopping" })
	if got := call.last(); !strings.Contains(got, `"result"`) || strings.Contains(got, `"isError":true`) {
		t.Errorf("the call ended with %s", got)
	}
	if code := p.exitCode(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	for _, name := range []string{"millrace-worker-everything", "execute_tool count"} {
		if !traces.has(name) {
			t.Errorf("the span or service %q was not exported", name)
		}
	}
}

// TestMetricsOfRoles: every role serves its metrics and health on its admin
// listener.
func TestMetricsOfRoles(t *testing.T) {
	t.Parallel()
	c, traces := startCluster(t), newCollector(t)
	for name, role := range map[string]struct {
		args []string
		want string
	}{
		"up":         {[]string{"up", "--listen", "127.0.0.1:0", "--pprof"}, `millrace_pool_busy_ratio{pool="glossary"}`},
		"edge":       {[]string{"edge", "--listen", "127.0.0.1:0", "--nats", c.nats}, `millrace_edge_open_streams`},
		"glossary":   {[]string{"glossary", "--nats", c.nats}, `millrace_pool_busy_ratio{pool="glossary"}`},
		"everything": {[]string{"everything", "--nats", c.nats}, `millrace_pool_busy_ratio{pool="everything"}`},
		"stdio":      {[]string{"stdio"}, `millrace_bus_connected{connection="worker-glossary"}`},
		"nats":       {[]string{"nats", "--listen", "127.0.0.1:0"}, `millrace_build_info`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, admin := measured(t, traces, role.args...)
			eventually(t, "the role is ready", func() bool { return readiness(t, admin) == "200 ok" })
			read := func(path string) string {
				text, err := io.ReadAll(get(t, admin+path, nil).Body)
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}
			if text := read("/metrics"); !strings.Contains(text, "\n"+role.want) {
				t.Errorf("/metrics has no %s:\n%s", role.want, text)
			}
			if text := read("/debug/pprof/cmdline"); strings.Contains(text, "millrace") != (name == "up") {
				t.Errorf("/debug/pprof/cmdline: %s", text)
			}
			if name == "stdio" {
				p.stdin.Close()
			} else {
				p.signal(syscall.SIGTERM)
			}
			if code := p.exitCode(); code != 0 {
				t.Errorf("ended with %d", code)
			}
		})
	}
}
