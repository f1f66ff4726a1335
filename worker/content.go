package worker

import (
	"encoding/json"
	"errors"
)

// Content is one block of a result. Make one with [Text], [Image], [Audio],
// [ResourceLink], [EmbeddedResource] or [RawContent]; the zero value is not
// valid. A Content does not change and may be shared.
type Content struct {
	raw []byte
	err error // why the block cannot be written
}

// MarshalJSON implements [json.Marshaler].
func (c Content) MarshalJSON() ([]byte, error) {
	if c.err == nil && c.raw == nil {
		return nil, errors.New("a content block is empty")
	}
	return c.raw, c.err
}

// Text is a block of text. What is no UTF-8 in it becomes U+FFFD.
func Text(text string) Content {
	var o object
	o.value("type", "text")
	o.value("text", text)
	return block(&o)
}

// Image is a picture; mimeType is something like "image/png".
func Image(data []byte, mimeType string) Content { return media("image", data, mimeType) }

// Audio is a sound; mimeType is something like "audio/wav".
func Audio(data []byte, mimeType string) Content { return media("audio", data, mimeType) }

// ResourceLink points to a resource the client can read; it need not be one
// that is listed.
func ResourceLink(r Resource) Content {
	if err := r.check(); err != nil {
		return Content{err: err}
	}
	var o object
	o.value("type", "resource_link")
	r.write(&o)
	return block(&o)
}

// EmbeddedResource carries the contents of a resource within the result.
// Contents.URI is required here.
func EmbeddedResource(c ResourceContents) Content {
	if c.URI == "" {
		return Content{err: errors.New("an embedded resource needs a URI")}
	}
	inner, err := c.encode("", "")
	if err != nil {
		return Content{err: err}
	}
	var o object
	o.value("type", "resource")
	o.raw("resource", inner)
	return block(&o)
}

// RawContent is a block the author has written as JSON, an object with a
// member "type". It is passed on byte for byte.
func RawContent(raw json.RawMessage) Content {
	if len(raw) == 0 {
		return Content{err: errors.New("a raw content block is empty")}
	}
	if err := checkObject("a raw content block", raw); err != nil {
		return Content{err: err}
	}
	return Content{raw: raw}
}

func media(kind string, data []byte, mimeType string) Content {
	var o object
	o.value("type", kind)
	o.value("data", data)
	o.value("mimeType", mimeType)
	return block(&o)
}

func block(o *object) Content {
	raw, err := o.bytes()
	return Content{raw: raw, err: err}
}

// encodeContent writes the array of blocks; none are [] and never null.
func encodeContent(blocks []Content) ([]byte, error) {
	size := 2
	for _, c := range blocks {
		size += len(c.raw) + 1
	}
	out := append(make([]byte, 0, size), '[')
	for i, c := range blocks {
		raw, err := c.MarshalJSON()
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, raw...)
	}
	return append(out, ']'), nil
}
