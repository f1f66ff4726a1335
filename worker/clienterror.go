package worker

import (
	"encoding/json"
	"fmt"
)

// ClientError is what Call.Ask returns when the client answered a question
// with an error instead of an answer, as clients up to 2025-11-25 can. A
// handler may go on without the answer; one that returns the error gives a
// result that says so.
type ClientError struct {
	// Key of the question.
	Key string `json:"-"`
	// Code, Message and Data are the client's JSON-RPC error.
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error returns the text for a model.
func (e *ClientError) Error() string {
	return fmt.Sprintf("the client answered the question %q with an error: %s (code %d)", e.Key, e.Message, e.Code)
}

// readClientError reads a JSON-RPC error object.
func readClientError(raw []byte) *ClientError {
	e := new(ClientError)
	if err := json.Unmarshal(raw, e); err != nil {
		return &ClientError{Message: "an error that cannot be read"}
	}
	return e
}
