package worker

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Patterns of JSON Schema are those of ECMA-262, and Go's are fewer: it has no
// lookahead, no lookbehind and no backreferences, since a search with them can
// take time without bound. What people write with lookahead is nearly always a
// conjunction, "^(?=.*[0-9])(?!.*--).{8,}$", and that can be said by several
// patterns without any. So such a pattern is taken apart; one that cannot be
// makes its tool one that is not offered.

// condition is a pattern that a string must match, or must not.
type condition struct {
	pattern string
	not     bool
}

// conditions are alternatives; in each, all conditions must hold.
type conditions [][]condition

// splitPattern says the same as a pattern by patterns that Go has; ok is false
// when it cannot.
func splitPattern(pattern string) (all conditions, ok bool) {
	pattern, ok = plainEscapes(pattern)
	if !ok {
		return nil, false
	}
	for _, alternative := range splitTop(pattern) {
		one, ok := splitAlternative(alternative)
		if !ok {
			return nil, false
		}
		all = append(all, one)
	}
	return all, true
}

// splitAlternative takes "^", lookaheads, the rest, a lookbehind and "$" apart.
// At both ends of a string the position is known, so each of them can be
// looked for alone.
func splitAlternative(text string) (all []condition, ok bool) {
	rest, anchored := strings.CutPrefix(text, "^")
	for anchored && (strings.HasPrefix(rest, "(?=") || strings.HasPrefix(rest, "(?!")) {
		end := groupEnd(rest)
		if end < 0 || quantified(rest[end:]) {
			return nil, false
		}
		all = append(all, condition{"^(?:" + rest[3:end-1] + ")", rest[2] == '!'})
		rest = rest[end:]
	}
	if anchored {
		rest = "^" + rest
	}
	if before, ok := strings.CutSuffix(rest, ")$"); ok {
		// A lookbehind is the last group if it ends where the text does.
		for _, kind := range []string{"(?<=", "(?<!"} {
			start := strings.LastIndex(before, kind)
			if start < 0 || groupEnd(rest[start:]) != len(rest)-start-1 {
				continue
			}
			all = append(all, condition{"(?:" + before[start+4:] + ")$", kind[3] == '!'})
			rest = rest[:start] + "$"
			break
		}
	}
	all = append(all, condition{pattern: rest})
	for _, c := range all {
		if _, err := regexp.Compile(c.pattern); err != nil {
			return nil, false
		}
	}
	return all, true
}

// quantified reports whether text begins with a quantifier.
func quantified(text string) bool { return text != "" && strings.ContainsRune("*+?{", rune(text[0])) }

// walk calls at for each byte that is a token outside of classes, with the
// number of groups around it, until it returns false.
func walk(text string, at func(i, depth int) bool) {
	depth, class := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']'
		case c == '[':
			class = true
		default:
			if c == ')' {
				depth--
			}
			if !at(i, depth) {
				return
			}
			if c == '(' {
				depth++
			}
		}
	}
}

// splitTop splits at each "|" outside of groups.
func splitTop(text string) []string {
	var parts []string
	start := 0
	walk(text, func(i, depth int) bool {
		if text[i] == '|' && depth == 0 {
			parts = append(parts, text[start:i])
			start = i + 1
		}
		return true
	})
	return append(parts, text[start:])
}

// groupEnd returns where the group that text begins with has ended; -1 if it
// does not end.
func groupEnd(text string) int {
	end := -1
	walk(text, func(i, depth int) bool {
		if text[i] == ')' && depth == 0 {
			end = i + 1
		}
		return end < 0
	})
	return end
}

// plainEscapes writes \u0041 as Go does.
func plainEscapes(pattern string) (string, bool) {
	var out strings.Builder
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '\\' || i+1 == len(pattern) {
			out.WriteByte(pattern[i])
			continue
		}
		i++
		if pattern[i] != 'u' {
			out.WriteByte('\\')
			out.WriteByte(pattern[i])
			continue
		}
		r, n := unicodeEscape(pattern[i-1:])
		if n == 0 {
			return "", false
		}
		out.WriteString(`\x{` + strconv.FormatInt(int64(r), 16) + `}`)
		i += n - 2
	}
	return out.String(), true
}

// unicodeEscape reads \uXXXX, two of them for one character, or \u{X}. n is its
// length; 0 if it is none.
func unicodeEscape(text string) (r rune, n int) {
	if digits, ok := strings.CutPrefix(text, `\u{`); ok {
		digits, _, ok = strings.Cut(digits, "}")
		v, err := strconv.ParseUint(digits, 16, 21)
		if !ok || err != nil {
			return 0, 0
		}
		return rune(v), len(`\u{}`) + len(digits)
	}
	unit := func(text string) (rune, bool) {
		if len(text) < 6 || text[:2] != `\u` {
			return 0, false
		}
		v, err := strconv.ParseUint(text[2:6], 16, 16)
		return rune(v), err == nil
	}
	r, ok := unit(text)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	low, ok := unit(text[6:])
	if r = utf16.DecodeRune(r, low); !ok || r == '\uFFFD' {
		return 0, 0
	}
	return r, 12
}

// matches reports whether text matches the pattern that was taken apart.
func (all conditions) matches(text string) bool {
	for _, one := range all {
		holds := true
		for _, c := range one {
			if ok, err := regexp.MatchString(c.pattern, text); err != nil || ok == c.not {
				holds = false
				break
			}
		}
		if holds {
			return true
		}
	}
	return false
}

// splitComment marks the schema that stands for a pattern; the pattern follows.
const splitComment = "millrace: instead of the pattern "

// schema is a JSON value that says the same as the pattern.
func (all conditions) schema(pattern string) map[string]any {
	alternatives := make([]any, len(all))
	for i, one := range all {
		list := make([]any, len(one))
		for j, c := range one {
			// A pattern is about strings and true of everything else.
			list[j] = map[string]any{"pattern": c.pattern}
			if c.not {
				list[j] = map[string]any{"not": map[string]any{"type": "string", "pattern": c.pattern}}
			}
		}
		alternatives[i] = map[string]any{"allOf": list}
	}
	return map[string]any{"$comment": splitComment + pattern, "anyOf": alternatives}
}
