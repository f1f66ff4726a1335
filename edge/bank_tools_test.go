package edge

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/worker"
)

// The reports about tools; see bank_test.go.

// revision is the one that is spoken through the door.
func (d *door) revision(t *testing.T) *mcp.Revision {
	t.Helper()
	switch {
	case d.modern:
		return mcp.Modern()
	case d.name == "stdio": // without a handshake
		return mcp.Assumed()
	case d.name == "HTTP+SSE": // as above
		return mcp.Oldest()
	}
	rev, ok := mcp.Lookup(d.name)
	if !ok {
		t.Fatalf("no revision %s", d.name)
	}
	return rev
}

// result calls a method that must succeed and returns its result.
func (d *door) result(t *testing.T, method, params string) string {
	t.Helper()
	status, reply := d.call("1", method, params)
	m := decode(t, reply)
	if status != http.StatusOK || m.Result == nil {
		t.Fatalf("%s %s: status %d, %.300s", method, params, status, reply)
	}
	return string(m.Result)
}

// offer adds to the fixture while it runs and waits until the edge knows the
// tool that is added last.
func (s *system) offer(add func(w *worker.Worker)) {
	add(s.worker)
	const last = "offered"
	s.worker.AddRawTool(worker.Tool{Name: last}, answering(&worker.Result{}))
	for {
		changed := s.edge.Catalog().Changed()
		if _, ok := s.edge.Catalog().Snapshot().Tool(last); ok {
			return
		}
		<-changed
	}
}

// answering is a tool that always has the same result.
func answering(r *worker.Result) func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
	return func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) { return r, nil }
}

// bare adds all that has as little as it may have.
func bare(w *worker.Worker) {
	type none struct{}
	w.AddRawTool(worker.Tool{
		Name:        "bare",
		Annotations: &worker.Annotations{DestructiveHint: new(false), OpenWorldHint: new(false)},
	}, answering(&worker.Result{}))
	worker.AddTool(w, worker.Tool{Name: "bare-typed"}, func(context.Context, *worker.Call, none) ([]string, error) { return nil, nil })
	w.AddRawTool(worker.Tool{Name: "empty-text"}, answering(&worker.Result{
		Content: []worker.Content{worker.Text("").Annotated(worker.ContentAnnotations{Priority: new(0.0)})},
	}))
	w.AddRawTool(worker.Tool{Name: "zero"}, func(_ context.Context, call *worker.Call, _ json.RawMessage) (*worker.Result, error) {
		call.Progress(0, 0, "")
		return &worker.Result{Content: []worker.Content{}}, nil
	})
	contents := func(c *worker.Contents) worker.ReadFunc {
		return func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) { return c, nil }
	}
	w.AddResource(worker.Resource{URI: "bare://text", Name: "text"}, contents(worker.TextContents("text/plain", "")))
	w.AddResource(worker.Resource{URI: "bare://blob", Name: "blob"}, contents(worker.BlobContents("image/png", []byte{})))
	w.AddPrompt(worker.Prompt{
		Name: "bare", Arguments: []worker.PromptArgument{{Name: "word", Complete: worker.CompleteFrom()}},
	}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{}, nil
	})
	w.AddPrompt(worker.Prompt{Name: "bare-none"}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{Messages: []worker.PromptMessage{{Content: worker.Text("")}}}, nil
	})
}

// Every message is checked against the schema of its revision on its way (see
// wire_test.go); what schemas do not say stands here.
func TestB37NothingIsNotNull(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		d.sys.offer(bare)
		has := func(text, what string, parts ...string) {
			t.Helper()
			for _, part := range parts {
				if !strings.Contains(text, part) {
					t.Errorf("%s has no %s: %s", what, part, text)
				}
			}
			if strings.Contains(text, "null") {
				t.Errorf("%s has a null: %s", what, text)
			}
		}
		var tools struct{ Tools []map[string]json.RawMessage }
		list := d.result(t, "tools/list", "")
		if err := json.Unmarshal([]byte(list), &tools); err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, tool := range tools.Tools {
			if name := string(tool["name"]); name == `"bare"` || name == `"bare-typed"` {
				seen++
				has(string(tool["inputSchema"]), "the input schema of "+name, `"type":"object"`)
			}
			if string(tool["name"]) == `"bare"` && d.revision(t).Annotations {
				has(string(tool["annotations"]), "bare", `"destructiveHint":false`, `"openWorldHint":false`)
			}
		}
		if seen != 2 {
			t.Errorf("%d of the two tools are listed: %s", seen, list)
		}
		has(d.result(t, "tools/call", `{"name":"bare"}`), "no content", `"content":[]`)
		has(d.result(t, "tools/call", `{"name":"zero"}`), "empty content", `"content":[]`)
		has(d.result(t, "tools/call", `{"name":"empty-text"}`), "no text", `"text":""`, `"priority":0`)
		has(d.result(t, "tools/call", `{"name":"bare-typed"}`), "a nil slice", `"text":"[]"`)
		has(d.result(t, "resources/read", `{"uri":"bare://text"}`), "no text", `"text":""`)
		has(d.result(t, "resources/read", `{"uri":"bare://blob"}`), "no bytes", `"blob":""`)
		has(d.result(t, "prompts/get", `{"name":"bare"}`), "no messages", `"messages":[]`)
		has(d.result(t, "prompts/get", `{"name":"bare-none"}`), "no text", `"text":""`)
		has(d.result(t, "prompts/list", ""), "no arguments", `"name":"bare-none"`)
		has(d.result(t, "completion/complete", `{"ref":{"type":"ref/prompt","name":"bare"},"argument":{"name":"word","value":"x"}}`), "no values", `"values":[]`)
		has(d.result(t, "completion/complete", `{"ref":{"type":"ref/prompt","name":"bare-none"},"argument":{"name":"other","value":""}}`), "no values", `"values":[]`)
	})
}

func TestB37ProgressFromZero(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		s.offer(bare)
		out := body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"zero","_meta":{"progressToken":0}}}`,
			"Accept: application/json, text/event-stream"))
		if !strings.Contains(out, `"params":{"progressToken":0,"progress":0,"total":0}`) {
			t.Errorf("progress 0 of 0 with the token 0: %s", out)
		}
	})
}

func TestB37NothingToList(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		d.sys.stopWorker()
		synctest.Wait()
		for method, member := range map[string]string{
			"tools/list": "tools", "resources/list": "resources", "resources/templates/list": "resourceTemplates", "prompts/list": "prompts",
		} {
			if got := d.result(t, method, ""); !strings.Contains(got, `"`+member+`":[]`) {
				t.Errorf("%s: %s", method, got)
			}
		}
	})
}

func TestB38UnknownToolsAreProtocolErrors(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		for _, name := range []string{"no_such_tool", "", "ECHO", "Echo", "echo ", " echo", "ECHO ", "danger\u200b", strings.Repeat("x", 300)} {
			params := `{"name":` + string(jsonrpc.Quote(name)) + `,"arguments":{}}`
			status, reply := d.call("1", "tools/call", params)
			if d.modern && d.name != "stdio modern" {
				// A header cannot carry every name as it is.
				text := d.message("1", "tools/call", params)
				mirrored := name
				if strings.TrimSpace(name) != name || strings.ContainsFunc(name, func(r rune) bool { return r > '~' }) {
					mirrored = "=?base64?" + base64.StdEncoding.EncodeToString([]byte(name)) + "?="
				}
				resp := d.sys.post(context.Background(), text,
					mcp.HeaderProtocolVersion+": "+mcp.Modern().Date, mcp.HeaderMethod+": tools/call", mcp.HeaderName+": "+mirrored)
				status, reply = resp.StatusCode, body(t, resp)
			}
			m := decode(t, reply)
			if m.Result != nil || errorCode(t, m) != jsonrpc.CodeInvalidParams {
				t.Errorf("tool %q: %s", name, reply)
			}
			var e struct{ Message string }
			if err := json.Unmarshal(m.Error, &e); err != nil || !strings.Contains(e.Message, name[:min(len(name), 100)]) {
				t.Errorf("the error for %q does not name it: %s", name, m.Error)
			}
			// 404 is for methods.
			if name != "" && status != http.StatusOK {
				t.Errorf("tool %q: HTTP status %d", name, status)
			}
		}
		if n := d.sys.ran.value(); n != 0 {
			t.Errorf("the tool danger ran %d times", n)
		}
	})
}

// misfits are tools that keep to their output schema, or do not.
func misfits(w *worker.Worker) {
	object := json.RawMessage(`{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}`)
	structured := func(raw string) *worker.Result { return &worker.Result{Structured: json.RawMessage(raw)} }
	for name, r := range map[string]*worker.Result{
		"fits":     structured(`{"n":1}`),
		"missing":  {Content: []worker.Content{worker.Text("done")}},
		"mistyped": structured(`{"n":"x"}`),
		"wrong":    structured(`[1]`),
		"failed":   {Content: []worker.Content{worker.Text("it broke")}, IsError: true},
		"failed2":  {Content: []worker.Content{worker.Text("it broke")}, Structured: json.RawMessage(`{"why":1}`), IsError: true},
	} {
		w.AddRawTool(worker.Tool{Name: name, OutputSchema: object}, answering(r))
	}
	w.AddRawTool(worker.Tool{Name: "list", OutputSchema: json.RawMessage(`{"type":"array"}`)}, answering(structured(`[1]`)))
	w.AddRawTool(worker.Tool{Name: "no-list", OutputSchema: json.RawMessage(`{"type":"array"}`)}, answering(structured(`null`)))
	for name, value := range falsy() {
		w.AddRawTool(worker.Tool{Name: name, OutputSchema: json.RawMessage(`{"type":["null","boolean","number","string"]}`)}, answering(structured(value)))
	}
}

// falsy are values that careless code takes for none.
func falsy() map[string]string {
	return map[string]string{"null": "null", "false": "false", "zero": "0", "empty": `""`}
}

func TestB40OutputSchemas(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		d.sys.offer(misfits)
		rev := d.revision(t)
		type outcome struct {
			Content           []struct{ Type, Text string }
			StructuredContent *json.RawMessage
			IsError           bool
		}
		call := func(name string) (o outcome, members map[string]json.RawMessage) {
			t.Helper()
			result := d.result(t, "tools/call", `{"name":"`+name+`"}`)
			for _, into := range []any{&o, &members} {
				if err := json.Unmarshal([]byte(result), into); err != nil {
					t.Fatal(err)
				}
			}
			return o, members
		}
		// structured: the member is there where the revision has it, and the
		// same as a text always.
		structured := func(name, want string, have bool) {
			t.Helper()
			o, members := call(name)
			raw, there := members["structuredContent"]
			if there != have || have && string(raw) != want {
				t.Errorf("%s: structuredContent %s, want %s: %v", name, raw, want, have)
			}
			if o.IsError || len(o.Content) != 1 || o.Content[0].Text != want {
				t.Errorf("%s: %+v, want the text %s", name, o, want)
			}
		}
		structured("fits", `{"n":1}`, rev.StructuredObjects)
		structured("list", `[1]`, rev.StructuredValues)
		for name, value := range falsy() {
			structured(name, value, rev.StructuredValues)
		}
		for _, name := range []string{"missing", "mistyped", "wrong", "no-list"} {
			_, reply := d.call("1", "tools/call", `{"name":"`+name+`"}`)
			m := decode(t, reply)
			if code := errorCode(t, m); code != jsonrpc.CodeInternal && !strings.Contains(string(m.Result), `"isError":true`) {
				t.Errorf("%s passes for a success: %s", name, reply)
			}
		}
		for _, name := range []string{"failed", "failed2"} {
			if o, _ := call(name); !o.IsError || len(o.Content) != 1 || o.Content[0].Text != "it broke" {
				t.Errorf("%s: %+v", name, o)
			}
		}
		var list struct {
			Tools []struct {
				Name         string
				OutputSchema *struct{ Type json.RawMessage }
			}
		}
		if err := json.Unmarshal([]byte(d.result(t, "tools/list", "")), &list); err != nil {
			t.Fatal(err)
		}
		listed := 0
		for _, tool := range list.Tools {
			var want bool
			switch tool.Name {
			case "fits":
				want = rev.StructuredObjects
			case "list", "null":
				want = rev.StructuredValues
			default:
				continue
			}
			listed++
			if got := tool.OutputSchema != nil; got != want {
				t.Errorf("%s lists an output schema: %v, want %v", tool.Name, got, want)
			}
		}
		if listed != 3 {
			t.Errorf("%d of 3 tools are listed", listed)
		}
	})
}

const (
	relayedMeta = `{"com.example/x":{"deep":[1,null,{"n":9007199254740993}]},"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","com.example/ctx":"żółć"}`
	// Base64 that a relay would write differently: + and /, and padding.
	relayedBase64 = "+/+/+//7+w=="
)

// relayed are the blocks of the tool relay, as the author wrote them.
func relayed() []string {
	return []string{
		`{"type":"text","text":"","annotations":{"audience":["user"],"priority":0.30},"_meta":{"a":null}}`,
		`{"type":"image","data":"` + relayedBase64 + `","mimeType":"image/png","x-foo":[1.10,{}]}`,
		`{"type":"audio","data":"` + relayedBase64 + `","mimeType":"audio/wav"}`,
		`{"type":"resource_link","uri":"HTTP://Example.COM/a","name":"a","size":9007199254740993}`,
		`{"type":"resource","resource":{"uri":"file:///x","blob":"` + relayedBase64 + `","mimeType":"a/b"}}`,
		`{"type":"hologram","v":1}`,
	}
}

// TestB42NothingIsLostOnTheWay talks past the wire check: a hologram is in no
// schema.
func TestB42NothingIsLostOnTheWay(t *testing.T) {
	t.Parallel()
	for _, date := range append(mcp.Supported(), "stdio modern") {
		t.Run(date, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := start(t, Config{})
				rev := mcp.Modern()
				if date != "stdio modern" {
					rev, _ = mcp.Lookup(date)
				}
				checkRelay(t, s, rev, date == "stdio modern")
			})
		})
	}
}

func checkRelay(t *testing.T, s *system, rev *mcp.Revision, stdio bool) {
	t.Helper()
	received := make(chan json.RawMessage, 1) // one call
	s.offer(func(w *worker.Worker) {
		w.AddRawTool(worker.Tool{
			Name: "relay", Title: "Relay", Description: "Relays.",
			Icons:       []worker.Icon{{Src: "https://example.com/i.png", MIMEType: "image/png", Sizes: []string{"48x48", "any"}, Theme: "dark"}},
			Annotations: &worker.Annotations{Title: "R", ReadOnlyHint: new(true), DestructiveHint: new(false)},
			Meta:        json.RawMessage(relayedMeta),
		}, func(_ context.Context, call *worker.Call, _ json.RawMessage) (*worker.Result, error) {
			received <- call.Meta()
			r := &worker.Result{Meta: json.RawMessage(relayedMeta), Extra: json.RawMessage(`{"x-foo":{"n":1e2}}`)}
			for _, block := range relayed() {
				r.Content = append(r.Content, worker.RawContent(json.RawMessage(block)))
			}
			return r, nil
		})
	})
	ask := func(method, params string) map[string]json.RawMessage {
		t.Helper()
		reply := pastTheWire(t, s, rev, stdio, method, params)
		var members map[string]json.RawMessage
		if err := json.Unmarshal(decode(t, reply).Result, &members); err != nil {
			t.Fatalf("%v in %s", err, reply)
		}
		return members
	}
	result := ask("tools/call", `{"name":"relay","_meta":`+relayedMeta+`}`)
	got := members(t, <-received)
	for key, value := range members(t, json.RawMessage(relayedMeta)) {
		if !sameJSON(t, got[key], value) {
			t.Errorf("the worker got %s as %s, want %s", key, got[key], value)
		}
		if there := members(t, result["_meta"])[key]; !sameJSON(t, there, value) {
			t.Errorf("the client got %s as %s, want %s", key, there, value)
		}
	}
	var blocks []json.RawMessage
	if err := json.Unmarshal(result["content"], &blocks); err != nil {
		t.Fatal(err)
	}
	if len(blocks) != len(relayed()) {
		t.Fatalf("%d blocks: %s", len(blocks), result["content"])
	}
	for i, want := range relayed() {
		kind := members(t, json.RawMessage(want))["type"]
		switch {
		case string(kind) == `"audio"` && !rev.Audio, string(kind) == `"resource_link"` && !rev.ResourceLinks:
			if string(members(t, blocks[i])["type"]) != `"text"` {
				t.Errorf("block %d is not known in this revision: %s", i, blocks[i])
			}
			continue
		case !rev.ItemMeta:
			without, err := jsonrpc.Without([]byte(want), "_meta")
			if err != nil {
				t.Fatal(err)
			}
			want = string(without)
		}
		if !sameJSON(t, blocks[i], json.RawMessage(want)) {
			t.Errorf("block %d\nis   %s\nwant %s", i, blocks[i], want)
		}
	}
	if !sameJSON(t, result["x-foo"], json.RawMessage(`{"n":1e2}`)) {
		t.Errorf("a member of the author's own: %s", result["x-foo"])
	}
	if _, there := result["isError"]; there {
		t.Errorf("isError was not set: %s", result["isError"])
	}
	checkRelayDefinition(t, rev, ask("tools/list", "{}")["tools"])
}

// checkRelayDefinition: the list shows all that the revision has of the tool.
func checkRelayDefinition(t *testing.T, rev *mcp.Revision, list json.RawMessage) {
	t.Helper()
	var tools []json.RawMessage
	if err := json.Unmarshal(list, &tools); err != nil {
		t.Fatal(err)
	}
	index := slices.IndexFunc(tools, func(tool json.RawMessage) bool { return string(members(t, tool)["name"]) == `"relay"` })
	if index < 0 {
		t.Fatalf("the tool is not listed: %s", list)
	}
	got := members(t, tools[index])
	for _, m := range []struct {
		key, value string
		have       bool
	}{
		{"title", `"Relay"`, rev.Titles},
		{"icons", `[{"src":"https://example.com/i.png","mimeType":"image/png","sizes":["48x48","any"],"theme":"dark"}]`, rev.Icons},
		{"annotations", `{"title":"R","readOnlyHint":true,"destructiveHint":false}`, rev.Annotations},
		{"_meta", relayedMeta, rev.ItemMeta},
	} {
		value, there := got[m.key]
		if there != m.have || m.have && !sameJSON(t, value, json.RawMessage(m.value)) {
			t.Errorf("%s of the tool is %s, want %s: %v", m.key, value, m.value, m.have)
		}
	}
}

// pastTheWire makes a request that the wire check does not see.
func pastTheWire(t *testing.T, s *system, rev *mcp.Revision, stdio bool, method, params string) string {
	t.Helper()
	text := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
	var headers []string
	if rev.Modern {
		meta := `"` + mcp.MetaProtocolVersion + `":"` + rev.Date + `","` + mcp.MetaClientCapabilities + `":{}`
		if strings.Contains(params, `"_meta":{`) {
			params = strings.Replace(params, `"_meta":{`, `"_meta":{`+meta+`,`, 1)
		} else {
			params = `{"_meta":{` + meta + `}}`
		}
		text = `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
		headers = modernHeaders(text)
	}
	if stdio {
		var out bytes.Buffer
		if err := s.edge.ServeStdio(context.Background(), strings.NewReader(text), &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if !rev.Modern {
		headers = []string{mcp.HeaderSessionID + ": " + s.session(rev.Date, `{}`)}
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://localhost/mcp", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		key, value, _ := strings.Cut(h, ": ")
		req.Header.Set(key, value)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: s.dial, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	reply, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(reply)
}

func members(t *testing.T, raw json.RawMessage) map[string]json.RawMessage {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatalf("%v in %q", err, raw)
	}
	return m
}

// sameJSON compares two values with every digit of their numbers.
func sameJSON(t *testing.T, got, want json.RawMessage) bool {
	t.Helper()
	var values [2]any
	for i, raw := range []json.RawMessage{got, want} {
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		if err := dec.Decode(&values[i]); err != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}
