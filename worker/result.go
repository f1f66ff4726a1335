package worker

import (
	"encoding/json"
	"errors"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Result is the result of a tool, for handlers that want to say more than one
// value: several blocks of content, pictures, _meta.
type Result struct {
	// Content is what the model reads. Nil means "a text block with the JSON
	// of Structured" where that is set, for clients that know no structured
	// content, and no block otherwise; an empty slice always means no block.
	Content []Content
	// Structured is the structured content: any value that can be marshalled
	// to JSON. A json.RawMessage is passed on byte for byte. Nil leaves it
	// out; a tool with an output schema must set it unless IsError is set.
	Structured any
	// IsError marks a failure that the model should see.
	IsError bool
	// Meta is _meta, a JSON object; nil leaves it out.
	Meta json.RawMessage
	// Extra are further members of the result, a JSON object.
	Extra json.RawMessage
}

// Contenter is implemented by the Out type of a typed tool that has a better
// text for people and models than the JSON of the value. The value itself
// still becomes the structured content.
type Contenter interface {
	// Content returns the blocks that stand beside the structured content.
	Content() []Content
}

// errorResult is what an error returned by a handler becomes.
func errorResult(err error) *Result {
	return &Result{Content: []Content{Text(err.Error())}, IsError: true}
}

// resultOf turns what a typed handler returned into a result.
func resultOf(out any) *Result {
	switch v := out.(type) {
	case nil:
		return &Result{}
	case *Result:
		if v == nil {
			return &Result{}
		}
		return v
	case Result:
		return &v
	case string:
		return &Result{Content: []Content{Text(v)}}
	case Contenter:
		blocks := v.Content()
		if blocks == nil {
			blocks = []Content{}
		}
		return &Result{Content: blocks, Structured: out}
	default:
		return &Result{Structured: out}
	}
}

// outputError says that a result is not what its tool has promised.
type outputError struct{ text string }

func (e *outputError) Error() string { return e.text }

// encode writes the result and checks its structured content against schema,
// which may be nil. Every error is the author's: none is for the client.
func (r *Result) encode(c *codec, schema *schema) (*millracev1.ToolResult, error) {
	structured, err := c.marshal(r.Structured)
	if err != nil {
		return nil, internalf("the structured content cannot be written: %v", err)
	}
	if schema != nil && !r.IsError {
		if len(structured) == 0 {
			return nil, &outputError{"the tool has an output schema, but its result has no structured content"}
		}
		if err := schema.validate(structured); err != nil {
			return nil, &outputError{"the structured content does not fit the output schema of the tool: " + err.Error()}
		}
	}
	blocks := r.Content
	if blocks == nil && len(structured) > 0 {
		blocks = []Content{Text(string(structured))}
	}
	content, err := encodeContent(blocks)
	if err != nil {
		return nil, internalf("the content cannot be written: %v", err)
	}
	if err := errors.Join(checkObject("_meta", r.Meta), checkObject("Extra", r.Extra)); err != nil {
		return nil, internalf("the result cannot be written: %v", err)
	}
	return &millracev1.ToolResult{
		Content:           content,
		StructuredContent: structured,
		IsError:           r.IsError,
		Meta:              r.Meta,
		Extra:             r.Extra,
	}, nil
}
