package stateless

import (
	"encoding/base64"
	"fmt"
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
