package edge

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/worker"
)

// These tests show requirements of the specification that no conversation can:
// docs/coverage.md names them.

func TestSessionIDsAreVisibleASCII(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		seen := map[string]bool{}
		for _, date := range mcp.Supported() {
			for range 5 {
				id := s.initialize(date)
				if strings.ContainsFunc(id, func(r rune) bool { return r < 0x21 || r > 0x7e }) || seen[id] || len(id) < 32 {
					t.Errorf("session id %q", id)
				}
				seen[id] = true
			}
		}
	})
}

func TestListsAreTheSameOnEveryConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		list := func(method string) string {
			text := modernMessage("1", method, "")
			return body(t, s.post(context.Background(), text, modernHeaders(text)...))
		}
		stdio := stdioDoor(t, s)
		for _, method := range []string{mcp.MethodToolsList, mcp.MethodResourcesList, mcp.MethodResourceTemplatesList, mcp.MethodPromptsList} {
			first := list(method)
			// Whatever happens between them.
			s.modernCall(`{}`, `{"name":"fail"}`)
			s.initialize("2025-06-18")
			if second := list(method); second != first {
				t.Errorf("%s:\nfirst  %s\nsecond %s", method, first, second)
			}
			if _, line := stdio(modernMessage("1", method, "")); line != first {
				t.Errorf("%s:\nHTTP  %s\nstdio %s", method, first, line)
			}
		}
	})
}

func TestInputForResourcesAndPrompts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		type form struct {
			Name string `json:"name"`
		}
		ask := func(call *worker.Call) (string, error) {
			answers, err := call.Ask(worker.ElicitFor[form]("who", "Who are you?"))
			if err != nil {
				return "", err
			}
			f, _, err := worker.Accepted[form](answers, "who")
			return f.Name, err
		}
		w := worker.New(worker.Config{Pool: "asking", Logger: slog.New(slog.DiscardHandler)})
		w.AddResource(worker.Resource{URI: "asking://one", Name: "one"}, func(_ context.Context, call *worker.Call, _ worker.ReadRequest) (*worker.Contents, error) {
			name, err := ask(call)
			if err != nil {
				return nil, err
			}
			c := worker.TextContents("text/plain", "for "+name)
			c.TTL, c.Public = 1000, true
			return c, nil
		})
		w.AddPrompt(worker.Prompt{Name: "asking"}, func(_ context.Context, call *worker.Call, _ map[string]string) (*worker.PromptResult, error) {
			name, err := ask(call)
			if err != nil {
				return nil, err
			}
			return &worker.PromptResult{Messages: []worker.PromptMessage{{Content: worker.Text("for " + name)}}}, nil
		})
		s.serveWorker("asking", w)
		for method, params := range map[string]string{
			mcp.MethodResourcesRead: `{"uri":"asking://one"`, mcp.MethodPromptsGet: `{"name":"asking"`,
		} {
			round := func(more string) string {
				text := strings.Replace(modernMessage("1", method, params+more+"}"), mcp.MetaClientCapabilities+`":{}`, mcp.MetaClientCapabilities+`":{"elicitation":{}}`, 1)
				return body(t, s.post(context.Background(), text, modernHeaders(text)...))
			}
			first := round("")
			has(t, first, `"ttlMs"`, false) // it is not a result to keep
			_, state := inputRequired(t, first)
			got := round(`,"requestState":"` + state + `","inputResponses":{"who":{"action":"accept","content":{"name":"Ala"}}}`)
			has(t, got, "for Ala", true)
			has(t, got, `"ttlMs":0,"cacheScope":"private"`, method == mcp.MethodResourcesRead)
		}
		// The legacy era asks for them on the stream of the request.
		session := s.session("2025-11-25", `{"elicitation":{}}`)
		stream := readStream(s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"asking"}}`,
			mcp.HeaderSessionID+": "+session, "Accept: application/json, text/event-stream"))
		id, _ := request(t, stream.next(), mcp.MethodElicit)
		s.respond(session, `{"jsonrpc":"2.0","id":"`+id+`","result":{"action":"accept","content":{"name":"Ola"}}}`)
		has(t, stream.next(), "for Ola", true)
	})
}

// A schema reaches clients of every revision as its author wrote it, but for
// the space between tokens.
func TestSchemasReachClientsByteForByte(t *testing.T) {
	t.Parallel()
	const schema = `{"z":1.0,"type":"object","a":[1e2,-0.0,12345678901234567890.10],"properties":{"ż":{"default":9007199254740993,` +
		`"enum":[1.50,"<&>"],"x-k":null},"b":{"$comment":"  two  spaces  ","$ref":"#/$defs/d"}},"required":["b","ż"],"$defs":{"d":{"Type":7}}}`
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		w := worker.New(worker.Config{Pool: "schemas", Logger: slog.New(slog.DiscardHandler)})
		w.AddRawTool(worker.Tool{Name: "schemas", InputSchema: json.RawMessage(strings.ReplaceAll(schema, ",", " ,\n")), OutputSchema: json.RawMessage(schema)},
			func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
				return &worker.Result{}, nil
			})
		s.serveWorker("schemas", w)
		for _, rev := range mcp.Supported() {
			row, _ := mcp.Lookup(rev)
			text := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
			headers := []string{mcp.HeaderSessionID + ": " + s.initialize(rev)}
			if row.Modern {
				text = modernMessage("1", mcp.MethodToolsList, "")
				headers = modernHeaders(text)
			}
			got := body(t, s.post(context.Background(), text, headers...))
			has(t, got, `{"name":"schemas","inputSchema":`+schema, true)
			has(t, got, `"outputSchema":`+schema, row.StructuredObjects)
		}
	})
}

// A tool with a bad schema is not offered, all others of its worker are, and
// operators see why.
func TestQuarantinedToolIsNotOffered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		w := worker.New(worker.Config{Pool: "mixed", Logger: slog.New(slog.DiscardHandler)})
		answer := func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
			return &worker.Result{Content: []worker.Content{worker.Text("ran")}}, nil
		}
		w.AddRawTool(worker.Tool{Name: "good", InputSchema: json.RawMessage(`{"type":"object"}`)}, answer)
		w.AddRawTool(worker.Tool{Name: "bad", InputSchema: json.RawMessage(`{"type":"object","$schema":"urn:x"}`)}, answer)
		s.serveWorker("mixed", w)
		call := func(method, params string) string {
			return body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`))
		}
		list := call(mcp.MethodToolsList, `{}`)
		has(t, list, `"name":"good"`, true)
		has(t, list, `"name":"echo"`, true)
		has(t, list, `"name":"bad"`, false)
		has(t, call(mcp.MethodToolsCall, `{"name":"good"}`), `"text":"ran"`, true)
		has(t, call(mcp.MethodToolsCall, `{"name":"bad"}`), `"error":{"code":-32602,"message":"unknown tool \"bad\"`, true)
		problems := s.edge.Catalog().Snapshot().Problems
		if len(problems) != 1 || problems[0].Pool != "mixed" || problems[0].Item != "bad" || !strings.Contains(problems[0].Reason, `dialect "urn:x" is not supported`) {
			t.Errorf("problems: %+v", problems)
		}
	})
}
