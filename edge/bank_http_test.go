package edge

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/mcp"
)

// The cases of the bank about what surrounds a message on HTTP, and about
// odd messages; see bank_test.go.

func TestB09OddMessagesEndNothing(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		code := func(reply string) int { return errorCode(t, decode(t, reply)) }
		if _, reply := d.call("2", "no/such", ""); code(reply) != -32601 {
			t.Errorf("unknown method: %s", reply)
		}
		for _, params := range []string{`null`, `["echo"]`, `7`} {
			_, reply := d.raw(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":` + params + `}`)
			if c := code(reply); c != -32602 {
				t.Errorf("params %s: %s", params, reply)
			}
		}
		if _, reply := d.call("5", "tools/call", `{"arguments":{}}`); code(reply) != -32602 {
			t.Errorf("name missing: %s", reply)
		}
		for text, want := range map[string]int{
			`{"jsonrpc":"2.0","id":6,"method":7}`:      -32600,
			`{"jsonrpc":"1.0","id":8,"method":"ping"}`: -32600,
			`{"id":8,"method":"ping"}`:                 -32600,
			`{"jsonrpc"`:                               -32700,
		} {
			if _, reply := d.raw(text); replyCode(t, reply) != want {
				t.Errorf("%s: %s", text, reply)
			}
		}
		status, reply := d.call("9", "tools/list", "")
		if status != http.StatusOK || decode(t, reply).Result == nil {
			t.Errorf("afterwards: %d %.200s", status, reply)
		}
	})
}

// replyCode is the code of an error response that may have no id.
func replyCode(t *testing.T, reply string) int {
	t.Helper()
	var m struct{ Error struct{ Code int } }
	if err := json.Unmarshal([]byte(reply), &m); err != nil {
		t.Fatalf("%v in %q", err, reply)
	}
	return m.Error.Code
}

func TestB10ContentNegotiation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		const jsonType, sseType = "application/json", "text/event-stream"
		for _, c := range []struct {
			accept   []string
			status   int
			mimeType string
		}{
			{[]string{"*/*"}, 200, jsonType},
			{nil, 200, jsonType},
			{[]string{"application/* , text/*"}, 200, jsonType},
			{[]string{"APPLICATION/JSON;q=0.9,text/event-stream;q=0.1"}, 200, jsonType},
			{[]string{"application/json"}, 200, jsonType},
			{[]string{"text/event-stream"}, 200, sseType},
			{[]string{"application/json;q=0, text/event-stream"}, 200, sseType},
			{[]string{"application/json", "text/event-stream"}, 200, jsonType},
			{[]string{"text/html"}, 406, jsonType},
		} {
			req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://localhost/mcp",
				strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			for _, a := range c.accept {
				req.Header.Add("Accept", a)
			}
			resp, err := s.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body(t, resp)
			if resp.StatusCode != c.status || resp.Header.Get("Content-Type") != c.mimeType || resp.Header.Get(mcp.HeaderSessionID) != "" {
				t.Errorf("Accept %q: %d %s", c.accept, resp.StatusCode, resp.Header.Get("Content-Type"))
			}
		}
		session := s.session("2025-11-25", `{}`)
		resp := s.do(context.Background(), http.MethodGet, "", "Mcp-Session-Id: "+session, "Accept: application/json")
		body(t, resp)
		if resp.StatusCode != http.StatusNotAcceptable {
			t.Errorf("GET that takes no stream: %d", resp.StatusCode)
		}
		ctx, cancel := context.WithCancel(context.Background())
		resp = s.do(ctx, http.MethodGet, "", "Mcp-Session-Id: "+session, "Accept: */*")
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != sseType {
			t.Errorf("GET that takes anything: %d %v", resp.StatusCode, resp.Header)
		}
		cancel()
		resp.Body.Close()
		time.Sleep(time.Second)
	})
}

func TestB12VersionHeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		for name, c := range map[string]struct{ asked, header, got string }{
			"header of the future": {"2025-11-25", "2099-01-01", "2025-11-25"},
			"body of the future":   {"2099-01-01", "", "2025-11-25"},
		} {
			headers := []string{}
			if c.header != "" {
				headers = append(headers, "MCP-Protocol-Version: "+c.header)
			}
			resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+c.asked+`","capabilities":{}}}`, headers...)
			if got := body(t, resp); resp.StatusCode != http.StatusOK || !strings.Contains(got, `"protocolVersion":"`+c.got+`"`) {
				t.Errorf("%s: %d %s", name, resp.StatusCode, got)
			}
		}
		session := s.session("2025-06-18", `{}`)
		list := func(method, header string) int {
			headers := []string{"Mcp-Session-Id: " + session, "Content-Type: application/json"}
			if header != "" {
				headers = append(headers, "MCP-Protocol-Version: "+header)
			}
			resp := s.do(context.Background(), method, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, headers...)
			body(t, resp)
			return resp.StatusCode
		}
		for _, c := range []struct {
			method, header string
			want           int
		}{
			{http.MethodPost, "1999-01-01", 400},
			{http.MethodPost, "abc", 400},
			{http.MethodPost, "", 200},
			{http.MethodPost, "2025-11-25", 200},
			{http.MethodGet, "1999-01-01", 400},
			{http.MethodDelete, "1999-01-01", 400},
			{http.MethodPost, "", 200}, // the session is alive
		} {
			if got := list(c.method, c.header); got != c.want {
				t.Errorf("%s with %q: %d, want %d", c.method, c.header, got, c.want)
			}
		}
	})
}

func TestB14NotificationsAreAcceptedWithNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		session := s.session("2025-11-25", `{}`)
		for _, text := range []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}`,
			`{"jsonrpc":"2.0","method":"notifications/zzz"}`,
			`{"jsonrpc":"2.0","id":"nobody asked","result":{}}`,
		} {
			for _, accept := range []string{"application/json, text/event-stream", "application/json"} {
				resp := s.post(context.Background(), text, "Mcp-Session-Id: "+session, "Accept: "+accept)
				got := body(t, resp)
				if resp.StatusCode != http.StatusAccepted || got != "" || resp.Header.Get("Content-Type") != "" || resp.Header.Get(mcp.HeaderSessionID) != "" {
					t.Errorf("%s: %d %q %v", text, resp.StatusCode, got, resp.Header)
				}
			}
		}
	})
}

func TestB22EqualIDsOfDifferentCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		shared := s.session("2025-11-25", `{}`)
		var running sync.WaitGroup
		call := func(nonce string, headers ...string) {
			running.Go(func() {
				text := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"nonce":"` + nonce + `"}}}`
				if len(headers) == 0 {
					text = modernMessage("1", "tools/call", `{"name":"echo","arguments":{"nonce":"`+nonce+`"}}`)
					headers = modernHeaders(text)
				}
				if got := body(t, s.post(context.Background(), text, headers...)); !strings.Contains(got, nonce) {
					t.Errorf("the call %s got %s", nonce, got)
				}
			})
		}
		for i := range 20 {
			call(fmt.Sprintf("one-session-%d", i), "Mcp-Session-Id: "+shared)
			call(fmt.Sprintf("own-session-%d", i), "Mcp-Session-Id: "+s.session("2025-06-18", `{}`))
			call(fmt.Sprintf("modern-%d", i))
		}
		running.Wait()
	})
}

func TestB29ProgressTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		session := s.session("2025-11-25", `{}`)
		for _, token := range []string{`0`, `"0"`, `""`, `9007199254740993`} {
			call := s.callStream(session, `{"name":"count","arguments":{"n":50},"_meta":{"progressToken":`+token+`}}`)
			for i := 1; i <= 50; i++ {
				want := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"total":50,"message":"counting"}}`, token, i)
				if got := call.next(); got != want {
					t.Fatalf("token %s: message %d is %s", token, i, got)
				}
			}
			if got := call.next(); !strings.Contains(got, `"result"`) {
				t.Errorf("token %s: then %s", token, got)
			}
			if got := call.next(); got != "" {
				t.Errorf("token %s: after the result %s", token, got)
			}
		}
	})
}

func TestB30CancellationRaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		session := s.session("2025-11-25", `{}`)
		var running sync.WaitGroup
		for i := range 300 {
			running.Go(func() {
				id := fmt.Sprint(i)
				text := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"count","arguments":{"n":1,"delay_ms":5}}}`
				cancelled := make(chan struct{})
				go func() {
					defer close(cancelled)
					time.Sleep(time.Duration(i%11) * time.Millisecond)
					s.post(context.Background(), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+id+`}}`, "Mcp-Session-Id: "+session).Body.Close()
				}()
				got := body(t, s.post(context.Background(), text, "Mcp-Session-Id: "+session, "Accept: application/json, text/event-stream"))
				if n := strings.Count(got, `"id":`+id); n > 1 || n == 0 && got != "" {
					t.Errorf("call %s was answered %q", id, got)
				}
				<-cancelled
			})
		}
		running.Wait()
		for _, odd := range []string{`{"requestId":"nope"}`, `{}`, `{"requestId":null}`, `{"requestId":0}`} {
			resp := s.post(context.Background(), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":`+odd+`}`, "Mcp-Session-Id: "+session)
			if body(t, resp); resp.StatusCode != http.StatusAccepted {
				t.Errorf("odd cancellation %s: %d", odd, resp.StatusCode)
			}
		}
		if got := body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Mcp-Session-Id: "+session)); !strings.Contains(got, `"result":{}`) {
			t.Errorf("afterwards: %s", got)
		}
	})
}

func TestB55MethodsAndProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		for _, c := range []struct {
			method, accept string
			want           int
		}{
			{http.MethodHead, "", 405},
			{http.MethodGet, "", 405},
			{http.MethodGet, "text/event-stream", 405},
			{http.MethodPut, "", 405},
			{http.MethodPatch, "", 405},
			{http.MethodOptions, "", 405},
		} {
			begun := time.Now()
			headers := []string{}
			if c.accept != "" {
				headers = append(headers, "Accept: "+c.accept)
			}
			resp := s.do(context.Background(), c.method, "", headers...)
			got := body(t, resp)
			if resp.StatusCode != c.want || resp.Header.Get("Allow") == "" || resp.Header.Get(mcp.HeaderSessionID) != "" || time.Since(begun) > time.Second {
				t.Errorf("%s: %d %v %s", c.method, resp.StatusCode, resp.Header, got)
			}
			if c.method == http.MethodHead && got != "" {
				t.Errorf("HEAD has a body: %s", got)
			}
		}
	})
}

func TestB57Bodies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		post := func(content *bytes.Reader, headers ...string) (int, string) {
			req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://localhost/mcp", struct{ *bytes.Reader }{content})
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = -1 // chunked
			req.Header.Set("Content-Type", "application/json")
			for _, h := range headers {
				key, value, _ := strings.Cut(h, ": ")
				req.Header.Set(key, value)
			}
			resp, err := s.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, body(t, resp)
		}
		message := func(size int) []byte {
			return []byte(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("y", size) + `"}}`)
		}
		for _, size := range []int{0, 150_000, 3_000_000} {
			if status, got := post(bytes.NewReader(message(size)), "Expect: 100-continue"); status != http.StatusOK {
				t.Errorf("chunked, %d bytes: %d %.200s", size, status, got)
			}
		}
		var zipped bytes.Buffer
		zw := gzip.NewWriter(&zipped)
		if _, err := zw.Write(message(10)); err != nil {
			t.Fatal(err)
		}
		if err := zw.Close(); err != nil {
			t.Fatal(err)
		}
		if status, _ := post(bytes.NewReader(zipped.Bytes()), "Content-Encoding: gzip"); status != http.StatusUnsupportedMediaType {
			t.Errorf("gzip: %d", status)
		}
		if status, got := post(bytes.NewReader(nil)); status != http.StatusBadRequest || replyCode(t, got) != -32700 {
			t.Errorf("empty: %d %s", status, got)
		}
	})
}

func TestB67DiscoverSaysWhatIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		text := modernMessage("1", "server/discover", "{}")
		resp := s.post(context.Background(), text, modernHeaders(text)...)
		var discovered struct {
			Result struct {
				ResultType        string
				SupportedVersions []string
				TTLMs             *int `json:"ttlMs"`
				CacheScope        string
			}
		}
		if err := json.Unmarshal([]byte(body(t, resp)), &discovered); err != nil {
			t.Fatal(err)
		}
		r := discovered.Result
		if r.ResultType != "complete" || len(r.SupportedVersions) == 0 || r.TTLMs == nil || r.CacheScope == "" || resp.Header.Get(mcp.HeaderSessionID) != "" {
			t.Errorf("discovered %+v", r)
		}
		at := func(date string) (int, string) {
			text := strings.ReplaceAll(modernMessage("1", "tools/list", "{}"), mcp.Modern().Date, date)
			resp := s.post(context.Background(), text, "MCP-Protocol-Version: "+date, "Mcp-Method: tools/list")
			return resp.StatusCode, body(t, resp)
		}
		for _, date := range r.SupportedVersions {
			if status, got := at(date); status != http.StatusOK || !strings.Contains(got, `"tools":[`) {
				t.Errorf("the listed version %s: %d %.200s", date, status, got)
			}
		}
		supported, err := json.Marshal(r.SupportedVersions)
		if err != nil {
			t.Fatal(err)
		}
		for _, date := range []string{"1900-01-01", "2025-11-25"} {
			status, got := at(date)
			if status != http.StatusBadRequest || replyCode(t, got) != mcp.CodeUnsupportedVersion ||
				!strings.Contains(got, `"supported":`+string(supported)) || !strings.Contains(got, `"requested":"`+date+`"`) {
				t.Errorf("version %s: %d %s", date, status, got)
			}
		}
	})
}

func TestB70SubscriptionIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		streams := map[string]*callStream{}
		for _, id := range []string{`0`, `"0"`, `9007199254740993`} {
			text := modernMessage(id, "subscriptions/listen", `{"notifications":{"toolsListChanged":true,"promptsListChanged":false,"resourceSubscriptions":["memo://notes/one"],"unknown":1}}`)
			streams[id] = readStream(s.post(context.Background(), text, append(modernHeaders(text), "Accept: application/json, text/event-stream")...))
		}
		for id, stream := range streams {
			first := stream.next()
			if !strings.Contains(first, `"notifications/subscriptions/acknowledged"`) || !strings.Contains(first, `subscriptionId":`+id+`}`) {
				t.Errorf("id %s: first message %s", id, first)
			}
		}
		time.Sleep(10 * time.Minute) // idle streams live
		for range 50 {
			s.worker.ResourceUpdated("memo://notes/one")
			s.worker.ResourceUpdated("term://known")
		}
		s.addTool("flood")
		time.Sleep(2 * time.Second)
		s.edge.Drain()
		for id, stream := range streams {
			kinds := map[string]int{}
			for _, m := range stream.waiting() {
				if m != "end" && !strings.Contains(m, `subscriptionId":`+id+`}`) && !strings.Contains(m, `subscriptionId":`+id+`,`) {
					t.Errorf("id %s: message %s", id, m)
				}
				for _, kind := range []string{"tools/list_changed", "resources/updated", "notifications/cancelled", `"result"`, "term://known", "prompts"} {
					if strings.Contains(m, kind) {
						kinds[kind]++
					}
				}
			}
			if kinds["tools/list_changed"] != 1 || kinds["resources/updated"] == 0 || kinds[`"result"`] != 1 || kinds["term://known"] != 0 || kinds["prompts"] != 0 {
				t.Errorf("id %s: messages %v", id, kinds)
			}
		}
		for _, params := range []string{`{}`, `{"notifications":null}`} {
			text := modernMessage("1", "subscriptions/listen", params)
			if got := body(t, s.post(context.Background(), text, modernHeaders(text)...)); replyCode(t, got) != -32602 {
				t.Errorf("filter missing: %s", got)
			}
		}
	})
}
