package edge

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/mcp"
)

// callStream is a call whose answer is a stream. It is read all the time: a
// pipe has no buffer, so a reader that waits would be a slow client.
type callStream struct {
	events chan string // closed at the end of the stream
}

func (s *system) callStream(session, params string) *callStream {
	s.t.Helper()
	return readStream(s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+params+`}`,
		mcp.HeaderSessionID+": "+session, "Accept: application/json, text/event-stream"))
}

func readStream(resp *http.Response) *callStream {
	c := &callStream{events: make(chan string, 100)} // more than any test has
	go func() {
		defer close(c.events)
		defer resp.Body.Close()
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			// An event without data only tells the client where it is.
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && data != "" {
				c.events <- data
			}
		}
	}()
	return c
}

// next returns the next message; "" at the end of the stream.
func (c *callStream) next() string { return <-c.events }

// request takes a message apart that must be a request of the method.
func request(t *testing.T, raw, method string) (id string, params json.RawMessage) {
	t.Helper()
	var m struct {
		ID     string
		Method string
		Params json.RawMessage
	}
	if err := json.Unmarshal([]byte(raw), &m); err != nil || m.Method != method || m.ID == "" {
		t.Fatalf("want a request %s, got %q (%v)", method, raw, err)
	}
	return m.ID, m.Params
}

// session opens a session with the given client capabilities.
func (s *system) session(date, capabilities string) string {
	s.t.Helper()
	resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+date+`","capabilities":`+capabilities+`}}`)
	body(s.t, resp)
	return resp.Header.Get(mcp.HeaderSessionID)
}

// respond posts a response of the client and checks that it is accepted.
func (s *system) respond(session, message string) {
	s.t.Helper()
	resp := s.post(context.Background(), message, mcp.HeaderSessionID+": "+session)
	if got := body(s.t, resp); resp.StatusCode != http.StatusAccepted || got != "" {
		s.t.Errorf("response of the client: %d %s", resp.StatusCode, got)
	}
}

func TestLegacyAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		session := s.session("2025-06-18", `{"elicitation":{},"roots":{}}`)
		call := s.callStream(session, `{"name":"ask"}`)
		id, params := request(t, call.next(), "elicitation/create")
		if strings.Contains(string(params), `"mode"`) || !strings.Contains(string(params), `"requestedSchema"`) {
			t.Errorf("params for this revision: %s", params)
		}
		time.Sleep(2 * time.Minute) // a person thinks longer than a call may take
		// Answers that must reach nobody: another session's, and to another id.
		s.respond(s.session("2025-06-18", `{}`), `{"jsonrpc":"2.0","id":"`+id+`","result":{"action":"decline"}}`)
		s.respond(session, `{"jsonrpc":"2.0","id":"`+id+`x","result":{"action":"decline"}}`)
		s.respond(session, `{"jsonrpc":"2.0","id":"`+id+`","result":{"action":"accept","content":{"name":"Ala"}}}`)
		second, _ := request(t, call.next(), "roots/list")
		s.respond(session, `{"jsonrpc":"2.0","id":"`+id+`","result":{"action":"decline"}}`) // answered already
		s.respond(session, `{"jsonrpc":"2.0","id":"`+second+`","result":{"roots":[{"uri":"file:///a"},{"uri":"file:///b"}]}}`)
		if got := call.next(); !strings.Contains(got, `"text":"Ala with 2 roots"`) {
			t.Errorf("result: %s", got)
		}
		if got := call.next(); got != "" {
			t.Errorf("after the result: %s", got)
		}
	})
}

func TestLegacyAskAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answer, want string }{
		"decline":  {`"result":{"action":"decline"}`, `"text":"nobody: decline"`},
		"cancel":   {`"result":{"action":"cancel"}`, `"text":"nobody: cancel"`},
		"an error": {`"error":{"code":-32601,"message":"no such method"}`, `no such method`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := start(t, Config{})
				session := s.session("2025-11-25", `{"elicitation":{"form":{}}}`)
				call := s.callStream(session, `{"name":"ask"}`)
				id, _ := request(t, call.next(), "elicitation/create")
				s.respond(session, `{"jsonrpc":"2.0","id":"`+id+`",`+c.answer+`}`)
				if got := call.next(); !strings.Contains(got, c.want) {
					t.Errorf("result: %s", got)
				}
				if n := s.ran.value(); n != 0 {
					t.Errorf("the tool took it for consent")
				}
			})
		})
	}
}

func TestLegacyAskWithoutEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		session := s.session("2025-11-25", `{"elicitation":{}}`)
		call := s.callStream(session, `{"name":"ask"}`)
		request(t, call.next(), "elicitation/create")
		begun := time.Now()
		if got := call.next(); !strings.Contains(got, `"reason":"no_input"`) {
			t.Errorf("a question that nobody answers ended with %s", got)
		}
		if took := time.Since(begun); took != 10*time.Minute {
			t.Errorf("after %v", took)
		}
		// A cancelled call stops asking.
		call = s.callStream(session, `{"name":"ask"}`)
		request(t, call.next(), "elicitation/create")
		s.respond(session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		if got := call.next(); got != "" {
			t.Errorf("the cancelled call was answered: %s", got)
		}
	})
}

func TestLegacyAskOfAClientThatCannot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		for name, c := range map[string]struct{ capabilities, accept, want string }{
			"no capability": {`{}`, "application/json, text/event-stream", `"isError":true`},
			"no stream":     {`{"elicitation":{}}`, "application/json", `"reason":"no_input"`},
		} {
			resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask"}}`,
				mcp.HeaderSessionID+": "+s.session("2025-11-25", c.capabilities), "Accept: "+c.accept)
			if got := body(t, resp); !strings.Contains(got, c.want) || strings.Contains(got, "elicitation/create") {
				t.Errorf("%s: %s", name, got)
			}
		}
	})
}

func TestStdioAsk(t *testing.T) {
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
		say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}}}}`)
		lines.next(t)
		say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask"}}`)
		id, _ := request(t, lines.next(t), "elicitation/create")
		say(`{"jsonrpc":"2.0","id":"` + id + `","result":{"action":"accept","content":{"name":"Ola"}}}`)
		if got := lines.next(t); !strings.Contains(got, `"text":"Ola"`) {
			t.Errorf("result: %s", got)
		}
		inW.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// modernCall posts a tools/call of the stateless era.
func (s *system) modernCall(capabilities, params string) (int, string) {
	s.t.Helper()
	text := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"` + mcp.MetaProtocolVersion + `":"` + mcp.Modern().Date +
		`","` + mcp.MetaClientCapabilities + `":` + capabilities + `},` + params[1:] + `}`
	resp := s.post(context.Background(), text, modernHeaders(text)...)
	return resp.StatusCode, body(s.t, resp)
}

// inputRequired takes an input_required result apart.
func inputRequired(t *testing.T, raw string) (requests map[string]json.RawMessage, state string) {
	t.Helper()
	var m struct {
		Result struct {
			ResultType    string
			InputRequests map[string]json.RawMessage
			RequestState  string
		}
	}
	if err := json.Unmarshal([]byte(raw), &m); err != nil || m.Result.ResultType != "input_required" || m.Result.RequestState == "" {
		t.Fatalf("want input_required, got %s (%v)", raw, err)
	}
	return m.Result.InputRequests, m.Result.RequestState
}

func TestModernAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		const caps = `{"elicitation":{},"roots":{}}`
		_, reply := s.modernCall(caps, `{"name":"ask"}`)
		requests, first := inputRequired(t, reply)
		if len(requests) != 1 || !strings.Contains(string(requests["who"]), `"method":"elicitation/create"`) {
			t.Errorf("input requests: %s", reply)
		}
		const answer = `"inputResponses":{"who":{"action":"accept","content":{"name":"Ala"}},"other":1}`
		_, reply = s.modernCall(caps, `{"name":"ask","requestState":"`+first+`",`+answer+`}`)
		requests, second := inputRequired(t, reply)
		if len(requests) != 1 || requests["where"] == nil || second == first {
			t.Errorf("second round: %s", reply)
		}
		_, reply = s.modernCall(caps, `{"name":"ask","requestState":"`+second+`","inputResponses":{"where":{"roots":[{"uri":"file:///a"}]}}}`)
		if !strings.Contains(reply, `"text":"Ala with 1 roots"`) || !strings.Contains(reply, `"resultType":"complete"`) {
			t.Errorf("third round: %s", reply)
		}
		// Answers may come without state when nothing was kept so far.
		if _, reply = s.modernCall(`{"elicitation":{}}`, `{"name":"ask",`+answer+`}`); !strings.Contains(reply, `"text":"Ala"`) {
			t.Errorf("answers without state: %s", reply)
		}
		// What does not fit is asked again, never taken for consent.
		for _, bad := range []string{`{}`, `{"who":{"action":"maybe"}}`, `{"who":{"action":"accept"}}`, `{"who":{"action":"accept","content":{"name":7}}}`, `{"who":7}`} {
			_, reply = s.modernCall(caps, `{"name":"ask","requestState":"`+first+`","inputResponses":`+bad+`}`)
			if requests, _ := inputRequired(t, reply); requests["who"] == nil {
				t.Errorf("answer %s: %s", bad, reply)
			}
		}
	})
}

func TestModernAskRefusesForeignState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		const caps = `{"elicitation":{}}`
		_, reply := s.modernCall(caps, `{"name":"ask"}`)
		_, state := inputRequired(t, reply)
		refused := func(name, params string) {
			t.Helper()
			if _, reply := s.modernCall(caps, params); !strings.Contains(reply, `"error":{"code":-32602`) {
				t.Errorf("%s: %s", name, reply)
			}
		}
		refused("tampered", `{"name":"ask","requestState":"`+state+`-TAMPERED"}`)
		refused("made up", `{"name":"ask","requestState":"AAAA"}`)
		refused("no string", `{"name":"ask","requestState":7}`)
		refused("another tool's", `{"name":"echo","requestState":"`+state+`"}`)
		refused("other arguments'", `{"name":"ask","arguments":{"x":1},"requestState":"`+state+`"}`)
		refused("answers that are no object", `{"name":"ask","inputResponses":7}`)
		time.Sleep(16 * time.Minute)
		refused("expired", `{"name":"ask","requestState":"`+state+`"}`)

		status, reply := s.modernCall(`{}`, `{"name":"ask"}`)
		if status != http.StatusBadRequest || !strings.Contains(reply, `"code":-32021`) || !strings.Contains(reply, `"requiredCapabilities":{"elicitation":{}}`) {
			t.Errorf("missing capability: %d %s", status, reply)
		}
	})
}
