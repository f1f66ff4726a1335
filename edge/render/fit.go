package render

import (
	"bytes"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// fit leaves out the members of a definition that the revision does not know,
// and line breaks between tokens, which stdio and SSE could not carry.
func (l List) fit(rev *mcp.Revision, definition []byte) []byte {
	drop := l.unknown(rev, definition)
	if len(drop) > 0 {
		if rest, err := jsonrpc.Without(definition, drop...); err == nil {
			definition = rest
		}
	}
	if l == Tools && !rev.StructuredValues {
		definition = fitSchema(fitSchema(definition, "inputSchema"), "outputSchema")
	}
	if !rev.Titles {
		switch l {
		case Prompts:
			definition = within(definition, "arguments", func(arguments []byte) []byte {
				return each(arguments, func(a []byte) []byte { return without(a, "title") })
			})
		case Resources, ResourceTemplates:
			definition = fitAnnotations(rev, definition)
		case Tools:
		}
	}
	return jsonrpc.AppendOneLine(nil, definition)
}

// unknown names the members of a definition that the revision does not have.
func (l List) unknown(rev *mcp.Revision, definition []byte) (keys []string) {
	for _, m := range []struct {
		key  string
		have bool
	}{
		{"title", rev.Titles},
		{"icons", rev.Icons},
		{"_meta", rev.ItemMeta},
		// Those of resources are as old as the protocol.
		{"annotations", rev.Annotations || l != Tools},
		{"outputSchema", rev.StructuredValues || rev.StructuredObjects && objectSchema(definition)},
	} {
		if !m.have {
			keys = append(keys, m.key)
		}
	}
	return keys
}

// objectSchema reports whether the outputSchema of a tool describes an object,
// the only kind the legacy revisions know.
func objectSchema(definition []byte) bool {
	tool, err := jsonrpc.ParseObject(definition)
	if err != nil {
		return false
	}
	schema, err := jsonrpc.ParseObject(tool.Get("outputSchema"))
	return err == nil && bytes.Equal(schema.Get("type"), []byte(`"object"`))
}

// fitSchema writes the properties of a schema that are true or false as objects
// that mean the same: where the revision describes tool schemas it knows only
// objects there, and clients refuse the whole list for one that is none.
func fitSchema(definition []byte, key string) []byte {
	return within(definition, key, func(schema []byte) []byte {
		return within(schema, "properties", func(properties []byte) []byte {
			o, err := jsonrpc.ParseObject(properties)
			if err != nil {
				return properties
			}
			for i, m := range o.Members {
				switch string(m.Value) {
				case "true":
					o.Members[i].Value = []byte("{}")
				case "false":
					o.Members[i].Value = []byte(`{"not":{}}`)
				}
			}
			return jsonrpc.AppendObject(nil, o.Members...)
		})
	})
}

// fitContent writes an array of content blocks as the revision knows them:
// kinds that came later are replaced by text that says what is there, so that
// an old client shows something instead of failing on an unknown kind, and
// members that came later are left out.
func fitContent(rev *mcp.Revision, content []byte) []byte {
	if !late(rev, content) {
		return content
	}
	return each(content, func(block []byte) []byte { return fitBlock(rev, block) })
}

// fitMessages does the same for the messages of a prompt.
func fitMessages(rev *mcp.Revision, messages []byte) []byte {
	if !late(rev, messages) {
		return messages
	}
	return each(messages, func(m []byte) []byte {
		return within(m, "content", func(block []byte) []byte { return fitBlock(rev, block) })
	})
}

// fitContents does the same for the contents of a resource.
func fitContents(rev *mcp.Revision, contents []byte) []byte {
	if !late(rev, contents) {
		return contents
	}
	return each(contents, func(c []byte) []byte { return fitMeta(rev, c) })
}

// late reports whether JSON may hold something that the revision does not
// have, so that all else is passed on untouched and unread.
func late(rev *mcp.Revision, raw []byte) bool {
	return !rev.Audio && bytes.Contains(raw, []byte(`audio`)) ||
		!rev.ResourceLinks && bytes.Contains(raw, []byte(`resource_link`)) ||
		!rev.Icons && bytes.Contains(raw, []byte(`icons`)) ||
		!rev.ItemMeta && bytes.Contains(raw, []byte(`_meta`)) ||
		!rev.Titles && bytes.Contains(raw, []byte(`lastModified`))
}

func fitBlock(rev *mcp.Revision, block []byte) []byte {
	o, err := jsonrpc.ParseObject(block)
	if err != nil {
		return block
	}
	kind, _ := jsonrpc.String(o.Get("type"))
	switch {
	case kind == "audio" && !rev.Audio:
		return textBlock("(audio that this revision of the protocol cannot carry)")
	case kind == "resource_link" && !rev.ResourceLinks:
		text, _ := jsonrpc.String(o.Get("uri"))
		if name, ok := jsonrpc.String(o.Get("name")); ok {
			text = name + ": " + text
		}
		return textBlock(text)
	case kind == "resource_link" && !rev.Icons:
		block = without(block, "icons")
	case kind == "resource":
		block = within(block, "resource", func(c []byte) []byte { return fitMeta(rev, c) })
	}
	return fitAnnotations(rev, fitMeta(rev, block))
}

func textBlock(text string) []byte {
	t := newObject(len(text) + 32)
	t.string("type", "text")
	t.string("text", text)
	return t.end()
}

// fitMeta leaves out the _meta of an item where items have none.
func fitMeta(rev *mcp.Revision, item []byte) []byte {
	if rev.ItemMeta {
		return item
	}
	return without(item, "_meta")
}

// fitAnnotations leaves out the newest member of annotations, which came with
// titles.
func fitAnnotations(rev *mcp.Revision, item []byte) []byte {
	if rev.Titles {
		return item
	}
	return within(item, "annotations", func(a []byte) []byte { return without(a, "lastModified") })
}

// fitServer is serverInfo as the revision knows it.
func fitServer(rev *mcp.Revision, server []byte) []byte {
	var drop []string
	if !rev.Titles {
		drop = append(drop, "title")
	}
	if !rev.Icons {
		drop = append(drop, "description", "icons", "websiteUrl")
	}
	if drop == nil {
		return server
	}
	return without(server, drop...)
}

// --- Parts of JSON ---
// What is no object or array is returned as it is.

func without(object []byte, keys ...string) []byte {
	rest, err := jsonrpc.Without(object, keys...)
	if err != nil {
		return object
	}
	return rest
}

// within replaces one member of an object, if it is there.
func within(object []byte, key string, replace func([]byte) []byte) []byte {
	o, err := jsonrpc.ParseObject(object)
	if err != nil || o.Get(key) == nil {
		return object
	}
	for i, m := range o.Members {
		if m.Key == key {
			o.Members[i].Value = replace(m.Value)
		}
	}
	return jsonrpc.AppendObject(nil, o.Members...)
}

// each replaces the items of an array.
func each(array []byte, replace func([]byte) []byte) []byte {
	items, err := jsonrpc.ParseArray(array)
	if err != nil {
		return array
	}
	out := []byte{'['}
	for i, item := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, replace(item)...)
	}
	return append(out, ']')
}
