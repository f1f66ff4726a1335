package jsonrpc

import "strconv"

// In all of these ids, params, results and data are raw JSON, copied as they
// are.

// AppendResult appends a response. A nil result becomes {}.
func AppendResult(dst, id, result []byte) []byte {
	dst = appendHead(dst, id)
	dst = append(dst, `,"result":`...)
	if result == nil {
		result = []byte("{}")
	}
	dst = append(dst, result...)
	return append(dst, '}')
}

// AppendError appends an error response. A nil id becomes null, as JSON-RPC
// demands when the id could not be read; see [AppendErrorWithoutID]. The ID in
// e is not looked at.
func AppendError(dst, id []byte, e *Error) []byte {
	return appendError(appendHead(dst, id), e)
}

// AppendErrorWithoutID appends an error response that has no id member, which
// is how the newer revisions of MCP write an error without a readable id.
func AppendErrorWithoutID(dst []byte, e *Error) []byte {
	return appendError(append(dst, `{"jsonrpc":"2.0"`...), e)
}

func appendHead(dst, id []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	if id == nil {
		return append(dst, "null"...)
	}
	return append(dst, id...)
}

func appendError(dst []byte, e *Error) []byte {
	return append(AppendErrorObject(append(dst, `,"error":`...), e), '}')
}

// AppendErrorObject appends the error alone, without a message around it.
func AppendErrorObject(dst []byte, e *Error) []byte {
	dst = append(dst, `{"code":`...)
	dst = strconv.AppendInt(dst, int64(e.Code), 10)
	dst = append(dst, `,"message":`...)
	dst = AppendString(dst, e.Message)
	if e.Data != nil {
		dst = append(dst, `,"data":`...)
		dst = append(dst, e.Data...)
	}
	return append(dst, '}')
}

// AppendRequest appends a request. Nil params are left out.
func AppendRequest(dst, id []byte, method string, params []byte) []byte {
	return appendCall(appendHead(dst, id), method, params)
}

// AppendNotification appends a notification. Nil params are left out.
func AppendNotification(dst []byte, method string, params []byte) []byte {
	return appendCall(append(dst, `{"jsonrpc":"2.0"`...), method, params)
}

func appendCall(dst []byte, method string, params []byte) []byte {
	dst = append(dst, `,"method":`...)
	dst = AppendString(dst, method)
	if params != nil {
		dst = append(dst, `,"params":`...)
		dst = append(dst, params...)
	}
	return append(dst, '}')
}
