package render

import (
	"bytes"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// fitContent writes an array of content blocks as the revision knows them:
// kinds that came later are replaced by text that says what is there, so that
// an old client shows something instead of failing on an unknown kind.
func fitContent(rev *mcp.Revision, content []byte) []byte {
	var late [][]byte
	if !rev.Audio {
		late = append(late, []byte(`"audio"`))
	}
	if !rev.ResourceLinks {
		late = append(late, []byte(`"resource_link"`))
	}
	found := false
	for _, kind := range late {
		found = found || bytes.Contains(content, kind)
	}
	if !found {
		return content
	}
	blocks, err := jsonrpc.ParseArray(content)
	if err != nil {
		return content
	}
	out := []byte{'['}
	for i, block := range blocks {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, fitBlock(late, block)...)
	}
	return append(out, ']')
}

func fitBlock(late [][]byte, block []byte) []byte {
	o, err := jsonrpc.ParseObject(block)
	if err != nil {
		return block
	}
	for _, kind := range late {
		if !bytes.Equal(o.Get("type"), kind) {
			continue
		}
		text := "(audio that this revision of the protocol cannot carry)"
		if uri, ok := jsonrpc.String(o.Get("uri")); ok {
			text = uri
			if title, ok := jsonrpc.String(o.Get("name")); ok {
				text = title + ": " + uri
			}
		}
		t := newObject(len(text) + 32)
		t.string("type", "text")
		t.string("text", text)
		return t.end()
	}
	return block
}
