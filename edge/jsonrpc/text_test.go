package jsonrpc

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestString(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`""`: "", `"a"`: "a", `"\"\\\/\b\f\n\r\t"`: "\"\\/\b\f\n\r\t", `"\u0000\u00e9\u20AC"`: "\x00é€",
		`"x\ud83d\ude00y"`: "x😀y", `"zażółć 😀"`: "zażółć 😀", `"\u2028"`: "\u2028", `"\uFFFF\ufffd"`: "\uffff\ufffd",
	} {
		if got, ok := String([]byte(raw)); !ok || got != want {
			t.Errorf("%s: %q %v", raw, got, ok)
		}
	}
	for _, raw := range []string{``, `"`, `a`, `1`, `null`, `"a" `, ` "a"`, `"a"b`, `"\"`, `"\ud800"`, "\"\xff\"", "\"\n\"", `["a"]`} {
		if got, ok := String([]byte(raw)); ok || got != "" {
			t.Errorf("%s: %q", raw, got)
		}
	}
}

func TestAppendString(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": `""`, "a/b<>&'": `"a/b<>&'"`, "\"\\": `"\"\\"`, "\b\f\n\r\t": `"\b\f\n\r\t"`, "\x00\x1f\x0b\x7f": "\"\\u0000\\u001f\\u000b\x7f\"",
		"a\u2028b\u2029\u0085": "\"a\\u2028b\\u2029\u0085\"", "é😀": `"é😀"`, "\xffa\xc3": "\"\ufffda\ufffd\"", "\xed\xa0\x80": "\"\ufffd\ufffd\ufffd\"", "\ufffd": "\"\ufffd\"",
	} {
		got := AppendString([]byte("x"), text)
		if string(got) != "x"+want || string(Quote(text)) != want {
			t.Errorf("%q: %s", text, got)
		}
		if !json.Valid(got[1:]) {
			t.Errorf("%q: %s is not JSON", text, got)
		}
	}
}

func TestAppendOneLine(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"": "", "{}": "{}", "{\r\n \"a\\n\" :\r1\n\n}\n": `{ "a\n" :1}`, "\r\r": "", "\n1\r": "1", "[1,\n2]": "[1,2]",
	} {
		if got := AppendOneLine([]byte(">"), []byte(raw)); string(got) != ">"+want {
			t.Errorf("%q: %q", raw, got)
		}
	}
}

func TestAppendMessages(t *testing.T) {
	t.Parallel()
	fault := &Error{Code: -32602, Message: "a \"b\"\n", Data: []byte(`{"x":1e400}`), ID: []byte("9")}
	for _, c := range []struct{ got, want string }{
		{string(AppendResult(nil, []byte(`1e3`), []byte(`{"a":1}`))), `{"jsonrpc":"2.0","id":1e3,"result":{"a":1}}`},
		{string(AppendResult(nil, []byte(`""`), nil)), `{"jsonrpc":"2.0","id":"","result":{}}`},
		{string(AppendError(nil, []byte(`"1"`), fault)), `{"jsonrpc":"2.0","id":"1","error":{"code":-32602,"message":"a \"b\"\n","data":{"x":1e400}}}`},
		{string(AppendError([]byte(" "), nil, &Error{Code: 1})), ` {"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}`},
		{string(AppendErrorWithoutID(nil, &Error{Code: 1})), `{"jsonrpc":"2.0","error":{"code":1,"message":""}}`},
		{string(AppendRequest(nil, []byte("1"), "a/b", nil)), `{"jsonrpc":"2.0","id":1,"method":"a/b"}`},
		{string(AppendRequest(nil, []byte("1"), "a", []byte("{}"))), `{"jsonrpc":"2.0","id":1,"method":"a","params":{}}`},
		{string(AppendNotification(nil, "a", nil)), `{"jsonrpc":"2.0","method":"a"}`},
		{string(AppendNotification(nil, "a", []byte(`{"b":1.0}`))), `{"jsonrpc":"2.0","method":"a","params":{"b":1.0}}`},
	} {
		if c.got != c.want {
			t.Errorf("got  %s\nwant %s", c.got, c.want)
		}
		if _, err := Decode([]byte(c.got), Limits{}); err != nil {
			t.Errorf("%s: %v", c.got, err)
		}
	}
}

func TestParseObject(t *testing.T) {
	t.Parallel()
	o, err := ParseObject([]byte(" {\"a\" : 1.0 ,\n\"_meta\":5, \"\\u0062\":{\"a\":[]} } "))
	if err != nil || len(o.Members) != 3 || string(o.Get("a")) != "1.0" || string(o.Get("b")) != `{"a":[]}` || string(o.Get("_meta")) != "5" {
		t.Fatalf("%+v %v", o, err)
	}
	if o, err := ParseObject([]byte("{ }")); err != nil || string(o.Raw) != "{ }" || len(o.Members) != 0 {
		t.Errorf("%+v %v", o, err)
	}
	for raw, code := range map[string]int{
		``: CodeParse, `{`: CodeParse, `{}x`: CodeParse, `[1,]`: CodeParse, `[]`: CodeInvalidRequest, `null`: CodeInvalidRequest,
		`{"a":1,"\u0061":1}`: CodeInvalidRequest, `{"a":` + strings.Repeat("[", 512) + strings.Repeat("]", 512) + `}`: CodeInvalidRequest,
	} {
		o, err := ParseObject([]byte(raw))
		var e *Error
		if !errors.As(err, &e) || e.Code != code || o.Raw != nil {
			t.Errorf("%.40s: %v", raw, err)
		}
	}
}

func TestSplice(t *testing.T) {
	t.Parallel()
	got := AppendObject(nil, Member{"a", nil}, Member{"b\n", []byte("1.0")}, Member{"c", []byte("{}")}, Member{"d", nil})
	if string(got) != `{"b\n":1.0,"c":{}}` {
		t.Errorf("%s", got)
	}
	if got := AppendObject([]byte("["), Member{"a", nil}); string(got) != "[{}" {
		t.Errorf("%s", got)
	}
	raw := []byte(`{ "a" : 1.0, "b": [ ], "\u0063" : "x" }`)
	for _, c := range []struct {
		keys []string
		want string
	}{
		{nil, string(raw)}, {[]string{"x"}, string(raw)}, {[]string{"a"}, `{"b":[ ],"c":"x"}`}, {[]string{"c", "a", "b"}, `{}`},
	} {
		if got, err := Without(raw, c.keys...); err != nil || string(got) != c.want {
			t.Errorf("%v: %s %v", c.keys, got, err)
		}
	}
	if _, err := Without([]byte(`{"a":1,"a":2}`), "a"); err == nil {
		t.Error("Without accepts duplicates")
	}
}
