package jsonrpc

import "fmt"

// The codes JSON-RPC 2.0 defines.
const (
	CodeParse          = -32700 // the text is not JSON
	CodeInvalidRequest = -32600 // the JSON is no JSON-RPC message
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
)

// Error is a JSON-RPC error: one to be sent, or why a message was refused.
type Error struct {
	Code    int
	Message string
	Data    []byte // raw JSON, nil if absent
	ID      []byte // raw id of the refused message, nil if none could be read
}

// Error returns the message and the code.
func (e *Error) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

func invalid(why string) *Error { return &Error{Code: CodeInvalidRequest, Message: why} }

func invalidf(format string, args ...any) *Error { return invalid(fmt.Sprintf(format, args...)) }

func tooLarge(n, limit int) *Error {
	return invalidf("message of %d bytes exceeds the limit of %d bytes: send less in one message (limit max-body: an operator raises it with --max-body)", n, limit)
}

// The texts quote no input beyond one byte: what a client sent does not belong
// into logs or answers.

func (s *scanner) unexpected(want string) *Error {
	if s.pos >= len(s.data) {
		return &Error{Code: CodeParse, Message: fmt.Sprintf("not JSON: the text ends at byte %d, %s expected", s.pos, want)}
	}
	if s.pos == 0 && len(s.data) >= 3 && string(s.data[:3]) == "\xef\xbb\xbf" {
		return &Error{Code: CodeParse, Message: "not JSON: remove the byte order mark"}
	}
	return &Error{Code: CodeParse, Message: fmt.Sprintf("not JSON: %q at byte %d, %s expected", s.data[s.pos:s.pos+1], s.pos, want)}
}

func (s *scanner) broken(at int, why string) *Error {
	return &Error{Code: CodeParse, Message: fmt.Sprintf("not JSON: %s at byte %d", why, at)}
}
