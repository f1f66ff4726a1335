package edge

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/worker"
)

// listen opens the GET stream of a session.
func (s *system) listen(session string) *callStream {
	s.t.Helper()
	resp := s.do(context.Background(), http.MethodGet, "", mcp.HeaderSessionID+": "+session, "Accept: text/event-stream")
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		s.t.Fatalf("GET: %d %s", resp.StatusCode, body(s.t, resp))
	}
	return readStream(resp)
}

// addTool changes the list of tools.
func (s *system) addTool(name string) {
	type none struct{}
	worker.AddTool(s.worker, worker.Tool{Name: name}, func(context.Context, *worker.Call, none) (string, error) { return name, nil })
}

// waiting returns the messages that are there and not read.
func (c *callStream) waiting() []string {
	synctest.Wait()
	var got []string
	for {
		select {
		case ev, ok := <-c.events:
			if !ok {
				return append(got, "end")
			}
			got = append(got, ev)
		default:
			return got
		}
	}
}

// wantMessages compares what came with what should; changes of different kinds
// have no order between them.
func wantMessages(t *testing.T, when string, got []string, want ...string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s:\ngot  %q\nwant %q", when, got, want)
	}
}

const (
	toolsChanged = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	oneUpdated   = `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"memo://notes/one"}}`
)

func TestLegacyStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		session := s.session("2025-11-25", `{}`)
		call := func(method, params string) string {
			return body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`, mcp.HeaderSessionID+": "+session))
		}
		// Subscribed before the stream is there, and after.
		if got := call("resources/subscribe", `{"uri":"memo://notes/one"}`); !strings.Contains(got, `"result":{}`) {
			t.Errorf("subscribe: %s", got)
		}
		first := s.listen(session)
		s.addTool("new-1")
		s.worker.ResourceUpdated("memo://notes/one")
		s.worker.ResourceUpdated("term://known")
		time.Sleep(2 * time.Second)
		wantMessages(t, "after a tool and an update", first.waiting(), toolsChanged, oneUpdated)

		call("resources/subscribe", `{"uri":"term://known"}`)
		call("resources/unsubscribe", `{"uri":"memo://notes/one"}`)
		s.worker.ResourceUpdated("memo://notes/one")
		s.worker.ResourceUpdated("term://known")
		time.Sleep(time.Second)
		wantMessages(t, "after subscribing anew", first.waiting(), strings.Replace(oneUpdated, "memo://notes/one", "term://known", 1))

		// The newer stream takes over, each message is on exactly one.
		second := s.listen(session)
		time.Sleep(time.Second)
		wantMessages(t, "the older stream", first.waiting(), "end")
		s.worker.ResourceUpdated("term://known")
		s.addTool("new-2")
		time.Sleep(2 * time.Second)
		if got := second.waiting(); len(got) != 2 {
			t.Errorf("the newer stream got %q", got)
		}

		// A burst of changes is one notice at once and one after a second.
		for _, name := range []string{"b1", "b2", "b3", "b4"} {
			s.addTool(name)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(3 * time.Second)
		wantMessages(t, "after a burst", second.waiting(), toolsChanged, toolsChanged)

		if got := call("resources/subscribe", `{"uri":"none://x"}`); !strings.Contains(got, `"code":-32002`) {
			t.Errorf("subscribe to an unknown resource: %s", got)
		}
		resp := s.do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session)
		if got := body(t, resp); resp.StatusCode != http.StatusNoContent || got != "" {
			t.Errorf("DELETE: %d %s", resp.StatusCode, got)
		}
		time.Sleep(time.Second)
		wantMessages(t, "after the session's end", second.waiting(), "end")
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			resp := s.do(context.Background(), method, `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
				mcp.HeaderSessionID+": "+session, "Content-Type: application/json", "Accept: application/json, text/event-stream")
			body(t, resp)
			if resp.StatusCode != http.StatusNotFound {
				t.Errorf("%s to the ended session: %d", method, resp.StatusCode)
			}
		}
	})
}

func TestDeleteCancelsRunningCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		session := s.session("2025-11-25", `{}`)
		call := s.callStream(session, `{"name":"count","arguments":{"n":100,"delay_ms":1000},"_meta":{"progressToken":1}}`)
		call.next()
		s.do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session).Body.Close()
		time.Sleep(time.Second)
		if got := call.waiting(); len(got) == 0 || got[len(got)-1] != "end" || len(got) > 2 {
			t.Errorf("after DELETE the call's stream has %q", got)
		}
	})
}

func TestDrainEndsStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		legacy := s.listen(s.session("2025-06-18", `{}`))
		modern := s.subscribe(`{"toolsListChanged":true}`)
		modern.next()
		s.edge.Drain()
		wantMessages(t, "GET stream", legacy.waiting(), "end")
		ended := modern.waiting()
		if len(ended) != 3 || !strings.Contains(ended[0], `"notifications/cancelled"`) || ended[2] != "end" {
			t.Errorf("the cancellation, then the result, then the end are due: %q", ended)
		}
		wantMessages(t, "subscription", ended,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"sub"},"requestId":"sub","reason":"the server is stopping"}}`,
			`{"jsonrpc":"2.0","id":"sub","result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"millrace","version":"0.0.0"},"io.modelcontextprotocol/subscriptionId":"sub"}}}`,
			"end")
	})
}

// subscribe opens a subscription of the stateless era.
func (s *system) subscribe(filter string) *callStream {
	s.t.Helper()
	text := modernMessage(`"sub"`, "subscriptions/listen", `{"notifications":`+filter+`}`)
	return readStream(s.post(context.Background(), text, append(modernHeaders(text), "Accept: application/json, text/event-stream")...))
}

// modernMessage writes a request of the stateless era.
func modernMessage(id, method, params string) string {
	d := &door{modern: true}
	return d.message(id, method, params)
}

func TestModernSubscription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		tools := s.subscribe(`{"toolsListChanged":true,"promptsListChanged":false,"resourceSubscriptions":["memo://notes/one","none://x"]}`)
		prompts := s.subscribe(`{"promptsListChanged":true}`)
		const id = `"_meta":{"io.modelcontextprotocol/subscriptionId":"sub"}`
		wantMessages(t, "acknowledgement", tools.waiting(),
			`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{`+id+`,"notifications":{"toolsListChanged":true,"resourceSubscriptions":["memo://notes/one"]}}}`)
		prompts.next()
		s.addTool("new")
		s.worker.ResourceUpdated("memo://notes/one")
		time.Sleep(2 * time.Second)
		wantMessages(t, "changes", tools.waiting(),
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{`+id+`}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{`+id+`,"uri":"memo://notes/one"}}`)
		wantMessages(t, "what was not asked for", prompts.waiting())

		for _, bad := range []string{`7`, `{"toolsListChanged":1}`, `{"resourceSubscriptions":"x"}`, `{"resourceSubscriptions":[1]}`} {
			text := modernMessage("1", "subscriptions/listen", `{"notifications":`+bad+`}`)
			if got := body(t, s.post(context.Background(), text, modernHeaders(text)...)); !strings.Contains(got, `"code":-32602`) {
				t.Errorf("filter %s: %s", bad, got)
			}
		}
		text := modernMessage("1", "subscriptions/listen", `{"notifications":{}}`)
		resp := s.post(context.Background(), text, append(modernHeaders(text), "Accept: application/json")...)
		if got := body(t, resp); resp.StatusCode != http.StatusNotAcceptable {
			t.Errorf("without a stream: %d %s", resp.StatusCode, got)
		}
		s.edge.Drain() // ends the subscriptions
		time.Sleep(time.Second)
	})
}

func TestStdioStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		in, inW := io.Pipe()
		outR, out := io.Pipe()
		done := make(chan error, 1) // one result
		go func() { done <- s.serveStdio(context.Background(), in, out) }()
		lines := newLineReader(outR)
		say := func(text string) {
			if _, err := io.WriteString(inW, text+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		s.addTool("before") // nobody has said which era it speaks
		time.Sleep(2 * time.Second)
		say(modernMessage(`"sub"`, "subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`))
		if got := lines.next(t); !strings.Contains(got, "acknowledged") {
			t.Errorf("acknowledgement: %s", got)
		}
		say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
		lines.next(t)
		s.addTool("new")
		got := map[bool]int{}
		for range 2 {
			var m struct {
				Method string
				Params json.RawMessage
			}
			if err := json.Unmarshal([]byte(lines.next(t)), &m); err != nil || m.Method != "notifications/tools/list_changed" {
				t.Errorf("message %+v, %v", m, err)
			}
			got[m.Params != nil]++
		}
		if got[true] != 1 || got[false] != 1 {
			t.Errorf("one notice for each era is due, got %v", got)
		}
		say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"sub"}}`)
		synctest.Wait()
		inW.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
