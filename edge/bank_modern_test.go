package edge

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/worker"
)

// The reports about the stateless era; see bank_test.go.

// B65: headers that mirror the body are compared with it, and a request that
// contradicts itself is not executed.
func TestB65MirroredHeaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		const full = `{"region":"us-west1","n":42}`
		version := mcp.HeaderProtocolVersion + ": " + mcp.Modern().Date
		base := []string{version, "Mcp-Method: tools/call", "Mcp-Name: region"}
		with := func(more ...string) []string { return append(append([]string{}, base...), more...) }
		for _, c := range []struct {
			name      string
			arguments string
			headers   []string
			served    bool
		}{
			{"everything as in the body", full, with("Mcp-Param-Region: us-west1", "Mcp-Param-N: 42"), true},
			{"no Mcp-Method", full, []string{version, "Mcp-Name: region", "Mcp-Param-Region: us-west1", "Mcp-Param-N: 42"}, false},
			{"another Mcp-Method", full, []string{version, "Mcp-Method: tools/list", "Mcp-Name: region", "Mcp-Param-Region: us-west1", "Mcp-Param-N: 42"}, false},
			{"Mcp-Method in capitals", full, []string{version, "Mcp-Method: TOOLS/CALL", "Mcp-Name: region", "Mcp-Param-Region: us-west1", "Mcp-Param-N: 42"}, false},
			{"no Mcp-Name", full, []string{version, "Mcp-Method: tools/call", "Mcp-Param-Region: us-west1", "Mcp-Param-N: 42"}, false},
			{"another Mcp-Name", full, []string{version, "Mcp-Method: tools/call", "Mcp-Name: other", "Mcp-Param-Region: us-west1", "Mcp-Param-N: 42"}, false},
			{"another value", full, with("Mcp-Param-Region: eu", "Mcp-Param-N: 42"), false},
			{"a header is missing", full, with("Mcp-Param-N: 42"), false},
			{"the argument is absent", `{"n":42}`, with("Mcp-Param-Region: eu", "Mcp-Param-N: 42"), false},
			{"the argument is null", `{"region":null,"n":42}`, with("Mcp-Param-Region: eu", "Mcp-Param-N: 42"), false},
			{"the argument is null, and no header", `{"n":42}`, with("Mcp-Param-N: 42"), true},
			{"an integer with a fraction of zero", full, with("Mcp-Param-Region: us-west1", "Mcp-Param-N: 42.0"), true},
			{"another integer", full, with("Mcp-Param-Region: us-west1", "Mcp-Param-N: 43"), false},
			{"a header for no argument", full, with("Mcp-Param-Region: us-west1", "Mcp-Param-N: 42", "Mcp-Param-Foo: x"), true},
			{"names in another case", full, []string{strings.ToLower(version[:20]) + version[20:], "mcp-METHOD: tools/call", "MCP-NAME: region", "mcp-param-REGION: us-west1", "MCP-PARAM-n: 42"}, true},
			{"the header of an older revision", full, []string{mcp.HeaderProtocolVersion + ": 2025-11-25", "Mcp-Method: tools/call", "Mcp-Name: region", "Mcp-Param-Region: us-west1", "Mcp-Param-N: 42"}, false},
			{"no version header", full, []string{"Mcp-Method: tools/call", "Mcp-Name: region", "Mcp-Param-Region: us-west1", "Mcp-Param-N: 42"}, false},
		} {
			before := s.ran.value()
			resp := s.post(context.Background(), modernMessage(`"b65"`, "tools/call", `{"name":"region","arguments":`+c.arguments+`}`), c.headers...)
			got := body(t, resp)
			m := decode(t, got)
			switch {
			case string(m.ID) != `"b65"`:
				t.Errorf("%s: the id of %s", c.name, got)
			case c.served && (resp.StatusCode != http.StatusOK || m.Result == nil || s.ran.value() != before+1):
				t.Errorf("%s: %d %s", c.name, resp.StatusCode, got)
			case !c.served && (resp.StatusCode != http.StatusBadRequest || errorCode(t, m) != mcp.CodeHeaderMismatch || s.ran.value() != before):
				t.Errorf("%s: %d %s", c.name, resp.StatusCode, got)
			}
		}
		resp := s.post(context.Background(), modernMessage("1", "tools/list", "{}"), version, "Mcp-Method: tools/list", "Mcp-Name: whatever")
		if got := body(t, resp); resp.StatusCode != http.StatusOK {
			t.Errorf("Mcp-Name on tools/list: %d %s", resp.StatusCode, got)
		}
	})
}

// B67: each thing that is missing or unknown has its own code and status.
func TestB67CodesAndStatuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		const (
			version = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
			client  = `"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"}`
			can     = `"io.modelcontextprotocol/clientCapabilities":{}`
		)
		for _, c := range []struct {
			name, method, meta string // meta "": no params
			status, code       int
		}{
			{"everything", "server/discover", version + "," + client + "," + can, 200, 0},
			{"no clientInfo", "server/discover", version + "," + can, 200, 0},
			{"no params", "server/discover", "", 400, jsonrpc.CodeInvalidParams},
			{"no version", "server/discover", client + "," + can, 400, jsonrpc.CodeInvalidParams},
			{"no capabilities", "server/discover", version + "," + client, 400, jsonrpc.CodeInvalidParams},
			{"no version", "tools/list", client + "," + can, 400, jsonrpc.CodeInvalidParams},
			{"no capabilities", "tools/list", version, 400, jsonrpc.CodeInvalidParams},
			{"no params", "tools/list", "", 400, jsonrpc.CodeInvalidParams},
			{"unknown", "no/such", version + "," + can, 404, jsonrpc.CodeMethodNotFound},
			{"removed", "ping", version + "," + can, 404, jsonrpc.CodeMethodNotFound},
			{"removed", "initialize", version + "," + can, 404, jsonrpc.CodeMethodNotFound},
			{"removed", "resources/subscribe", version + "," + can, 404, jsonrpc.CodeMethodNotFound},
			{"removed", "resources/unsubscribe", version + "," + can, 404, jsonrpc.CodeMethodNotFound},
			{"removed", "logging/setLevel", version + "," + can, 404, jsonrpc.CodeMethodNotFound},
			{"a level nobody knows", "tools/list", version + "," + can + `,"io.modelcontextprotocol/logLevel":"loud"`, 400, jsonrpc.CodeInvalidParams},
		} {
			text := `{"jsonrpc":"2.0","id":67,"method":"` + c.method + `","params":{"_meta":{` + c.meta + `}}}`
			if c.meta == "" {
				text = `{"jsonrpc":"2.0","id":67,"method":"` + c.method + `"}`
			}
			resp := s.post(context.Background(), text, mcp.HeaderProtocolVersion+": 2026-07-28", mcp.HeaderMethod+": "+c.method)
			got := body(t, resp)
			m := decode(t, got)
			if resp.StatusCode != c.status || errorCode(t, m) != c.code || string(m.ID) != "67" || resp.Header.Get(mcp.HeaderSessionID) != "" {
				t.Errorf("%s, %s: %d %s", c.method, c.name, resp.StatusCode, got)
			}
		}
		resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"result":{}}`, mcp.HeaderProtocolVersion+": 2026-07-28")
		if got := body(t, resp); resp.StatusCode < 400 || resp.StatusCode > 499 {
			t.Errorf("a response of the client: %d %s", resp.StatusCode, got)
		}
	})
}

// offerPayment adds a tool that asks before it does something.
func (s *system) offerPayment() {
	s.offer(func(w *worker.Worker) {
		type consent struct {
			OK bool `json:"ok"`
		}
		type in struct {
			Amount int `json:"amount"`
		}
		worker.AddTool(w, worker.Tool{Name: "pay", Description: "Asks, then pays."}, func(_ context.Context, call *worker.Call, _ in) (string, error) {
			answers, err := call.Ask(worker.ElicitFor[consent]("k", "Pay?"))
			if err != nil {
				return "", err
			}
			if given, accepted, err := worker.Accepted[consent](answers, "k"); err != nil || !accepted || !given.OK {
				return "kept", err
			}
			s.ran.add()
			return "paid", nil
		})
	})
}

// B69: a state is good for the request it was made for, while it is fresh and
// whole, on whatever worker; everything else is refused before anything happens.
func TestB69RequestStates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		s.offerPayment()
		const caps = `{"elicitation":{}}`
		ask := func() (reply, state string) {
			t.Helper()
			_, reply = s.modernCall(caps, `{"name":"pay","arguments":{"amount":5}}`)
			_, state = inputRequired(t, reply)
			return reply, state
		}
		retry := func(state, name, amount, responses string) string {
			t.Helper()
			params := `{"name":"` + name + `","arguments":{"amount":` + amount + `},"requestState":` + string(jsonrpc.Quote(state))
			if responses != "" {
				params += `,"inputResponses":` + responses
			}
			_, reply := s.modernCall(caps, params+`}`)
			return reply
		}
		const yes = `{"k":{"action":"accept","content":{"ok":true}}}`
		reply, state := ask()
		// Interim results are not to be kept (caching).
		if strings.Contains(reply, "ttlMs") || strings.Contains(reply, "cacheScope") {
			t.Errorf("an interim result says how long it may be kept: %s", reply)
		}
		refused := func(what, reply string) {
			t.Helper()
			if !strings.Contains(reply, `"error":{"code":-32602`) {
				t.Errorf("%s: %.300s", what, reply)
			}
		}
		for at := range len(state) {
			flipped := []byte(state)
			if flipped[at] = 'A'; state[at] == 'A' {
				flipped[at] = 'B'
			}
			refused("a letter changed", retry(string(flipped), "pay", "5", yes))
		}
		for _, cut := range []int{0, 1, len(state) / 2, len(state) - 1} {
			refused("cut", retry(state[:cut], "pay", "5", yes))
		}
		refused("longer", retry(state+"A", "pay", "5", yes))
		refused("1 MB", retry(strings.Repeat("A", 1<<20), "pay", "5", yes))
		refused("another tool", retry(state, "ask", "5", yes))
		refused("another amount", retry(state, "pay", "6", yes))
		for what, responses := range map[string]string{"no answer": `{}`, "no answers": "", "only others": `{"other":{"action":"accept"}}`} {
			if again := retry(state, "pay", "5", responses); !strings.Contains(again, `"input_required"`) {
				t.Errorf("%s: %s", what, again)
			}
		}
		if got := retry(state, "pay", "5", `{"k":{"action":"decline"}}`); !strings.Contains(got, `"text":"kept"`) {
			t.Errorf("declined: %s", got)
		}
		if n := s.ran.value(); n != 0 {
			t.Fatalf("paid %d times without a consent", n)
		}
		// Another instance goes on, with the same id and with more keys.
		s.stopWorker()
		s.workerConn, s.stopWorker = s.startWorker()
		s.offerPayment()
		if got := retry(state, "pay", "5", `{"other":7,"k":{"action":"accept","content":{"ok":true}}}`); !strings.Contains(got, `"text":"paid"`) || !strings.Contains(got, `"resultType":"complete"`) {
			t.Errorf("on another worker: %s", got)
		}
		if n := s.ran.value(); n != 1 {
			t.Errorf("paid %d times", n)
		}
		if _, got := s.modernCall(caps, `{"name":"pay","arguments":{"amount":5},"inputResponses":`+yes+`}`); !strings.Contains(got, `"text":"paid"`) && !strings.Contains(got, "input_required") && !strings.Contains(got, "-32602") {
			t.Errorf("answers without a state: %s", got)
		}
		_, state = ask()
		paid := s.ran.value()
		time.Sleep(15*time.Minute + time.Second)
		refused("expired", retry(state, "pay", "5", yes))
		if n := s.ran.value(); n != paid {
			t.Error("an expired state paid")
		}
		// Nothing else ever needs input.
		for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover"} {
			text := strings.Replace(modernMessage("1", method, `{"requestState":"x","inputResponses":{}}`), `Capabilities":{}`, `Capabilities":`+caps, 1)
			if got := body(t, s.post(context.Background(), text, modernHeaders(text)...)); strings.Contains(got, "input_required") {
				t.Errorf("%s: %s", method, got)
			}
		}
	})
}

// B70: a stream has what its filter asks for, byte for byte, and nothing else:
// nothing before the acknowledgement, nothing of a call beside it, and comments
// when there is nothing.
func TestB70FiltersAreExact(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		s.offerURIs([]string{"file:///a", "file:///%61", "file:///b"})
		open := func(id, params string) (whole func() string) {
			text := modernMessage(id, "subscriptions/listen", params)
			return readAll(t, s.post(context.Background(), text, append(modernHeaders(text), bothTypes)...))
		}
		flood := func() {
			for range 20 {
				for _, uri := range []string{"file:///a", "file:///%61", "file:///b"} {
					s.worker.ResourceUpdated(uri)
				}
			}
		}
		flood()
		stream := open(`"0"`, `{"notifications":{"toolsListChanged":true,"promptsListChanged":false,"resourceSubscriptions":["file:///a","file:///%61","none://x"],"unknown":{"x":1}}}`)
		nothing := open(`0`, `{"notifications":{}}`)
		flood()
		s.addTool("flood")
		for range 3 {
			text := strings.Replace(modernMessage("1", "tools/call", `{"name":"count","arguments":{"n":5}}`), `"_meta":{`, `"_meta":{"progressToken":"p","io.modelcontextprotocol/logLevel":"debug",`, 1)
			if got := body(t, s.post(context.Background(), text, append(modernHeaders(text), bothTypes)...)); strings.Count(got, "notifications/progress") != 5 {
				t.Errorf("the call beside it: %s", got)
			}
		}
		time.Sleep(10 * time.Minute)
		flood()
		s.worker.AddPrompt(worker.Prompt{Name: "new"}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
			return &worker.PromptResult{}, nil
		})
		time.Sleep(time.Minute)
		s.edge.Drain()
		wire := stream()
		if n := strings.Count(wire, "\n:"); n < 20 {
			t.Errorf("%d comments in ten minutes of silence", n)
		}
		const sub = `"io.modelcontextprotocol/subscriptionId":"0"`
		told := map[string]int{}
		all := events(wire)
		for i, ev := range all {
			var m struct {
				Method string
				Params struct {
					URI           string
					Notifications json.RawMessage
				}
				Result json.RawMessage
			}
			if err := json.Unmarshal([]byte(ev["data"]), &m); err != nil || !strings.Contains(ev["data"], sub) {
				t.Fatalf("%v, %v: no subscription id", err, ev)
			}
			if (m.Method == "notifications/subscriptions/acknowledged") != (i == 0) {
				t.Errorf("message %d is %s", i, ev["data"])
			}
			if i == 0 {
				const honoured = `{"toolsListChanged":true,"resourceSubscriptions":["file:///a","file:///%61"]}`
				if !sameJSON(t, m.Params.Notifications, json.RawMessage(honoured)) {
					t.Errorf("acknowledged %s, want %s", m.Params.Notifications, honoured)
				}
			}
			told[m.Method+" "+m.Params.URI]++
			if last := i == len(all)-1; (m.Result != nil) != last || last && !strings.Contains(string(m.Result), `"resultType":"complete"`) {
				t.Errorf("message %d of %d: %s", i+1, len(all), ev["data"])
			}
		}
		for _, want := range []string{"notifications/tools/list_changed ", "notifications/resources/updated file:///a", "notifications/resources/updated file:///%61"} {
			if told[want] == 0 {
				t.Errorf("never told of %s: %v", want, told)
			}
			delete(told, want)
		}
		delete(told, "notifications/subscriptions/acknowledged ")
		delete(told, "notifications/cancelled ")
		delete(told, " ") // the result
		if len(told) > 0 {
			t.Errorf("told of what was not asked for: %v", told)
		}
		if wire := nothing(); strings.Contains(wire, "changed") || strings.Contains(wire, "updated") || !strings.Contains(wire, "acknowledged") || !strings.Contains(wire, `subscriptionId":0}`) {
			t.Errorf("an empty filter: %s", wire)
		}
	})
}

// readAll reads a response as it comes, since a pipe has no buffer, and returns
// what waits for its end.
func readAll(t *testing.T, resp *http.Response) (whole func() string) {
	t.Helper()
	read := make(chan string, 1) // one result
	go func() {
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Errorf("%v after %q", err, raw)
		}
		read <- string(raw)
	}()
	return func() string { return <-read }
}
