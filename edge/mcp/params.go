package mcp

import (
	"bytes"

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

// isInteger reports whether a JSON value is a number without fraction and
// exponent.
func isInteger(raw []byte) bool {
	digits := bytes.TrimPrefix(raw, []byte("-"))
	return len(digits) > 0 && len(bytes.Trim(digits, "0123456789")) == 0
}
