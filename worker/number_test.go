package worker

import (
	"encoding/json"
	"math"
	"testing"
)

func TestParseNumber(t *testing.T) {
	t.Parallel()
	for literal, want := range map[string]any{
		"0":                       int64(0),
		"-0":                      int64(0),
		"-0.0":                    int64(0),
		"0e999999999999999999999": int64(0),
		"1.0":                     int64(1),
		"-2.50e1":                 int64(-25),
		"1e2":                     int64(100),
		"12300e-2":                int64(123),
		"9007199254740993":        int64(9007199254740993),
		"9007199254740993.0":      int64(9007199254740993),
		"9223372036854775807":     int64(math.MaxInt64),
		"-9223372036854775808":    int64(math.MinInt64),
		"9223372036854775808":     uint64(1 << 63),
		"18446744073709551615":    uint64(math.MaxUint64),
		"18446744073709551616":    float64(1 << 64),
		"1.5":                     1.5,
		"1e400":                   math.MaxFloat64,
		"-1e400":                  -math.MaxFloat64,
		"1e99999999999999999999":  math.MaxFloat64,
		// Fractions that float64 would lose stay fractions, on their side.
		"1.00000000000000000001":      math.Nextafter(1, 2),
		"0.99999999999999999999":      math.Nextafter(1, 0),
		"-1.00000000000000000001":     -math.Nextafter(1, 2),
		"1e-400":                      math.SmallestNonzeroFloat64,
		"-1e-99999999999999999999":    -math.SmallestNonzeroFloat64,
		"10000000000000000000001e-22": math.Nextafter(1, 2),
	} {
		if got := parseNumber(literal); got != want {
			t.Errorf("parseNumber(%s) = %v (%T), want %v (%T)", literal, got, got, want, want)
		}
	}
}

func TestPlainIntegers(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"a":1.0}`:                          `{"a":1}`,
		`[1e2,-3.0e1 , 1.5, 0.10]`:           `[100,-30 , 1.5, 0.10]`,
		`{"1.0":"2.0","\"3.0":1.0}`:          `{"1.0":"2.0","\"3.0":1}`,
		`[-0.0]`:                             `[-0]`,
		`1.0`:                                `1`,
		`[1e30,9007199254740993.0]`:          `[1e30,9007199254740993]`,
		`{"a":"\\","b":1.0}`:                 `{"a":"\\","b":1}`,
		`{"a":true,"b":null,"c":[],"d":0e0}`: `{"a":true,"b":null,"c":[],"d":0}`,
	} {
		got, changed := plainIntegers([]byte(in))
		if string(got) != want || !changed {
			t.Errorf("plainIntegers(%s) = %s, %v, want %s, true", in, got, changed, want)
		}
	}
	for _, in := range []string{`{"a":1}`, `1.5`, `"1.0"`, `[1e30]`, `{}`} {
		if got, changed := plainIntegers([]byte(in)); string(got) != in || changed {
			t.Errorf("plainIntegers(%s) = %s, %v, want it unchanged", in, got, changed)
		}
	}
}

// FuzzPlainIntegers: the rewriting keeps JSON valid and every value equal.
func FuzzPlainIntegers(f *testing.F) {
	f.Add([]byte(`{"a":[1.0,"\\\"1.0",-0.0,1e2,1.5e1,0.1e1]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		before, err := decodeTree(data)
		if err != nil {
			return
		}
		out, _ := plainIntegers(data)
		after, err := decodeTree(out)
		if err != nil {
			t.Fatalf("%q became %q: %v", data, out, err)
		}
		a, _ := json.Marshal(before)
		b, _ := json.Marshal(after)
		if string(a) != string(b) {
			t.Fatalf("%q became %q", data, out)
		}
	})
}
