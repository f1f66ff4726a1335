package worker

import (
	"encoding/json"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"
)

type address struct {
	City string `json:"city"`
	Zip  string `json:"zip,omitempty"`
}

type order struct {
	Slug  string   `json:"slug"`
	Count int      `json:"count,omitempty" jsonschema:"how many"`
	Tags  []string `json:"tags,omitempty"`
	To    *address `json:"to,omitempty"`
	Ratio float64  `json:"ratio,omitempty"`
	Gift  bool     `json:"gift,omitempty"`
}

func inferred[T any](t *testing.T) *schema {
	t.Helper()
	s, err := inputSchema(nil, reflect.TypeFor[T]())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func parsed(t *testing.T, text string) *schema {
	t.Helper()
	s, err := parseSchema(json.RawMessage(text), arguments)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestInferredSchema(t *testing.T) {
	t.Parallel()
	const want = `{"type":"object","properties":{"slug":{"type":"string"},"count":{"type":"integer","description":"how many"},` +
		`"tags":{"type":["null","array"],"items":{"type":"string"}},"to":{"type":["null","object"],"properties":{"city":{"type":"string"},` +
		`"zip":{"type":"string"}},"required":["city"],"additionalProperties":false},"ratio":{"type":"number"},"gift":{"type":"boolean"}},` +
		`"required":["slug"],"additionalProperties":false}`
	if got := inferred[order](t); string(got.raw) != want {
		t.Errorf("schema of order:\n%s\nwant\n%s", got.raw, want)
	}
	if got := inferred[*order](t); string(got.raw) != want {
		t.Errorf("a pointer changes the schema:\n%s", got.raw)
	}
	if got := inferred[struct{}](t); string(got.raw) != `{"type":"object","additionalProperties":false}` {
		t.Errorf("schema of struct{}: %s", got.raw)
	}
}

// The schema of what a tool returns has no null for slices.
func TestInferredOutputSchema(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		out  reflect.Type
		want string
	}{
		{reflect.TypeFor[order](), `"tags":{"type":"array","items":{"type":"string"}},"to":{"type":["null","object"]`},
		{reflect.TypeFor[[][]int](), `{"type":"array","items":{"type":"array","items":{"type":"integer"}}}`},
		{reflect.TypeFor[*map[string][]int](), `{"type":"object","additionalProperties":{"type":"array","items":{"type":"integer"}}}`},
		{reflect.TypeFor[struct{ P *[]int }](), `"P":{"type":["null","array"]`},
		{reflect.TypeFor[struct{ P **[2]int }](), `"P":{"type":["null","array"]`},
	} {
		s, err := outputSchema(nil, c.out)
		if err != nil || !strings.Contains(string(s.raw), c.want) {
			t.Errorf("%v: %v, want %s", c.out, err, c.want)
			if s != nil {
				t.Error(string(s.raw))
			}
		}
	}
}

// Types whose JSON is of another kind than their Go kind.
func TestInferredSchemaOfSpecialTypes(t *testing.T) {
	t.Parallel()
	type special struct {
		Raw  json.RawMessage `json:"raw"`
		Num  json.Number     `json:"num"`
		Big  *big.Int        `json:"big"`
		Data []byte          `json:"data"`
		At   time.Time       `json:"at"`
	}
	s := inferred[special](t)
	args := `{"raw":{"a":[1]},"num":1.50,"big":123456789012345678901234567890,"data":"aGk=","at":"2030-01-02T03:04:05Z"}`
	if err := s.validate([]byte(args)); err != nil {
		t.Fatal(err)
	}
	var in special
	if err := decodeArguments(newCodec(), json.RawMessage(args), &in); err != nil {
		t.Fatal(err)
	}
	out, err := newCodec().marshal(in)
	if err != nil || string(out) != args {
		t.Errorf("came back as %s, %v", out, err)
	}
}

func TestInputSchemaMistakes(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		`{"properties":{}}`:                       `"type":"object"`,
		`{"type":"string"}`:                       `"type":"object"`,
		`{"type":["object","null"]}`:              `"type":"object"`,
		`null`:                                    "must be a JSON object",
		`true`:                                    "must be a JSON object",
		`{"type":"object"`:                        "not valid JSON",
		`{"type":"object","type":"object"}`:       "not valid JSON",
		`{"type":"object","$ref":"https://x/y"}`:  "x/y",
		`{"type":"object","$schema":"urn:other"}`: `dialect "urn:other"`,
		`{"type":"object","pattern":"("}`:         "missing closing",
	} {
		_, err := inputSchema(json.RawMessage(given), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("inputSchema(%s): %v, want it to say %s", given, err, want)
		}
	}
	for _, in := range []reflect.Type{reflect.TypeFor[string](), reflect.TypeFor[[]int](), reflect.TypeFor[any](), reflect.TypeFor[struct{ C chan int }]()} {
		if _, err := inputSchema(nil, in); err == nil {
			t.Errorf("inputSchema of %v is no error", in)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	const bounds = `{"type":"object","properties":{
		"s":{"type":"string","minLength":2,"maxLength":3,"pattern":"^[a-z]*$"},
		"n":{"type":"integer","minimum":1,"maximum":50},
		"x":{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1},
		"l":{"type":"array","minItems":1,"maxItems":2,"items":{"type":"integer"}},
		"lang":{"enum":["pl","en",null]}, "k":{"const":7},
		"either":{"anyOf":[{"type":"string"},{"type":"integer"}]},
		"deep":{"$ref":"#/$defs/d"}},
		"$defs":{"d":{"type":"object","required":["a"],"properties":{"b":{"$ref":"#/$defs/d"}}}},
		"additionalProperties":{"type":"boolean"}}`
	closed, open := inferred[order](t), parsed(t, bounds)
	for _, c := range []struct {
		schema     *schema
		args, want string
	}{
		{closed, `{}`, `missing required property "slug"`},
		{closed, `{"slug":5}`, `property "slug" must be a string, not an integer`},
		{closed, `{"slug":null}`, `property "slug" must be a string, not null`},
		{closed, `{"Slug":"a"}`, `missing required property "slug"; unknown property "Slug" (known: "slug", "count", "tags", "to", "ratio", "gift")`},
		{closed, `{"slug":"a","count":1.5,"gift":"yes"}`, `property "count" must be an integer, not a number; property "gift" must be a boolean, not a string`},
		{closed, `{"slug":"a","tags":["x",3]}`, `property "tags[1]" must be a string, not an integer`},
		{closed, `{"slug":"a","to":{"zip":"1"}}`, `missing required property "to.city"`},
		{closed, `{"slug":"a","to":7}`, `property "to" must be an object or null, not an integer`},
		{closed, `[]`, `the arguments must be an object, not an array`},
		{closed, `{`, `the arguments must be valid JSON`},
		{closed, `{"slug":"a","slug":"b"}`, `the arguments must be valid JSON`},
		{inferred[struct{}](t), `{"a":1}`, `unknown property "a" (there are no properties)`},
		{open, `{"s":"a"}`, `property "s" must have at least 2 characters`},
		{open, `{"s":"żółw"}`, `property "s" must have at most 3 characters; property "s" must match the pattern ^[a-z]*$`},
		{open, `{"n":0}`, `property "n" must be at least 1`},
		{open, `{"n":51}`, `property "n" must be at most 50`},
		{parsed(t, `{"type":"object","properties":{"n":{"maximum":9007199254740992}}}`), `{"n":9007199254740993}`, `property "n" must be at most 9007199254740992`},
		{open, `{"x":0}`, `property "x" must be more than 0`},
		{open, `{"x":1}`, `property "x" must be less than 1`},
		{open, `{"l":[]}`, `property "l" must have at least 1 item`},
		{open, `{"l":[1,2,3]}`, `property "l" must have at most 2 items`},
		{open, `{"lang":"de"}`, `property "lang" must be one of "pl", "en", null`},
		{open, `{"k":8}`, `property "k" must be 7`},
		{open, `{"other":1}`, `property "other" must be a boolean, not an integer`},
		{open, `{"deep":{"a":1,"b":{}}}`, `missing required property "deep.b.a"`},
		{open, `{"either":true}`, `property "either" fits none of the alternatives of its schema`},
		{parsed(t, `{"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]}`), `{"a":1,"b":1}`, `the arguments must fit exactly one of the alternatives of its schema`},
		{parsed(t, `{"type":"object","properties":{"a":{"not":{"type":"string"}}}}`), `{"a":""}`, `property "a" is excluded by its schema`},
		{parsed(t, `{"type":"object","minProperties":1}`), `{}`, `the arguments does not fit its schema: minProperties: object has 0 properties, less than 1`},
	} {
		err := c.schema.validate([]byte(c.args))
		if err == nil || err.Error() != c.want {
			t.Errorf("%s:\n got %v\nwant %s", c.args, err, c.want)
		}
	}
}

// A message stays short whatever the client sends.
func TestExplainIsBounded(t *testing.T) {
	t.Parallel()
	args := map[string]any{strings.Repeat("ż", 10_000): 1}
	for i := range 1000 {
		args["x"+strings.Repeat("y", i)] = i
	}
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	text := inferred[order](t).validate(raw).Error()
	if len(text) > 2000 || !strings.HasSuffix(text, "; and more") {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

func TestNumbersBeyondFloat64(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		schema, value string
		fits          bool
	}{
		{`{"type":"integer"}`, `9007199254740993`, true},
		{`{"type":"integer"}`, `123456789012345678901234567890`, true},
		{`{"type":"integer"}`, `1e400`, true},
		{`{"type":"integer"}`, `1.0`, true},
		{`{"type":"integer"}`, `1.00000000000000000001`, false},
		{`{"type":"integer"}`, `1e-400`, false},
		{`{"type":"string"}`, `9007199254740993`, false},
		{`{"const":9007199254740993}`, `9007199254740993`, true},
		{`{"const":9007199254740993}`, `9007199254740992`, false},
		{`{"enum":[1,9007199254740993]}`, `9007199254740992`, false},
		{`{"items":{"enum":[9007199254740993]}}`, `[9007199254740993]`, true},
		{`{"anyOf":[{"const":9007199254740993},{"const":1}]}`, `9007199254740993`, true},
		{`{"properties":{"a":{"const":9007199254740993}}}`, `{"a":9007199254740992}`, false},
		{`{"maximum":9007199254740992}`, `9007199254740993`, false},
		{`{"maximum":1}`, `1.00000000000000000001`, false},
		{`{"exclusiveMaximum":1}`, `0.99999999999999999999`, true},
		{`{"uniqueItems":true}`, `[9007199254740993,9007199254740992]`, true},
		{`{"uniqueItems":true}`, `[1,1.0]`, false},
	} {
		err := parsed(t, c.schema).validate([]byte(c.value))
		if (err == nil) != c.fits {
			t.Errorf("%s against %s: %v", c.value, c.schema, err)
		}
	}
}

func TestDecodeArguments(t *testing.T) {
	t.Parallel()
	type target struct {
		I int64     `json:"i"`
		U uint64    `json:"u"`
		F float64   `json:"f"`
		T time.Time `json:"t"`
	}
	var in target
	if err := decodeArguments(newCodec(), json.RawMessage(`{"i":9007199254740993,"u":18446744073709551615,"f":0.1}`), &in); err != nil ||
		in.I != 9007199254740993 || in.U != 18446744073709551615 || in.F != 0.1 {
		t.Errorf("%+v, %v", in, err)
	}
	in = target{}
	if err := decodeArguments(newCodec(), json.RawMessage(`{"i":9007199254740993.0,"u":1e2,"f":1.0}`), &in); err != nil ||
		in.I != 9007199254740993 || in.U != 100 || in.F != 1 {
		t.Errorf("%+v, %v", in, err)
	}
	// A name in another case is another member.
	in = target{}
	if err := decodeArguments(newCodec(), json.RawMessage(`{"i":1,"I":2}`), &in); err != nil || in.I != 1 {
		t.Errorf("%+v, %v", in, err)
	}
	for args, want := range map[string]string{
		`{"i":9223372036854775808}`: `invalid arguments: property "i" is out of range`,
		`{"i":1e300}`:               `invalid arguments: property "i" has a value that cannot be read`,
		`{"t":"yesterday"}`:         `invalid arguments: property "t" must be a date and time as in RFC 3339`,
	} {
		if err := decodeArguments(newCodec(), json.RawMessage(args), &in); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}
