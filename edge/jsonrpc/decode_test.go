package jsonrpc

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// refused decodes a message that must not be accepted.
func refused(t *testing.T, data string, l Limits) *Error {
	t.Helper()
	m, err := Decode([]byte(data), l)
	if err == nil {
		t.Fatalf("accepted %.120s as %+v", data, m)
	}
	if err.Message == "" {
		t.Fatalf("%.120s: no text", data)
	}
	return err
}

func accepted(t *testing.T, data string) Message {
	t.Helper()
	m, err := Decode([]byte(data), Limits{})
	if err != nil {
		t.Fatalf("%.200s: %v", data, err)
	}
	return m
}

// Cases B01 and B02: every legal id is kept as its token, every other id makes
// an invalid request, never a notification.
func TestIDs(t *testing.T) {
	t.Parallel()
	for _, id := range []string{
		`0`, `-0`, `-1`, `1`, `"1"`, `""`, `"007"`, `"\u0061"`, `"zażółć"`, `"\ud83d\ude00"`,
		`9007199254740993`, `-9223372036854775809`, `123456789012345678901234567890`,
		`3100.0`, `1e3`, `1E+3`, `1.5e1`, `1500e-2`, `10e-1`, `0e-5`, `0.00`, `0.0e-3`, `-0.0`, `1e999999999999`, `0e-99999999999999999999`,
	} {
		for _, format := range []string{
			`{"jsonrpc":"2.0","id":%s,"method":"tools/list"}`,
			`{"method":"tools/list","jsonrpc":"2.0","id" : %s }`,
			"{\"\\u0069d\":\n%s,\"method\":\"tools/list\",\"jsonrpc\":\"2.0\"}",
		} {
			data := fmt.Sprintf(format, id)
			m := accepted(t, data)
			if m.Kind() != Request || string(m.ID) != id {
				t.Errorf("%s: %v with id %s", data, m.Kind(), m.ID)
			}
		}
	}
	for _, id := range []string{
		`null`, `true`, `false`, `[1]`, `[]`, `{"a":1}`, `1.5`, `-0.1`, `1e-1`, `10e-2`, `0.01e1`, `1e-999999999999`, `100.001`,
	} {
		data := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/list"}`, id)
		if err := refused(t, data, Limits{}); err.Code != CodeInvalidRequest || err.ID != nil {
			t.Errorf("%s: %v, id %s", data, err, err.ID)
		}
	}
}

// Case B05.
func TestLookAlikesAndDuplicates(t *testing.T) {
	t.Parallel()
	for _, other := range []string{
		`"Method":"tools/call"`, `"METHOD":"tools/call"`, `"method\u0000":"tools/call"`, `"param\u017f":{"name":"danger"}`,
		`"PARAMS":{"name":"danger"}`, `"Id":2`, `"I\u0044":2`, `"result ":1`, `"Error":1`, `"":1`, `"\u004dethod":"x"`,
	} {
		m := accepted(t, `{"jsonrpc":"2.0",`+other+`,"id":1,"method":"ping","params":{"name":"echo","Name":"danger"}}`)
		if m.Method != "ping" || string(m.ID) != "1" || string(m.Params.Get("name")) != `"echo"` || m.Kind() != Request {
			t.Errorf("%s: %+v", other, m)
		}
	}
	if err := refused(t, `{"jsonrpc":"2.0","id":1,"METHOD":"ping"}`, Limits{}); err.Code != CodeInvalidRequest || string(err.ID) != "1" {
		t.Errorf("only METHOD: %v", err)
	}
	for _, data := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"tools/call"}`,
		`{"jsonrpc":"2.0","id":1,"\u006d\u0065thod":"ping","m\u0065thod":"tools/call"}`,
		`{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"ping"}`,
		`{"jsonrpc":"2.0","method":"ping","params":{"a":1,"b":2,"a":3},"id":1}`,
		`{"jsonrpc":"2.0","method":"ping","params":{"x":[{"y":{"é":1,"\u00e9":2}}]},"id":1}`,
		`{"jsonrpc":"2.0","method":"ping","params":{"_meta":{"a":1,"a":2}},"id":1}`,
		`{"jsonrpc":"2.0","method":"ping","params":{},"params":{},"id":1}`,
		`{"jsonrpc":"2.0","method":"ping","x":{"😀":1,"\ud83d\ude00":2},"id":1}`,
		`{"jsonrpc":"2.0","method":"ping","x":1,"x":2,"params":[[[{"unseen":{}}]]],"id":1}`,
		`{"x":1,"x":2,"id":1}`,
	} {
		if err := refused(t, data, Limits{}); err.Code != CodeInvalidRequest || string(err.ID) != "1" || !strings.Contains(err.Message, "twice") {
			t.Errorf("%s: %v, id %s", data, err, err.ID)
		}
	}
	for _, data := range []string{
		`{"jsonrpc":"2.0","id":1,"id":1,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":1,"method":"ping","\u0069d":2}`,
		`{"id":true,"jsonrpc":"2.0","id":1,"method":"ping","id":3}`,
	} {
		if err := refused(t, data, Limits{}); err.Code != CodeInvalidRequest || err.ID != nil {
			t.Errorf("%s: %v, id %s", data, err, err.ID)
		}
	}
	// The same name in different objects is no duplicate.
	accepted(t, `{"jsonrpc":"2.0","id":1,"method":"m","params":{"id":{"id":1},"a":[{"id":1},{"id":1}],"method":1}}`)
}

// Duplicates are found on both sides of the step from comparing to hashing,
// also when tables are used again.
func TestDuplicateAtEveryPosition(t *testing.T) {
	t.Parallel()
	object := func(n, same int) string {
		var b strings.Builder
		b.WriteString(`{`)
		for i := range n {
			fmt.Fprintf(&b, `"k%d":%d,"esc\u0041%d":0,`, i, i, i)
		}
		if same >= 0 {
			fmt.Fprintf(&b, `"\u006b%d":1`, same)
		} else {
			b.WriteString(`"end":1`)
		}
		return b.String() + `}`
	}
	for _, n := range []int{1, 7, 8, 9, 16, 17, 33, 100} {
		if err := Validate([]byte("["+object(n, -1)+","+object(n, -1)+"]"), Limits{}); err != nil {
			t.Fatalf("%d: %v", n, err)
		}
		for same := range n {
			if err := Validate([]byte("["+object(n, -1)+","+object(n, same)+"]"), Limits{}); err == nil || err.Code != CodeInvalidRequest {
				t.Fatalf("%d members, %d twice: %v", n, same, err)
			}
		}
	}
}

// Case B07: one limit, stated in the answer; any depth is scanned to the end.
func TestDepth(t *testing.T) {
	t.Parallel()
	nested := func(levels int) string {
		return `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo","arguments":` +
			strings.Repeat(`{"x":`, levels) + "1" + strings.Repeat("}", levels) + `},"id":7}`
	}
	for _, levels := range []int{60, 126, 500, 510} { // the message and params make 512
		if m := accepted(t, nested(levels)); string(m.ID) != "7" {
			t.Errorf("%d levels: %+v", levels, m)
		}
	}
	for _, levels := range []int{511, 9990, 100_000} {
		err := refused(t, nested(levels), Limits{})
		if err.Code != CodeInvalidRequest || string(err.ID) != "7" || !strings.Contains(err.Message, "512") {
			t.Errorf("%d levels: %v, id %s", levels, err, err.ID)
		}
	}
	mixed := `{"id":7,"x":` + strings.Repeat(`[{"a":`, 300) + "1" + strings.Repeat("}]", 300) + `}`
	if err := refused(t, mixed, Limits{}); err.Code != CodeInvalidRequest || string(err.ID) != "7" {
		t.Errorf("mixed: %v", err)
	}
	wrong := `{"id":7,"x":` + strings.Repeat(`[{"a":`, 300) + "1" + strings.Repeat("}]", 299) + `]}}`
	if err := refused(t, wrong, Limits{}); err.Code != CodeParse || string(err.ID) != "7" {
		t.Errorf("mixed up: %v", err)
	}
	if err := refused(t, `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":{}}}`, Limits{MaxDepth: 2}); !strings.Contains(err.Message, "2 levels") {
		t.Error(err)
	}
	// 4 MiB of open brackets.
	if err := refused(t, `{"id":1,"x":`+strings.Repeat("[", 4<<20), Limits{}); err.Code != CodeParse || string(err.ID) != "1" {
		t.Error(err)
	}
}

// A million names cost a few hashes each, not a million comparisons: this test
// would not end otherwise.
func TestMillionMembers(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	b.WriteString(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"arguments":{`)
	for i := range 1_000_000 {
		fmt.Fprintf(&b, `"%06x":1,`, i)
	}
	ok := b.String() + `"end":1}}}`
	if m := accepted(t, ok); m.Method != "m" {
		t.Fatal(m.Method)
	}
	twice := b.String() + `"07a120":1}}}`
	if err := refused(t, twice, Limits{}); err.Code != CodeInvalidRequest || string(err.ID) != "1" {
		t.Fatal(err)
	}
}

// Case B04.
func TestNumbersUntouched(t *testing.T) {
	t.Parallel()
	args := `{"a":9007199254740993,"b":9223372036854775807,"c":1.10,"d":-0.0,"e":1e2,"f":0.30000000000000004,"g":123456789012345678901234567890}`
	m := accepted(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":`+args+`}}`)
	if got := m.Params.Get("arguments"); string(got) != args {
		t.Errorf("got %s", got)
	}
	o, err := ParseObject(m.Params.Get("arguments"))
	if err != nil {
		t.Fatal(err)
	}
	if got := AppendObject(nil, o.Members...); string(got) != args {
		t.Errorf("spliced %s", got)
	}
}

func TestMessage(t *testing.T) {
	t.Parallel()
	data := `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"n","arguments":{"x":[1,{"y":null}]},"_meta":{"progressToken":7,"k\u0065y":"v"}},"extra":[]}`
	m := accepted(t, data)
	if m.Kind() != Request || m.Method != "tools/call" || string(m.ID) != `"a"` ||
		string(m.Params.Get("name")) != `"n"` || string(m.Params.Get("arguments")) != `{"x":[1,{"y":null}]}` ||
		len(m.Params.Members) != 3 || string(m.Meta.Get("progressToken")) != "7" || string(m.Meta.Get("key")) != `"v"` ||
		string(m.Meta.Raw) != string(m.Params.Get("_meta")) || m.Params.Get("absent") != nil ||
		!strings.HasPrefix(string(m.Params.Raw), `{"name"`) || !strings.HasSuffix(string(m.Params.Raw), `}}`) {
		t.Errorf("%+v", m)
	}
	m = accepted(t, "\r\n\t {\"jsonrpc\":\"2\\u002e0\",\"method\":\"tools\\/list\",\"params\":{}} \n")
	if m.Kind() != Notification || m.Method != "tools/list" || string(m.Params.Raw) != "{}" || m.Meta.Raw != nil {
		t.Errorf("%+v", m)
	}
	m = accepted(t, `{"jsonrpc":"2.0","method":"m"}`)
	if m.Kind() != Notification || m.Params.Raw != nil {
		t.Errorf("%+v", m)
	}
	m = accepted(t, `{"jsonrpc":"2.0","id":1,"result":{"a":[]}}`)
	if m.Kind() != Response || string(m.Result) != `{"a":[]}` || string(m.ID) != "1" || m.Error != nil {
		t.Errorf("%+v", m)
	}
	for _, id := range []string{`"id":1,`, `"id":null,`, ``} {
		m = accepted(t, `{"jsonrpc":"2.0",`+id+`"error":{"code":-1,"message":""}}`)
		if m.Kind() != Response || m.Error == nil || (m.ID != nil) != (id == `"id":1,`) {
			t.Errorf("%s %+v", id, m)
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	const head = `{"jsonrpc":"2.0","id":8,`
	for _, c := range []struct {
		data string
		code int
		id   string // "" = none
	}{
		// Text that is no JSON: only an id that was read before.
		{``, CodeParse, ""},
		{" \n", CodeParse, ""},
		{`not json`, CodeParse, ""},
		{`[`, CodeParse, ""},
		{`Content-Length: 10`, CodeParse, ""},
		{strings.Repeat("\x00", 64), CodeParse, ""},
		{"\xef\xbb\xbf" + head + `"method":"m"}`, CodeParse, ""},
		{`{"jsonrpc`, CodeParse, ""},
		{`{"jsonrpc":"2.0","id":12`, CodeParse, ""},
		{`{"jsonrpc":"2.0","id":"12`, CodeParse, ""},
		{`{"jsonrpc":"2.0","id":12,`, CodeParse, "12"},
		{`{"jsonrpc":"2.0","id":1,"method":`, CodeParse, "1"},
		{`{"jsonrpc":"2.0","id":5,"method":"ping"}{`, CodeParse, "5"},
		{`{"method":"ping",}`, CodeParse, ""},
		{`{"method":"ping" "id":5}`, CodeParse, ""},
		{`{"method":x,"id":5}`, CodeParse, ""},
		{head + `"a":01}`, CodeParse, "8"},
		{head + `"a":+1}`, CodeParse, "8"},
		{head + `"a":1.}`, CodeParse, "8"},
		{head + `"a":.5}`, CodeParse, "8"},
		{head + `"a":1e}`, CodeParse, "8"},
		{head + `"a":-}`, CodeParse, "8"},
		{head + `"a":NaN}`, CodeParse, "8"},
		{head + `"a":nul}`, CodeParse, "8"},
		{head + `"a":[1,]}`, CodeParse, "8"},
		{head + `"a":[1}}`, CodeParse, "8"},
		{head + `"a":{"b":1]}`, CodeParse, "8"},
		{head + `a:1}`, CodeParse, "8"},
		{head + `'a':1}`, CodeParse, "8"},
		{head + `"a" 1}`, CodeParse, "8"},
		{head + "\"a\":\"tab\there\"}", CodeParse, "8"},
		{head + "\"a\":\"nul\x00\"}", CodeParse, "8"},
		{head + "\"a\":\"line\nbreak\"}", CodeParse, "8"},
		{head + `"a":"\x41"}`, CodeParse, "8"},
		{head + `"a":"\u00g0"}`, CodeParse, "8"},
		{head + `"a":"\u12"}`, CodeParse, "8"},
		{head + "\"a\":\"\xff\"}", CodeParse, "8"},
		{head + "\"a\":\"\xc0\xaf\"}", CodeParse, "8"},
		{head + "\"a\":\"\xed\xa0\x80\"}", CodeParse, "8"},
		{head + "\"a\xf5\":1}", CodeParse, "8"},
		{head + `"a":"\ud800"}`, CodeParse, "8"},
		{head + `"a":"\udc00"}`, CodeParse, "8"},
		{head + `"a":"\ud800\u0041"}`, CodeParse, "8"},
		{head + `"a":"\ud800\ud800"}`, CodeParse, "8"},
		{head + `"\udead":1}`, CodeParse, "8"},
		{head + `"a":1/*c*/}`, CodeParse, "8"},
		{head + "\"a\":\u00a01}", CodeParse, "8"},
		// Broken text wins over the faults that came before it.
		{head + `"a":1,"a":2,`, CodeParse, "8"},
		{`[1,2`, CodeParse, ""},
		// JSON that is no JSON-RPC.
		{`"x"`, CodeInvalidRequest, ""},
		{`42`, CodeInvalidRequest, ""},
		{`null`, CodeInvalidRequest, ""},
		{`[]`, CodeInvalidRequest, ""},
		{`[` + head + `"method":"m"}]`, CodeInvalidRequest, ""},
		{`{}`, CodeInvalidRequest, ""},
		{head + `"x":1}`, CodeInvalidRequest, "8"},
		{`{"jsonrpc":"1.0","id":8,"method":"ping"}`, CodeInvalidRequest, "8"},
		{`{"jsonrpc":2.0,"id":8,"method":"ping"}`, CodeInvalidRequest, "8"},
		{`{"jsonrpc":"2.0 ","id":8,"method":"ping"}`, CodeInvalidRequest, "8"},
		{`{"jsonrpc":null,"id":8,"method":"ping"}`, CodeInvalidRequest, "8"},
		{`{"id":8,"method":"ping"}`, CodeInvalidRequest, "8"},
		{head + `"method":7}`, CodeInvalidRequest, "8"},
		{head + `"method":null}`, CodeInvalidRequest, "8"},
		{head + `"method":["ping"]}`, CodeInvalidRequest, "8"},
		{head + `"method":"m","result":1}`, CodeInvalidRequest, "8"},
		{head + `"method":"m","error":{}}`, CodeInvalidRequest, "8"},
		{head + `"result":1,"error":{}}`, CodeInvalidRequest, "8"},
		{head + `"error":1}`, CodeInvalidRequest, "8"},
		{head + `"error":null}`, CodeInvalidRequest, "8"},
		{`{"jsonrpc":"2.0","result":1}`, CodeInvalidRequest, ""},
		{`{"jsonrpc":"2.0","id":null,"result":1}`, CodeInvalidRequest, ""},
		{`{"jsonrpc":"2.0","id":true,"error":{}}`, CodeInvalidRequest, ""},
		// Case B09: params.
		{head + `"method":"tools/call","params":null}`, CodeInvalidParams, "8"},
		{head + `"method":"tools/call","params":["echo"]}`, CodeInvalidParams, "8"},
		{head + `"method":"tools/call","params":"x"}`, CodeInvalidParams, "8"},
		{head + `"method":"tools/call","params":0}`, CodeInvalidParams, "8"},
		{head + `"method":"tools/call","params":{"_meta":null}}`, CodeInvalidParams, "8"},
		{head + `"method":"tools/call","params":{"_meta":[{}]}}`, CodeInvalidParams, "8"},
		{`{"params":[],"jsonrpc":"2.0","method":"m","id":8}`, CodeInvalidParams, "8"},
		{`{"jsonrpc":"2.0","method":"notifications/x","params":[]}`, CodeInvalidParams, ""},
	} {
		err := refused(t, c.data, Limits{})
		if err.Code != c.code || string(err.ID) != c.id {
			t.Errorf("%q: %v with id %q, want %d with id %q", c.data, err, err.ID, c.code, c.id)
		}
	}
	m, err := Decode([]byte(`{"jsonrpc":"2.0","method":"notifications/x","params":[]}`), Limits{})
	if err == nil || m.Kind() != Notification || m.Method != "notifications/x" {
		t.Errorf("a bad notification cannot be told: %+v %v", m, err)
	}
}

// Every prefix of a message is broken text: it must say so, and the id counts
// only once it is complete.
func TestTruncated(t *testing.T) {
	t.Parallel()
	data := `{"jsonrpc":"2.0","id":1234,"method":"tools/call","params":{"name":"\u0061\ud83d\ude00é","arguments":{"a":[true,false,null,-1.5e+7]}}}`
	end := strings.Index(data, "1234") + 4
	for n := range len(data) {
		err := refused(t, data[:n], Limits{})
		want := ""
		if n > end {
			want = "1234"
		}
		if err.Code != CodeParse || string(err.ID) != want {
			t.Errorf("%d bytes: %v, id %q", n, err, err.ID)
		}
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	data := `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":"` + strings.Repeat("x", 1000) + `"}}`
	if _, err := Decode([]byte(data), Limits{MaxBytes: len(data)}); err != nil {
		t.Error(err)
	}
	err := refused(t, data, Limits{MaxBytes: len(data) - 1})
	if err.Code != CodeInvalidRequest || string(err.ID) != "1" || !strings.Contains(err.Message, fmt.Sprint(len(data)-1)) {
		t.Errorf("%v, id %s", err, err.ID)
	}
	if err := refused(t, data, Limits{MaxBytes: 5}); err.ID != nil || err.Code != CodeInvalidRequest {
		t.Error(err)
	}
	// Only the tail of white space is beyond the limit.
	if err := refused(t, data+"   ", Limits{MaxBytes: len(data)}); string(err.ID) != "1" {
		t.Error(err)
	}
	if err := refused(t, strings.Repeat(" ", 16<<20+1), Limits{}); err.Code != CodeInvalidRequest {
		t.Error(err)
	}
	if err := Validate([]byte("123"), Limits{MaxBytes: 2}); err == nil {
		t.Error("Validate ignores the size")
	}
}

func TestBatch(t *testing.T) {
	t.Parallel()
	if !IsBatch([]byte("\n [1]")) || IsBatch([]byte(`{"a":[]}`)) || IsBatch(nil) || IsBatch([]byte("  ")) {
		t.Error("IsBatch")
	}
	deep := strings.Repeat("[", 600) + strings.Repeat("]", 600)
	parts := []string{`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `1`, `{"id":2,"id":3}`, `"a,]\""`, deep}
	got, err := DecodeBatch([]byte(" [ "+strings.Join(parts, " ,\n")+" ] "), Limits{})
	if err != nil || len(got) != len(parts) {
		t.Fatal(err, len(got))
	}
	for i := range parts {
		if string(got[i]) != parts[i] {
			t.Errorf("%d: %s", i, got[i])
		}
	}
	for data, code := range map[string]int{
		`[]`: CodeInvalidRequest, `{}`: CodeInvalidRequest, ``: CodeInvalidRequest, `[1,1,1]`: CodeInvalidRequest, `[   1,1,1,1 ]`: CodeInvalidRequest,
		`[`: CodeParse, `[1,]`: CodeParse, `[1]x`: CodeParse, `[1,1,1,`: CodeParse, `[{"a":}]`: CodeParse,
	} {
		if got, err := DecodeBatch([]byte(data), Limits{MaxBatch: 2, MaxBytes: 12}); err == nil || err.Code != code || got != nil {
			t.Errorf("%s: %v, %s", data, err, got)
		}
	}
	if got, err := DecodeBatch([]byte(`[1,2]`), Limits{MaxBatch: 2}); err != nil || len(got) != 2 {
		t.Error(got, err)
	}
}
