package worker

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// What the dialects read differently, or a schema must not lose.
func TestDialects(t *testing.T) {
	t.Parallel()
	const (
		new2020 = `"$schema":"https://json-schema.org/draft/2020-12/schema",`
		draft07 = `"$schema":"http://json-schema.org/draft-07/schema#",`
	)
	for _, c := range []struct {
		schema, value string
		fits          bool
	}{
		// Beside a $ref, keywords count since 2019-09.
		{`"properties":{"a":{"$ref":"#/$defs/s","minLength":2}},"$defs":{"s":{"type":"string"}}`, `{"a":"x"}`, false},
		{new2020 + `"properties":{"a":{"$ref":"#/$defs/s","minLength":2}},"$defs":{"s":{"type":"string"}}`, `{"a":"x"}`, false},
		{draft07 + `"properties":{"a":{"$ref":"#/definitions/s","minLength":2}},"definitions":{"s":{"type":"string"}}`, `{"a":"x"}`, true},
		// Tuples are prefixItems now, and a list of items before.
		{`"properties":{"a":{"prefixItems":[{"type":"string"}],"items":{"type":"integer"}}}`, `{"a":["x",1]}`, true},
		{`"properties":{"a":{"prefixItems":[{"type":"string"}],"items":{"type":"integer"}}}`, `{"a":["x","y"]}`, false},
		{draft07 + `"properties":{"a":{"items":[{"type":"string"}],"additionalItems":{"type":"integer"}}}`, `{"a":["x",1]}`, true},
		{draft07 + `"properties":{"a":{"items":[{"type":"string"}],"additionalItems":{"type":"integer"}}}`, `{"a":["x","y"]}`, false},
		// The same URI is written with and without the last character.
		{`"$schema":"http://json-schema.org/draft-07/schema","definitions":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/definitions/s","minLength":2}}`, `{"a":"x"}`, true},
		{`"$schema":"https://json-schema.org/draft/2020-12/schema#","properties":{"a":{"const":1}}`, `{"a":2}`, false},
		// Dependencies of names, and of schemas.
		{draft07 + `"dependencies":{"a":["b"]}`, `{"a":1}`, false},
		{draft07 + `"dependencies":{"a":{"required":["b"]}}`, `{"a":1,"b":1}`, true},
		{`"dependentRequired":{"a":["b"]}`, `{"a":1}`, false},
		{`"unevaluatedProperties":false,"allOf":[{"properties":{"a":true}}]`, `{"a":1,"b":1}`, false},
		// References by pointer, anchor and $id, and into the schema itself.
		{`"properties":{"a~/":{"type":"string"},"b":{"$ref":"#/properties/a~0~1"}}`, `{"b":1}`, false},
		{`"properties":{"a":{"$ref":"#k"}},"$defs":{"k":{"$anchor":"k","type":"string"}}`, `{"a":1}`, false},
		{`"$id":"https://example.com/root","properties":{"a":{"$ref":"item"}},"$defs":{"i":{"$id":"item","type":"string"}}`, `{"a":1}`, false},
		{`"properties":{"child":{"$ref":"#"},"n":{"type":"integer"}}`, `{"child":{"child":{"n":"x"}}}`, false},
		{`"properties":{"child":{"$dynamicRef":"#node"},"n":{"type":"integer"}},"$dynamicAnchor":"node"`, `{"child":{"child":{"n":"x"}}}`, false},
		// Keywords are written in one way.
		{`"Properties":{"a":false},"REQUIRED":["b"],"propertie\u017f":7,"properties":{"a":{"Type":"string","$Ref":"#/none"}}`, `{"a":1}`, true},
		// Unknown keywords say nothing, nor do annotations.
		{`"nullable":true,"x-mine":{"type":7},"discriminator":{"propertyName":"a"},"format":"email","contentEncoding":"base64"`, `{"a":1}`, true},
	} {
		text := `{"type":"object",` + c.schema + `}`
		err := parsed(t, text).validate([]byte(c.value))
		if (err == nil) != c.fits {
			t.Errorf("%s against %s: %v, want it to fit: %v", c.value, text, err, c.fits)
		}
	}
	for _, uri := range []string{
		"http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-06/schema#", "https://json-schema.org/draft/2019-09/schema",
		"http://json-schema.org/schema#", "https://example.com/mine", "x",
	} {
		_, err := inputSchema(json.RawMessage(`{"type":"object","$schema":"`+uri+`"}`), nil)
		if err == nil || !strings.Contains(err.Error(), `dialect "`+uri+`" is not supported: use draft 2020-12 or draft-07`) {
			t.Errorf("dialect %s: %v", uri, err)
		}
	}
}

func TestReferencesAreNeverFetched(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		_, _ = w.Write([]byte(`{"type":"string"}`)) // nobody asks
	}))
	defer server.Close()
	for name, schema := range map[string]string{
		"at the root":        `{"type":"object","$ref":"URL/s.json"}`,
		"within":             `{"type":"object","properties":{"a":{"items":{"$ref":"URL/s.json#/$defs/x"}}}}`,
		"by a base":          `{"type":"object","$id":"URL/root.json","properties":{"a":{"$ref":"other.json"}}}`,
		"dynamic":            `{"type":"object","properties":{"a":{"$dynamicRef":"URL/s.json#x"}}}`,
		"unused":             `{"type":"object","$defs":{"a":{"$ref":"URL/s.json"}}}`,
		"draft-07":           `{"type":"object","$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"$ref":"URL/s.json"}}}`,
		"a file":             `{"type":"object","$ref":"file:///etc/passwd"}`,
		"relative":           `{"type":"object","$ref":"other.json"}`,
		"the meta-schema":    `{"type":"object","properties":{"a":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}}`,
		"beside the network": `{"type":"object","$ref":"//127.0.0.1/x"}`,
	} {
		_, err := inputSchema(json.RawMessage(strings.ReplaceAll(schema, "URL", server.URL)), nil)
		if err == nil || !strings.Contains(err.Error(), "other documents are never fetched") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}

// doubling is a schema whose checks double n times for one value.
func doubling(n int) string {
	var b strings.Builder
	b.WriteString(`{"type":"object","$ref":"#/$defs/d0","$defs":{`)
	for i := range n {
		fmt.Fprintf(&b, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"d%d":{"type":"object"}}}`, n)
	return b.String()
}

func TestSchemaBounds(t *testing.T) {
	t.Parallel()
	nested := func(n int) string { return strings.Repeat(`{"properties":{"a":`, n) + "{}" + strings.Repeat("}}", n) }
	for name, c := range map[string]struct{ schema, want string }{
		"large":                  {`{"type":"object","description":"` + strings.Repeat("x", maxSchemaBytes) + `"}`, "the limit is 1048576"},
		"deep":                   {`{"type":"object","not":` + nested(150) + `}`, "deeper than 256 levels"},
		"deep in no keyword":     {`{"type":"object","x":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, "deeper than 256 levels"},
		"deeper than anything":   {`{"type":"object","x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`, ""},
		"itself":                 {`{"type":"object","$ref":"#"}`, "would not end"},
		"itself, by a detour":    {`{"type":"object","anyOf":[{"type":"string"},{"not":{"$ref":"#"}}]}`, "would not end"},
		"itself, unused":         {`{"type":"object","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"if":{"$ref":"#/$defs/a"}}}}`, "would not end"},
		"itself, by its id":      {`{"type":"object","properties":{"a":{"$id":"x","$ref":"#"}}}`, "would not end"},
		"itself, by an anchor":   {`{"type":"object","$anchor":"me","dependentSchemas":{"a":{"$ref":"#me"}}}`, "would not end"},
		"itself, dynamically":    {`{"type":"object","$dynamicAnchor":"me","then":{"$dynamicRef":"#me"},"if":true}`, "would not end"},
		"doubling":               {doubling(40), "more than 10000 schemas to one value"},
		"no such type":           {`{"type":"object","properties":{"a":{"type":"text"}}}`, `a type "text", which there is not`},
		"no such type in a list": {`{"type":"object","properties":{"a":{"type":["string","nil"]}}}`, `a type "nil"`},
		"no schema":              {`{"type":"object","properties":{"a":7}}`, "neither an object nor true or false"},
		"a wrong keyword":        {`{"type":"object","properties":{"a":{"minimum":"1"}}}`, `keyword "minimum" must not be a string`},
		"a wrong list":           {`{"type":"object","required":"a"}`, `keyword "required" must not be a string`},
		"lookahead":              {`{"type":"object","properties":{"a":{"pattern":"a(?!x)"}}}`, `pattern "a(?!x)" cannot be used here`},
		"a name's lookahead":     {`{"type":"object","patternProperties":{"(?=x)":{}}}`, `pattern "(?=x)" cannot be used here`},
		"repetition":             {`{"type":"object","properties":{"a":{"pattern":"((a{100}){100}){100}"}}}`, "cannot be used here"},
		"no multiple":            {`{"type":"object","properties":{"a":{"multipleOf":0}}}`, "more than 0"},
		"a pointer to nothing":   {`{"type":"object","properties":{"a":{"$ref":"#/$defs/none"}}}`, "points to nothing that is a schema"},
		"a pointer elsewhere":    {`{"type":"object","properties":{"a":{"$ref":"#/properties"}}}`, "points to nothing that is a schema"},
		"no such anchor":         {`{"type":"object","properties":{"a":{"$ref":"#none"}}}`, "anchor that is not there"},
	} {
		s, err := inputSchema(json.RawMessage(c.schema), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 400 {
			t.Errorf("%s: %v, %.200v; want it to say %s", name, s != nil, err, c.want)
		}
	}
	// What is large but not too large is used.
	for name, schema := range map[string]string{
		"deep":     `{"type":"object","not":` + nested(100) + `}`,
		"doubling": doubling(10),
		"wide":     `{"type":"object","properties":{` + wide(10_000) + `}}`,
	} {
		if _, err := inputSchema(json.RawMessage(schema), nil); err != nil {
			t.Errorf("%s: %.200v", name, err)
		}
	}
}

// wide writes n properties.
func wide(n int) string {
	properties := make([]string, n)
	for i := range properties {
		properties[i] = fmt.Sprintf(`"p%d":{"type":"string"}`, i)
	}
	return strings.Join(properties, ",")
}

// The work to check a value is bounded, whatever the schema and the value.
func TestChecksAreBounded(t *testing.T) {
	t.Parallel()
	const tree = `{"type":"object","$ref":"#/$defs/e","$defs":{"e":{"anyOf":[
		{"type":"object","required":["op"],"properties":{"op":{"const":"add"},"l":{"$ref":"#/$defs/e"},"r":{"$ref":"#/$defs/e"}}},
		{"type":"object","required":["op"],"properties":{"op":{"const":"mul"},"l":{"$ref":"#/$defs/e"},"r":{"$ref":"#/$defs/e"}}},
		{"type":"integer"}]}}}`
	expression := func(depth int) string {
		return strings.Repeat(`{"op":"mul","r":1,"l":`, depth) + "1" + strings.Repeat("}", depth)
	}
	for _, c := range []struct {
		name, schema, value string
		fits                bool
	}{
		{"an expression", tree, expression(8), true},
		{"one that takes for ever", tree, expression(60), false},
		{"many items", `{"type":"object","properties":{"a":{"items":{"type":"integer"}}}}`, `{"a":[` + strings.Repeat("1,", 400_000) + `1]}`, true},
		{"a long text", `{"type":"object","properties":{` + wide(1000) + `}}`, `{"p1":"` + strings.Repeat("x", 4<<20) + `"}`, true},
		{"many items, many checks", `{"type":"object","properties":{"a":{"items":` + doubling(10) + `}},"$defs":` + doubling(10)[len(`{"type":"object","$ref":"#/$defs/d0","$defs":`):], `{"a":[` + strings.Repeat("{},", 10_000) + `{}]}`, false},
	} {
		err := parsed(t, c.schema).validate([]byte(c.value))
		if (err == nil) != c.fits || err != nil && !strings.Contains(err.Error(), "would take more than 2000000 steps: send less") {
			t.Errorf("%s: %.300v, want it to fit: %v", c.name, err, c.fits)
		}
	}
}

// The manifest has a schema as its author wrote it, but for the space between
// tokens, which lines and events could not carry.
func TestSchemasKeepTheirBytes(t *testing.T) {
	t.Parallel()
	const (
		given = "{ \"z\":1.0, \"type\" : \"object\",\n\t\"$schema\":\"https://json-schema.org/draft/2020-12/schema\", \"a\":[1e2, -0.0, 12345678901234567890.10],\r\n" +
			`"properties":{"ż":{"default":9007199254740993,"enum":[1.50,"<&>\u2028\/"],"x-k":null},"b":{"$comment":"  two  spaces  "},"a":true},"required":["b","ż"],"Type":7,"type2":"object"}`
		want = `{"z":1.0,"type":"object","$schema":"https://json-schema.org/draft/2020-12/schema","a":[1e2,-0.0,12345678901234567890.10],` +
			`"properties":{"ż":{"default":9007199254740993,"enum":[1.50,"<&>\u2028\/"],"x-k":null},"b":{"$comment":"  two  spaces  "},"a":true},"required":["b","ż"],"Type":7,"type2":"object"}`
	)
	tool, err := Tool{Name: "t", InputSchema: json.RawMessage(given), OutputSchema: json.RawMessage(given)}.build(nil, nil)
	if err != nil || tool.problem != "" {
		t.Fatal(err, tool.problem)
	}
	if got := string(tool.entry.GetDefinition()); got != `{"name":"t","inputSchema":`+want+`,"outputSchema":`+want+`}` {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A member of type any is {}, not true, which old clients cannot read.
func TestAnyMemberIsAnObject(t *testing.T) {
	t.Parallel()
	type loose struct {
		A any             `json:"a"`
		B json.RawMessage `json:"b" jsonschema:"raw"`
		C map[string]any  `json:"c"`
	}
	const want = `{"type":"object","properties":{"a":{},"b":{"description":"raw"},"c":{"type":"object","additionalProperties":true}},"required":["a","b","c"],"additionalProperties":false}`
	if got := string(inferred[loose](t).raw); got != want && got != strings.Replace(want, `"additionalProperties":true`, `"additionalProperties":{}`, 1) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
