package worker

import (
	"strings"
	"testing"
)

// TestPlainTextsNeedNoEscape holds the short way of Text against the long one,
// for every byte at every place of the eight that are looked at together.
func TestPlainTextsNeedNoEscape(t *testing.T) {
	t.Parallel()
	long := func(text string) string {
		var o object
		o.value("type", "text")
		o.value("text", text)
		raw, err := o.bytes()
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	for c := range 256 {
		for at := range 19 {
			for _, around := range []string{"a", " ", "~", "\x7f", "!", "#"} {
				text := strings.Repeat(around, at) + string([]byte{byte(c)}) + strings.Repeat(around, 18-at)
				if want := c >= ' ' && c < 0x80 && c != '"' && c != '\\'; plain(text) != want {
					t.Fatalf("plain(%q) is %t", text, !want)
				}
				if got, want := string(Text(text).raw), long(text); got != want {
					t.Fatalf("Text(%q) is %s, want %s", text, got, want)
				}
			}
		}
	}
	for n := range 20 {
		if text := strings.Repeat("x", n); !plain(text) || string(Text(text).raw) != long(text) {
			t.Errorf("a text of %d bytes: %s", n, Text(text).raw)
		}
	}
}
