package jsonrpc

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
)

func seed(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `[]`, ` null `, `{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"a":1}}}`, `{"a":1,"\u0061":2}`,
		`[1,-0.5e+10,"\ud83d\ude00é",true,false,null,{"a":{"b":[]}}]`, `"\ud800"`, "\"\xff\"", `01`, `{"id":1,"id":2}`, `[{"a":1},{"a":1}]`,
		`{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":""}}`, "\ufeff{}", `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":1,"n":1,"o":1,"p":1,"q":1,"r":1,"\u0061":1}`,
		`[[[[]]],{"":{"":{"":0}}}]`, `{"x":"aaaaaaaaaaaaaaaaaaaaaaaa\u0000bbbbbbbbbbbbbbbbb\"cccccccc"}`,
	} {
		f.Add([]byte(s))
	}
}

// What is JSON, and strict, is what a well-known strict decoder says it is.
func FuzzDecodeStrict(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		// Theirs has a fixed limit of 10,000 levels.
		err := Validate(data, Limits{MaxBytes: maxInput, MaxDepth: 10_000})
		if want := jsontext.Value(data).IsValid(); (err == nil) != want {
			t.Fatalf("%q: %v, jsontext says valid = %v", data, err, want)
		}
		if err == nil {
			if one := AppendOneLine(nil, data); Validate(one, Limits{MaxDepth: 10_000}) != nil || bytes.ContainsAny(one, "\r\n") {
				t.Fatalf("%q became %q", data, one)
			}
		}
		// The other entrances agree with it.
		_, oerr := ParseObject(data)
		if isObject := err == nil && bytes.TrimLeft(data, " \t\r\n")[0] == '{'; (oerr == nil) != isObject {
			t.Fatalf("%q: ParseObject says %v, Validate %v", data, oerr, err)
		}
		if _, derr := Decode(data, Limits{MaxDepth: 10_000}); err != nil && (derr == nil || derr.Code == CodeInvalidParams) {
			t.Fatalf("%q: Decode says %v, Validate %v", data, derr, err)
		}
	})
}

// within tells whether part is a sub-slice of whole.
func within(whole, part []byte) bool {
	if len(part) == 0 {
		return part == nil
	}
	from := uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	at := uintptr(unsafe.Pointer(unsafe.SliceData(part)))
	return at >= from && at+uintptr(len(part)) <= from+uintptr(len(whole)) && cap(part) == len(part)
}

func FuzzDecode(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		m, err := Decode(data, Limits{MaxDepth: 20})
		raws := [][]byte{m.ID, m.Params.Raw, m.Meta.Raw, m.Result, m.Error}
		if err != nil {
			raws = append(raws, err.ID)
			if err.ID != nil && !validID(err.ID) {
				t.Fatalf("%q: echoes %q", data, err.ID)
			}
			if Validate(AppendError(nil, err.ID, err), Limits{}) != nil {
				t.Fatalf("%q: error cannot be sent: %v", data, err)
			}
		}
		for _, o := range []Object{m.Params, m.Meta} {
			for _, member := range o.Members {
				raws = append(raws, member.Value)
			}
		}
		for _, raw := range raws {
			if !within(data, raw) {
				t.Fatalf("%q: %q is no part of it", data, raw)
			}
			if err == nil && raw != nil && Validate(raw, Limits{}) != nil {
				t.Fatalf("%q: %q is no value", data, raw)
			}
		}
		if err == nil && m.Kind() == Request {
			again, err := Decode(AppendRequest(nil, m.ID, m.Method, m.Params.Raw), Limits{MaxDepth: 20})
			if err != nil || !bytes.Equal(again.ID, m.ID) || again.Method != m.Method || !bytes.Equal(again.Params.Raw, m.Params.Raw) {
				t.Fatalf("%q: written again it is %+v, %v", data, again, err)
			}
		}
		if parts, err := DecodeBatch(data, Limits{}); err == nil {
			for _, p := range parts {
				if !within(data, p) {
					t.Fatalf("%q: %q is no part of it", data, p)
				}
			}
		}
		// Any text survives quoting.
		want := strings.ToValidUTF8(string(data), "")
		if utf8.Valid(data) {
			if got, ok := String(Quote(string(data))); !ok || got != want {
				t.Fatalf("%q came back as %q", data, got)
			}
		} else if got, ok := String(Quote(string(data))); !ok || strings.ReplaceAll(got, "\ufffd", "") != strings.ReplaceAll(want, "\ufffd", "") {
			t.Fatalf("%q came back as %q", data, got)
		}
		if text, ok := String(data); ok && Validate(Quote(text), Limits{MaxBytes: maxInput}) != nil {
			t.Fatalf("%q", text)
		}
		if !bytes.Equal(before, data) {
			t.Fatal("the input was changed")
		}
	})
}
