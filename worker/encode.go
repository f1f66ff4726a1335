package worker

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// codec turns values of the author's types into JSON and back. It caches what
// it learns about types, so a worker has one for all its tools.
type codec struct {
	in, out jsonv2.Options
}

func newCodec() *codec {
	// json.Number of the standard library is nothing special to the library
	// used here: a string.
	write := jsonv2.MarshalToFunc(func(enc *jsontext.Encoder, n json.Number) error {
		value := jsontext.Value(cmp.Or(n, "0"))
		if value.Kind() != '0' {
			return fmt.Errorf("%q is not a number", string(n))
		}
		return enc.WriteValue(value)
	})
	read := jsonv2.UnmarshalFromFunc(func(dec *jsontext.Decoder, n *json.Number) error {
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if kind := value.Kind(); kind == '0' {
			*n = json.Number(value)
		} else if kind != 'n' {
			return errors.New("it is not a number")
		}
		return nil
	})
	return &codec{
		in: jsonv2.JoinOptions(
			jsonv1.DefaultOptionsV1(),
			jsonv1.ReportErrorsWithLegacySemantics(false), // the new ones say where
			jsonv2.MatchCaseInsensitiveNames(false),
			jsontext.AllowDuplicateNames(false),
			jsonv2.WithUnmarshalers(read),
		),
		out: jsonv2.JoinOptions(outOptions(), jsonv2.WithMarshalers(write)),
	}
}

// outOptions write as encoding/json does, except that nil slices and maps
// become [] and {} (null is a type error for most clients) and that <, > and &
// stay as they are.
func outOptions() jsonv2.Options {
	return jsonv2.JoinOptions(
		jsonv1.DefaultOptionsV1(),
		jsonv2.FormatNilSliceAsNull(false),
		jsonv2.FormatNilMapAsNull(false),
		jsontext.EscapeForHTML(false),
	)
}

// marshal writes v; nil and a json.RawMessage without bytes become nothing,
// and other raw JSON is checked and passed on byte for byte.
func (c *codec) marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		if len(v) > 0 && !jsontext.Value(v).IsValid() {
			return nil, errors.New("it is not valid JSON")
		}
		return v, nil
	}
	return jsonv2.Marshal(v, c.out)
}

// unmarshal reads data into v as encoding/json does, except that the names of
// members must match in case and may not repeat: otherwise a member that the
// schema has not looked at could replace one that it has.
func (c *codec) unmarshal(data []byte, v any) error {
	return jsonv2.Unmarshal(data, v, c.in)
}

// marshal writes a value of a type of this package.
func marshal(v any) ([]byte, error) { return jsonv2.Marshal(v, outOptions()) }

// plain reports whether a text is ASCII that stands in a JSON string as it is.
func plain(text string) bool {
	// Eight bytes at a time. A byte minus one borrows from its highest bit only
	// if it was 0, and minus a blank only if it was less; borrows between bytes
	// begin at a byte that is found anyway.
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; len(text) >= 8; text = text[8:] {
		x := uint64(text[0]) | uint64(text[1])<<8 | uint64(text[2])<<16 | uint64(text[3])<<24 |
			uint64(text[4])<<32 | uint64(text[5])<<40 | uint64(text[6])<<48 | uint64(text[7])<<56
		quote, backslash := x^ones*'"', x^ones*'\\'
		if (x|(x-ones*' ')&^x|(quote-ones)&^quote|(backslash-ones)&^backslash)&highs != 0 {
			return false
		}
	}
	for i := range len(text) {
		if c := text[i]; c < ' ' || c >= 0x80 || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// validText returns a text of the author as a string of protobuf takes it: what is
// no UTF-8 in it becomes U+FFFD. With anything else in one string the whole message
// could not be sent.
func validText(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// checkObject returns an error unless raw is absent or a JSON object.
func checkObject(what string, raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	if !jsontext.Value(raw).IsValid() {
		return fmt.Errorf("%s is not valid JSON", what)
	}
	if jsontext.Value(raw).Kind() != '{' {
		return fmt.Errorf("%s must be a JSON object", what)
	}
	return nil
}

// compacted returns raw without insignificant whitespace, its numbers and the
// order of its members untouched.
func compacted(raw json.RawMessage) (json.RawMessage, error) {
	var buf bytes.Buffer
	if err := json.Compact(&buf, raw); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// eachMember replaces the values of an object's members; their order stays.
func eachMember(raw json.RawMessage, replace func(name string, value json.RawMessage) (json.RawMessage, error)) (json.RawMessage, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw))
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	out := []byte{'{'}
	for dec.PeekKind() != '}' {
		token, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		name := token.String() // before the next read makes the token void
		value, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		replaced, err := replace(name, json.RawMessage(bytes.Clone(value)))
		if err != nil {
			return nil, err
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		if out, err = jsontext.AppendQuote(out, name); err != nil {
			return nil, err
		}
		out = append(append(out, ':'), replaced...)
	}
	return append(out, '}'), nil
}

// object writes a JSON object member by member, in the order of the calls. It
// exists because the order of a definition is part of its hash, and because
// absent and empty differ here by member.
type object struct {
	buf []byte
	err error
}

// raw adds a member that is JSON already; an empty value leaves it out.
func (o *object) raw(name string, value []byte) {
	if len(value) == 0 {
		return
	}
	if len(o.buf) == 0 {
		o.buf = append(o.buf, '{')
	} else {
		o.buf = append(o.buf, ',')
	}
	o.buf = append(o.buf, '"')
	o.buf = append(o.buf, name...)
	o.buf = append(o.buf, '"', ':')
	o.buf = append(o.buf, value...)
}

// value adds a member.
func (o *object) value(name string, v any) {
	data, err := marshal(v)
	if err != nil {
		o.err = errors.Join(o.err, fmt.Errorf("%s: %w", name, err))
		return
	}
	o.raw(name, data)
}

// text adds a member that is left out when empty.
func (o *object) text(name, v string) {
	if v != "" {
		o.value(name, v)
	}
}

// boolean adds a member that is left out when nil: false is not absent.
func (o *object) boolean(name string, v *bool) {
	if v != nil {
		o.value(name, *v)
	}
}

// object adds a member that is an object.
func (o *object) object(name string, inner *object) {
	raw, err := inner.bytes()
	o.err = errors.Join(o.err, err)
	o.raw(name, raw)
}

// bytes ends the object.
func (o *object) bytes() ([]byte, error) {
	if o.err != nil {
		return nil, o.err
	}
	if len(o.buf) == 0 {
		return []byte("{}"), nil
	}
	return append(o.buf, '}'), nil
}
