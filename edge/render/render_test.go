package render

import (
	"testing"

	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/mcp"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

func revision(t *testing.T, date string) *mcp.Revision {
	t.Helper()
	rev, ok := mcp.Lookup(date)
	if !ok {
		t.Fatalf("no revision %s", date)
	}
	return rev
}

func TestToolResultPerRevision(t *testing.T) {
	t.Parallel()
	r := &Renderer{Server: []byte(`{"name":"s"}`)}
	content := `[{"type":"audio","data":"AAAA","mimeType":"audio/wav"},{"type":"resource_link","uri":"x://1","name":"one"},{"type":"text","text":"the \"audio\" block"},{"type":"hologram","v":1}]`
	res := &millracev1.ToolResult{
		Content: []byte(content), StructuredContent: []byte(`[1.10]`), Meta: []byte(`{"m":[1,null]}`),
		Extra: []byte(`{"x-foo":1e2,"content":[]}`),
	}
	for date, want := range map[string]string{
		"2024-11-05": `{"_meta":{"m":[1,null]},"content":[{"type":"text","text":"(audio that this revision of the protocol cannot carry)"},{"type":"text","text":"one: x://1"},{"type":"text","text":"the \"audio\" block"},{"type":"hologram","v":1}],"x-foo":1e2}`,
		"2025-03-26": `{"_meta":{"m":[1,null]},"content":[{"type":"audio","data":"AAAA","mimeType":"audio/wav"},{"type":"text","text":"one: x://1"},{"type":"text","text":"the \"audio\" block"},{"type":"hologram","v":1}],"x-foo":1e2}`,
		"2025-11-25": `{"_meta":{"m":[1,null]},"content":` + content + `,"x-foo":1e2}`,
		"2026-07-28": `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"},"m":[1,null]},"content":` + content + `,"structuredContent":[1.10],"x-foo":1e2}`,
	} {
		if got := string(r.ToolResult(revision(t, date), res).Join()); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", date, got, want)
		}
	}
	empty := string(r.ToolResult(revision(t, "2025-11-25"), &millracev1.ToolResult{IsError: true}).Join())
	if want := `{"content":[],"isError":true}`; empty != want {
		t.Errorf("empty result: got %s, want %s", empty, want)
	}
}

func TestStructuredContentPerRevision(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		date, value string
		want        bool
	}{
		{"2025-03-26", `{}`, false},
		{"2025-06-18", `{}`, true},
		{"2025-06-18", `[1]`, false},
		{"2025-11-25", `null`, false},
		{"2025-11-25", `0`, false},
		{"2026-07-28", `null`, true},
		{"2026-07-28", `false`, true},
		{"2026-07-28", `""`, true},
	} {
		if got := structuredFits(revision(t, c.date), []byte(c.value)); got != c.want {
			t.Errorf("structuredContent %s in %s: %v, want %v", c.value, c.date, got, c.want)
		}
	}
}

func TestDefinitionsPerRevision(t *testing.T) {
	t.Parallel()
	object := "{\n \"name\":\"t\",\"title\":\"T\",\"icons\":[],\"annotations\":{\"readOnlyHint\":false},\"outputSchema\":{\"type\":\"object\"},\"_meta\":{\"a\":1},\"x-foo\":null}"
	array := `{"name":"t","outputSchema":{"type":"array"}}`
	for _, c := range []struct{ date, definition, want string }{
		{"2024-11-05", object, ` {"name":"t","x-foo":null}`},
		{"2025-03-26", object, ` {"name":"t","annotations":{"readOnlyHint":false},"x-foo":null}`},
		{"2025-06-18", object, ` {"name":"t","title":"T","annotations":{"readOnlyHint":false},"outputSchema":{"type":"object"},"_meta":{"a":1},"x-foo":null}`},
		{"2025-11-25", object, ` {"name":"t","title":"T","icons":[],"annotations":{"readOnlyHint":false},"outputSchema":{"type":"object"},"_meta":{"a":1},"x-foo":null}`},
		{"2025-11-25", array, `{"name":"t"}`},
		{"2026-07-28", array, array},
	} {
		got := string(Tools.fit(revision(t, c.date), []byte(c.definition)))
		if squeeze(got) != squeeze(c.want) {
			t.Errorf("%s:\ngot  %s\nwant %s", c.date, got, c.want)
		}
	}
}

// squeeze drops spaces, which no string of these tests holds.
func squeeze(s string) string {
	var out []rune
	for _, r := range s {
		if r != ' ' {
			out = append(out, r)
		}
	}
	return string(out)
}

func TestFailurePerRevision(t *testing.T) {
	t.Parallel()
	r := &Renderer{Server: []byte(`{}`)}
	const toolError, internal = 1, -32603 // 1 stands for a result that says so
	page := &millracev1.NeedsInput{Requests: map[string][]byte{"a": []byte(`{"method":"elicitation/create","params":{"mode":"url","url":"https://a","message":"m"}}`)}}
	form := &millracev1.NeedsInput{Requests: map[string][]byte{"a": []byte(`{"method":"elicitation/create","params":{"mode":"form","message":"m"}}`)}}
	for _, c := range []struct {
		name    string
		failure backend.Failure
		tool    bool
		codes   map[string]int
	}{
		{"internal", backend.Failure{}, true, map[string]int{"2024-11-05": internal, "2026-07-28": internal}},
		{"unknown tool", backend.Failure{Kind: backend.UnknownTool}, true, map[string]int{"2024-11-05": -32602, "2026-07-28": -32602}},
		{"unknown prompt", backend.Failure{Kind: backend.UnknownPrompt}, false, map[string]int{"2024-11-05": -32602, "2026-07-28": -32602}},
		{"arguments of a tool", backend.Failure{Kind: backend.InvalidArguments}, true, map[string]int{"2024-11-05": -32602, "2025-03-26": -32602, "2025-06-18": -32602, "2025-11-25": toolError, "2026-07-28": toolError}},
		{"arguments of a prompt", backend.Failure{Kind: backend.InvalidArguments}, false, map[string]int{"2025-11-25": -32602, "2026-07-28": -32602}},
		{"resource", backend.Failure{Kind: backend.ResourceNotFound}, false, map[string]int{"2024-11-05": -32002, "2025-11-25": -32002, "2026-07-28": -32602}},
		{"capability", backend.Failure{Kind: backend.MissingCapability, Data: []byte(`{"sampling":{}}`)}, true, map[string]int{"2025-11-25": toolError, "2026-07-28": -32021}},
		{"capability in a prompt", backend.Failure{Kind: backend.MissingCapability, Data: []byte(`{"sampling":{}}`)}, false, map[string]int{"2025-11-25": internal, "2026-07-28": -32021}},
		{"overloaded", backend.Failure{Kind: backend.Overloaded}, true, map[string]int{"2025-11-25": internal, "2026-07-28": internal}},
		{"custom of an older revision", backend.Failure{Kind: backend.Custom, Code: -32002}, true, map[string]int{"2024-11-05": -32002, "2025-11-25": -32002, "2026-07-28": -32602}},
		{"a page to visit", backend.Failure{Kind: backend.URLRequired, Input: page}, true, map[string]int{"2025-06-18": internal, "2025-11-25": -32042, "2026-07-28": internal}},
		{"a page that is a form", backend.Failure{Kind: backend.URLRequired, Input: form}, true, map[string]int{"2025-11-25": internal}},
		{"no page to visit", backend.Failure{Kind: backend.URLRequired}, true, map[string]int{"2025-11-25": internal}},
		{"custom for a page", backend.Failure{Kind: backend.Custom, Code: -32042}, true, map[string]int{"2025-11-25": -32042, "2026-07-28": internal}},
		{"custom of the specification's", backend.Failure{Kind: backend.Custom, Code: -32099}, true, map[string]int{"2025-11-25": -32099, "2026-07-28": internal}},
		{"custom that is defined", backend.Failure{Kind: backend.Custom, Code: -32021}, true, map[string]int{"2026-07-28": -32021}},
		{"custom", backend.Failure{Kind: backend.Custom, Code: -7}, true, map[string]int{"2024-11-05": -7, "2026-07-28": -7}},
	} {
		for date, want := range c.codes {
			result, err := r.Failure(revision(t, date), c.tool, &c.failure)
			got := toolError
			if err != nil {
				got = err.Code
			}
			if got != want || (result == nil) == (err == nil) {
				t.Errorf("%s in %s: code %d, result %s; want %d", c.name, date, got, result, want)
			}
		}
	}
}
