package edge

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/auth"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/seal"
)

// These tests are the cases of the bank that are about sessions, over three
// edges.

// in sends a message in a session and returns the answer.
func (s *system) in(session, text string, headers ...string) (status int, reply string) {
	s.t.Helper()
	resp := s.post(context.Background(), text, append(headers, mcp.HeaderSessionID+": "+session)...)
	return resp.StatusCode, body(s.t, resp)
}

// request sends a request in a session and returns the answer.
func (s *system) request(session, method, params string) string {
	s.t.Helper()
	_, reply := s.in(session, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`)
	return reply
}

// want fails the test unless text contains every part.
func want(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: %q is missing in %s", what, part, text)
		}
	}
}

// everyMethod sends something with each HTTP method and kind of message, and
// returns the answers.
func (s *system) everyMethod(session string, headers ...string) map[string]string {
	s.t.Helper()
	answers := map[string]string{}
	for _, c := range []struct{ name, method, text string }{
		{"a request", http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`},
		{"a notification", http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`},
		{"a response", http.MethodPost, `{"jsonrpc":"2.0","id":"x","result":{}}`},
		{"a batch", http.MethodPost, `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`},
		{"GET", http.MethodGet, ""},
		{"DELETE", http.MethodDelete, ""},
	} {
		answers[c.name] = whole(s.t, s.do(context.Background(), c.method, c.text, append(headers, mcp.HeaderSessionID+": "+session,
			"Content-Type: application/json", "Accept: application/json, text/event-stream")...))
	}
	return answers
}

// wantUnknown fails the test unless a session is answered as one that never was,
// on every edge.
func (c *cluster) wantUnknown(what, session string, headers ...string) {
	c.t.Helper()
	unknown := c.everyMethod("00000000-0000-4000-8000-000000000000", headers...)
	for i, n := range c.nodes {
		if n.killed.Load() {
			continue
		}
		for name, got := range n.everyMethod(session, headers...) {
			if got != unknown[name] || !strings.HasPrefix(got, "404\n") {
				c.t.Errorf("%s, %s on edge %d:\ngot  %s\nwant %s", what, name, i, got, unknown[name])
			}
		}
	}
}

// expired is a session id whose time is over.
func expired(t *testing.T, id string) string {
	t.Helper()
	ring, err := seal.NewRing(testKey())
	if err != nil {
		t.Fatal(err)
	}
	payload, err := ring.Open("session/1", id)
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint64(payload[1:9], uint64(time.Now().Add(-25*time.Hour).Unix()))
	return ring.Seal("session/1", payload)
}

func TestBankB15UnknownSessionsOnEveryEdge(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	live := c.session("2025-11-25", `{}`)
	otherRing, err := seal.NewRing(seal.Key{ID: 1, Secret: []byte("another key of another deployment")})
	if err != nil {
		t.Fatal(err)
	}
	c.wantUnknown("of another deployment", otherRing.Seal("session/1", make([]byte, 40)))
	c.wantUnknown("a path", "../x")
	c.wantUnknown("with a space", "a b")
	c.wantUnknown("long", strings.Repeat("a", 10_000))
	c.wantUnknown("expired", expired(t, live))
	c.wantUnknown("changed", live[:len(live)-2]+"AA")

	for i, n := range c.nodes {
		resp := n.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		if got := body(t, resp); resp.StatusCode != http.StatusOK || !strings.Contains(got, `"tools":[`) {
			t.Errorf("edge %d without a session: %d %s", i, resp.StatusCode, got)
		}
		resp = n.do(context.Background(), http.MethodGet, "", "Accept: text/event-stream")
		if got := body(t, resp); resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("GET without a session on edge %d: %d %s", i, resp.StatusCode, got)
		}
		if again := n.session("2025-11-25", `{}`); again == "" || again == live {
			t.Errorf("initialize on edge %d gave %q", i, again)
		}
		if status, got := n.in(live, `{"jsonrpc":"2.0","id":1,"method":"ping"}`); status != http.StatusOK || !strings.Contains(got, `"result":{}`) {
			t.Errorf("the live session on edge %d: %d %s", i, status, got)
		}
	}
}

// TestBankB16EveryEdgeServesEverySession sends the steps of a session to every
// edge in every combination.
func TestBankB16EveryEdgeServesEverySession(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	const steps = 6
	combinations := 1
	for range steps {
		combinations *= clusterSize
	}
	running := make(chan struct{}, 12) // how many sessions at a time
	var all sync.WaitGroup
	for combination := range combinations {
		var at [steps]*node
		for i, rest := 0, combination; i < steps; i++ {
			at[i], rest = c.nodes[rest%clusterSize], rest/clusterSize
		}
		running <- struct{}{}
		all.Go(func() {
			defer func() { <-running }()
			session := at[0].session("2025-11-25", `{}`)
			want(t, "setLevel", at[1].request(session, "logging/setLevel", `{"level":"alert"}`), `"result":{}`)
			want(t, "subscribe", at[2].request(session, "resources/subscribe", `{"uri":"term://known"}`), `"result":{}`)
			stream := at[3].listen(session)
			c.wantLevels(at[4], session, "alert emergency")
			if resp := at[5].do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session); resp.StatusCode != http.StatusNoContent {
				t.Errorf("DELETE: %d", resp.StatusCode)
			}
			if got := stream.soon(t, "the end of the stream"); got != "end" {
				t.Errorf("the stream got %s", got)
			}
			if status, got := at[4].in(session, `{"jsonrpc":"2.0","id":1,"method":"ping"}`); status != http.StatusNotFound {
				t.Errorf("after DELETE: %d %s", status, got)
			}
		})
	}
	all.Wait()
}

// wantLevels calls the tool that logs at each level and compares what comes.
func (c *cluster) wantLevels(at *node, session, levels string) {
	c.t.Helper()
	got := levelsOf(c.t, at.callStream(session, `{"name":"log"}`))
	if got != levels {
		c.t.Errorf("logged at %q, want %q", got, levels)
	}
}

// levelsOf returns the levels of the log messages before a result.
func levelsOf(t testing.TB, call *callStream) string {
	t.Helper()
	var levels []string
	for {
		text := call.soon(t, "log messages")
		if found := regexp.MustCompile(`"level":"([a-z]+)"`).FindStringSubmatch(text); found != nil {
			levels = append(levels, found[1])
			continue
		}
		want(t, "the result of log", text, `"text":"logged"`)
		return strings.Join(levels, " ")
	}
}

func TestBankB16SessionsSurviveTheirEdges(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	session := c.nodes[0].session("2025-06-18", `{}`)
	if strings.Trim(session, "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~") != "" {
		t.Errorf("the id has other than visible ASCII characters: %q", session)
	}
	want(t, "setLevel", c.nodes[1].request(session, "logging/setLevel", `{"level":"error"}`), `"result":{}`)
	want(t, "subscribe", c.nodes[2].request(session, "resources/subscribe", `{"uri":"memo://notes/one"}`), `"result":{}`)
	c.nodes[0].kill()
	// Through the proxy: two of three edges are left.
	for i := range 50 {
		want(t, "a call", c.request(session, "tools/call", fmt.Sprintf(`{"name":"add","arguments":{"a":%d,"b":1}}`, i)), fmt.Sprintf(`"sum":%d`, i+1))
	}
	// Every edge is another one than those that have seen the session begin.
	for i := range c.nodes {
		c.restart(i)
	}
	for _, n := range c.nodes {
		c.wantLevels(n, session, "error critical alert emergency")
	}
	stream := c.nodes[0].listen(session)
	c.worker.ResourceUpdated("memo://notes/one")
	if got := stream.soon(t, "an update"); got != oneUpdated {
		t.Errorf("the stream got %s", got)
	}
}

func TestBankB18DeleteIsSeenByEveryEdge(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	session, bystander := c.session("2025-11-25", `{}`), c.session("2025-11-25", `{}`)
	stream := c.nodes[0].listen(session)
	other := c.nodes[0].listen(bystander)
	call := c.nodes[1].callStream(session, `{"name":"linger","arguments":{"name":"one"},"_meta":{"progressToken":1}}`)
	same := c.nodes[1].callStream(bystander, `{"name":"linger","arguments":{"name":"bystander"},"_meta":{"progressToken":1}}`)
	for _, c := range []*callStream{call, same} {
		want(t, "progress", c.soon(t, "progress"), `"progress":1`)
	}
	resp := c.nodes[2].do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session)
	if got := body(t, resp); resp.StatusCode != http.StatusNoContent || got != "" {
		t.Errorf("DELETE: %d %s", resp.StatusCode, got)
	}
	c.wantUnknown("deleted", session)
	if got := stream.soon(t, "the end of the GET stream"); got != "end" {
		t.Errorf("the GET stream got %s", got)
	}
	if got := call.soon(t, "the end of the call"); got != "end" {
		t.Errorf("the call got %s", got)
	}
	if got := soon(t, "the worker", c.ended); got != "one" {
		t.Errorf("the call %q was cancelled", got)
	}
	resp = c.do(context.Background(), http.MethodDelete, "")
	if got := body(t, resp); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("DELETE of no session: %d %s", resp.StatusCode, got)
	}
	// The other session has lost nothing.
	c.addTool("news")
	if got := other.soon(t, "news"); got != toolsChanged {
		t.Errorf("the other session got %s", got)
	}
	want(t, "the other session", c.request(bystander, "ping", `{}`), `"result":{}`)
	select {
	case name := <-c.ended:
		t.Errorf("the call %q was cancelled, too", name)
	default:
	}
}

func TestBankB18ManySessions(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 25 {
				session := c.session("2025-11-25", `{}`)
				stream := c.listen(session)
				c.do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session).Body.Close()
				if got := stream.soon(t, "the end of the stream"); got != "end" {
					t.Errorf("the stream got %s", got)
				}
			}
		})
	}
	all.Wait()
	for i, n := range c.nodes {
		if topics := n.hub().Topics(); topics != 0 {
			t.Errorf("edge %d still follows %d resources", i, topics)
		}
	}
}

func TestBankB20SessionsOfOthersOnOtherEdges(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(file, []byte(tokenFile), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := auth.OpenTokens(auth.TokensConfig{File: file})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "tokens", tokens.Run)
	c := startCluster(t, Config{Authenticator: tokens})
	ala := c.nodes[0].as(alaToken, "2025-11-25", `{"elicitation":{}}`)
	bearer := func(token string) string { return "Authorization: Bearer " + token }
	stream := readStream(c.nodes[1].do(context.Background(), http.MethodGet, "", bearer(alaToken), mcp.HeaderSessionID+": "+ala.session, "Accept: text/event-stream"))
	call := readStream(ala.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask"}}`, "Accept: application/json, text/event-stream"))
	question, _ := request(t, call.soon(t, "the question"), "elicitation/create")
	decline := `{"jsonrpc":"2.0","id":"` + question + `","result":{"action":"decline"}}`

	c.wantUnknown("ala's, for ola", ala.session, bearer(olaToken))
	c.wantUnknown("ala's, for ewa who comes back", ala.session, bearer(ewaToken), "Last-Event-ID: g-AAAAAAAAAAAAAAAAAAAAAAAA-x-1")
	for i, n := range c.nodes {
		for name, got := range n.everyMethod(ala.session) {
			if !strings.HasPrefix(got, "401\n") {
				t.Errorf("%s without a token on edge %d: %s", name, i, got)
			}
		}
		// Nor does ola answer what ala was asked, in a session of her own.
		ola := n.as(olaToken, "2025-11-25", `{"elicitation":{}}`)
		for _, session := range []string{ala.session, ola.session} {
			resp := n.post(context.Background(), decline, bearer(olaToken), mcp.HeaderSessionID+": "+session)
			if got := body(t, resp); resp.StatusCode != http.StatusNotFound && session == ala.session || got != "" && session == ola.session {
				t.Errorf("ola's answer on edge %d: %d %s", i, resp.StatusCode, got)
			}
		}
		resp := n.do(context.Background(), http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
			bearer(olaToken), mcp.HeaderSessionID+": "+ola.session, "Content-Type: application/json")
		body(t, resp)
	}
	// Ala goes on with a new token, on another edge.
	again := &user{system: c.nodes[2].system, token: alaToken2, session: ala.session}
	c.addTool("news")
	if got := stream.soon(t, "news"); got != toolsChanged {
		t.Errorf("ala's stream got %s", got)
	}
	resp := again.send(`{"jsonrpc":"2.0","id":"` + question + `","result":{"action":"accept","content":{"name":"Ala"}}}`)
	if got := body(t, resp); resp.StatusCode != http.StatusAccepted {
		t.Errorf("ala's answer: %d %s", resp.StatusCode, got)
	}
	want(t, "ala's call", call.soon(t, "the result"), `"text":"Ala"`)
	want(t, "ala's list", again.request("tools/list", `{}`), "200\n", `"tools":[`)
}

func TestBankB36LevelsOnEveryEdge(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	x, y, z := c.session("2025-11-25", `{}`), c.session("2025-06-18", `{}`), c.session("2025-03-26", `{}`)
	const all = "debug info notice warning error critical alert emergency"
	for i := range c.nodes {
		// Each time another edge takes the change, and all have it at once.
		want(t, "setLevel", c.nodes[i].request(x, "logging/setLevel", `{"level":"error"}`), `"result":{}`)
		want(t, "setLevel", c.nodes[i].request(z, "logging/setLevel", `{"level":"debug"}`), `"result":{}`)
		for _, n := range c.nodes {
			c.wantLevels(n, x, "error critical alert emergency")
			c.wantLevels(n, y, "info notice warning error critical alert emergency")
			c.wantLevels(n, z, all)
		}
		for _, bad := range []string{`{"level":"verbose"}`, `{"level":3}`, `{}`} {
			want(t, "a bad level", c.request(x, "logging/setLevel", bad), `"code":-32602`)
		}
		want(t, "setLevel", c.nodes[i].request(x, "logging/setLevel", `{"level":"notice"}`), `"result":{}`)
		for _, n := range c.nodes {
			c.wantLevels(n, x, "notice warning error critical alert emergency")
		}
	}
	for _, n := range c.nodes {
		if _, got := n.in(x, `{"jsonrpc":"2.0","id":7,"method":"ping"}`); got != `{"jsonrpc":"2.0","id":7,"result":{}}` {
			t.Errorf("ping: %s", got)
		}
	}
}

func TestSessionsWithoutTheirStore(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	session, other := c.session("2025-11-25", `{"elicitation":{}}`), c.session("2025-11-25", `{}`)
	want(t, "setLevel", c.nodes[0].request(session, "logging/setLevel", `{"level":"alert"}`), `"result":{}`)
	want(t, "subscribe", c.nodes[0].request(session, "resources/subscribe", `{"uri":"memo://notes/one"}`), `"result":{}`)
	c.restart(1) // an edge that remembers nothing
	c.storeDown.Store(true)
	for i, n := range c.nodes {
		for method, params := range map[string]string{
			"logging/setLevel":    `{"level":"debug"}`,
			"resources/subscribe": `{"uri":"term://known"}`,
		} {
			want(t, method, n.request(other, method, params), `"code":-32603`, `"reason":"unavailable"`, `"retryAfterMs":`)
		}
		resp := n.do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+other)
		if got := body(t, resp); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !strings.Contains(got, `"reason":"unavailable"`) {
			t.Errorf("DELETE on edge %d: %d %s", i, resp.StatusCode, got)
		}
		// What needs no store goes on.
		want(t, "a call", n.request(session, "tools/call", `{"name":"add","arguments":{"a":1,"b":2}}`), `"sum":3`)
		n.session("2025-11-25", `{}`)
		c.wantLevels(n, other, "info notice warning error critical alert emergency")
		text := modernMessage("1", "tools/call", `{"name":"add","arguments":{"a":2,"b":2}}`)
		want(t, "a modern call", body(t, n.post(context.Background(), text, modernHeaders(text)...)), `"sum":4`)
	}
	c.wantLevels(c.nodes[1], session, "info notice warning error critical alert emergency")
	call := c.nodes[0].callStream(session, `{"name":"ask"}`)
	id, _ := request(t, call.soon(t, "the question"), "elicitation/create")
	c.nodes[1].respond(session, `{"jsonrpc":"2.0","id":"`+id+`","result":{"action":"accept","content":{"name":"Ola"}}}`)
	want(t, "the answer", call.soon(t, "the result"), `"text":"Ola"`)
	// A stream that begins now cannot know what its session follows.
	stream := c.nodes[1].listen(session)

	c.storeDown.Store(false)
	eventually(t, "the stream to follow what was subscribed to", func() bool { return c.nodes[1].hub().Topics() == 1 })
	c.worker.ResourceUpdated("memo://notes/one")
	if got := stream.soon(t, "the update"); got != oneUpdated {
		t.Errorf("the stream got %s", got)
	}
	for _, n := range c.nodes {
		eventually(t, "the level", func() bool { return levelsOf(t, n.callStream(session, `{"name":"log"}`)) == "alert emergency" })
	}
	want(t, "setLevel", c.request(other, "logging/setLevel", `{"level":"debug"}`), `"result":{}`)
	resp := c.do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+other)
	if got := body(t, resp); resp.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE: %d %s", resp.StatusCode, got)
	}
	c.wantUnknown("deleted", other)
}
