package worker

import (
	"errors"
	"fmt"
)

// ErrResourceNotFound is returned (possibly wrapped) by a resource handler
// when there is nothing at the URI. The client sees the error of its protocol
// revision for that.
var ErrResourceNotFound = errors.New("resource not found")

// ProtocolError is a JSON-RPC error of the author's own. A handler that
// returns one ends the call with it instead of a result; clients usually do
// not show it to the model, so an ordinary error is the better choice for
// anything the model could put right.
type ProtocolError struct {
	// Code of the error; 0 stands for -32603, internal error. The range
	// -32020 to -32099 and the codes of JSON-RPC have their meaning already.
	Code int32
	// Message is one short sentence.
	Message string
	// Data is any value that can be marshalled to JSON, such as a
	// json.RawMessage; nil leaves the member out.
	Data any
}

// Error implements error.
func (e *ProtocolError) Error() string {
	return fmt.Sprintf("%s (code %d)", e.Message, e.Code)
}

// InvalidArguments returns an error that says the arguments are wrong in a way
// the schema cannot express. Return it from a handler: the client sees what
// it sees for arguments that do not fit the schema, with this detail.
func InvalidArguments(detail string) error {
	return &argumentsError{detail: detail}
}

type argumentsError struct{ detail string }

func (e *argumentsError) Error() string { return "invalid arguments: " + e.detail }

// internalError is a fault of the worker or its author: it is logged, and the
// client learns only that there was one.
type internalError struct {
	text  string
	stack []byte // of a panic
}

func (e *internalError) Error() string { return e.text }

func internalf(format string, args ...any) error {
	return &internalError{text: fmt.Sprintf(format, args...)}
}
