package edge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// The reports about HTTP itself, byte for byte; see bank_test.go.

// rawConn is a connection that a test writes as it likes.
type rawConn struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

func (s *system) rawConn(t *testing.T) *rawConn {
	t.Helper()
	conn, err := s.dial(context.Background(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &rawConn{t, conn, bufio.NewReader(conn)}
}

// write writes beside the test: a pipe has no buffer, and a server may answer
// before it has read everything.
func (c *rawConn) write(text string) {
	go func() { _, _ = io.WriteString(c, text) }() // the server may close
}

// response reads one response with its body; interim ones are returned too.
func (c *rawConn) response(method string) (*http.Response, string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.in, &http.Request{Method: method})
	if err != nil {
		c.t.Fatal(err)
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp, string(raw)
}

// ended reports whether the server closes the connection.
func (c *rawConn) ended() bool {
	_, err := c.in.ReadByte()
	return errors.Is(err, io.EOF)
}

func head(lines ...string) string {
	return strings.Join(append([]string{"POST /mcp HTTP/1.1", "Host: localhost", "Content-Type: application/json"}, lines...), "\r\n") + "\r\n\r\n"
}

const pingText = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

// B14: 202 is a head and nothing else, and the connection goes on.
func TestB14AcceptedIsAHeadOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		session := s.session("2025-11-25", `{}`)
		c := s.rawConn(t)
		legacy := "Mcp-Session-Id: " + session
		modern := strings.Replace(modernMessage("1", "notifications/cancelled", `{"requestId":99}`), `"id":1,`, "", 1)
		for _, n := range []struct {
			text    string
			headers []string
		}{
			{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, []string{legacy}},
			{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`, []string{legacy, "Accept: application/json"}},
			{`{"jsonrpc":"2.0","method":"notifications/zzz"}`, []string{legacy}},
			{`{"jsonrpc":"2.0","id":"nobody asked","result":{}}`, []string{legacy, "Accept: application/json"}},
			{`{"jsonrpc":"2.0","id":"nobody asked","error":{"code":1,"message":"no"}}`, []string{legacy}},
			{modern, []string{"MCP-Protocol-Version: " + mcp.Modern().Date, "Mcp-Method: notifications/cancelled"}},
		} {
			c.write(head(append(n.headers, fmt.Sprint("Content-Length: ", len(n.text)))...) + n.text)
			resp, got := c.response(http.MethodPost)
			_, typed := resp.Header["Content-Type"]
			if resp.StatusCode != http.StatusAccepted || got != "" || typed || resp.ContentLength != 0 || resp.Header.Get(mcp.HeaderSessionID) != "" || resp.Close {
				t.Errorf("%s: %d %q %v", n.text, resp.StatusCode, got, resp.Header)
			}
		}
		c.write(head(fmt.Sprint("Content-Length: ", len(pingText))) + pingText)
		if resp, got := c.response(http.MethodPost); resp.StatusCode != http.StatusOK || !strings.Contains(got, `"result":{}`) {
			t.Errorf("the next request on the connection: %d %s", resp.StatusCode, got)
		}
	})
}

// B52: answers that refuse have the headers too, or a page cannot read why.
func TestB52RefusalsCanBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := guarded(t, Config{Origins: []string{"https://app.example"}})
		const origin = "Origin: https://app.example"
		asked := "authorization, content-type, accept, mcp-session-id, mcp-protocol-version, last-event-id, mcp-method, mcp-name, mcp-param-region"
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			resp := s.do(context.Background(), http.MethodOptions, "", origin, "Access-Control-Request-Method: "+method, "Access-Control-Request-Headers: "+asked)
			got := body(t, resp)
			allowed := resp.Header.Get("Access-Control-Allow-Methods")
			if resp.StatusCode != http.StatusNoContent || got != "" || resp.Header.Get("Access-Control-Allow-Headers") != asked || !strings.Contains(allowed, method) {
				t.Errorf("a preflight without a token for %s: %d %v", method, resp.StatusCode, resp.Header)
			}
		}
		for what, c := range map[string]struct {
			resp   *http.Response
			status int
		}{
			"no token":          {s.post(context.Background(), pingText, origin), http.StatusUnauthorized},
			"a wrong token":     {s.post(context.Background(), pingText, origin, "Authorization: Bearer wrong"), http.StatusUnauthorized},
			"an unknown one":    {s.post(context.Background(), pingText, origin, "Authorization: Bearer "+olaToken, "Mcp-Session-Id: x"), http.StatusNotFound},
			"nothing it takes":  {s.post(context.Background(), pingText, origin, "Authorization: Bearer "+olaToken, "Accept: text/html"), http.StatusNotAcceptable},
			"no session":        {s.do(context.Background(), http.MethodGet, "", origin, "Authorization: Bearer "+olaToken), http.StatusMethodNotAllowed},
			"a stream":          {s.post(context.Background(), pingText, origin, "Authorization: Bearer "+olaToken, "Accept: text/event-stream"), http.StatusOK},
			"an answer as JSON": {s.post(context.Background(), pingText, origin, "Authorization: Bearer "+olaToken), http.StatusOK},
		} {
			body(t, c.resp)
			h := c.resp.Header
			exposed := h.Get("Access-Control-Expose-Headers")
			if c.resp.StatusCode != c.status || h.Get("Access-Control-Allow-Origin") != "https://app.example" || h.Get("Vary") != "Origin" ||
				!strings.Contains(exposed, "Mcp-Session-Id") || !strings.Contains(exposed, "WWW-Authenticate") {
				t.Errorf("%s: %d %v", what, c.resp.StatusCode, h)
			}
		}
		resp := s.do(context.Background(), http.MethodOptions, "", "Origin: https://evil.example", "Access-Control-Request-Method: POST")
		body(t, resp)
		for name := range resp.Header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("a foreign origin is told %s", name)
			}
		}
	})
}

// B53: where a request claims to come from and to go to, on every method, and
// nothing of a refused one is executed. TestGuard has more names.
func TestB53HostsAndOrigins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{Hosts: []string{"mcp.example.com"}, Origins: []string{"https://app.example"}})
		session := s.session("2025-11-25", `{}`)
		const danger = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"danger"}}`
		send := func(method, host string, headers ...string) int {
			req, err := http.NewRequestWithContext(context.Background(), method, "http://localhost/mcp", strings.NewReader(danger))
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			req.Header.Set("Content-Type", "application/json")
			for _, h := range headers {
				key, value, _ := strings.Cut(h, ": ")
				req.Header.Add(key, value)
			}
			resp, err := s.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body(t, resp)
			return resp.StatusCode
		}
		want := 0
		for _, c := range []struct {
			host    string
			headers []string
			served  bool
		}{
			{"mcp.example.com", nil, true},
			{"MCP.example.com:443", nil, true},
			{"mcp.example.com.", nil, true},
			{"127.0.0.1", nil, true},
			{"[::1]:8080", nil, true},
			{"evil.example", nil, false},
			{"mcp.example.com.evil.example", nil, false},
			{"mcp.example.com", []string{"X-Forwarded-Host: evil.example"}, true},
			{"evil.example", []string{"X-Forwarded-Host: mcp.example.com", "Forwarded: host=mcp.example.com"}, false},
			{"mcp.example.com", []string{"Origin: https://app.example"}, true},
			{"mcp.example.com", []string{"Origin: HTTPS://APP.EXAMPLE"}, true},
			{"mcp.example.com", []string{"Origin: https://app.example:443"}, true},
			{"mcp.example.com", []string{"Origin: https://app.example.evil.com"}, false},
			{"mcp.example.com", []string{"Origin: http://app.example"}, false},
			{"mcp.example.com", []string{"Origin: null"}, false},
			{"mcp.example.com", []string{"Origin: file://"}, false},
			{"mcp.example.com", []string{"Origin: "}, false},
			{"mcp.example.com", []string{"Origin: https://app.example", "Origin: https://app.example"}, false},
			{"mcp.example.com", []string{"Origin: https://app.example", "Origin: https://evil.example"}, false},
		} {
			status := send(http.MethodPost, c.host, c.headers...)
			if c.served {
				want++
			}
			if (status == http.StatusOK) != c.served || !c.served && status != http.StatusForbidden {
				t.Errorf("host %q, %q: %d, want served %v", c.host, c.headers, status, c.served)
			}
			if !c.served {
				for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodOptions} {
					if status := send(method, c.host, append(c.headers, mcp.HeaderSessionID+": "+session, "Accept: text/event-stream")...); status != http.StatusForbidden {
						t.Errorf("%s, host %q, %q: %d", method, c.host, c.headers, status)
					}
				}
			}
		}
		if n := s.ran.value(); n != want {
			t.Errorf("the tool ran %d times, want %d", n, want)
		}
		// The session that others wanted to end lives.
		if got := body(t, s.post(context.Background(), pingText, mcp.HeaderSessionID+": "+session)); !strings.Contains(got, `"result":{}`) {
			t.Errorf("afterwards: %s", got)
		}
		c := s.rawConn(t)
		c.write("POST /mcp HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " + fmt.Sprint(len(danger)) + "\r\n\r\n" + danger)
		if resp, got := c.response(http.MethodPost); resp.StatusCode != http.StatusForbidden || s.ran.value() != want {
			t.Errorf("HTTP/1.0 without a host: %d %s", resp.StatusCode, got)
		}
	})
}

// B55: methods that are not served, and the probes.
func TestB55ProbesAndTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		c := s.rawConn(t)
		for _, method := range []string{"TRACE", "PUT", "PATCH", "OPTIONS", "HEAD", "GET", "CUSTOM"} {
			c.write(method + " /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")
			resp, got := c.response(method)
			if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "GET, POST, DELETE" || resp.Header.Get(mcp.HeaderSessionID) != "" {
				t.Errorf("%s: %d %v %s", method, resp.StatusCode, resp.Header, got)
			}
		}
		probe := func(when string, ready int) {
			t.Helper()
			for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": ready} {
				for _, method := range []string{"GET", "HEAD"} {
					c.write(method + " " + path + " HTTP/1.1\r\nHost: 10.1.2.3\r\n\r\n")
					resp, got := c.response(method)
					if resp.StatusCode != want || (got == "") != (method == "HEAD") || resp.Header.Get(mcp.HeaderSessionID) != "" {
						t.Errorf("%s: %s %s: %d %q", when, method, path, resp.StatusCode, got)
					}
				}
			}
		}
		probe("with NATS", http.StatusOK)
		s.edge.Drain()
		probe("draining", http.StatusServiceUnavailable)
	})
}

// B57: how a body is framed, and how large it says it is.
func TestB57Framing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{}
		cfg.Limits.MaxBytes = 4 << 20
		s := start(t, cfg)
		var chunks strings.Builder
		for _, b := range []byte(pingText) {
			fmt.Fprintf(&chunks, "1\r\n%c\r\n", b)
		}
		c := s.rawConn(t)
		c.write(head("Transfer-Encoding: chunked", "Trailer: X-Sum") + chunks.String() + "0\r\nX-Sum: 1\r\n\r\n")
		if resp, got := c.response(http.MethodPost); resp.StatusCode != http.StatusOK || !strings.Contains(got, `"result":{}`) {
			t.Errorf("chunks of one byte and a trailer: %d %s", resp.StatusCode, got)
		}
		c = s.rawConn(t) // chunks end a connection, see below
		c.write(head("Content-Length: 0"))
		if resp, got := c.response(http.MethodPost); resp.StatusCode != http.StatusBadRequest || replyCode(t, got) != jsonrpc.CodeParse {
			t.Errorf("no body: %d %s", resp.StatusCode, got)
		}
		const size = 2 << 20
		long := `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("y", size) + `"}}`
		c.write(head("Expect: 100-continue", fmt.Sprint("Content-Length: ", len(long))))
		if resp, _ := c.response(http.MethodPost); resp.StatusCode != http.StatusContinue {
			t.Fatalf("a client that waits to be asked: %d", resp.StatusCode)
		}
		c.write(long)
		if resp, got := c.response(http.MethodPost); resp.StatusCode != http.StatusOK || !strings.Contains(got, `"result":{}`) {
			t.Errorf("2 MB when asked: %d %.200s", resp.StatusCode, got)
		}
		// Too large: said at once, before anything of it is sent.
		for _, lines := range [][]string{
			{"Content-Length: 17179869185"},
			{"Content-Length: 4194305", "Expect: 100-continue"},
		} {
			begun := time.Now()
			c := s.rawConn(t)
			c.write(head(lines...))
			resp, got := c.response(http.MethodPost)
			if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close || time.Since(begun) > 0 {
				t.Errorf("%q: %d after %v: %s", lines, resp.StatusCode, time.Since(begun), got)
			}
			c.Close()
		}
		// Cut off, even where what has come is a whole message.
		const danger = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"danger"}}`
		for _, text := range []string{
			head(fmt.Sprint("Content-Length: ", len(danger)+1)) + danger,
			head("Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n%s\r\n", len(danger), danger),
			head(fmt.Sprint("Content-Length: ", len(danger))) + danger[:len(danger)-2],
		} {
			c := s.rawConn(t)
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		time.Sleep(time.Minute)
		if n := s.ran.value(); n != 0 {
			t.Errorf("%d of three messages that were cut off were executed", n)
		}
		// Both framings: the chunks count (RFC 9112, section 6.1), what the
		// length would make of the rest is no request, and the connection ends.
		c = s.rawConn(t)
		c.write(head("Content-Length: 5", "Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(pingText), pingText))
		switch resp, got := c.response(http.MethodPost); {
		case resp.StatusCode == http.StatusBadRequest:
		case resp.StatusCode != http.StatusOK || !strings.Contains(got, `"result":{}`):
			t.Errorf("a length and chunks: %d %s", resp.StatusCode, got)
		case !resp.Close || !c.ended():
			t.Errorf("a length and chunks were served and the connection goes on: %v", resp.Header)
		}
	})
}

// B28: streams live however long nothing happens, say so by comments, and tell
// proxies not to hold them back; who sends a head byte by byte is cut off.
func TestB28StreamsLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		session := s.session("2025-11-25", `{}`)
		opened := map[string]*http.Response{
			"GET": s.do(context.Background(), http.MethodGet, "", mcp.HeaderSessionID+": "+session, "Accept: text/event-stream", "Accept-Encoding: gzip"),
			"a call of five minutes": s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"n":6,"delay_ms":50000},"_meta":{"progressToken":1}}}`,
				mcp.HeaderSessionID+": "+session, bothTypes, "Accept-Encoding: gzip"),
		}
		text := modernMessage("7", "subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`)
		opened["subscriptions/listen"] = s.post(context.Background(), text, append(modernHeaders(text), bothTypes, "Accept-Encoding: gzip")...)
		streams := map[string]func() string{}
		for name, resp := range opened {
			h := resp.Header
			if resp.StatusCode != http.StatusOK || h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" ||
				!strings.Contains(h.Get("Cache-Control"), "no-cache") || h.Get("Content-Encoding") != "" || h.Get("Content-Length") != "" {
				t.Errorf("%s: %d %v", name, resp.StatusCode, h)
			}
			streams[name] = readAll(t, resp)
		}
		time.Sleep(5*time.Minute + time.Second)
		s.addTool("late")
		time.Sleep(time.Second)
		s.edge.Drain()
		for name, whole := range streams {
			wire := whole()
			if n := strings.Count("\n"+wire, "\n:"); n < 10 { // one in 30 s at least
				t.Errorf("%s: %d comments in five minutes", name, n)
			}
			want := "notifications/tools/list_changed"
			if name == "a call of five minutes" {
				want = `"text":"counted"`
			}
			if !strings.Contains(wire, want) {
				t.Errorf("%s: %s", name, wire)
			}
		}
		c := s.rawConn(t)
		begun := time.Now()
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				if _, err := io.WriteString(c, "X"); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		_, err := io.Copy(io.Discard, c.in)
		if took := time.Since(begun); took > 2*time.Minute {
			t.Errorf("a head of one byte a second was waited for for %v (%v)", took, err)
		}
		<-stopped
	})
}
