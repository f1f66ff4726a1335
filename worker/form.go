package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// schemaOfForm is the schema of a form: a JSON Schema that clients can show as
// one. The specification allows an object of simple properties only.
type schemaOfForm struct{ *schema }

const formAnswer = "the form"

// parseForm reads a schema the author wrote.
func parseForm(given json.RawMessage) (*schemaOfForm, error) {
	if len(given) == 0 {
		return nil, errors.New("it is empty")
	}
	s, err := parseSchema(given, formAnswer)
	if err != nil {
		return nil, err
	}
	if err := checkForm(s.root); err != nil {
		return nil, err
	}
	return &schemaOfForm{s}, nil
}

// checkForm refuses what a form cannot show.
func checkForm(root *jsonschema.Schema) error {
	if root.Type != "object" {
		return errors.New(`it must say "type":"object"`)
	}
	if root.Properties == nil {
		return errors.New("it must have properties")
	}
	if root.Ref != "" || root.AllOf != nil || root.AnyOf != nil || root.OneOf != nil || root.Not != nil || root.If != nil {
		return errors.New("references and combined schemas are not allowed in a form")
	}
	for _, name := range slices.Sorted(maps.Keys(root.Properties)) {
		if !simple(root.Properties[name]) {
			return fmt.Errorf("the property %q must be a string, number, integer or boolean, or choices of strings", name)
		}
	}
	return nil
}

// simple reports whether a form can show the property.
func simple(p *jsonschema.Schema) bool {
	if p == nil || p.Ref != "" || p.AllOf != nil || p.Not != nil || p.If != nil || p.Properties != nil {
		return false
	}
	switch p.Type {
	case "string":
		return p.Items == nil && p.AnyOf == nil && constants(p.OneOf)
	case "number", "integer", "boolean":
		return p.Items == nil && p.AnyOf == nil && p.OneOf == nil
	case "array":
		return p.AnyOf == nil && p.OneOf == nil && p.Items != nil &&
			(len(p.Items.Enum) > 0 || len(p.Items.AnyOf) > 0 && constants(p.Items.AnyOf))
	default:
		return false
	}
}

func constants(choices []*jsonschema.Schema) bool {
	return !slices.ContainsFunc(choices, func(s *jsonschema.Schema) bool { return s.Const == nil })
}

// inferForm returns the schema for a struct.
func inferForm(t reflect.Type) (*schemaOfForm, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("a form has the fields of a struct, not of %s", t)
	}
	root, err := jsonschema.ForType(t, &jsonschema.ForOptions{
		TypeSchemas: map[reflect.Type]*jsonschema.Schema{
			reflect.TypeFor[time.Time](): {Type: "string", Format: "date-time"},
		},
	})
	if err != nil {
		return nil, err
	}
	root.AdditionalProperties = nil // no part of a form, and clients may send more
	if root.Properties == nil {
		root.Properties = map[string]*jsonschema.Schema{}
	}
	for name, p := range root.Properties {
		if i := slices.Index(p.Types, "null"); i >= 0 && len(p.Types) == 2 {
			// A pointer or slice: nil is a field that was left out.
			p.Type, p.Types = p.Types[1-i], nil
			if p.Type != "array" {
				root.Required = slices.DeleteFunc(root.Required, func(r string) bool { return r == name })
			}
		}
	}
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			name = field.Name
		}
		if p := root.Properties[name]; p != nil && !field.Anonymous {
			if err := tagged(p, field.Tag); err != nil {
				return nil, fmt.Errorf("the field %s: %w", field.Name, err)
			}
		}
	}
	if err := checkForm(root); err != nil {
		return nil, err
	}
	s, err := newSchema(root, formAnswer)
	if err != nil {
		return nil, err
	}
	return &schemaOfForm{s}, nil
}

// tagged adds what the tags of a field say about it.
func tagged(p *jsonschema.Schema, tag reflect.StructTag) error {
	p.Title = tag.Get("title")
	if format := tag.Get("format"); format != "" {
		if p.Type != "string" {
			return errors.New("format is for strings")
		}
		p.Format = format
	}
	if choices, ok := tag.Lookup("enum"); ok {
		var values []any
		for choice := range strings.SplitSeq(choices, ",") {
			values = append(values, choice)
		}
		switch {
		case p.Type == "string":
			p.Enum = values
		case p.Type == "array" && p.Items != nil && p.Items.Type == "string":
			p.Items.Enum = values
		default:
			return errors.New("enum is for strings")
		}
	}
	if text, ok := tag.Lookup("default"); ok {
		value, err := defaultOf(p.Type, text)
		if err != nil {
			return err
		}
		p.Default = value
	}
	return nil
}

// defaultOf writes the text of a default tag as JSON.
func defaultOf(kind, text string) (json.RawMessage, error) {
	var value any = text
	switch kind {
	case "string":
	case "array":
		value = strings.Split(text, ",")
	default:
		value = json.RawMessage(text)
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("the default %q is no %s", text, kind)
	}
	return raw, nil
}
