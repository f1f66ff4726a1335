package worker

import (
	"encoding/json"
	"strings"
	"testing"
)

// What a pattern with lookahead says is what ECMA-262 says; each line is a
// pattern, strings that match it, and strings that do not.
func TestPatternsWithLookahead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern  string
		yes, not []string
	}{
		{`^(?=.*[A-Z])(?=.*\d)(?!.*\s).{8,}$`, []string{"Passw0rdX"}, []string{"", "password1", "PASSWORD", "Pass w0rdX", "P4s"}},
		{`^(?!\s*$).+`, []string{"a", " a"}, []string{"", " ", "\t \t"}},
		{`^(?!-)[a-z0-9-]{1,63}(?<!-)$`, []string{"a", "a-b"}, []string{"-a", "a-", "-", "A"}},
		{`^[a-z]+(?<=ing)$`, []string{"sing", "ing"}, []string{"sang", "ing "}},
		{`^$|^(?!0)\d+$`, []string{"", "10"}, []string{"01", "0", "x"}},
		{`^(?=[^)|]*\))a[(]b\)$`, []string{"a(b)"}, []string{"a(b", "b)"}},
		{`^(?=a|b)(?!ab).*$`, []string{"aa", "b"}, []string{"ab", "abc", "c", ""}},
		{`^(?=(?:a(?:b|c))+$)a`, []string{"ab", "acab"}, []string{"a", "aba"}},
		{`^[\u4e00-\u9fa5]+$`, []string{"字"}, []string{"a", ""}},
		{`^\ud83d\ude00\u{1F600}$`, []string{"😀😀"}, []string{"😀"}},
		{`^\\u0041$`, []string{`\u0041`}, []string{"A"}},
	} {
		quoted, err := json.Marshal(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		s, err := inputSchema(json.RawMessage(`{"type":"object","properties":{"p":{"type":["string","integer"],"pattern":`+string(quoted)+`}}}`), nil)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		if !strings.Contains(string(s.raw), string(quoted)) || strings.Contains(string(s.raw), "allOf") {
			t.Errorf("clients see another schema: %s", s.raw)
		}
		check := func(value any) error {
			raw, err := json.Marshal(map[string]any{"p": value})
			if err != nil {
				t.Fatal(err)
			}
			return s.validate(raw)
		}
		for _, text := range c.yes {
			if err := check(text); err != nil {
				t.Errorf("%s does not match %q: %v", c.pattern, text, err)
			}
		}
		for _, text := range c.not {
			if err := check(text); err == nil || err.Error() != `property "p" must match the pattern `+c.pattern {
				t.Errorf("%s and %q: %v", c.pattern, text, err)
			}
		}
		if err := check(7); err != nil {
			t.Errorf("%s is about strings only: %v", c.pattern, err)
		}
	}
}

// A schema keeps what it says beside the pattern.
func TestPatternBesideAllOf(t *testing.T) {
	t.Parallel()
	s := parsed(t, `{"properties":{"p":{"allOf":[{"maxLength":3}],"pattern":"^(?!a)"}}}`)
	for value, fits := range map[string]bool{`{"p":"bcd"}`: true, `{"p":"abc"}`: false, `{"p":"bcde"}`: false, `{}`: true} {
		if err := s.validate([]byte(value)); (err == nil) != fits {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// What cannot be said without looking around is refused, whatever it is.
func TestPatternsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{
		`a(?=b)`, `(?=a)b`, `^a(?!b)c$`, `^(?:(?=a)b)$`, `^(?=a)*b`, `^(a)\1$`, `(?<!a)b`, `^(?=(?=a)b)c`, `^(?<=a$`, `^(?=a`, `\u12`, `\ud800x`, `^(?=[)a`, `(?=`,
	} {
		quoted, err := json.Marshal(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{`{"type":"object","properties":{"p":{"pattern":` + string(quoted) + `}}}`, `{"type":"object","patternProperties":{` + string(quoted) + `:{}}}`} {
			if _, err := inputSchema(json.RawMessage(text), nil); err == nil || !strings.Contains(err.Error(), "its pattern") {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
}

// The classic of catastrophic backtracking costs no more than its length.
func TestPatternsTakeLinearTime(t *testing.T) {
	t.Parallel()
	s := parsed(t, `{"pattern":"^(?=(a+)+$)(?!(b+)+$).*$"}`)
	raw, err := json.Marshal(strings.Repeat("a", 1<<20) + "!")
	if err != nil {
		t.Fatal(err)
	}
	// Backtracking would not end before the test's time does.
	if err := s.validate(raw); err == nil {
		t.Error("it fits")
	}
}
