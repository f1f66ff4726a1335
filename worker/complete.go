package worker

import (
	"context"
	"slices"
	"strings"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// CompleteRequest asks for values of an argument that somebody is typing.
type CompleteRequest struct {
	// Argument is the name of the argument or variable.
	Argument string
	// Value is what has been typed of it.
	Value string
	// Known are the values of other arguments that were chosen before. It may
	// be nil.
	Known map[string]string
}

// Completion are suggestions.
type Completion struct {
	// Values, best first. The client gets at most 100 of them and is told that
	// there are more.
	Values []string
	// Total is how many there are in all; 0 says nothing about it.
	Total int
	// HasMore says that there are more than Values.
	HasMore bool
}

// CompleteFunc suggests values of an argument. A nil Completion suggests
// none. It is called by many goroutines at once, often for each character
// typed; see [AddTool] for its context. It cannot ask or report anything by
// its Call. A [*ProtocolError] is shown to the client; any other error is an
// internal error, which only the log explains.
type CompleteFunc func(ctx context.Context, call *Call, req CompleteRequest) (*Completion, error)

// CompleteFrom returns a CompleteFunc that suggests those of the values that
// begin with what has been typed, in any case of letters.
func CompleteFrom(values ...string) CompleteFunc {
	return func(_ context.Context, _ *Call, req CompleteRequest) (*Completion, error) {
		typed := strings.ToLower(req.Value)
		var found Completion
		for _, value := range values {
			if strings.HasPrefix(strings.ToLower(value), typed) {
				found.Values = append(found.Values, value)
			}
		}
		return &found, nil
	}
}

// maxCompletions is how many values the protocol lets through.
const maxCompletions = 100

func (c *Completion) encode() *millracev1.CompleteResponse {
	if c == nil {
		return &millracev1.CompleteResponse{}
	}
	values, total, more := c.Values, max(c.Total, 0), c.HasMore
	if len(values) > maxCompletions {
		total = max(total, len(values))
		values, more = values[:maxCompletions], true
	}
	copied := false // the slice is the author's
	for i, value := range values {
		if valid := validText(value); valid != value {
			// What is no UTF-8 could not be sent.
			if !copied {
				values, copied = slices.Clone(values), true
			}
			values[i] = valid
		}
	}
	out := &millracev1.CompleteResponse{Values: values, HasMore: more || total > len(values)}
	if total > 0 {
		out.Total = new(uint64(total))
	}
	return out
}
