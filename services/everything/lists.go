package everything

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/millrace/millrace/worker"
)

const (
	watchedURI  = "test://watched-resource"
	templateURI = "test://template/{id}/data"
)

func (e *Everything) addResources() {
	always := func(contents *worker.Contents) worker.ReadFunc {
		contents.TTL, contents.Public = time.Minute, true
		return func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
			return contents, nil
		}
	}
	e.worker.AddResource(worker.Resource{
		URI: "test://static-text", Name: "static-text", Title: "Static text", MIMEType: "text/plain",
		Description: "A text that never changes.",
		Annotations: worker.ContentAnnotations{Audience: []worker.Role{worker.RoleUser}}.JSON(),
	}, always(worker.TextContents("", "This is the content of the static text resource.")))
	e.worker.AddResource(worker.Resource{
		URI: "test://static-binary", Name: "static-binary", Title: "Static picture", MIMEType: "image/png",
		Description: "A picture that never changes.", Size: new(int64(len(pixel()))),
	}, always(worker.BlobContents("", pixel())))
	e.worker.AddResource(worker.Resource{
		URI: watchedURI, Name: "watched-resource", Title: "Watched text", MIMEType: "text/plain",
		Description: "A text to subscribe to: test_trigger_resource_update announces a change.",
	}, func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
		return worker.TextContents("", "Watched resource content."), nil
	})
	e.worker.AddResourceTemplate(worker.ResourceTemplate{
		URITemplate: templateURI, Name: "template", Title: "Data by id", MIMEType: "application/json",
		Description: "A JSON object that names the id it was read by.",
		Complete:    map[string]worker.CompleteFunc{"id": worker.CompleteFrom("1", "12", "123", "456")},
	}, func(_ context.Context, _ *worker.Call, req worker.ReadRequest) (*worker.Contents, error) {
		data, err := json.Marshal(map[string]any{
			"id": req.Vars["id"], "templateTest": true, "data": "Data for ID: " + req.Vars["id"],
		})
		return worker.TextContents("", string(data)), err
	})
}

// saying returns a prompt of one message.
func saying(text string) worker.PromptFunc {
	return func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{Messages: []worker.PromptMessage{{Content: worker.Text(text)}}}, nil
	}
}

func (e *Everything) addPrompts() {
	messages := func(content ...worker.Content) *worker.PromptResult {
		result := new(worker.PromptResult)
		for _, c := range content {
			result.Messages = append(result.Messages, worker.PromptMessage{Role: worker.RoleUser, Content: c})
		}
		return result
	}
	e.worker.AddPrompt(worker.Prompt{
		Name: "test_simple_prompt", Title: "Simple prompt", Description: "A prompt without arguments.",
	}, saying("This is a simple prompt for testing."))
	e.worker.AddPrompt(worker.Prompt{
		Name: "test_prompt_with_arguments", Title: "Prompt with arguments", Description: "A prompt that names its arguments.",
		Arguments: []worker.PromptArgument{
			{Name: "arg1", Description: "First test argument", Required: true, Complete: worker.CompleteFrom("paris", "park", "party")},
			{Name: "arg2", Description: "Second test argument", Required: true, Complete: afterFirst},
		},
	}, func(_ context.Context, _ *worker.Call, args map[string]string) (*worker.PromptResult, error) {
		return messages(worker.Text(fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", args["arg1"], args["arg2"]))), nil
	})
	e.worker.AddPrompt(worker.Prompt{
		Name: "test_prompt_with_embedded_resource", Description: "A prompt that brings a resource with it.",
		Arguments: []worker.PromptArgument{{Name: "resourceUri", Description: "URI of the resource", Required: true}},
	}, func(_ context.Context, _ *worker.Call, args map[string]string) (*worker.PromptResult, error) {
		return messages(
			worker.EmbeddedResource(worker.ResourceContents{URI: args["resourceUri"], MIMEType: "text/plain", Text: "Embedded resource content for testing."}),
			worker.Text("Please process the embedded resource above."),
		), nil
	})
	e.worker.AddPrompt(worker.Prompt{
		Name: "test_prompt_with_image", Description: "A prompt that brings a picture with it.",
	}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		return messages(worker.Image(pixel(), "image/png"), worker.Text("Please analyze the image above.")), nil
	})
	e.worker.AddPrompt(worker.Prompt{
		Name: "test_input_required_result_prompt", Description: "A prompt that asks the user for something first.",
	}, func(_ context.Context, call *worker.Call, _ map[string]string) (*worker.PromptResult, error) {
		type userContext struct {
			Context string `json:"context" jsonschema:"what the prompt should take into account"`
		}
		answers, err := call.Ask(worker.ElicitFor[userContext]("user_context", "What should the prompt take into account?"))
		if err != nil {
			return nil, err
		}
		answer, _, err := worker.Accepted[userContext](answers, "user_context")
		if err != nil {
			return nil, err
		}
		return messages(worker.Text("Take this into account: " + answer.Context)), nil
	})
}

// afterFirst suggests values that depend on what was chosen for arg1.
func afterFirst(ctx context.Context, call *worker.Call, req worker.CompleteRequest) (*worker.Completion, error) {
	first := req.Known["arg1"]
	if first == "" {
		return nil, nil
	}
	return worker.CompleteFrom(first+"-one", first+"-two")(ctx, call, req)
}
