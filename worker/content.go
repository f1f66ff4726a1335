package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Content is one block of a result. Make one with [Text], [Image], [Audio],
// [ResourceLink], [EmbeddedResource] or [RawContent]; the zero value is not
// valid. A Content does not change and may be shared.
type Content struct {
	raw []byte
	err error // why the block cannot be written
}

// ContentAnnotations say for whom a block or resource is, and how much it
// matters. The zero value says nothing.
type ContentAnnotations struct {
	// Audience: who should see it, RoleUser or RoleAssistant or both.
	Audience []Role
	// Priority from 0, not needed, to 1, needed; nil says nothing about it.
	Priority *float64
	// LastModified is when the contents have changed; zero: not known.
	LastModified time.Time
}

// JSON returns the annotations as a JSON object, for [Resource.Annotations].
// It is nil if a role or the priority is not valid: the definition or block
// has no annotations then.
func (a ContentAnnotations) JSON() json.RawMessage {
	raw, err := a.encode()
	if err != nil {
		return nil
	}
	return raw
}

func (a ContentAnnotations) encode() ([]byte, error) {
	var o object
	for _, role := range a.Audience {
		if role != RoleUser && role != RoleAssistant {
			o.err = fmt.Errorf("the audience %q is neither user nor assistant", role)
		}
	}
	if len(a.Audience) > 0 {
		o.value("audience", a.Audience)
	}
	if a.Priority != nil {
		if !(*a.Priority >= 0 && *a.Priority <= 1) {
			o.err = errors.Join(o.err, errors.New("the priority must be from 0 to 1"))
		}
		o.value("priority", *a.Priority)
	}
	if !a.LastModified.IsZero() {
		o.value("lastModified", a.LastModified.UTC().Format(time.RFC3339))
	}
	return o.bytes()
}

// Annotated returns the block with annotations. A block that has them already
// is not valid then.
func (c Content) Annotated(a ContentAnnotations) Content {
	raw, err := a.encode()
	return c.with("annotations", raw, err)
}

// WithMeta returns the block with _meta, a JSON object. A block that has one
// already is not valid then.
func (c Content) WithMeta(meta json.RawMessage) Content {
	err := checkObject("_meta", meta)
	if err == nil && len(meta) > 0 {
		meta, err = compacted(meta)
	}
	return c.with("_meta", meta, err)
}

// with returns the block with one more member.
func (c Content) with(name string, value json.RawMessage, err error) Content {
	members, bad := membersOf(c.raw)
	if err := errors.Join(c.err, bad, err); err != nil {
		return Content{err: err}
	}
	if members[name] != nil {
		return Content{err: fmt.Errorf("a content block has %s already", name)}
	}
	if len(value) == 0 {
		return c
	}
	// The other bytes stay as they are; a block has a type at least.
	raw := bytes.TrimRight(c.raw, " \t\r\n")
	raw = raw[:len(raw)-1]
	out := make([]byte, 0, len(raw)+len(name)+len(value)+5)
	out = append(out, raw...)
	if len(members) > 0 {
		out = append(out, ',')
	}
	out = append(out, '"')
	out = append(out, name...)
	out = append(out, '"', ':')
	out = append(out, value...)
	return Content{raw: append(out, '}')}
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
	if plain(text) {
		// Most texts, and the long ones that cost: nothing has to be escaped, so
		// it is copied once.
		const head, tail = `{"type":"text","text":"`, `"}`
		raw := make([]byte, 0, len(head)+len(text)+len(tail))
		return Content{raw: append(append(append(raw, head...), text...), tail...)}
	}
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
