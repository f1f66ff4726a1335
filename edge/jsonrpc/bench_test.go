package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// call is a tools/call of about 1 KiB with a mixed argument.
func call() []byte {
	var items []string
	for i := range 12 {
		items = append(items, fmt.Sprintf(`{"id":%d,"title":"Item number %d","score":%d.25,"ok":true}`, i, i, i))
	}
	return []byte(`{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"x","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"progressToken":7},"name":"search_term","arguments":{"query":"context engineering","items":[` + strings.Join(items, ",") + `]}}}`)
}

func BenchmarkDecode(b *testing.B) {
	long := []byte(`{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"echo","arguments":{"text":"` + strings.Repeat("lorem ipsum ", 64<<10/12) + `"}}}`)
	unicode := []byte(`{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"echo","arguments":{"text":"` + strings.Repeat("zażółć gęślą jaźń ", 64<<10/27) + `"}}}`)
	small := []byte(`{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}`)
	for _, c := range []struct {
		name string
		data []byte
	}{{"100B", small}, {"1KiB", call()}, {"64KiB", long}, {"64KiB-utf8", unicode}} {
		b.Run("ours/"+c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Decode(c.data, Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("stdlib/"+c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.data)))
			b.ReportAllocs()
			for b.Loop() {
				var m struct {
					JSONRPC string                     `json:"jsonrpc"`
					ID      json.RawMessage            `json:"id"`
					Method  string                     `json:"method"`
					Params  map[string]json.RawMessage `json:"params"`
				}
				var meta map[string]json.RawMessage
				if err := json.Unmarshal(c.data, &m); err != nil {
					b.Fatal(err)
				}
				if raw := m.Params["_meta"]; raw != nil {
					if err := json.Unmarshal(raw, &meta); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
		b.Run("jsontext/"+c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.data)))
			b.ReportAllocs()
			d := jsontext.NewDecoder(bytes.NewReader(nil))
			for b.Loop() {
				d.Reset(bytes.NewBuffer(c.data))
				if err := walk(d, 2); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// walk steps into the first levels of objects and skips what is below.
func walk(d *jsontext.Decoder, levels int) error {
	if levels < 0 || d.PeekKind() != '{' {
		return d.SkipValue()
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		if _, err := d.ReadToken(); err != nil {
			return err
		}
		if err := walk(d, levels-1); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// Hostile input, in bytes a second: none of it may be far slower than the rest.
func BenchmarkHostile(b *testing.B) {
	var names, small bytes.Buffer
	for i := range 1_000_000 {
		fmt.Fprintf(&names, `"%06x":1,`, i)
	}
	seventeen := `{`
	for i := range 17 {
		seventeen += fmt.Sprintf(`"%x":1,`, i)
	}
	small.WriteString("[")
	for small.Len() < 1<<20 {
		small.WriteString(seventeen[:len(seventeen)-1] + `},`)
	}
	for name, data := range map[string]string{
		"million-names":    `{` + names.String() + `"":1}`,
		"17-names":         small.String() + `1]`,
		"long-equal-names": `{"` + strings.Repeat("a", 100_000) + `1":1,"` + strings.Repeat("a", 100_000) + `2":1,"` + strings.Repeat("a", 100_000) + `3":1}`,
		"deep":             strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20),
		"deep-objects":     strings.Repeat(`{"":`, 1<<20) + "1" + strings.Repeat("}", 1<<20),
		"escapes":          `"` + strings.Repeat(`\u0041`, 1<<18) + `"`,
		"escaped-names":    strings.Repeat(`[{"\u0041":1,"\u0042":1},`, 500) + "1" + strings.Repeat("]", 500),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			raw := []byte(data)
			for b.Loop() {
				_ = Validate(raw, Limits{})
			}
		})
	}
}
