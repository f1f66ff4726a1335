package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/sse"
)

// The transport HTTP+SSE. The cases of the bank about messages run through it
// too, see everyDoor.

func toolCall(id, params string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":` + params + `}`
}

// waiting returns the messages that have come, and "end" for the end.
func (c *sseClient) waiting() []string {
	c.t.Helper()
	synctest.Wait()
	var got []string
	for {
		select {
		case ev, ok := <-c.events:
			if !ok {
				return append(got, "end")
			}
			got = append(got, string(ev.Data))
		default:
			return got
		}
	}
}

func TestHTTPSSEInEveryRevision(t *testing.T) {
	t.Parallel()
	for _, date := range mcp.Supported() {
		if date == mcp.Modern().Date {
			continue
		}
		t.Run(date, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := start(t, Config{})
				c := s.handshake(date, `{}`)
				c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
				if got := c.next(); !strings.Contains(got, `"name":"echo"`) || strings.Contains(got, `"outputSchema"`) != (date >= "2025-06-18") {
					t.Errorf("tools/list: %.300s", got)
				}
				begun := time.Now()
				c.send(toolCall("3", `{"name":"count","arguments":{"n":3,"delay_ms":10000},"_meta":{"progressToken":"p"}}`))
				if took := time.Since(begun); took > time.Second {
					t.Errorf("the POST of a call took %v", took)
				}
				for i := 1; i <= 3; i++ {
					if got := c.next(); !strings.Contains(got, fmt.Sprintf(`"progress":%d`, i)) || time.Since(begun).Round(time.Second) != time.Duration(i)*10*time.Second {
						t.Errorf("after %v: %s", time.Since(begun), got)
					}
				}
				if got := c.next(); !strings.Contains(got, `"id":3,"result"`) {
					t.Errorf("result: %s", got)
				}
				if got := c.waiting(); len(got) != 0 {
					t.Errorf("then %q", got)
				}
			})
		})
	}
}

func TestHTTPSSEStreamIsOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/sse", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		for key, want := range map[string]string{
			"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no", "Mcp-Session-Id": "",
		} {
			if got := resp.Header.Get(key); got != want {
				t.Errorf("%s: %q, want %q", key, got, want)
			}
		}
		// B28: an idle stream lives, and shows so at least every 30 s.
		buf := make([]byte, 1<<10)
		n, err := resp.Body.Read(buf)
		if first := string(buf[:n]); err != nil || !regexp.MustCompile(`^event: endpoint\ndata: messages\?s=[\w-]+\n\n$`).MatchString(first) {
			t.Errorf("first event %q (%v)", first, err)
		}
		last := time.Now()
		for begun := last; time.Since(begun) < 5*time.Minute; {
			n, err := resp.Body.Read(buf)
			if err != nil || !strings.HasPrefix(string(buf[:n]), ":") {
				t.Fatalf("an idle stream has %q (%v)", buf[:n], err)
			}
			if silent := time.Since(last); silent > 30*time.Second {
				t.Errorf("silent for %v", silent)
			}
			last = time.Now()
		}
	})
}

// TestHTTPSSEBeforeTheHandshake: a client that lost its connection goes on
// without one, and is served in the revision the transport is from.
func TestHTTPSSEBeforeTheHandshake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		c := s.openSSE()
		c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		if got := c.next(); !strings.Contains(got, `"name":"add"`) || strings.Contains(got, `"annotations"`) {
			t.Errorf("tools/list: %.300s", got)
		}
		c.send(`[{"jsonrpc":"2.0","id":2,"method":"ping"},{"jsonrpc":"2.0","id":"3","method":"ping"}]`)
		if got := c.next(); got != `[{"jsonrpc":"2.0","id":2,"result":{}},{"jsonrpc":"2.0","id":"3","result":{}}]` {
			t.Errorf("batch: %s", got)
		}
		// What has no such revision is offered another one.
		c.send(`{"jsonrpc":"2.0","id":4,"method":"initialize","params":{"protocolVersion":"2026-07-28","capabilities":{}}}`)
		if got := c.next(); !strings.Contains(got, `"protocolVersion":"2025-11-25"`) {
			t.Errorf("initialize: %s", got)
		}
		c.send(`[{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"danger"}}]`)
		if got := c.next(); !strings.Contains(got, `"code":-32600`) {
			t.Errorf("batch in a revision without: %s", got)
		}
		if n := s.ran.value(); n != 0 {
			t.Errorf("the tool ran %d times", n)
		}
	})
}

func TestHTTPSSERefusesTheStatelessEra(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		c := s.openSSE()
		for _, text := range []string{
			modernMessage("1", "server/discover", `{}`),
			modernMessage("1", "tools/call", `{"name":"danger"}`),
			`{"jsonrpc":"2.0","id":1,"method":"server/discover"}`,
		} {
			c.send(text)
			var m struct {
				ID    int
				Error struct {
					Code    int
					Message string
				}
			}
			if got := c.next(); json.Unmarshal([]byte(got), &m) != nil || m.ID != 1 || m.Error.Code != -32600 ||
				!strings.Contains(m.Error.Message, "/mcp") || !strings.Contains(m.Error.Message, "initialize") {
				t.Errorf("%s: %s", text, got)
			}
		}
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"_meta":{"` + mcp.MetaProtocolVersion + `":"2026-07-28"}}}`)
		// A client that speaks both eras goes on like this.
		c.send(`{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}`)
		if got := c.next(); !strings.Contains(got, `"protocolVersion":"2025-06-18"`) {
			t.Errorf("initialize: %s", got)
		}
		if n := s.ran.value(); n != 0 {
			t.Errorf("the tool ran %d times", n)
		}
	})
}

func TestHTTPSSEMessagesThatAreNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		c := s.handshake("2024-11-05", `{}`)
		for _, p := range []struct {
			text  string
			code  int
			event bool
		}{
			{`{"jsonrpc"`, -32700, false},
			{``, -32700, false},
			{`{"jsonrpc":"2.0","id":null,"method":"ping"}`, -32600, false},
			{`[]`, -32600, false},
			{`{"jsonrpc":"2.0","id":"x","method":7}`, -32600, true},
			{`{"jsonrpc":"2.0","id":8,"method":"ping","params":[1]}`, -32602, true},
		} {
			status, reply := c.post(p.text)
			if status != http.StatusBadRequest || replyCode(t, reply) != p.code {
				t.Errorf("%s: %d %s", p.text, status, reply)
			}
			var want []string
			if p.event {
				want = []string{reply}
			}
			if got := c.waiting(); !slices.Equal(got, want) {
				t.Errorf("%s: events %q, want %q", p.text, got, want)
			}
		}
		// Never answered, not even a bad one.
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":7}`)
		c.send(`{"jsonrpc":"2.0","id":"nobody asked","result":{}}`)
		c.send(`{"jsonrpc":"2.0","id":9,"method":"no/such"}`)
		if got := c.waiting(); len(got) != 1 || !strings.Contains(got[0], `"id":9,"error":{"code":-32601`) {
			t.Errorf("events %q", got)
		}
	})
}

// TestHTTPSSEDoors are B53 and B55, and what both paths have in common with
// /mcp.
func TestHTTPSSEDoors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 4096
		cfg := Config{Hosts: []string{"mcp.example.com"}, Origins: []string{"https://app.example"}}
		cfg.Limits.MaxBytes = limit
		s := start(t, cfg)
		c := s.openSSE()
		token := c.endpoint.RawQuery
		ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
		const jsonType = "Content-Type: application/json"
		for name, r := range map[string]struct {
			method, path, text string
			headers            []string
			want               int
		}{
			"HEAD of the stream":      {"HEAD", "/sse", "", nil, 405},
			"POST to the stream":      {"POST", "/sse", ping, []string{jsonType}, 405},
			"DELETE of the stream":    {"DELETE", "/sse", "", nil, 405},
			"OPTIONS of no browser":   {"OPTIONS", "/sse", "", nil, 405},
			"stream for no stream":    {"GET", "/sse", "", []string{"Accept: application/json"}, 406},
			"stream, foreign host":    {"GET", "/sse", "", []string{"Host: evil.example"}, 403},
			"stream, foreign origin":  {"GET", "/sse", "", []string{"Origin: https://evil.example"}, 403},
			"stream, opaque origin":   {"GET", "/sse", "", []string{"Origin: null"}, 403},
			"stream with a slash":     {"GET", "/sse/", "", nil, 404},
			"GET of messages":         {"GET", "/messages?" + token, "", nil, 405},
			"HEAD of messages":        {"HEAD", "/messages?" + token, "", nil, 405},
			"PUT of a message":        {"PUT", "/messages?" + token, ping, []string{jsonType}, 405},
			"message, foreign host":   {"POST", "/messages?" + token, ping, []string{jsonType, "Host: evil.example"}, 403},
			"message, foreign origin": {"POST", "/messages?" + token, ping, []string{jsonType, "Origin: http://app.example"}, 403},
			"message as text":         {"POST", "/messages?" + token, ping, []string{"Content-Type: text/plain"}, 415},
			"message of no type":      {"POST", "/messages?" + token, ping, nil, 415},
			"message, compressed":     {"POST", "/messages?" + token, ping, []string{jsonType, "Content-Encoding: gzip"}, 415},
			"message too large":       {"POST", "/messages?" + token, ping + strings.Repeat(" ", limit), []string{jsonType}, 413},
			"no connection":           {"POST", "/messages", ping, []string{jsonType}, 404},
			"forged connection":       {"POST", "/messages?s=AAAA", ping, []string{jsonType}, 404},
			"changed connection":      {"POST", "/messages?" + token[:len(token)-2] + "AA", ping, []string{jsonType}, 404},
		} {
			begun := time.Now()
			req, err := http.NewRequestWithContext(context.Background(), r.method, "http://localhost"+r.path, strings.NewReader(r.text))
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range r.headers {
				key, value, _ := strings.Cut(h, ": ")
				if key == "Host" {
					req.Host = value
					continue
				}
				req.Header.Set(key, value)
			}
			resp, err := s.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			got := body(t, resp)
			if resp.StatusCode != r.want || time.Since(begun) > time.Second {
				t.Errorf("%s: %d after %v, want %d: %s", name, resp.StatusCode, time.Since(begun), r.want, got)
			}
			allow := map[string]string{"/sse": "GET"}[r.path]
			if strings.HasPrefix(r.path, "/messages") {
				allow = "POST"
			}
			if r.want == 405 && resp.Header.Get("Allow") != allow {
				t.Errorf("%s: Allow %q, want %q", name, resp.Header.Get("Allow"), allow)
			}
			if r.method != http.MethodHead && replyCode(t, got) != -32600 {
				t.Errorf("%s: %s", name, got)
			}
		}
		if got := c.waiting(); len(got) != 0 {
			t.Errorf("refused messages were answered: %q", got)
		}
		// Pages of an allowed origin, B52.
		page := "Origin: https://app.example"
		for path, method := range map[string]string{"/sse": "GET", "/messages": "POST"} {
			resp := c.do(context.Background(), http.MethodOptions, "http://localhost"+path, "", page,
				"Access-Control-Request-Method: "+method, "Access-Control-Request-Headers: authorization, content-type")
			body(t, resp)
			if h := resp.Header; resp.StatusCode != http.StatusNoContent || h.Get("Access-Control-Allow-Methods") != method ||
				h.Get("Access-Control-Allow-Origin") != "https://app.example" || h.Get("Access-Control-Allow-Headers") != "authorization, content-type" {
				t.Errorf("preflight of %s: %d %v", path, resp.StatusCode, h)
			}
			for _, status := range []int{http.StatusNotFound, http.StatusAccepted} {
				at := "http://localhost/messages"
				if status == http.StatusAccepted {
					at += "?" + token
				}
				resp := c.do(context.Background(), http.MethodPost, at, ping, page, jsonType)
				body(t, resp)
				if resp.StatusCode != status || resp.Header.Get("Access-Control-Allow-Origin") != "https://app.example" {
					t.Errorf("POST of a page: %d %v", resp.StatusCode, resp.Header)
				}
			}
		}
		time.Sleep(10 * time.Second) // the server lets refused uploads go
	})
}

// proxy serves what the rewriting makes of requests, and returns its client.
func (s *system) proxy(rewrite func(*httputil.ProxyRequest)) *http.Client {
	ln := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{Rewrite: rewrite, Transport: s.client.Transport}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(ln) // ends with the test
	}()
	transport := &http.Transport{DialContext: ln.dial, DisableKeepAlives: true}
	s.t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		<-done
	})
	return &http.Client{Transport: transport}
}

// TestB63EndpointBehindAPrefix: where messages go is right behind a path
// prefix, whatever headers a proxy or somebody else sets.
func TestB63EndpointBehindAPrefix(t *testing.T) {
	t.Parallel()
	forwarded := []string{"X-Forwarded-Prefix: /team/x", "X-Forwarded-Proto: https", "X-Forwarded-Host: pub.example", "Forwarded: host=pub.example;proto=https"}
	forged := []string{"X-Forwarded-Prefix: /evil", "X-Forwarded-Host: evil.example", "Forwarded: host=evil.example"}
	for name, c := range map[string]struct {
		at      string
		headers []string
	}{
		"forwarded by the proxy": {"http://pub.example/team/x/sse", forwarded},
		"no forwarded headers":   {"http://pub.example/team/x/sse?keep=1", nil},
		"direct":                 {"http://localhost:8080/sse", nil},
		"forged":                 {"http://localhost:8080/sse", forged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := start(t, Config{})
				client := s.client
				opened, err := url.Parse(c.at)
				if err != nil {
					t.Fatal(err)
				}
				prefix := strings.TrimSuffix(opened.Path, "/sse")
				if prefix != "" {
					client = s.proxy(func(r *httputil.ProxyRequest) {
						if !strings.HasPrefix(r.In.URL.Path, prefix+"/") {
							t.Errorf("a request for %s does not go through the prefix", r.In.URL)
						}
						r.SetURL(&url.URL{Scheme: "http", Host: "localhost"}) // its host is an internal one
						r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, prefix)
					})
				}
				a, b := openSSE(t, client, c.at, c.headers...), openSSE(t, client, c.at, c.headers...)
				for _, client := range []*sseClient{a, b} {
					if e := client.endpoint; e.Scheme != opened.Scheme || e.Host != opened.Host || e.Path != prefix+"/messages" {
						t.Errorf("messages go to %s", e)
					}
					client.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
					if got := client.next(); got != `{"jsonrpc":"2.0","id":1,"result":{}}` {
						t.Errorf("ping: %s", got)
					}
				}
				if a.endpoint.RawQuery == b.endpoint.RawQuery || len(a.endpoint.Query().Get("s")) < 22+22 {
					t.Errorf("tokens %s and %s", a.endpoint.RawQuery, b.endpoint.RawQuery)
				}
			})
		})
	}
}

func TestHTTPSSEConnectionsOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := guarded(t, Config{})
		bearer := func(token string) string { return "Authorization: Bearer " + token }
		ala := s.handshake("2025-06-18", `{}`, bearer(alaToken))
		post := func(headers ...string) (int, string) {
			resp := s.postTo(ala.endpoint, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"whoami"}}`, headers...)
			return resp.StatusCode, body(t, resp)
		}
		_, unknown := post(bearer(olaToken))
		for name, c := range map[string]struct {
			headers []string
			want    int
		}{
			"nobody":        {nil, 401},
			"wrong token":   {[]string{bearer("wrong")}, 401},
			"somebody else": {[]string{bearer(olaToken)}, 404},
		} {
			status, reply := post(c.headers...)
			if status != c.want || status == 404 && reply != unknown {
				t.Errorf("%s: %d %s", name, status, reply)
			}
		}
		if got := ala.waiting(); len(got) != 0 {
			t.Errorf("the connection says %q", got)
		}
		// A refreshed token goes on, with its own scopes.
		if status, reply := post(bearer(alaToken2)); status != http.StatusAccepted {
			t.Errorf("refreshed token: %d %s", status, reply)
		}
		if got := ala.next(); !strings.Contains(got, "https://id.example ala [use vault]") {
			t.Errorf("whoami: %s", got)
		}
		resp := s.do(context.Background(), http.MethodGet, "")
		body(t, resp)
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://localhost/sse", nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err = s.client.Do(req); err != nil {
			t.Fatal(err)
		}
		if body(t, resp); resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("GET of nobody: %d %v", resp.StatusCode, resp.Header)
		}
	})
}

// postTo posts a message to a URL, with headers "Key: value" each.
func (s *system) postTo(at *url.URL, text string, headers ...string) *http.Response {
	s.t.Helper()
	c := &sseClient{t: s.t, client: s.client}
	return c.do(context.Background(), http.MethodPost, at.String(), text, append(headers, "Content-Type: application/json")...)
}

func TestHTTPSSEEndCancelsItsCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		c := s.handshake("2024-11-05", `{}`)
		other := s.handshake("2024-11-05", `{}`)
		c.send(toolCall("1", `{"name":"hang"}`))
		synctest.Wait()
		begun := time.Now()
		c.hangUp()
		for {
			if _, ok := <-c.events; !ok {
				break
			}
		}
		time.Sleep(100 * time.Millisecond)
		if n := s.ran.value(); n != 1 || time.Since(begun) > time.Second {
			t.Errorf("%d handlers saw their context end after %v, want 1", n, time.Since(begun))
		}
		s.edge.streams.mu.Lock()
		left := len(s.edge.streams.byScope)
		s.edge.streams.mu.Unlock()
		if left != 1 {
			t.Errorf("%d connections are left, want 1", left)
		}
		if status, reply := c.post(toolCall("2", `{"name":"danger"}`)); status != http.StatusNotFound {
			t.Errorf("POST to what has ended: %d %s", status, reply)
		}
		other.send(toolCall("1", `{"name":"danger"}`))
		if got := other.next(); !strings.Contains(got, "done") {
			t.Errorf("another connection: %s", got)
		}
	})
}

// TestHTTPSSEDrain: of an edge that is drained, connections that wait end at once,
// and one with a call when that has its answer; meanwhile no other call begins.
func TestHTTPSSEDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		waiting := s.handshake("2024-11-05", `{}`)
		c := s.handshake("2024-11-05", `{"elicitation":{}}`)
		c.send(toolCall("1", `{"name":"count","arguments":{"n":2,"delay_ms":1000}}`))
		synctest.Wait()
		s.edge.Drain()
		wantMessages(t, "a connection that waits", waiting.waiting(), "end")
		if got := c.waiting(); len(got) != 0 {
			t.Errorf("the connection with the call says %q", got)
		}
		c.send(toolCall("2", `{"name":"danger"}`))
		if got := c.next(); !strings.Contains(got, `"id":2`) || !strings.Contains(got, `"reason":"draining"`) || s.ran.value() != 0 {
			t.Errorf("a call that comes too late, executed %d times: %s", s.ran.value(), got)
		}
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`)
		if got := c.next(); !strings.Contains(got, `"id":1`) || !strings.Contains(got, "counted") {
			t.Errorf("the call that ran: %s", got)
		}
		if ev, ok := <-c.events; ok {
			t.Errorf("the connection goes on with %s", ev.Data)
		}
		if status, reply := c.post(toolCall("3", `{"name":"danger"}`)); status != http.StatusNotFound {
			t.Errorf("POST to what has ended: %d %s", status, reply)
		}
		resp := c.do(context.Background(), http.MethodGet, "http://localhost/sse", "")
		if body(t, resp); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
			t.Errorf("GET while draining: %d %v", resp.StatusCode, resp.Header)
		}
	})
}

// TestHTTPSSEClientThatDoesNotRead: what waits for it is bounded, and it is cut
// off after the write timeout.
func TestHTTPSSEClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c := &sseClient{t: t, client: s.client}
		resp := c.do(ctx, http.MethodGet, "http://localhost/sse", "")
		defer resp.Body.Close()
		first, err := sse.NewReader(resp.Body, 0).Next()
		if err != nil {
			t.Fatal(err)
		}
		if c.endpoint, err = resp.Request.URL.Parse(string(first.Data)); err != nil {
			t.Fatal(err)
		}
		c.send(toolCall("1", `{"name":"hang"}`))
		var posting sync.WaitGroup
		var accepted, gone counter
		begun := time.Now()
		for i := range 400 {
			posting.Go(func() {
				switch status, reply := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":"ping-%d","method":"ping"}`, i)); status {
				case http.StatusAccepted:
					accepted.add()
				case http.StatusNotFound:
					gone.add()
				default:
					t.Errorf("%d %s", status, reply)
				}
			})
		}
		posting.Wait()
		// A few answers have room on the way.
		if a, g := accepted.value(), gone.value(); a > maxStreamRequests+10 || g != 400-a {
			t.Errorf("%d POSTs accepted, %d refused", a, g)
		}
		if took := time.Since(begun); took != 30*time.Second {
			t.Errorf("cut off after %v", took)
		}
		time.Sleep(time.Second)
		if n := s.ran.value(); n != 1 {
			t.Errorf("%d handlers saw their context end, want 1", n)
		}
	})
}

func TestHTTPSSELimitOfRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		c := s.handshake("2025-11-25", `{"elicitation":{"form":{}}}`)
		for i := range maxStreamRequests {
			c.send(toolCall(fmt.Sprint(i), `{"name":"ask"}`))
		}
		questions := c.waiting()
		if len(questions) != maxStreamRequests {
			t.Fatalf("%d questions", len(questions))
		}
		id, _ := request(t, questions[0], "elicitation/create")
		c.send(toolCall(`"more"`, `{"name":"ask"}`))
		if got := c.next(); !strings.Contains(got, `"id":"more"`) || !strings.Contains(got, `"reason":"overloaded"`) {
			t.Errorf("one more: %s", got)
		}
		// What makes room is served all the same.
		c.send(`{"jsonrpc":"2.0","id":"` + id + `","result":{"action":"decline"}}`)
		if got := c.next(); !strings.Contains(got, `nobody: decline`) {
			t.Errorf("answered: %s", got)
		}
		synctest.Wait()
		c.send(`{"jsonrpc":"2.0","id":"ping","method":"ping"}`)
		if got := c.next(); got != `{"jsonrpc":"2.0","id":"ping","result":{}}` {
			t.Errorf("after one has ended: %s", got)
		}
	})
}

func TestHTTPSSEAsksAndCancels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		c := s.handshake("2025-06-18", `{"elicitation":{},"roots":{}}`)
		c.send(toolCall("1", `{"name":"ask"}`))
		id, _ := request(t, c.next(), "elicitation/create")
		// An answer by somebody else's connection reaches nobody.
		s.handshake("2025-06-18", `{"elicitation":{}}`).send(`{"jsonrpc":"2.0","id":"` + id + `","result":{"action":"decline"}}`)
		time.Sleep(2 * time.Minute)
		c.send(`{"jsonrpc":"2.0","id":"` + id + `","result":{"action":"accept","content":{"name":"Ala"}}}`)
		second, _ := request(t, c.next(), "roots/list")
		c.send(`{"jsonrpc":"2.0","id":"` + second + `","result":{"roots":[{"uri":"file:///a"}]}}`)
		if got := c.next(); !strings.Contains(got, `"text":"Ala with 1 roots"`) {
			t.Errorf("result: %s", got)
		}
		before := s.ran.value()
		c.send(toolCall("2", `{"name":"hang"}`))
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
		time.Sleep(time.Second)
		if got := c.waiting(); len(got) != 0 || s.ran.value() != before+1 {
			t.Errorf("the cancelled call: %q, %d handlers saw their context end", got, s.ran.value()-before)
		}
		// What is set on the connection holds there.
		c.send(`{"jsonrpc":"2.0","id":3,"method":"logging/setLevel","params":{"level":"emergency"}}`)
		c.next()
		c.send(toolCall("4", `{"name":"log"}`))
		if first, second := c.next(), c.next(); !strings.Contains(first, `"level":"emergency"`) || !strings.Contains(second, `"id":4,"result"`) {
			t.Errorf("log: %s, then %s", first, second)
		}
	})
}

func TestHTTPSSETellsChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		c, silent := s.handshake("2024-11-05", `{}`), s.openSSE()
		c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"memo://notes/one"}}`)
		if got := c.next(); got != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Fatalf("subscribe: %s", got)
		}
		s.addTool("new-1")
		s.worker.ResourceUpdated("memo://notes/one")
		s.worker.ResourceUpdated("term://known")
		time.Sleep(2 * time.Second)
		wantMessages(t, "after a tool and an update", c.waiting(), toolsChanged, oneUpdated)
		// Nothing before initialize (lifecycle, "Initialization").
		wantMessages(t, "before the handshake", silent.waiting())
	})
}
