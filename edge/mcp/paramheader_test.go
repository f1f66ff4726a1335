package mcp

import (
	"strings"
	"testing"
)

func TestParamHeaders(t *testing.T) {
	t.Parallel()
	const schema = `{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},
		"x-mcp-header":{"type":"string"},
		"nested":{"type":"object","properties":{"n":{"type":["integer","null"],"x-mcp-header":"N"}}},
		"flag":{"type":"boolean","x-mcp-header":"Flag"},
		"data":{"default":{"x-mcp-header":"not an annotation"},"enum":[{"x-mcp-header":1}]}}}`
	got, err := ParamHeaders([]byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, h := range got {
		found = append(found, h.Name+"="+strings.Join(h.Path, ".")+":"+h.Type)
	}
	if s := strings.Join(found, " "); s != "Region=region:string N=nested.n:integer Flag=flag:boolean" {
		t.Errorf("found %s", s)
	}
	for name, properties := range map[string]string{
		"empty":           `"a":{"type":"string","x-mcp-header":""}`,
		"no string":       `"a":{"type":"string","x-mcp-header":7}`,
		"space":           `"a":{"type":"string","x-mcp-header":"My Header"}`,
		"line break":      `"a":{"type":"string","x-mcp-header":"A\r\nB"}`,
		"twice":           `"a":{"type":"string","x-mcp-header":"X"},"b":{"type":"string","x-mcp-header":"x"}`,
		"number":          `"a":{"type":"number","x-mcp-header":"A"}`,
		"object":          `"a":{"type":"object","x-mcp-header":"A"}`,
		"no type":         `"a":{"x-mcp-header":"A"}`,
		"two types":       `"a":{"type":["string","integer"],"x-mcp-header":"A"}`,
		"below items":     `"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}`,
		"below oneOf":     `"a":{"oneOf":[{"type":"string","x-mcp-header":"A"}]}`,
		"below if":        `"a":{"if":{"properties":{"b":{"type":"string","x-mcp-header":"A"}}}}`,
		"in a definition": `"a":{"$ref":"#/$defs/d"}},"$defs":{"d":{"type":"string","x-mcp-header":"A"}`,
		"additional":      `"a":{"type":"object","additionalProperties":{"type":"string","x-mcp-header":"A"}}`,
		"pattern":         `"a":{"type":"object","patternProperties":{"x":{"type":"string","x-mcp-header":"A"}}}`,
	} {
		if got, err := ParamHeaders([]byte(`{"type":"object","properties":{` + properties + `}}`)); err == nil {
			t.Errorf("%s: found %+v, want an error", name, got)
		}
	}
	if _, err := ParamHeaders([]byte(`{"type":"object","x-mcp-header":"A"}`)); err == nil {
		t.Error("at the root: want an error")
	}
}
