package jsonrpc

import (
	"bytes"
	"unicode/utf8"
)

// String returns the text of a JSON string. ok is false if raw is anything
// else than exactly one valid string token.
func String(raw []byte) (text string, ok bool) {
	s := scanner{data: raw}
	if len(raw) > maxInput || !s.at('"') {
		return "", false
	}
	hasEscape, err := s.str()
	switch {
	case err != nil || s.pos != len(raw):
		return "", false
	case hasEscape:
		return string(appendUnquoted(nil, raw[1:len(raw)-1])), true
	}
	return string(raw[1 : len(raw)-1]), true
}

// text is String for a token that has been scanned, or "" for another type.
func text(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return keyString(raw[1 : len(raw)-1])
	}
	t, _ := String(raw)
	return t
}

// isText tells whether a scanned token is the string want.
func isText(raw []byte, want string) bool {
	if len(raw) == len(want)+2 && raw[0] == '"' && string(raw[1:len(raw)-1]) == want {
		return true
	}
	// Six bytes a character is the longest an escape can make it here.
	if len(raw) > 6*len(want)+2 {
		return false
	}
	t, ok := String(raw)
	return ok && t == want
}

// appendUnquoted appends the text of a string body that has been scanned.
func appendUnquoted(dst, body []byte) []byte {
	for {
		i := bytes.IndexByte(body, '\\')
		if i < 0 {
			return append(dst, body...)
		}
		dst = append(dst, body[:i]...)
		n := 2
		switch c := body[i+1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			n = escapeLen(body[i:])
			r, _ := hex4(body[i+2:])
			if n == 12 {
				lo, _ := hex4(body[i+8:])
				r = (r-0xd800)<<10 + (lo - 0xdc00) + 0x10000
			}
			dst = utf8.AppendRune(dst, r)
		default: // quote, backslash, slash
			dst = append(dst, c)
		}
		body = body[i+n:]
	}
}

// Quote returns s as a JSON string, see [AppendString].
func Quote(s string) []byte { return AppendString(make([]byte, 0, len(s)+2), s) }

// AppendString appends s as a JSON string. Control characters are escaped, and
// so are U+2028 and U+2029, which some line readers take for line ends.
// Invalid UTF-8 becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0 // of what has not been copied yet
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = append(dst, s[start:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\b':
				dst = append(dst, '\\', 'b')
			case '\f':
				dst = append(dst, '\\', 'f')
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(dst, s[start:i]...)
			dst = append(dst, "\uFFFD"...)
			start = i + n
		case r == '\u2028' || r == '\u2029':
			dst = append(dst, s[start:i]...)
			dst = append(dst, '\\', 'u', '2', '0', '2', hex[r&15])
			start = i + n
		}
		i += n
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// AppendOneLine appends raw JSON without its CR and LF, as stdio and SSE need
// it. In valid JSON those are insignificant white space only, since a string
// cannot hold them unescaped; nothing else is changed.
func AppendOneLine(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\n')
		line := raw
		if i >= 0 {
			line = raw[:i]
		}
		for {
			j := bytes.IndexByte(line, '\r')
			if j < 0 {
				break
			}
			dst = append(dst, line[:j]...)
			line = line[j+1:]
		}
		dst = append(dst, line...)
		if i < 0 {
			return dst
		}
		raw = raw[i+1:]
	}
}

// validID tells whether a scanned token is an id: a string, or a number whose
// value is an integer. The value is judged by its digits and never computed.
func validID(raw []byte) bool {
	switch {
	case raw[0] == '"':
		return true
	case raw[0] != '-' && (raw[0] < '0' || raw[0] > '9'):
		return false
	}
	mantissa, exponent := raw, 0
	if i := bytes.IndexAny(raw, "eE"); i >= 0 {
		mantissa, exponent = raw[:i], clampedInt(raw[i+1:])
	}
	scale := -exponent // how many of the last digits stand behind the point
	if i := bytes.IndexByte(mantissa, '.'); i >= 0 {
		scale += len(mantissa) - i - 1
	}
	for i := len(mantissa) - 1; i >= 0 && scale > 0; i-- {
		switch c := mantissa[i]; c {
		case '.', '-':
		case '0':
			scale--
		default:
			return false
		}
	}
	return true // an integer, or every digit was zero
}

// clampedInt reads an exponent. Past the longest possible mantissa the exact
// value does not matter.
func clampedInt(b []byte) int {
	negative := b[0] == '-'
	if negative || b[0] == '+' {
		b = b[1:]
	}
	n := 0
	for _, c := range b {
		n = min(10*n+int(c-'0'), 2*maxInput)
	}
	if negative {
		return -n
	}
	return n
}
