package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/google/jsonschema-go/jsonschema"
)

// maxFindings is how many faults one message names: enough to put right in one
// go what a model has got wrong, and bounded for hostile input.
const maxFindings = 5

// explain says in words why value does not fit the schema. The library is the
// judge, and its verdict is err; its words are about schemas, so this looks
// for the faults again and names the properties. What it cannot find is told
// in the words of the library.
func (s *schema) explain(value any, err error) string {
	e := explainer{subject: s.subject, root: s.root, draft7: strings.Contains(s.root.Schema, "draft-07")}
	e.look(s.root, value, "", 0)
	if len(e.found) == 0 {
		return e.translate(err)
	}
	text := strings.Join(e.found[:min(len(e.found), maxFindings)], "; ")
	if more := len(e.found) - maxFindings; more > 0 {
		text += "; and more"
	}
	return text
}

type explainer struct {
	subject string
	root    *jsonschema.Schema
	draft7  bool
	found   []string
	steps   int
}

func (e *explainer) add(format string, args ...any) {
	e.found = append(e.found, fmt.Sprintf(format, args...))
}

// look adds what is wrong with value at path. It follows only keywords that
// every value has to satisfy; alternatives are the library's matter.
func (e *explainer) look(s *jsonschema.Schema, value any, path string, depth int) {
	const (
		deepest = 64 // references can be cyclic, hostile values deep
		longest = 100_000
	)
	if e.steps++; s == nil || depth > deepest || e.steps > longest || len(e.found) > maxFindings {
		return
	}
	if s.Ref != "" {
		e.look(e.target(s.Ref), value, path, depth+1)
		if e.draft7 {
			return // there, everything beside a reference is void
		}
	}
	for _, sub := range s.AllOf {
		if pattern, ok := strings.CutPrefix(sub.Comment, splitComment); ok {
			e.lookPattern(pattern, value, path)
			continue
		}
		e.look(sub, value, path, depth+1)
	}
	if want := typesOf(s); want != nil && !fits(value, want) {
		e.add("%s must be %s, not %s", e.name(path), wanted(want), article(typeOf(value)))
		return
	}
	if s.Const != nil && !jsonschema.Equal(*s.Const, value) {
		e.add("%s must be %s", e.name(path), show(*s.Const))
		return
	}
	if s.Enum != nil && !slices.ContainsFunc(s.Enum, func(v any) bool { return jsonschema.Equal(v, value) }) {
		e.add("%s must be one of %s", e.name(path), showAll(s.Enum))
		return
	}
	switch v := value.(type) {
	case string:
		e.lookString(s, v, path)
	case int64, uint64, float64:
		e.lookNumber(s, v, path)
	case []any:
		e.lookArray(s, v, path, depth)
	case map[string]any:
		e.lookObject(s, v, path, depth)
	}
}

func (e *explainer) lookString(s *jsonschema.Schema, v, path string) {
	n := utf8.RuneCountInString(v)
	if s.MinLength != nil && n < *s.MinLength {
		e.add("%s must have at least %s", e.name(path), count(*s.MinLength, "character"))
	}
	if s.MaxLength != nil && n > *s.MaxLength {
		e.add("%s must have at most %s", e.name(path), count(*s.MaxLength, "character"))
	}
	if s.Pattern != "" {
		if ok, err := regexp.MatchString(s.Pattern, v); err == nil && !ok {
			e.add("%s must match the pattern %s", e.name(path), s.Pattern)
		}
	}
}

// lookPattern looks at a pattern that was taken apart.
func (e *explainer) lookPattern(pattern string, value any, path string) {
	text, isString := value.(string)
	if all, ok := splitPattern(pattern); ok && isString && !all.matches(text) {
		e.add("%s must match the pattern %s", e.name(path), pattern)
	}
}

func (e *explainer) lookNumber(s *jsonschema.Schema, v any, path string) {
	for _, bound := range []struct {
		limit *float64
		text  string
		wrong func(sign int) bool
	}{
		{s.Minimum, "at least", func(sign int) bool { return sign < 0 }},
		{s.Maximum, "at most", func(sign int) bool { return sign > 0 }},
		{s.ExclusiveMinimum, "more than", func(sign int) bool { return sign <= 0 }},
		{s.ExclusiveMaximum, "less than", func(sign int) bool { return sign >= 0 }},
	} {
		if bound.limit != nil && bound.wrong(compare(v, *bound.limit)) {
			e.add("%s must be %s %s", e.name(path), bound.text, number(*bound.limit))
		}
	}
}

func (e *explainer) lookArray(s *jsonschema.Schema, v []any, path string, depth int) {
	if s.MinItems != nil && len(v) < *s.MinItems {
		e.add("%s must have at least %s", e.name(path), count(*s.MinItems, "item"))
	}
	if s.MaxItems != nil && len(v) > *s.MaxItems {
		e.add("%s must have at most %s", e.name(path), count(*s.MaxItems, "item"))
	}
	fixed, rest := s.PrefixItems, s.Items
	if s.ItemsArray != nil {
		fixed, rest = s.ItemsArray, s.AdditionalItems
	}
	for i, item := range v {
		sub := rest
		if i < len(fixed) {
			sub = fixed[i]
		}
		e.look(sub, item, path+"["+strconv.Itoa(i)+"]", depth+1)
	}
}

func (e *explainer) lookObject(s *jsonschema.Schema, v map[string]any, path string, depth int) {
	for _, name := range s.Required {
		if _, ok := v[name]; !ok {
			e.add("missing required property %s", quote(join(path, name)))
		}
	}
	closed := s.AdditionalProperties != nil && isFalse(s.AdditionalProperties)
	for _, name := range slices.Sorted(maps.Keys(v)) {
		sub, known := s.Properties[name]
		for pattern, other := range s.PatternProperties {
			if ok, err := regexp.MatchString(pattern, name); err == nil && ok {
				known = true
				e.look(other, v[name], join(path, name), depth+1)
			}
		}
		switch {
		case known:
			e.look(sub, v[name], join(path, name), depth+1)
		case closed:
			e.add("unknown property %s%s", quote(join(path, name)), knownNames(s))
		default:
			e.look(s.AdditionalProperties, v[name], join(path, name), depth+1)
		}
	}
}

// knownNames lists what the author of the schema calls the properties: the
// usual fault is a name that is almost right.
func knownNames(s *jsonschema.Schema) string {
	const most = 12
	names := s.PropertyOrder
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(s.Properties))
	}
	if len(names) == 0 {
		return " (there are no properties)"
	}
	if len(names) > most || len(s.PatternProperties) > 0 {
		return ""
	}
	return " (known: " + quoteAll(names) + ")"
}

func quoteAll(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = quote(name)
	}
	return strings.Join(quoted, ", ")
}

// target finds what a reference within the schema points to; nil if it is of
// another kind than authors and generators usually write.
func (e *explainer) target(ref string) *jsonschema.Schema {
	if ref == "#" {
		return e.root
	}
	if name, ok := strings.CutPrefix(ref, "#/$defs/"); ok {
		return e.root.Defs[name]
	}
	if name, ok := strings.CutPrefix(ref, "#/definitions/"); ok {
		return e.root.Definitions[name]
	}
	return nil
}

// isFalse recognises the schema "false" as the library holds it.
func isFalse(s *jsonschema.Schema) bool {
	return s.Not != nil && reflect.ValueOf(*s.Not).IsZero()
}

func typesOf(s *jsonschema.Schema) []string {
	if s.Type != "" {
		return []string{s.Type}
	}
	return s.Types
}

func typeOf(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	case float64:
		if math.Trunc(v) != v {
			return "number"
		}
	}
	return "integer"
}

func fits(value any, want []string) bool {
	got := typeOf(value)
	return slices.Contains(want, got) || got == "integer" && slices.Contains(want, "number")
}

func article(kind string) string {
	switch kind {
	case "null":
		return "null"
	case "boolean":
		return "a boolean"
	case "integer", "array", "object":
		return "an " + kind
	}
	return "a " + kind
}

func wanted(kinds []string) string {
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = article(kind)
	}
	// "a string or null" reads better than the other way round.
	if len(names) > 1 && names[0] == "null" {
		names = append(names[1:], "null")
	}
	return strings.Join(names, " or ")
}

// compare compares a number of decodeTree with a limit, exactly.
func compare(v any, limit float64) int {
	r := new(big.Rat)
	switch n := v.(type) {
	case int64:
		r.SetInt64(n)
	case uint64:
		r.SetUint64(n)
	case float64:
		r.SetFloat64(n)
	}
	return r.Cmp(new(big.Rat).SetFloat64(limit))
}

// name says what a sentence is about.
func (e *explainer) name(path string) string {
	if path == "" {
		return e.subject
	}
	return property(path)
}

func property(path string) string { return "property " + quote(path) }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// longest is how much of a name or value of the client a message repeats.
const longest = 100

func quote(text string) string { return strconv.Quote(shorten(text)) }

func shorten(text string) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}

func show(value any) string {
	data, err := marshal(value)
	if err != nil {
		return "what the schema says"
	}
	return shorten(string(data))
}

func showAll(values []any) string {
	const most = 20
	texts := make([]string, 0, min(len(values), most)+1)
	for i, value := range values {
		if i == most {
			texts = append(texts, "…")
			break
		}
		texts = append(texts, show(value))
	}
	return strings.Join(texts, ", ")
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

// where finds the last schema an error of the library is about.
const where = `^validating ([^:]*): `

// translate makes the best of an error of the library: the property, as far as
// the path of the schema tells, and the keyword that failed.
func (e *explainer) translate(err error) string {
	prefix := regexp.MustCompile(where)
	text, _, _ := strings.Cut(err.Error(), "\n")
	path := ""
	for {
		match := prefix.FindStringSubmatch(text)
		if match == nil {
			break
		}
		if pointer, ok := strings.CutPrefix(match[1], "/properties/"); ok {
			path = strings.ReplaceAll(pointer, "/properties/", ".")
			path = strings.ReplaceAll(path, "/items", "[]")
		}
		text = text[len(match[0]):]
	}
	keyword, _, _ := strings.Cut(text, ":")
	switch keyword {
	case "anyOf":
		return e.name(path) + " fits none of the alternatives of its schema"
	case "oneOf":
		return e.name(path) + " must fit exactly one of the alternatives of its schema"
	case "not":
		return e.name(path) + " is excluded by its schema"
	}
	return e.name(path) + " does not fit its schema: " + shorten(text)
}

// decodeArguments fills in, which is a pointer, from valid JSON that has passed
// the input schema. What the Go type still cannot hold is the client's fault.
func decodeArguments(c *codec, raw json.RawMessage, in any) error {
	err := c.unmarshal(raw, in)
	if err == nil {
		return nil
	}
	if plain, changed := plainIntegers(raw); changed {
		reflect.ValueOf(in).Elem().SetZero()
		if err = c.unmarshal(plain, in); err == nil {
			return nil
		}
	}
	var fault *jsonv2.SemanticError
	if !errors.As(err, &fault) {
		return &argumentsError{detail: "the arguments cannot be read"}
	}
	what := arguments
	if fault.JSONPointer != "" {
		var path string
		for name := range fault.JSONPointer.Tokens() {
			path = join(path, name)
		}
		what = property(path)
	}
	switch {
	case errors.Is(fault.Err, strconv.ErrRange):
		return &argumentsError{detail: what + " is out of range"}
	case fault.GoType == reflect.TypeFor[time.Time]():
		return &argumentsError{detail: what + " must be a date and time as in RFC 3339"}
	}
	return &argumentsError{detail: what + " has a value that cannot be read"}
}
