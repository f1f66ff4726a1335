package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/mcp"
)

// These tests are the cases of the bank that are about cancellation and about
// requests to clients, over three edges.

// linger starts a call that ends with its cancellation only, and returns when it
// runs.
func (c *cluster) linger(at *node, session, id, name string) *callStream {
	c.t.Helper()
	call := at.call(session, id, `{"name":"linger","arguments":{"name":"`+name+`"},"_meta":{"progressToken":1}}`)
	want(c.t, "progress of "+name, call.soon(c.t, "progress"), `"progress":1`)
	return call
}

// call starts a tools/call whose answer is a stream.
func (s *system) call(session, id, params string) *callStream {
	s.t.Helper()
	headers := []string{"Accept: application/json, text/event-stream"}
	// The parameters have a _meta of their own.
	meta := `"_meta":{"` + mcp.MetaProtocolVersion + `":"` + mcp.Modern().Date + `","` + mcp.MetaClientCapabilities + `":{},`
	text := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":` + strings.Replace(params, `"_meta":{`, meta, 1) + `}`
	if session != "" {
		text = `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":` + params + `}`
		headers = append(headers, mcp.HeaderSessionID+": "+session)
	} else {
		headers = append(headers, modernHeaders(text)...)
	}
	return readStream(s.post(context.Background(), text, headers...))
}

// cancel posts a cancellation, and checks that it is accepted whatever it says.
func (s *system) cancel(session, params string) {
	s.t.Helper()
	s.respond(session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":`+params+`}`)
}

func TestBankB22EqualIDsOnSeveralEdges(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	shared := c.session("2025-11-25", `{}`)
	var running sync.WaitGroup
	echo := func(session, nonce string) {
		running.Go(func() {
			text := modernMessage("1", "tools/call", `{"name":"echo","arguments":{"nonce":"`+nonce+`"}}`)
			headers := modernHeaders(text)
			if session != "" {
				text = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"nonce":"` + nonce + `"}}}`
				headers = []string{mcp.HeaderSessionID + ": " + session}
			}
			got := body(t, c.post(context.Background(), text, headers...))
			if want := `"structuredContent":{"nonce":"` + nonce + `"}`; !strings.Contains(got, want) {
				t.Errorf("the call %s got %s", nonce, got)
			}
		})
	}
	sessions := make([]string, 20)
	for i := range sessions {
		sessions[i] = c.session("2025-06-18", `{}`)
	}
	for i, session := range sessions {
		echo(shared, fmt.Sprintf("one-session-%d", i))
		echo(session, fmt.Sprintf("own-session-%d", i))
		echo("", fmt.Sprintf("modern-%d", i))
	}
	running.Wait()

	// A cancellation of id 1 is about the calls of its own session.
	first := c.linger(c.nodes[0], shared, "1", "first")
	second := c.linger(c.nodes[1], shared, "2", "second")
	others := map[string]*callStream{}
	for i, session := range sessions[:6] {
		name := fmt.Sprintf("other-%d", i)
		others[name] = c.linger(c.nodes[i%clusterSize], session, "1", name)
	}
	others["modern"] = c.linger(c.nodes[0], "", "1", "modern")
	c.nodes[2].cancel(shared, `{"requestId":1}`)
	if got := first.soon(t, "the end of the call"); got != "end" {
		t.Errorf("the cancelled call got %s", got)
	}
	if got := soon(t, "the worker", c.ended); got != "first" {
		t.Errorf("the call %q was cancelled", got)
	}
	c.nodes[2].cancel(shared, `{"requestId":2}`)
	second.soon(t, "the end of the second call")
	if got := soon(t, "the worker", c.ended); got != "second" {
		t.Errorf("the call %q was cancelled", got)
	}
	for name, call := range others {
		select {
		case got := <-call.events:
			t.Errorf("%s got %s", name, got)
		default:
		}
	}
}

func TestBankB30CancelOnAnotherEdge(t *testing.T) {
	t.Parallel()
	for _, date := range []string{"2025-03-26", "2025-11-25"} {
		t.Run(date, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, Config{})
			session, other := c.session(date, `{}`), c.session(date, `{}`)
			zero := c.linger(c.nodes[0], session, `0`, "zero")
			text := c.linger(c.nodes[0], session, `"0"`, "text")
			foreign := c.linger(c.nodes[0], other, `0`, "foreign")
			// None of these is about a call that runs.
			for _, odd := range []string{`{"requestId":"nope"}`, `{"requestId":7}`, `{}`, `{"requestId":null}`, `{"requestId":{"a":1}}`, `{"requestId":"init"}`, `{"requestId":0.5}`} {
				for _, n := range c.nodes {
					n.cancel(session, odd)
				}
			}
			c.nodes[1].cancel(session, `{"requestId":0,"reason":"enough"}`)
			if got := zero.soon(t, "the end of the call"); got != "end" {
				t.Errorf("the cancelled call got %s", got)
			}
			if got := soon(t, "the worker", c.ended); got != "zero" {
				t.Errorf("the call %q was cancelled", got)
			}
			c.nodes[2].cancel(session, `{"requestId":0}`) // it has ended
			c.nodes[2].cancel(session, `{"requestId":"0"}`)
			if got := text.soon(t, "the end of the other call"); got != "end" {
				t.Errorf("the other call got %s", got)
			}
			if got := soon(t, "the worker", c.ended); got != "text" {
				t.Errorf("the call %q was cancelled", got)
			}
			select {
			case got := <-foreign.events:
				t.Errorf("the call of another session got %s", got)
			default:
			}
			want(t, "the session afterwards", c.request(session, "ping", `{}`), `"result":{}`)
		})
	}
}

func TestBankB30RacesWithCompletion(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	session := c.session("2025-11-25", `{}`)
	const calls = 400
	running := make(chan struct{}, 25) // how many at a time
	var all sync.WaitGroup
	for i := range calls {
		running <- struct{}{}
		all.Go(func() {
			defer func() { <-running }()
			id := fmt.Sprint(i)
			var cancelling sync.WaitGroup
			defer cancelling.Wait()
			cancelling.Go(func() {
				<-time.After(time.Duration(i%11) * time.Millisecond)
				c.nodes[(i+1)%clusterSize].cancel(session, `{"requestId":`+id+`}`)
			})
			text := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"count","arguments":{"n":1,"delay_ms":5}}}`
			got := body(t, c.nodes[i%clusterSize].post(context.Background(), text, mcp.HeaderSessionID+": "+session, "Accept: application/json, text/event-stream"))
			if n := strings.Count(got, `"id":`+id); n > 1 || n == 0 && strings.Contains(got, `"id"`) {
				t.Errorf("call %s was answered %q", id, got)
			}
		})
	}
	all.Wait()
	want(t, "the session afterwards", c.request(session, "tools/call", `{"name":"add","arguments":{"a":1,"b":2}}`), `"sum":3`)
}

// accept is an answer that gives a name.
func accept(id, name string) string {
	return `{"jsonrpc":"2.0","id":"` + id + `","result":{"action":"accept","content":{"name":"` + name + `"}}}`
}

func TestBankB33AnswersOnAnotherEdge(t *testing.T) {
	t.Parallel()
	for _, date := range []string{"2025-06-18", "2025-11-25"} {
		t.Run(date, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, Config{})
			session, other := c.session(date, `{"elicitation":{},"roots":{}}`), c.session(date, `{"elicitation":{},"roots":{}}`)
			call := c.nodes[0].callStream(session, `{"name":"ask"}`)
			question, _ := request(t, call.soon(t, "the question"), "elicitation/create")
			theirs := c.nodes[0].callStream(other, `{"name":"ask"}`)
			otherQuestion, _ := request(t, theirs.soon(t, "the other question"), "elicitation/create")
			if question == otherQuestion {
				t.Errorf("two questions have the id %s", question)
			}
			// Answers to nothing that this session was asked.
			for i, id := range []string{otherQuestion, question + "x", "x" + question[1:], "millrace-1", strings.Repeat("a", 5000), ""} {
				c.nodes[i%clusterSize].respond(session, accept(id, "nobody"))
			}
			c.nodes[1].respond(session, `{"jsonrpc":"2.0","id":1,"result":{"action":"accept","content":{"name":"nobody"}}}`)
			c.nodes[1].respond(session, accept(question, "Ala"))
			roots, _ := request(t, call.soon(t, "the second question"), "roots/list")
			// The same again, everywhere: it changes nothing.
			for _, n := range c.nodes {
				n.respond(session, accept(question, "Ewa"))
			}
			c.nodes[2].respond(session, `{"jsonrpc":"2.0","id":"`+roots+`","result":{"roots":[{"uri":"file:///a"}]}}`)
			want(t, "the result", call.soon(t, "the result"), `"text":"Ala with 1 roots"`)
			if got := call.soon(t, "the end"); got != "end" {
				t.Errorf("after the result: %s", got)
			}
			// An error is the end of the tool at once.
			c.nodes[2].respond(other, `{"jsonrpc":"2.0","id":"`+otherQuestion+`","error":{"code":-32601,"message":"no such method"}}`)
			want(t, "after an error", theirs.soon(t, "the result"), `"isError":true`, "no such method")
			// And a second one to a call that is over reaches nobody.
			for _, n := range c.nodes {
				n.respond(other, accept(otherQuestion, "late"))
			}
			if n := c.ran.value(); n != 2 { // one answer, and the round that it was repeated in
				t.Errorf("the tool took %d answers for consent", n)
			}
		})
	}
}

func TestBankB33AnswersThatComeTooLate(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{AskTimeout: 50 * time.Millisecond})
	session := c.session("2025-11-25", `{"elicitation":{}}`)
	call := c.nodes[0].callStream(session, `{"name":"ask"}`)
	question, _ := request(t, call.soon(t, "the question"), "elicitation/create")
	want(t, "without an answer", call.soon(t, "the result"), `"reason":"no_input"`)
	for _, n := range c.nodes {
		n.respond(session, accept(question, "Ala"))
	}
	if got := call.soon(t, "the end"); got != "end" {
		t.Errorf("after the result: %s", got)
	}
}

func TestBankB33AnswersWhoseEdgeIsGone(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	session := c.session("2025-11-25", `{"elicitation":{}}`)
	call := c.nodes[0].callStream(session, `{"name":"ask"}`)
	question, _ := request(t, call.soon(t, "the question"), "elicitation/create")
	c.nodes[0].kill()
	if got := call.soon(t, "the end"); got != "end" {
		t.Errorf("the killed edge still sent %s", got)
	}
	c.nodes[1].respond(session, accept(question, "Ala"))
	c.nodes[2].respond(session, accept(question, "Ala"))
	want(t, "the session afterwards", c.request(session, "ping", `{}`), `"result":{}`)
}

// TestAnswersInBatches delivers what a client of the revision with batches
// sends, to another edge.
func TestAnswersInBatches(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	session := c.session("2025-03-26", `{"roots":{},"sampling":{}}`)
	first := c.linger(c.nodes[0], session, `1`, "one")
	second := c.linger(c.nodes[1], session, `2`, "two")
	resp := c.nodes[2].post(context.Background(), `[{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}},
		{"jsonrpc":"2.0","id":"x","result":{}},{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}]`, mcp.HeaderSessionID+": "+session)
	if got := body(t, resp); resp.StatusCode != http.StatusAccepted {
		t.Errorf("the batch: %d %s", resp.StatusCode, got)
	}
	for _, call := range []*callStream{first, second} {
		if got := call.soon(t, "the end"); got != "end" {
			t.Errorf("a cancelled call got %s", got)
		}
	}
}

// TestKilledEdgeEndsModernCalls: what a client of the stateless era has running
// on an edge that dies is cancelled, since there is nothing to come back to.
func TestKilledEdgeEndsModernCalls(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	c.nodes[0].call("", "1", `{"name":"linger","arguments":{"name":"modern","beat":true},"_meta":{"progressToken":1}}`).soon(t, "progress")
	c.nodes[0].kill()
	if got := soon(t, "the worker", c.ended); got != "modern" {
		t.Errorf("the call %q was cancelled", got)
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
	}
	text := modernMessage("1", "tools/call", `{"name":"add","arguments":{"a":1,"b":2}}`)
	if got := body(t, c.post(context.Background(), text, modernHeaders(text)...)); json.Unmarshal([]byte(got), &answer) != nil || answer.Result == nil {
		t.Errorf("the client's retry: %s", got)
	}
}
