package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// schema is a JSON Schema that is ready to check values. It does not change.
type schema struct {
	raw      json.RawMessage // as the manifest shows it
	root     *jsonschema.Schema
	resolved *jsonschema.Resolved
	shape    *shape
	subject  string // what its values are, for messages
}

// inputSchema returns the schema the author gave, else the one of the type; a
// raw tool without one takes any object. It always says "type":"object",
// since clients refuse a tool whose input schema does not.
func inputSchema(given json.RawMessage, in reflect.Type) (*schema, error) {
	if len(given) == 0 && in == nil {
		given = json.RawMessage(`{"type":"object"}`)
	}
	if len(given) > 0 {
		s, err := parseSchema(given, arguments)
		if err != nil {
			return nil, err
		}
		if s.root.Type != "object" {
			return nil, errors.New(`it must say "type":"object"`)
		}
		return s, nil
	}
	root, err := infer(in)
	if err != nil {
		return nil, err
	}
	if root.Type != "object" {
		return nil, fmt.Errorf("the arguments are an object, so In must be a struct or a map, not %s; or give an InputSchema", in)
	}
	return newSchema(root, arguments)
}

// What a schema is for.
const (
	arguments = "the arguments"
	structure = "the structured content"
)

// outputSchema returns nil when the tool has none.
func outputSchema(given json.RawMessage, out reflect.Type) (*schema, error) {
	if len(given) > 0 {
		return parseSchema(given, structure)
	}
	if out == nil || out.Kind() == reflect.Interface || out.Kind() == reflect.String {
		return nil, nil
	}
	switch out {
	case reflect.TypeFor[*Result](), reflect.TypeFor[Result](), reflect.TypeFor[json.RawMessage]():
		return nil, nil
	}
	root, err := infer(out)
	if err != nil {
		return nil, err
	}
	for out.Kind() == reflect.Pointer {
		out = out.Elem() // as infer does
	}
	if !hasSlicePointer(out, map[reflect.Type]bool{}) {
		plainArrays(root)
	}
	return newSchema(root, structure)
}

// plainArrays takes null out of the types of slices: a nil slice is written as
// [], and clients generate better code for a plain array. Arguments keep it,
// since models write null for what they leave out.
func plainArrays(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if slices.Equal(s.Types, []string{"null", "array"}) {
		s.Type, s.Types = "array", nil
	}
	plainArrays(s.Items)
	plainArrays(s.AdditionalProperties)
	for _, property := range s.Properties {
		plainArrays(property)
	}
	for _, def := range s.Defs {
		plainArrays(def)
	}
}

// hasSlicePointer reports whether a part of t is a pointer to a slice or an
// array, which is written as null when it is nil; its schema looks like that of
// a slice.
func hasSlicePointer(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer:
		kind := t.Elem().Kind()
		return kind == reflect.Slice || kind == reflect.Array || hasSlicePointer(t.Elem(), seen)
	case reflect.Slice, reflect.Array, reflect.Map:
		return hasSlicePointer(t.Elem(), seen)
	case reflect.Struct:
		for field := range t.Fields() {
			if hasSlicePointer(field.Type, seen) {
				return true
			}
		}
	default:
	}
	return false
}

// infer returns the schema of a Go type. The outermost pointer is no part of
// it: null is neither an argument object nor a result.
func infer(t reflect.Type) (*jsonschema.Schema, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return jsonschema.ForType(t, &jsonschema.ForOptions{
		// These are written in another way than their Go kind suggests.
		TypeSchemas: map[reflect.Type]*jsonschema.Schema{
			reflect.TypeFor[json.RawMessage](): {},
			reflect.TypeFor[json.Number]():     {Type: "number"},
			reflect.TypeFor[big.Int]():         {Type: "integer"},
			reflect.TypeFor[[]byte]():          {Type: "string", ContentEncoding: "base64"},
		},
	})
}

func newSchema(root *jsonschema.Schema, subject string) (*schema, error) {
	raw, err := json.Marshal(root)
	if err != nil {
		return nil, err
	}
	raw, err = withoutTrue(raw)
	if err != nil {
		return nil, err
	}
	tree, err := decodeTree(raw)
	if err != nil {
		return nil, err
	}
	shape, draft, err := readShape(tree)
	if err != nil {
		return nil, err
	}
	return resolve(&schema{raw: raw, root: root, shape: shape, subject: subject}, draft)
}

// withoutTrue writes the schema of a member that may be anything as {}: the
// revisions up to 2025-11-25 know only objects there, and clients of theirs
// refuse a whole list for one that is true.
func withoutTrue(raw json.RawMessage) (json.RawMessage, error) {
	return eachMember(raw, func(keyword string, value json.RawMessage) (json.RawMessage, error) {
		if keyword != "properties" {
			return value, nil
		}
		return eachMember(value, func(_ string, property json.RawMessage) (json.RawMessage, error) {
			if string(property) == "true" {
				return json.RawMessage("{}"), nil
			}
			return property, nil
		})
	})
}

// parseSchema reads a schema the author wrote. The manifest shows it with its
// members in the author's order. The error is for the author: what is wrong
// with it, or what of it cannot be checked here.
func parseSchema(given json.RawMessage, subject string) (*schema, error) {
	if len(given) > maxSchemaBytes {
		return nil, fmt.Errorf("it has %d bytes; the limit is %d", len(given), maxSchemaBytes)
	}
	if err := checkObject("the schema", given); err != nil {
		return nil, err
	}
	raw, err := compacted(given)
	if err != nil {
		return nil, err
	}
	tree, err := decodeTree(raw)
	if errors.Is(err, errDepth) || err == nil && deeper(tree, maxSchemaDepth) {
		return nil, fmt.Errorf("it is nested deeper than %d levels", maxSchemaDepth)
	}
	if err != nil {
		return nil, err
	}
	// Before the library looks at it, which has no bounds.
	shape, draft, err := readShape(tree)
	if err != nil {
		return nil, err
	}
	read := []byte(raw)
	if shape.cleaned {
		if read, err = marshal(tree); err != nil {
			return nil, err
		}
	}
	root := new(jsonschema.Schema)
	if err := json.Unmarshal(read, root); err != nil {
		return nil, keywordError(err)
	}
	restoreNumbers(root, tree)
	return resolve(&schema{raw: raw, root: root, shape: shape, subject: subject}, draft)
}

// readShape finds the dialect of a schema and reads its shape.
func readShape(tree any) (_ *shape, draft string, err error) {
	var uri string
	if object, ok := tree.(map[string]any); ok {
		uri, _ = object["$schema"].(string)
	}
	draft, draft7, err := dialect(uri)
	if err != nil {
		return nil, "", err
	}
	s, err := shapeOf(tree, draft7)
	return s, draft, err
}

// deeper reports whether a value is nested deeper than n levels.
func deeper(value any, n int) bool {
	if n < 0 {
		return true
	}
	switch v := value.(type) {
	case map[string]any:
		for _, member := range v {
			if deeper(member, n-1) {
				return true
			}
		}
	case []any:
		for _, item := range v {
			if deeper(item, n-1) {
				return true
			}
		}
	}
	return false
}

// keywordError says in words which keyword has a value of the wrong type.
func keywordError(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	keyword := wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:]
	if keyword == "" {
		return errors.New("a schema in it is neither an object nor true or false")
	}
	return fmt.Errorf("its keyword %q must not be a %s", keyword, wrong.Value)
}

// dialect finds the dialect that $schema names, as the library calls it.
func dialect(uri string) (name string, draft7 bool, err error) {
	switch strings.TrimSuffix(uri, "#") {
	case "", "https://json-schema.org/draft/2020-12/schema":
		return "https://json-schema.org/draft/2020-12/schema", false, nil
	case "http://json-schema.org/draft-07/schema", "https://json-schema.org/draft-07/schema":
		return "http://json-schema.org/draft-07/schema#", true, nil
	default:
		return "", false, fmt.Errorf("its dialect %q is not supported: use draft 2020-12 or draft-07", shorten(uri))
	}
}

// resolve makes a schema ready to check values.
func resolve(s *schema, draft string) (_ *schema, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("the validator cannot read it: %v", fault)
		}
	}()
	s.root.Schema = draft
	s.resolved, err = s.root.Resolve(nil)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// restoreNumbers puts the exact values of enum and const back: the library
// reads a schema through float64, and an identifier beyond 2^53 would then
// equal its neighbours.
func restoreNumbers(s *jsonschema.Schema, tree any) {
	node, ok := tree.(map[string]any)
	if !ok || s == nil {
		return
	}
	if values, ok := node["enum"].([]any); ok {
		s.Enum = values
	}
	if value, ok := node["const"]; ok && s.Const != nil {
		s.Const = &value
	}
	for name, sub := range map[string]*jsonschema.Schema{
		"items": s.Items, "additionalItems": s.AdditionalItems, "contains": s.Contains,
		"unevaluatedItems": s.UnevaluatedItems, "additionalProperties": s.AdditionalProperties,
		"propertyNames": s.PropertyNames, "unevaluatedProperties": s.UnevaluatedProperties,
		"not": s.Not, "if": s.If, "then": s.Then, "else": s.Else,
	} {
		restoreNumbers(sub, node[name])
	}
	for name, subs := range map[string][]*jsonschema.Schema{
		"items": s.ItemsArray, "prefixItems": s.PrefixItems,
		"allOf": s.AllOf, "anyOf": s.AnyOf, "oneOf": s.OneOf,
	} {
		if list, ok := node[name].([]any); ok && len(list) == len(subs) {
			for i, sub := range subs {
				restoreNumbers(sub, list[i])
			}
		}
	}
	for name, subs := range map[string]map[string]*jsonschema.Schema{
		"properties": s.Properties, "patternProperties": s.PatternProperties, "$defs": s.Defs,
		"definitions": s.Definitions, "dependentSchemas": s.DependentSchemas, "dependencies": s.DependencySchemas,
	} {
		if members, ok := node[name].(map[string]any); ok {
			for key, sub := range subs {
				restoreNumbers(sub, members[key])
			}
		}
	}
}

// validate checks raw, which is not changed. The text of the error says what
// is wrong and where, for a person or a model to put it right.
func (s *schema) validate(raw []byte) error {
	tree, err := decodeTree(raw)
	if errors.Is(err, errDepth) {
		return fmt.Errorf("%s %w", s.subject, errDepth)
	}
	if err != nil {
		return errors.New(s.subject + " must be valid JSON")
	}
	if !s.shape.allows(tree, raw) {
		return fmt.Errorf("checking %s against the schema would take more than %d steps: send less", s.subject, maxChecks)
	}
	if err := s.resolved.Validate(tree); err != nil {
		return errors.New(s.explain(tree, err))
	}
	return nil
}
