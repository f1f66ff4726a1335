package everything

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"

	"github.com/millrace/millrace/worker"
)

// The smallest files of their kinds: one red pixel, and no sound at all.
const (
	redPixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
	silence  = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
)

func pixel() []byte { return decoded(redPixel) }

func decoded(constant string) []byte {
	data, err := base64.StdEncoding.DecodeString(constant)
	if err != nil {
		return nil // a test looks at both
	}
	return data
}

// showing returns a handler that always answers with the same content.
func showing(content ...worker.Content) func(context.Context, *worker.Call, none) (*worker.Result, error) {
	return func(context.Context, *worker.Call, none) (*worker.Result, error) {
		return &worker.Result{Content: content}, nil
	}
}

// readOnly are the annotations of a tool that changes nothing.
func readOnly() *worker.Annotations {
	return &worker.Annotations{ReadOnlyHint: new(true), IdempotentHint: new(true), OpenWorldHint: new(false)}
}

func (e *Everything) addContentTools() {
	embedded := func(text string) worker.Content {
		return worker.EmbeddedResource(worker.ResourceContents{
			URI: "test://embedded-resource", MIMEType: "text/plain", Text: text,
		})
	}
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_simple_text", Description: "Returns one block of text.", Annotations: readOnly(),
	}, showing(worker.Text("This is a simple text response for testing.")))
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_image_content", Description: "Returns a picture of one pixel.", Annotations: readOnly(),
	}, showing(worker.Image(pixel(), "image/png")))
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_audio_content", Description: "Returns a sound without a sound in it.", Annotations: readOnly(),
	}, showing(worker.Audio(decoded(silence), "audio/wav")))
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_embedded_resource", Description: "Returns the contents of a resource.", Annotations: readOnly(),
	}, showing(embedded("This is an embedded resource content.")))
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_multiple_content_types", Description: "Returns a text, a picture and a resource.", Annotations: readOnly(),
	}, showing(
		worker.Text("Multiple content types test:"),
		worker.Image(pixel(), "image/png"),
		embedded(`{"test":"data","value":123}`),
	))
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_error_handling", Description: "Always fails, in a way a model can read.", Annotations: readOnly(),
	}, func(context.Context, *worker.Call, none) (*worker.Result, error) {
		return nil, errors.New("This tool intentionally returns an error for testing") //nolint:staticcheck // the text is a sentence that clients show
	})
	worker.AddTool(e.worker, worker.Tool{
		Name:        "test_annotated_content",
		Description: "Returns every kind of block with annotations and _meta, and a link to a resource.",
		Annotations: readOnly(),
	}, showing(annotated()...))
	e.worker.AddRawTool(worker.Tool{
		Name:        "json_schema_2020_12_tool",
		Description: "Has an input schema that uses much of JSON Schema 2020-12.",
		InputSchema: json.RawMessage(richSchema),
		Annotations: readOnly(),
	}, func(_ context.Context, _ *worker.Call, args json.RawMessage) (*worker.Result, error) {
		return &worker.Result{Content: []worker.Content{worker.Text("JSON Schema 2020-12 tool called with: " + string(args))}}, nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name:        "test_x_mcp_header",
		Description: "Has a parameter that clients also send as an HTTP header.",
		InputSchema: json.RawMessage(headerSchema),
		Annotations: readOnly(),
	}, func(_ context.Context, _ *worker.Call, in struct {
		Region string `json:"region"`
		Query  string `json:"query"`
	},
	) (string, error) {
		return "region " + in.Region + ", query " + in.Query, nil
	})
}

func annotated() []worker.Content {
	both := worker.ContentAnnotations{
		Audience: []worker.Role{worker.RoleUser, worker.RoleAssistant},
		Priority: new(0.5),
	}
	meta := json.RawMessage(`{"example.com/shown":true}`)
	blocks := []worker.Content{
		worker.Text("A text."),
		worker.Image(pixel(), "image/png"),
		worker.Audio(decoded(silence), "audio/wav"),
		worker.ResourceLink(worker.Resource{URI: "test://static-binary", Name: "static-binary", MIMEType: "image/png"}),
		worker.EmbeddedResource(worker.ResourceContents{URI: "test://embedded-binary", MIMEType: "image/png", Blob: pixel()}),
	}
	for i, block := range blocks {
		blocks[i] = block.Annotated(both).WithMeta(meta)
	}
	return blocks
}

const richSchema = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema",
	"type": "object",
	"$defs": {
		"address": {
			"$anchor": "addressDef",
			"type": "object",
			"properties": {
				"street": {"type": "string"},
				"city": {"type": "string"}
			}
		}
	},
	"properties": {
		"name": {"type": "string"},
		"address": {"$ref": "#/$defs/address"},
		"contactMethod": {"type": "string", "enum": ["phone", "email"]},
		"phone": {"type": "string"},
		"email": {"type": "string"}
	},
	"allOf": [
		{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}
	],
	"if": {
		"properties": {"contactMethod": {"const": "phone"}},
		"required": ["contactMethod"]
	},
	"then": {"required": ["phone"]},
	"else": {"required": ["email"]},
	"additionalProperties": false
}`

const headerSchema = `{
	"type": "object",
	"properties": {
		"region": {"type": "string", "description": "Where to look.", "x-mcp-header": "Region"},
		"query": {"type": "string", "description": "What to look for."}
	}
}`
