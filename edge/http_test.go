package edge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/mcp"
)

// initialize opens a session and returns its id.
func (s *system) initialize(date string) string {
	s.t.Helper()
	resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+date+`","capabilities":{}}}`)
	body(s.t, resp)
	return resp.Header.Get(mcp.HeaderSessionID)
}

func TestBodyLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 4096
		cfg := Config{}
		cfg.Limits.MaxBytes = limit
		s := start(t, cfg)
		message := func(size int) string {
			head, tail := `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"`, `"}}`
			return head + strings.Repeat("y", size-len(head)-len(tail)) + tail
		}
		for _, c := range []struct {
			size    int
			chunked bool
			want    int
		}{
			{limit - 1, false, http.StatusOK},
			{limit, false, http.StatusOK},
			{limit, true, http.StatusOK},
			{limit + 1, false, http.StatusRequestEntityTooLarge},
			{limit + 1, true, http.StatusRequestEntityTooLarge},
			{100 * limit, true, http.StatusRequestEntityTooLarge},
		} {
			var content io.Reader = strings.NewReader(message(c.size))
			if c.chunked {
				content = io.MultiReader(content) // hides the length
			}
			req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://localhost/mcp", content)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := s.client.Do(req)
			if err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			if got := body(t, resp); resp.StatusCode != c.want || c.want != http.StatusOK && !strings.Contains(got, "4096 bytes") {
				t.Errorf("%+v: status %d, %.200s", c, resp.StatusCode, got)
			}
		}
		time.Sleep(time.Second) // the server lets refused uploads go
	})
}

func TestProgressArrivesWhileTheToolRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		begun := time.Now()
		resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"n":3,"delay_ms":10000},"_meta":{"progressToken":1}}}`,
			"Accept: application/json, text/event-stream")
		defer resp.Body.Close()
		var at []string
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "data: ") {
				at = append(at, time.Since(begun).Round(time.Second).String())
			}
		}
		if got := fmt.Sprint(at); got != "[10s 20s 30s 30s]" {
			t.Errorf("messages came after %s", got)
		}
	})
}

func TestCancellationOverHTTP(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		mine, other := s.initialize("2025-11-25"), s.initialize("2025-11-25")
		call := func(session string, answers chan<- string, accept string) {
			resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}`,
				mcp.HeaderSessionID+": "+session, "Accept: "+accept)
			answers <- resp.Header.Get("Content-Type") + " " + body(t, resp)
		}
		cancelled, theirs := make(chan string, 1), make(chan string, 1)
		go call(mine, cancelled, "application/json, text/event-stream")
		go call(other, theirs, "application/json")
		time.Sleep(time.Second)
		cancel := func(session string) {
			resp := s.post(context.Background(), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, mcp.HeaderSessionID+": "+session)
			if got := body(t, resp); resp.StatusCode != http.StatusAccepted || got != "" || resp.Header.Get("Content-Type") != "" {
				t.Errorf("notification: %d %q %v", resp.StatusCode, got, resp.Header)
			}
		}
		cancel(mine)
		if got := <-cancelled; got != "text/event-stream " {
			t.Errorf("the cancelled call was answered: %q", got)
		}
		synctest.Wait()
		if n := s.ran.value(); n != 1 {
			t.Errorf("%d handlers saw their context end, want 1: the other session's call has the same id", n)
		}
		// A client that takes no stream has to be told something.
		cancel(other)
		if got := <-theirs; !strings.Contains(got, `"reason":"cancelled"`) {
			t.Errorf("the cancelled call was answered: %q", got)
		}
	})
}

func TestNoWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		s.stopWorker()
		begun := time.Now()
		for name, headers := range map[string][]string{
			"legacy": nil,
			"modern": {"Mcp-Protocol-Version: " + mcp.Modern().Date, "Mcp-Method: tools/call", "Mcp-Name: echo"},
		} {
			meta := ""
			if headers != nil {
				meta = `,"_meta":{"` + mcp.MetaProtocolVersion + `":"` + mcp.Modern().Date + `","` + mcp.MetaClientCapabilities + `":{}}`
			}
			resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo"`+meta+`}}`, headers...)
			got := body(t, resp)
			if !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":7,"error":{"code":-32`) {
				t.Errorf("%s: %d %s", name, resp.StatusCode, got)
			}
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the answers took %v", took)
		}
	})
}

func TestPoolThatVanishedAnswersAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		s.workerConn.Close() // as if the process had been killed
		time.Sleep(5 * time.Second)
		begun := time.Now()
		resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","_meta":{"`+mcp.MetaProtocolVersion+`":"`+mcp.Modern().Date+`","`+mcp.MetaClientCapabilities+`":{}}}}`,
			"Mcp-Protocol-Version: "+mcp.Modern().Date, "Mcp-Method: tools/call", "Mcp-Name: echo")
		got := body(t, resp)
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "2" || !strings.Contains(got, `"reason":"unavailable"`) {
			t.Errorf("%d %v %s", resp.StatusCode, resp.Header, got)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the answer took %v", took)
		}
	})
}

func TestRunningCallEndsWithItsWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		answer := make(chan string, 1)
		begun := time.Now()
		go func() {
			answer <- body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"hang"}}`))
		}()
		time.Sleep(time.Second)
		s.workerConn.Close()
		if got := <-answer; !strings.Contains(got, `"reason":"worker_lost"`) {
			t.Errorf("answered %s", got)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("the answer took %v", took)
		}
	})
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		get := func(path string) (int, string) {
			resp, err := s.client.Get("http://10.1.2.3" + path)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, body(t, resp)
		}
		if status, text := get("/readyz"); status != http.StatusOK {
			t.Errorf("readyz: %d %s", status, text)
		}
		s.edge.Drain()
		if status, text := get("/readyz"); status != http.StatusServiceUnavailable || text != "draining\n" {
			t.Errorf("draining: readyz %d %s", status, text)
		}
		if status, _ := get("/healthz"); status != http.StatusOK {
			t.Errorf("draining: healthz %d", status)
		}
	})
}

func TestHarmlessCallIsMadeAgainWhenItsWorkerIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		s.startWorker()
		for _, c := range []struct{ name, want string }{
			{"lose-once-harmless", `"text":"survived"`},
			{"lose-once", `"reason":"worker_lost"`},
		} {
			resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"`+c.name+`"}}`)
			if got := body(t, resp); !strings.Contains(got, c.want) {
				t.Errorf("%s: %s", c.name, got)
			}
		}
	})
}

// The first attempt may have been executed, whatever becomes of the second one:
// here there is nobody left to make it.
func TestRepeatThatNobodyTakesIsNoRefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"lose-once-harmless"}}`)
		if got := body(t, resp); !strings.Contains(got, `"reason":"worker_lost"`) {
			t.Error(got)
		}
	})
}

func TestCORS(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{Origins: []string{"https://app.example"}})
		const asked = "authorization, content-type, accept, mcp-session-id, mcp-protocol-version, last-event-id, mcp-method, mcp-name, mcp-param-region"
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			resp := s.do(context.Background(), http.MethodOptions, "", "Origin: https://app.example",
				"Access-Control-Request-Method: "+method, "Access-Control-Request-Headers: "+asked)
			body(t, resp)
			h := resp.Header
			if resp.StatusCode != http.StatusNoContent || h.Get("Access-Control-Allow-Origin") != "https://app.example" || h.Get("Vary") != "Origin" ||
				!strings.Contains(h.Get("Access-Control-Allow-Methods"), method) || h.Get("Access-Control-Allow-Headers") != asked {
				t.Errorf("preflight for %s: %d %v", method, resp.StatusCode, h)
			}
		}
		for name, resp := range map[string]*http.Response{
			"initialize":    s.post(context.Background(), `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`, "Origin: https://app.example"),
			"stream":        s.post(context.Background(), `{"jsonrpc":"2.0","id":0,"method":"ping"}`, "Origin: https://app.example", "Accept: text/event-stream"),
			"lost session":  s.post(context.Background(), `{"jsonrpc":"2.0","id":0,"method":"ping"}`, "Origin: https://app.example", "Mcp-Session-Id: x"),
			"no answer fit": s.post(context.Background(), `{"jsonrpc":"2.0","id":0,"method":"ping"}`, "Origin: https://app.example", "Accept: text/html"),
		} {
			body(t, resp)
			if resp.Header.Get("Access-Control-Allow-Origin") != "https://app.example" || !strings.Contains(resp.Header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id") {
				t.Errorf("%s: %v", name, resp.Header)
			}
		}
		resp := s.do(context.Background(), http.MethodOptions, "", "Origin: https://evil.example", "Access-Control-Request-Method: POST")
		body(t, resp)
		if resp.StatusCode != http.StatusForbidden || resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("foreign origin: %d %v", resp.StatusCode, resp.Header)
		}
		resp = s.do(context.Background(), http.MethodOptions, "")
		body(t, resp)
		if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "GET, POST, DELETE" {
			t.Errorf("OPTIONS of no browser: %d %v", resp.StatusCode, resp.Header)
		}
	})
}
