package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/worker"
)

// The reports about several calls at a time, what precedes their answers, and
// what is asked meanwhile; see bank_test.go.

const bothTypes = "Accept: application/json, text/event-stream"

// offerSlow adds a tool that returns its arguments after a second, so that calls
// of it that begin together run together.
func (s *system) offerSlow() {
	s.offer(func(w *worker.Worker) {
		w.AddRawTool(worker.Tool{Name: "slow-echo"}, func(ctx context.Context, _ *worker.Call, args json.RawMessage) (*worker.Result, error) {
			select {
			case <-time.After(time.Second):
				return &worker.Result{Content: []worker.Content{worker.Text(string(args))}}, nil
			case <-ctx.Done():
				s.ran.add() // the calls that were cancelled
				return nil, context.Cause(ctx)
			}
		})
	})
}

func slowEcho(id, nonce string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"slow-echo","arguments":{"nonce":"` + nonce + `"}}}`
}

// B01, the last part: 1 and "1" run at the same time, in one session and on one
// connection.
func TestB01LookAlikesRunTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		s.offerSlow()
		ids := map[string]string{`1`: "number", `"1"`: "string", `0`: "zero", `"0"`: "zero string", `""`: "empty"}
		check := func(reply string) string {
			t.Helper()
			m := decode(t, reply)
			nonce := ids[string(m.ID)]
			if nonce == "" || !strings.Contains(string(m.Result), `\"`+nonce+`\"`) {
				t.Errorf("the call with id %s got %s", m.ID, m.Result)
			}
			return string(m.ID)
		}
		var running sync.WaitGroup
		session := s.session("2025-11-25", `{}`)
		for id, nonce := range ids {
			running.Go(func() {
				got := check(body(t, s.post(context.Background(), slowEcho(id, nonce), mcp.HeaderSessionID+": "+session)))
				text := modernMessage(id, "tools/call", `{"name":"slow-echo","arguments":{"nonce":"`+nonce+`"}}`)
				if modern := check(body(t, s.post(context.Background(), text, modernHeaders(text)...))); got != id || modern != id {
					t.Errorf("id %s: answered %s and %s", id, got, modern)
				}
			})
		}
		running.Wait()
		var lines strings.Builder
		for id, nonce := range ids {
			lines.WriteString(slowEcho(id, nonce) + "\n")
		}
		answered := map[string]bool{}
		for _, line := range serveText(context.Background(), s, lines.String()).lines() {
			answered[check(line)] = true
		}
		if len(answered) != len(ids) {
			t.Errorf("stdio answered %v", answered)
		}
	})
}

// B05: what a policy reads from the headers is what runs.
func TestB05HeadersNameWhatRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		for _, look := range []string{`"Name":"danger"`, `"NAME":"danger"`, `"name\u0000":"danger"`, `"na\u212ae":"danger"`} {
			text := modernMessage("1", "tools/call", `{"name":"echo",`+look+`,"arguments":{"x":1}}`)
			reply := body(t, s.post(context.Background(), text, modernHeaders(text)...))
			if m := decode(t, reply); !strings.Contains(string(m.Result), `{\"x\":1}`) {
				t.Errorf("%s: %s", look, reply)
			}
		}
		for _, twice := range []string{`"name":"danger"`, `"n\u0061me":"danger"`} {
			text := modernMessage("1", "tools/call", `{"name":"echo",`+twice+`,"arguments":{}}`)
			reply := body(t, s.post(context.Background(), text, mcp.HeaderProtocolVersion+": "+mcp.Modern().Date, mcp.HeaderMethod+": tools/call", mcp.HeaderName+": echo"))
			if replyCode(t, reply) != jsonrpc.CodeInvalidRequest {
				t.Errorf("%s: %s", twice, reply)
			}
		}
		if n := s.ran.value(); n != 0 {
			t.Errorf("danger ran %d times", n)
		}
	})
}

// B06: batches are served where the revision has them, and nowhere else is
// anything of them executed.
func TestB06Batches(t *testing.T) {
	t.Parallel()
	const array = `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":"b","method":"tools/call","params":{"name":"danger"}},` +
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}]`
	everyDoor(t, func(t *testing.T, d *door) {
		if rev := d.revision(t); !rev.Batches {
			wantStatus := http.StatusBadRequest
			if strings.HasPrefix(d.name, "stdio") {
				wantStatus = http.StatusOK
			}
			texts := []string{array, `[]`, `[1]`, `[{"jsonrpc":"2.0","method":"notifications/initialized"}]`}
			if d.modern {
				texts = []string{`[` + d.message("1", "tools/list", "") + `,` + d.message(`"b"`, "tools/call", `{"name":"danger"}`) + `]`}
			}
			for _, text := range texts {
				status, reply := d.raw(text)
				if d.name == "stdio modern" {
					// Without a handshake the array may be of a revision that
					// has them; what is in it is not.
					if strings.Count(reply, `"error":{"code":-32600`) != 2 || strings.Contains(reply, "result") {
						t.Errorf("%s: %s", text, reply)
					}
					continue
				}
				if status != wantStatus || replyCode(t, reply) != jsonrpc.CodeInvalidRequest {
					t.Errorf("%s: %d %s", text, status, reply)
				}
			}
			if n := d.sys.ran.value(); n != 0 {
				t.Errorf("%d elements of a refused batch were executed", n)
			}
			return
		}
		_, reply := d.raw(array)
		var answers []struct {
			ID     json.RawMessage
			Result json.RawMessage
		}
		if err := json.Unmarshal([]byte(reply), &answers); err != nil || len(answers) != 2 {
			t.Fatalf("%v, %s", err, reply)
		}
		ids := map[string]bool{}
		for _, a := range answers {
			ids[string(a.ID)] = a.Result != nil
		}
		if !ids[`1`] || !ids[`"b"`] || d.sys.ran.value() != 1 {
			t.Errorf("%s, and the tool ran %d times", reply, d.sys.ran.value())
		}
		if _, reply := d.raw(`[]`); !strings.HasPrefix(reply, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600`) {
			t.Errorf("an empty batch: %s", reply)
		}
		if _, reply := d.raw(`[1]`); !strings.HasPrefix(reply, `[{"jsonrpc":"2.0","id":null,"error":{"code":-32600`) || strings.Count(reply, `"error"`) != 1 {
			t.Errorf("a batch of a number: %s", reply)
		}
		_, reply = d.raw(`[{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{}}},{"jsonrpc":"2.0","id":8,"method":"ping"}]`)
		if !strings.Contains(reply, `"id":7,"error":{"code":-32600`) || !strings.Contains(reply, `"id":8,"result":{}`) {
			t.Errorf("initialize in a batch: %s", reply)
		}
		if strings.HasPrefix(d.name, "stdio") || d.name == "HTTP+SSE" {
			return // there is no status, and no session to mint
		}
		resp := d.sys.post(context.Background(), `[{"jsonrpc":"2.0","method":"notifications/initialized"}]`, mcp.HeaderProtocolVersion+": "+d.name)
		if got := body(t, resp); resp.StatusCode != http.StatusAccepted || got != "" {
			t.Errorf("a batch of notifications: %d %s", resp.StatusCode, got)
		}
		resp = d.sys.post(context.Background(), `[{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{}}}]`)
		if body(t, resp); resp.Header.Get(mcp.HeaderSessionID) != "" {
			t.Error("initialize in a batch opened a session")
		}
	})
}

// B09, the rest of its messages: a list with params that are null, a
// notification nobody knows, no body; and a session outlives an unknown method.
func TestB09MoreOddMessages(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		stdio := strings.HasPrefix(d.name, "stdio") || d.name == "HTTP+SSE"
		_, reply := d.raw(`{"jsonrpc":"2.0","id":7,"method":"tools/list","params":null}`)
		if m := decode(t, reply); string(m.ID) != "7" || m.Result == nil && errorCode(t, m) != -32602 && errorCode(t, m) != -32600 {
			t.Errorf("params null: %s", reply)
		}
		if stdio {
			return // an empty line and a notification have no answer there
		}
		if status, reply := d.raw(""); status != http.StatusBadRequest || replyCode(t, reply) != jsonrpc.CodeParse {
			t.Errorf("an empty body: %d %s", status, reply)
		}
		if status, reply := d.call("2", "no/such", ""); (status == http.StatusNotFound) != d.modern {
			t.Errorf("an unknown method: %d %s", status, reply)
		}
		text := `{"jsonrpc":"2.0","method":"notifications/zzz"}`
		if d.modern {
			text = strings.Replace(d.message("1", "notifications/zzz", ""), `"id":1,`, "", 1)
		}
		if status, reply := d.raw(text); status != http.StatusAccepted || reply != "" {
			t.Errorf("an unknown notification: %d %q", status, reply)
		}
		if status, reply := d.call("9", "tools/list", ""); status != http.StatusOK || decode(t, reply).Result == nil {
			t.Errorf("afterwards: %d %s", status, reply)
		}
	})
}

// B12: a header that names another revision than the session's does not change
// what the session is served as.
func TestB12SessionKeepsItsRevision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		session := s.session("2025-06-18", `{}`)
		for _, header := range []string{"", "2025-06-18", "2025-11-25", "2025-03-26"} {
			headers := []string{mcp.HeaderSessionID + ": " + session}
			if header != "" {
				headers = append(headers, mcp.HeaderProtocolVersion+": "+header)
			}
			resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"a":"x"}}}`, headers...)
			// In 2025-11-25 this would be a result with isError.
			if got := body(t, resp); resp.StatusCode != http.StatusBadRequest && replyCode(t, got) != jsonrpc.CodeInvalidParams {
				t.Errorf("with %q: %d %s", header, resp.StatusCode, got)
			}
		}
	})
}

// B22: one session, all calls with id 1 at the same time; a cancellation of id 1
// reaches no other session.
func TestB22CancellingAnIDThatMayBeMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		s.offerSlow()
		mine, other := s.session("2025-11-25", `{}`), s.session("2025-11-25", `{}`)
		var running sync.WaitGroup
		call := func(nonce string, may bool, headers ...string) {
			running.Go(func() {
				text := slowEcho("1", nonce)
				if headers == nil {
					text = modernMessage("1", "tools/call", `{"name":"slow-echo","arguments":{"nonce":"`+nonce+`"}}`)
					headers = modernHeaders(text)
				}
				got := body(t, s.post(context.Background(), text, append(headers, bothTypes)...))
				if !strings.Contains(got, `\"`+nonce+`\"`) && !(may && !strings.Contains(got, "nonce")) {
					t.Errorf("the call %s got %q", nonce, got)
				}
			})
		}
		for i := range 20 {
			call(fmt.Sprintf("mine-%d", i), true, mcp.HeaderSessionID+": "+mine)
			call(fmt.Sprintf("other-%d", i), false, mcp.HeaderSessionID+": "+other)
			call(fmt.Sprintf("modern-%d", i), false)
		}
		time.Sleep(500 * time.Millisecond)
		resp := s.post(context.Background(), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, mcp.HeaderSessionID+": "+mine)
		if body(t, resp); resp.StatusCode != http.StatusAccepted {
			t.Errorf("the cancellation: %d", resp.StatusCode)
		}
		running.Wait()
		if n := s.ran.value(); n == 0 || n > 20 {
			t.Errorf("%d calls were cancelled, want some of the 20 of that session", n)
		}
	})
}

// events are the fields of each event on a stream, as a strict reader sees them;
// comments are none.
func events(wire string) (all []map[string]string) {
	for block := range strings.SplitSeq(wire, "\n\n") {
		fields := map[string]string{}
		for line := range strings.SplitSeq(block, "\n") {
			if name, value, _ := strings.Cut(line, ":"); name != "" {
				fields[name] = strings.TrimPrefix(value, " ")
			}
		}
		if len(fields) > 0 {
			all = append(all, fields)
		}
	}
	return all
}

// B24: an event without data breaks clients of the revisions that have no
// priming, and the stateless era has neither ids nor retry.
func TestB24NoPrimingInOtherRevisions(t *testing.T) {
	t.Parallel()
	for _, date := range mcp.Supported() {
		t.Run(date, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := start(t, Config{})
				rev, _ := mcp.Lookup(date)
				check := func(what, wire string, least int) {
					t.Helper()
					all := events(wire)
					if len(all) < least {
						t.Errorf("%s: %d events: %q", what, len(all), wire)
					}
					for _, ev := range all {
						data, there := ev["data"]
						if date != newestWithSessions && (!there || !json.Valid([]byte(data))) {
							t.Errorf("%s: an event without a message: %v", what, ev)
						}
						_, id := ev["id"]
						_, retry := ev["retry"]
						if rev.Modern && (id || retry) {
							t.Errorf("%s: %v", what, ev)
						}
					}
				}
				const counted = `{"name":"count","arguments":{"n":2},"_meta":{"progressToken":1}}`
				if rev.Modern {
					text := strings.Replace(modernMessage("1", "tools/call", `{"name":"count","arguments":{"n":2}}`), `"_meta":{`, `"_meta":{"progressToken":1,`, 1)
					check("a call", body(t, s.post(context.Background(), text, append(modernHeaders(text), bothTypes)...)), 3)
					text = modernMessage("2", "subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`)
					resp := s.post(context.Background(), text, append(modernHeaders(text), bothTypes)...)
					s.addTool("new")
					time.Sleep(time.Second)
					s.edge.Drain()
					check("a subscription", body(t, resp), 2)
					return
				}
				hello := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + date + `","capabilities":{}}}`
				resp := s.post(context.Background(), hello, "Accept: text/event-stream")
				session := resp.Header.Get(mcp.HeaderSessionID)
				check("the handshake", body(t, resp), 1)
				resp = s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+counted+`}`, mcp.HeaderSessionID+": "+session, bothTypes)
				check("a call", body(t, resp), 3)
				resp = s.do(context.Background(), http.MethodGet, "", mcp.HeaderSessionID+": "+session, "Accept: text/event-stream")
				s.addTool("new")
				time.Sleep(time.Second)
				s.edge.Drain()
				check("the GET stream", body(t, resp), 1)
			})
		})
	}
}

// newestWithSessions is the one revision that has priming events.
const newestWithSessions = "2025-11-25"

// B29: every kind of token, two that look alike at the same time, and a tool
// that reports 5, 5, 4, 6 and returns in the same moment.
func TestB29ProgressRises(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		d.sys.offer(func(w *worker.Worker) {
			w.AddRawTool(worker.Tool{Name: "stumble"}, func(_ context.Context, call *worker.Call, args json.RawMessage) (*worker.Result, error) {
				for _, done := range []float64{5, 5, 4, 6} {
					call.Progress(done, 10, "")
				}
				return &worker.Result{Content: []worker.Content{worker.Text(string(args))}}, nil
			})
		})
		call := func(id, token string) string {
			meta := ""
			if token != "" {
				meta = `"progressToken":` + token
			}
			text := d.message(id, "tools/call", `{"name":"stumble","arguments":{"call":`+id+`}}`)
			if d.modern {
				text = strings.Replace(text, `"_meta":{`, `"_meta":{`+meta+map[bool]string{true: ","}[meta != ""], 1)
			} else {
				text = strings.Replace(text, `"params":{`, `"params":{"_meta":{`+meta+`},`, 1)
			}
			return text
		}
		want := func(id, token, got string) {
			t.Helper()
			var messages []string
			for line := range strings.Lines(got) {
				line = strings.TrimSpace(strings.TrimPrefix(line, "data:"))
				if strings.HasPrefix(line, "{") {
					messages = append(messages, line)
				}
			}
			expected := []string{"5", "6"}
			if token == "" {
				expected = nil
			}
			if len(messages) != len(expected)+1 {
				t.Errorf("token %q: %q", token, messages)
				return
			}
			for i, done := range expected {
				if !strings.Contains(messages[i], `"progressToken":`+token+`,"progress":`+done+`,"total":10`) {
					t.Errorf("token %q: progress %d is %s", token, i, messages[i])
				}
			}
			if last := messages[len(expected)]; !strings.Contains(last, `"id":`+id+`,"result"`) || !strings.Contains(last, `{\"call\":`+id+`}`) {
				t.Errorf("token %q: the answer is %s", token, last)
			}
		}
		tokens := []string{`0`, `"0"`, `""`, `9007199254740993`, `"9007199254740993"`, ""}
		if strings.HasPrefix(d.name, "stdio") || d.name == "HTTP+SSE" {
			return // TestB29TokensOnOneConnection has these
		}
		post := func(text string, accept string) string {
			headers := []string{accept}
			if d.modern {
				headers = append(headers, modernHeaders(text)...)
			} else {
				headers = append(headers, mcp.HeaderProtocolVersion+": "+d.name)
			}
			return body(t, d.sys.post(context.Background(), text, headers...))
		}
		var running sync.WaitGroup
		for i, token := range tokens {
			running.Go(func() { id := fmt.Sprint(i); want(id, token, post(call(id, token), bothTypes)) })
		}
		running.Wait()
		if got := post(call("77", "0"), "Accept: application/json"); strings.Contains(got, "progress") || !strings.Contains(got, `"id":77,"result"`) {
			t.Errorf("a client that takes only JSON got %s", got)
		}
	})
}

// B29 on stdio, where all calls share a connection.
func TestB29TokensOnOneConnection(t *testing.T) {
	t.Parallel()
	for _, modern := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := start(t, Config{})
			var lines strings.Builder
			tokens := []string{`0`, `"0"`, `""`, `9007199254740993`}
			for i, token := range tokens {
				text := (&door{modern: modern}).message(fmt.Sprint(i), "tools/call", `{"name":"count","arguments":{"n":3}}`)
				if modern {
					text = strings.Replace(text, `"_meta":{`, `"_meta":{"progressToken":`+token+`,`, 1)
				} else {
					text = strings.Replace(text, `"params":{`, `"params":{"_meta":{"progressToken":`+token+`},`, 1)
				}
				lines.WriteString(text + "\n")
			}
			told, answered := map[string]int{}, map[string]bool{}
			for _, line := range serveText(context.Background(), s, lines.String()).lines() {
				var m struct {
					ID     json.RawMessage
					Params struct {
						ProgressToken json.RawMessage
						Progress      int
					}
				}
				if err := json.Unmarshal([]byte(line), &m); err != nil {
					t.Fatal(err)
				}
				if m.ID != nil {
					var i int
					if err := json.Unmarshal(m.ID, &i); err != nil {
						t.Fatal(err)
					}
					answered[tokens[i]] = true
					continue
				}
				token := string(m.Params.ProgressToken)
				if told[token]++; told[token] != m.Params.Progress || answered[token] {
					t.Errorf("token %s: %s, the answer before it: %v", token, line, answered[token])
				}
			}
			for _, token := range tokens {
				if told[token] != 3 || !answered[token] {
					t.Errorf("token %s: told %d times, answered %v", token, told[token], answered[token])
				}
			}
		})
	}
}

// B35: who cannot be asked is not, whatever stream is open; and only a consent
// that fits the form is one.
func TestB35ConsentIsGiven(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		s.offer(func(w *worker.Worker) {
			w.AddRawTool(worker.Tool{Name: "ask-url"}, func(_ context.Context, call *worker.Call, _ json.RawMessage) (*worker.Result, error) {
				answers, err := call.Ask(worker.ElicitURL("page", "Please open this page.", "https://example.com/", "page-1"))
				if err != nil {
					return nil, err
				}
				if answers.Elicited("page").Action == worker.ActionAccept {
					s.ran.add()
				}
				return &worker.Result{Content: []worker.Content{worker.Text("asked")}}, nil
			})
		})
		for _, c := range []struct{ name, date, capabilities, tool string }{
			{"nothing declared", "2025-06-18", `{}`, "ask"},
			{"nothing declared", "2025-11-25", `{}`, "ask"},
			{"nothing declared", "2025-11-25", `{}`, "ask-url"},
			{"forms only", "2025-11-25", `{"elicitation":{}}`, "ask-url"},
			{"forms only, by name", "2025-11-25", `{"elicitation":{"form":{}}}`, "ask-url"},
			{"no pages in this revision", "2025-06-18", `{"elicitation":{"url":{}}}`, "ask-url"},
			{"pages only", "2025-11-25", `{"elicitation":{"url":{}}}`, "ask"},
		} {
			session := s.session(c.date, c.capabilities)
			stream := s.listen(session)
			got := body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+c.tool+`"}}`,
				mcp.HeaderSessionID+": "+session, bothTypes))
			if !strings.Contains(got, `"isError":true`) && !strings.Contains(got, `"code":-32603`) || strings.Contains(got, "elicitation/create") {
				t.Errorf("%s, %s in %s: %s", c.name, c.tool, c.date, got)
			}
			if other := stream.waiting(); len(other) > 0 {
				t.Errorf("%s: %q on the other stream", c.name, other)
			}
			resp := s.do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session)
			body(t, resp)
		}
		for _, c := range []struct{ capabilities, tool, missing string }{
			{`{}`, "ask", `"requiredCapabilities":{"elicitation":{`},
			{`{"elicitation":{}}`, "ask-url", `"requiredCapabilities":{"elicitation":{"url":{}}}`},
		} {
			if status, got := s.modernCall(c.capabilities, `{"name":"`+c.tool+`"}`); status != http.StatusBadRequest || replyCode(t, got) != mcp.CodeMissingCapability || !strings.Contains(got, c.missing) {
				t.Errorf("%s with %s: %d %s", c.tool, c.capabilities, status, got)
			}
		}
		for _, answer := range []string{`{"action":"decline"}`, `{"action":"cancel"}`, `{"action":"accept"}`, `{"action":"maybe"}`, `{}`, `{"action":"accept","content":{"name":7}}`, `{"action":"accept","content":[]}`} {
			session := s.session("2025-11-25", `{"elicitation":{"form":{}}}`)
			call := s.callStream(session, `{"name":"ask"}`)
			id, _ := request(t, call.next(), "elicitation/create")
			s.respond(session, `{"jsonrpc":"2.0","id":"`+id+`","result":`+answer+`}`)
			next := call.next()
			asked := strings.Contains(next, "elicitation/create")
			refused := strings.Contains(next, `"isError":true`) || strings.Contains(next, `"error":{`)
			declined := strings.Contains(next, "nobody: decline") || strings.Contains(next, "nobody: cancel")
			if !asked && !refused && !declined {
				t.Errorf("the answer %s led to %s", answer, next)
			}
			if asked {
				s.respond(session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
			}
			if n := s.ran.value(); n != 0 {
				t.Fatalf("the answer %s was taken for consent", answer)
			}
		}
		s.edge.Drain()
	})
}

// B36: the level is the session's, or the request's, and nobody else's.
func TestB36LogLevels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		all := []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
		levels := func(wire string) string {
			var got []string
			for _, ev := range events(wire) {
				var m struct {
					Method string
					Params struct{ Level string }
				}
				if err := json.Unmarshal([]byte(ev["data"]), &m); err == nil && m.Method == "notifications/message" {
					got = append(got, m.Params.Level)
				}
			}
			return strings.Join(got, " ")
		}
		const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"log"}}`
		for _, date := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"} {
			x, y, z := s.session(date, `{}`), s.session(date, `{}`), s.session(date, `{}`)
			set := func(session, params string) string {
				return body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":`+params+`}`, mcp.HeaderSessionID+": "+session))
			}
			if got := set(x, `{"level":"error"}`) + set(z, `{"level":"debug"}`); strings.Count(got, `"result":{}`) != 2 {
				t.Errorf("%s: setLevel: %s", date, got)
			}
			for _, bad := range []string{`{"level":"verbose"}`, `{"level":3}`, `{}`, `{"level":"ERROR"}`, `{"level":null}`} {
				if got := set(x, bad); replyCode(t, got) != jsonrpc.CodeInvalidParams {
					t.Errorf("%s: setLevel %s: %s", date, bad, got)
				}
			}
			for session, want := range map[string][]string{x: all[4:], y: all[1:], z: all} {
				got := levels(body(t, s.post(context.Background(), call, mcp.HeaderSessionID+": "+session, bothTypes)))
				if got != strings.Join(want, " ") {
					t.Errorf("%s: logged at %s, want %s", date, got, want)
				}
			}
			if got := body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"ping"}`, mcp.HeaderSessionID+": "+x)); !strings.HasSuffix(strings.TrimSpace(got), `"id":1,"result":{}}`) {
				t.Errorf("%s: ping: %s", date, got)
			}
		}
		text := modernMessage("9", "subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`)
		listening := readStream(s.post(context.Background(), text, append(modernHeaders(text), bothTypes)...))
		listening.waiting()
		modern := func(method, level string) (int, string) {
			text := modernMessage("1", method, `{"name":"log"}`)
			if level != "" {
				text = strings.Replace(text, `"_meta":{`, `"_meta":{"io.modelcontextprotocol/logLevel":`+level+`,`, 1)
			}
			resp := s.post(context.Background(), text, append(modernHeaders(text), bothTypes)...)
			return resp.StatusCode, body(t, resp)
		}
		if _, got := modern("tools/call", ""); strings.Contains(got, "notifications/message") {
			t.Errorf("without a level: %s", got)
		}
		if _, got := modern("tools/call", `"warning"`); levels(got) != strings.Join(all[3:], " ") {
			t.Errorf("from warning on: %s", got)
		}
		for _, bad := range []string{`"loud"`, `3`, `null`} {
			if _, got := modern("tools/call", bad); replyCode(t, got) != jsonrpc.CodeInvalidParams {
				t.Errorf("level %s: %s", bad, got)
			}
		}
		for _, method := range []string{"logging/setLevel", "ping"} {
			if status, got := modern(method, ""); status != http.StatusNotFound || replyCode(t, got) != jsonrpc.CodeMethodNotFound {
				t.Errorf("%s: %d %s", method, status, got)
			}
		}
		if got := listening.waiting(); len(got) > 0 {
			t.Errorf("on another stream: %q", got)
		}
		s.edge.Drain()
	})
}
