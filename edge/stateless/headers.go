package stateless

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// checkHeaders compares the mirrored headers of a request with its body, so
// that whoever routes by header and whoever executes the body agree
// (transports/streamable-http, "Request Metadata" and "Server Validation").
// Header names are case-insensitive, values are not.
func checkHeaders(req *exchange.Request, version string) *jsonrpc.Error {
	if err := checkHeader(req, mcp.HeaderProtocolVersion, "MCP-Protocol-Version", version, false); err != nil {
		return err
	}
	m := &req.Message
	if err := checkHeader(req, mcp.HeaderMethod, "Mcp-Method", m.Method, false); err != nil {
		return err
	}
	var param string
	switch m.Method {
	case mcp.MethodToolsCall, mcp.MethodPromptsGet:
		param = "name"
	case mcp.MethodResourcesRead:
		param = "uri"
	default:
		return nil
	}
	name, err := mcp.StringParam(m.Params, param)
	if err != nil {
		return err
	}
	return checkHeader(req, mcp.HeaderName, "Mcp-Name", name, true)
}

// checkParamHeaders compares the headers that mirror arguments of a tool with
// the arguments themselves ("Server Behavior for Custom Headers"). It runs only
// for tools that have any.
func checkParamHeaders(req *exchange.Request, headers []mcp.ParamHeader) *jsonrpc.Error {
	for _, h := range headers {
		shown := "Mcp-Param-" + h.Name
		value, err := argument(req.Message.Params.Get("arguments"), h.Path)
		if err != nil {
			return mismatch("the argument for the " + shown + " header cannot be read")
		}
		values := req.Header.Values(shown)
		switch {
		case value == nil && len(values) == 0:
			continue
		case value == nil:
			return mismatch("the " + shown + " header is there, but the body has no value for it")
		case len(values) == 0:
			return mismatch("the " + shown + " header is missing: the body has a value for it")
		case len(values) > 1:
			return mismatch("the " + shown + " header occurs more than once")
		}
		text, ok := decodeSentinel(strings.Trim(values[0], " \t"))
		if !ok {
			return mismatch("the " + shown + " header is not valid: after =?base64? comes strict, padded Base64 of UTF-8 text, then ?=")
		}
		if !mirrors(h.Type, text, value) {
			return mismatch("the " + shown + " header does not say what the body does")
		}
	}
	return nil
}

// argument finds the raw value at a path of the arguments; nil when there is
// none or it is null.
func argument(raw []byte, path []string) ([]byte, error) {
	for _, key := range path {
		if len(raw) == 0 || raw[0] != '{' {
			return nil, nil
		}
		o, err := jsonrpc.ParseObject(raw)
		if err != nil {
			return nil, err
		}
		raw = o.Get(key)
	}
	if string(raw) == "null" {
		return nil, nil
	}
	return raw, nil
}

// mirrors reports whether a header says the same as a value of the body.
// Integers are compared by value, as 42 and 42.0.
func mirrors(kind, header string, value []byte) bool {
	switch kind {
	case "string":
		s, ok := jsonrpc.String(value)
		return ok && s == header
	case "boolean":
		return (header == "true" || header == "false") && string(value) == header
	default:
		h, okHeader := integer(header)
		v, okValue := integer(string(value))
		return okHeader && okValue && h == v
	}
}

// integer reads an integer in the range that every client can represent ("safe
// range for JavaScript"); there float64 is exact.
func integer(text string) (int64, bool) {
	const safe = 1<<53 - 1
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > safe || strings.ContainsAny(text, "xXpP_") {
		return 0, false
	}
	return int64(f), true
}

// checkHeader checks one mirrored header; encoded headers may use the Base64
// sentinel.
func checkHeader(req *exchange.Request, key, shown, body string, encoded bool) *jsonrpc.Error {
	values := req.Header.Values(key)
	switch {
	case len(values) == 0:
		return mismatch(fmt.Sprintf("the %s header is missing: it must be %q, as in the body", shown, body))
	case len(values) > 1:
		return mismatch("the " + shown + " header occurs more than once")
	}
	value := strings.Trim(values[0], " \t")
	if encoded {
		var ok bool
		if value, ok = decodeSentinel(value); !ok {
			return mismatch("the " + shown + " header is not valid: after =?base64? comes strict, padded Base64 of UTF-8 text, then ?=")
		}
	}
	if value != body {
		return mismatch(fmt.Sprintf("the %s header is %q, but the body says %q", shown, value, body))
	}
	return nil
}

func mismatch(message string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: mcp.CodeHeaderMismatch, Message: "header mismatch: " + message}
}

// The markers of an encoded header value ("Value Encoding"); both are
// case-sensitive, and a value with only one of them is literal.
const (
	sentinelPrefix = "=?base64?"
	sentinelSuffix = "?="
)

// decodeSentinel decodes a header value; ok is false when it has both markers
// and no strict Base64 between them.
func decodeSentinel(value string) (decoded string, ok bool) {
	inner, found := strings.CutPrefix(value, sentinelPrefix)
	if !found {
		return value, true
	}
	inner, found = strings.CutSuffix(inner, sentinelSuffix)
	if !found {
		return value, true
	}
	if strings.ContainsAny(inner, "\r\n") {
		return "", false
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(inner)
	if err != nil {
		return "", false
	}
	return string(raw), true
}
