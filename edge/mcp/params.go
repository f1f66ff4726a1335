package mcp

import (
	"bytes"
	"slices"
	"strings"

	"github.com/millrace/millrace/edge/jsonrpc"
)

// invalidParams is the error for a parameter that is not what it must be.
func invalidParams(message string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: message}
}

// StringParam reads a parameter that must be there and be a string.
func StringParam(params jsonrpc.Object, key string) (string, *jsonrpc.Error) {
	raw := params.Get(key)
	if raw == nil {
		return "", invalidParams("params." + key + " is missing: it must be a string")
	}
	s, ok := jsonrpc.String(raw)
	if !ok {
		return "", invalidParams("params." + key + " must be a string")
	}
	return s, nil
}

// ObjectParam reads a parameter that may be absent and otherwise must be an
// object; it returns its raw JSON.
func ObjectParam(params jsonrpc.Object, key string) ([]byte, *jsonrpc.Error) {
	raw := params.Get(key)
	if raw != nil && raw[0] != '{' {
		return nil, invalidParams("params." + key + " must be an object")
	}
	return raw, nil
}

// ProgressToken reads the token under which the client wants progress, as raw
// JSON; nil when it wants none (progress: "Progress tokens MUST be a string or
// integer value").
func ProgressToken(meta jsonrpc.Object) ([]byte, *jsonrpc.Error) {
	raw := meta.Get(MetaProgressToken)
	switch {
	case raw == nil, bytes.Equal(raw, []byte("null")):
		return nil, nil
	case raw[0] == '"', isInteger(raw):
		return raw, nil
	default:
		return nil, invalidParams("params._meta.progressToken must be a string or an integer")
	}
}

// Completion is what completion/complete is asked about.
type Completion struct {
	// Prompt tells a prompt from a resource template.
	Prompt bool
	// Name is the name of the prompt or the URI template.
	Name string
	// Argument and Value are the argument's name and what was typed of it.
	Argument, Value string
	// Known are the values of other arguments.
	Known map[string]string
}

// ParseCompletion reads the parameters of completion/complete (completion,
// "Requesting Completions").
func ParseCompletion(params jsonrpc.Object) (*Completion, *jsonrpc.Error) {
	ref, err := objectMember(params, "ref", "params.ref")
	if err != nil {
		return nil, err
	}
	c := &Completion{}
	kind, _ := jsonrpc.String(ref.Get("type"))
	key := "name"
	switch kind {
	case "ref/prompt":
		c.Prompt = true
	case "ref/resource":
		key = "uri"
	default:
		return nil, invalidParams(`params.ref.type must be "ref/prompt" or "ref/resource"`)
	}
	var ok bool
	if c.Name, ok = jsonrpc.String(ref.Get(key)); !ok {
		return nil, invalidParams("params.ref." + key + " must be a string")
	}
	argument, err := objectMember(params, "argument", "params.argument")
	if err != nil {
		return nil, err
	}
	if c.Argument, ok = jsonrpc.String(argument.Get("name")); !ok {
		return nil, invalidParams("params.argument.name must be a string")
	}
	if c.Value, ok = jsonrpc.String(argument.Get("value")); !ok {
		return nil, invalidParams("params.argument.value must be a string")
	}
	c.Known, err = knownArguments(params)
	return c, err
}

// knownArguments reads params.context.arguments, which may be absent.
func knownArguments(params jsonrpc.Object) (map[string]string, *jsonrpc.Error) {
	if params.Get("context") == nil {
		return nil, nil
	}
	context, err := objectMember(params, "context", "params.context")
	if err != nil || context.Get("arguments") == nil {
		return nil, err
	}
	arguments, err := objectMember(context, "arguments", "params.context.arguments")
	if err != nil {
		return nil, err
	}
	known := map[string]string{}
	for _, m := range arguments.Members {
		value, ok := jsonrpc.String(m.Value)
		if !ok {
			return nil, invalidParams("the members of params.context.arguments must be strings")
		}
		known[m.Key] = value
	}
	return known, nil
}

func objectMember(o jsonrpc.Object, key, path string) (jsonrpc.Object, *jsonrpc.Error) {
	member, err := jsonrpc.ParseObject(o.Get(key))
	if err != nil {
		return jsonrpc.Object{}, invalidParams(path + " must be an object")
	}
	return member, nil
}

// logLevels are the levels of log messages, least severe first (server/
// utilities/logging, "Log Levels").
//
//nolint:gochecknoglobals // a table
var logLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// LogLevel reads a log level from raw JSON; path names it in the error.
func LogLevel(raw []byte, path string) (string, *jsonrpc.Error) {
	level, ok := jsonrpc.String(raw)
	if !ok || !slices.Contains(logLevels, level) {
		return "", invalidParams(path + " must be one of " + strings.Join(logLevels, ", "))
	}
	return level, nil
}

// isInteger reports whether a JSON value is a number without fraction and
// exponent.
func isInteger(raw []byte) bool {
	digits := bytes.TrimPrefix(raw, []byte("-"))
	return len(digits) > 0 && len(bytes.Trim(digits, "0123456789")) == 0
}
