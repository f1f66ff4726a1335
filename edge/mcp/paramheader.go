package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/edge/jsonrpc"
)

// ParamHeader is an argument of a tool that clients mirror into an HTTP header
// (transports/streamable-http, "Custom Headers from Tool Parameters").
type ParamHeader struct {
	// Name is the part of the header after "Mcp-Param-", as the tool writes it.
	Name string
	// Path are the keys that lead to the argument.
	Path []string
	// Type is string, integer or boolean.
	Type string
}

// paramHeaderKey is the annotation in a schema.
const paramHeaderKey = "x-mcp-header"

// ParamHeaders finds the annotated arguments of a tool's inputSchema. An error
// says which rule a tool breaks that clients would have to refuse.
func ParamHeaders(inputSchema []byte) ([]ParamHeader, error) {
	if !bytes.Contains(inputSchema, []byte(paramHeaderKey)) {
		return nil, nil
	}
	w := headerWalk{names: map[string]bool{}}
	if err := w.schema(inputSchema, nil, true); err != nil {
		return nil, err
	}
	return w.found, nil
}

// headerWalk walks a schema once.
type headerWalk struct {
	found []ParamHeader
	names map[string]bool // in lower case
}

// schema visits one schema. reachable tells whether only "properties" lead to
// it; path is how.
func (w *headerWalk) schema(raw []byte, path []string, reachable bool) error {
	if len(raw) == 0 || raw[0] != '{' {
		return w.array(raw)
	}
	o, err := jsonrpc.ParseObject(raw)
	if err != nil {
		return err
	}
	if annotation := o.Get(paramHeaderKey); annotation != nil {
		if err := w.annotation(annotation, o, path, reachable); err != nil {
			return fmt.Errorf("%s at %q: %w", paramHeaderKey, strings.Join(path, "."), err)
		}
	}
	for _, m := range o.Members {
		switch m.Key {
		case paramHeaderKey, "enum", "const", "default", "examples", "required", "type":
			// Data, not schemas.
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas":
			children, err := jsonrpc.ParseObject(m.Value)
			if err != nil {
				return err
			}
			for _, child := range children.Members {
				here := append(append([]string(nil), path...), child.Key)
				if err := w.schema(child.Value, here, reachable && m.Key == "properties"); err != nil {
					return err
				}
			}
		default:
			if err := w.schema(m.Value, append(append([]string(nil), path...), m.Key), false); err != nil {
				return err
			}
		}
	}
	return nil
}

// array visits the schemas of an array keyword.
func (w *headerWalk) array(raw []byte) error {
	if len(raw) == 0 || raw[0] != '[' {
		return nil
	}
	items, err := jsonrpc.ParseArray(raw)
	if err != nil {
		return err
	}
	for _, item := range items {
		if err := w.schema(item, nil, false); err != nil {
			return err
		}
	}
	return nil
}

func (w *headerWalk) annotation(raw []byte, schema jsonrpc.Object, path []string, reachable bool) error {
	name, ok := jsonrpc.String(raw)
	switch {
	case !ok || name == "":
		return errors.New("it must be a string that is not empty")
	case strings.ContainsFunc(name, func(r rune) bool { return !isTokenChar(r) }):
		return fmt.Errorf("%q is no HTTP field name", name)
	case !reachable || len(path) == 0:
		return errors.New("only properties that are reached through properties alone can be mirrored")
	case w.names[strings.ToLower(name)]:
		return fmt.Errorf("%q is used twice, and case does not tell header names apart", name)
	}
	kind, err := primitive(schema.Get("type"))
	if err != nil {
		return err
	}
	w.names[strings.ToLower(name)] = true
	w.found = append(w.found, ParamHeader{Name: name, Path: path, Type: kind})
	return nil
}

// primitive reads a type that a header can carry; it may be nullable.
func primitive(raw []byte) (string, error) {
	kinds := [][]byte{raw}
	if len(raw) > 0 && raw[0] == '[' {
		var err error
		if kinds, err = jsonrpc.ParseArray(raw); err != nil {
			return "", err
		}
	}
	found := ""
	for _, k := range kinds {
		kind, _ := jsonrpc.String(k)
		switch {
		case kind == "null" && len(kinds) > 1:
		case found == "" && (kind == "string" || kind == "integer" || kind == "boolean"):
			found = kind
		default:
			found = "?"
		}
	}
	if found == "" || found == "?" {
		return "", errors.New("its type must be string, integer or boolean")
	}
	return found, nil
}

// isTokenChar reports whether a header name may hold the character (RFC 9110,
// section 5.6.2).
func isTokenChar(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return true
	default:
		return strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}
}
