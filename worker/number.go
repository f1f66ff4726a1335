package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth bounds how deep a value that is checked may be nested. It is above
// what edges let through; the text of a library error grows with every level,
// so that the work to refuse a value grows with the square of its depth.
const maxDepth = 1000

// errDepth says that a value is nested deeper than maxDepth.
var errDepth = fmt.Errorf("must not be nested deeper than %d levels", maxDepth)

// decodeTree reads one JSON value into the Go values the schema library
// understands. Other than encoding/json it keeps integers of up to 64 bits
// exact, and it keeps "is an integer" right for every number: beyond 64 bits
// a number is compared by its nearest float64.
func decodeTree(raw []byte) (any, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw))
	value, err := readTree(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one value")
	}
	return value, nil
}

func readTree(dec *jsontext.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	token, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case 't', 'f':
		return token.Bool(), nil
	case '"':
		return token.String(), nil
	case '0':
		return parseNumber(token.String()), nil
	case '[':
		list := []any{}
		for dec.PeekKind() != ']' {
			value, err := readTree(dec, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		_, err := dec.ReadToken()
		return list, err
	case '{':
		members := map[string]any{}
		for dec.PeekKind() != '}' {
			name, err := dec.ReadToken()
			if err != nil {
				return nil, err
			}
			key := name.String() // before the next read makes name void
			if members[key], err = readTree(dec, depth+1); err != nil {
				return nil, err
			}
		}
		_, err := dec.ReadToken()
		return members, err
	default: // null
		return nil, nil
	}
}

// maxWhole is where float64 stops to have fractions.
const maxWhole = 1 << 52

// parseNumber returns an int64, a uint64 or a float64.
func parseNumber(literal string) any {
	if i, err := strconv.ParseInt(literal, 10, 64); err == nil {
		return i
	}
	if u, err := strconv.ParseUint(literal, 10, 64); err == nil {
		return u
	}
	d := splitNumber(literal)
	if plain, ok := d.plain(); ok && plain != literal {
		return parseNumber(plain)
	}
	f, _ := strconv.ParseFloat(literal, 64)
	if math.IsInf(f, 0) {
		return math.Copysign(math.MaxFloat64, f) // an infinity is no integer to the library
	}
	if whole := math.Trunc(f) == f; !whole || d.integer() || math.Abs(f) >= maxWhole {
		return f
	}
	// The fraction was lost to rounding: take the neighbour that has one.
	if float64(d.whole()) == math.Abs(f) {
		return math.Copysign(math.Nextafter(math.Abs(f), math.Inf(1)), signOf(d))
	}
	return math.Copysign(math.Nextafter(math.Abs(f), 0), signOf(d))
}

func signOf(d decimal) float64 {
	if d.negative {
		return -1
	}
	return 1
}

// decimal is digits times ten to the power of scale. Digits have no zero at
// either end; none mean 0.
type decimal struct {
	negative bool
	digits   string
	scale    int
}

// splitNumber takes a literal of the JSON grammar apart. Exponents too large
// for an int are cut: nothing here tells 1e+(2^40) from larger ones.
func splitNumber(literal string) decimal {
	const huge = 1 << 40
	var d decimal
	literal, d.negative = strings.CutPrefix(literal, "-")
	mantissa := literal
	if i := strings.IndexAny(literal, "eE"); i >= 0 {
		mantissa = literal[:i]
		exponent, err := strconv.Atoi(literal[i+1:])
		if err != nil {
			exponent = huge
			if literal[i+1] == '-' {
				exponent = -huge
			}
		}
		d.scale = min(max(exponent, -huge), huge)
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	d.scale -= len(fraction)
	digits := strings.TrimLeft(whole+fraction, "0")
	d.digits = strings.TrimRight(digits, "0")
	d.scale += len(digits) - len(d.digits)
	return d
}

func (d decimal) integer() bool { return d.digits == "" || d.scale >= 0 }

// plain writes an integer of at most 20 digits without point and exponent.
func (d decimal) plain() (string, bool) {
	const most = 20
	if !d.integer() {
		return "", false
	}
	text := "0"
	if d.digits != "" {
		if len(d.digits) > most || d.scale > most-len(d.digits) {
			return "", false
		}
		text = d.digits + strings.Repeat("0", d.scale)
	}
	if d.negative {
		text = "-" + text
	}
	return text, true
}

// whole returns the digits before the point. The number is below maxWhole.
func (d decimal) whole() uint64 {
	n := len(d.digits) + d.scale
	if n <= 0 {
		return 0
	}
	u, _ := strconv.ParseUint(d.digits[:min(n, len(d.digits))], 10, 64)
	return u
}

// plainIntegers rewrites numbers such as 1.0 and 1e2 as 1 and 100. JSON Schema
// calls them integers, and some clients send them, but no Go integer takes
// them. The second result says whether anything was rewritten. raw is valid
// JSON and is not changed.
func plainIntegers(raw []byte) ([]byte, bool) {
	var out []byte
	done := 0 // raw[:done] is in out
	for i := 0; i < len(raw); {
		switch c := raw[i]; {
		case c == '"':
			for i++; raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
			i++
		case c == '-' || '0' <= c && c <= '9':
			start := i
			for i < len(raw) && strings.IndexByte("+-.0123456789eE", raw[i]) >= 0 {
				i++
			}
			literal := raw[start:i]
			if !bytes.ContainsAny(literal, ".eE") {
				continue
			}
			d := splitNumber(string(literal))
			if plain, ok := d.plain(); ok {
				out = append(append(out, raw[done:start]...), plain...)
				done = i
			}
		default:
			i++
		}
	}
	return append(out, raw[done:]...), done > 0
}
