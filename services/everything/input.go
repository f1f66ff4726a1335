package everything

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/millrace/millrace/worker"
)

// describe says what a user did about a form.
func describe(result worker.ElicitResult) string {
	text := "action " + string(result.Action)
	if result.Content != nil {
		text += ", content " + string(result.Content)
	}
	return text
}

// form adds a tool that asks for one form and tells what became of it.
func (e *Everything) form(name, description string, question worker.Question, key string) {
	worker.AddTool(e.worker, worker.Tool{Name: name, Description: description, Annotations: readOnly()},
		func(_ context.Context, call *worker.Call, _ none) (string, error) {
			answers, err := call.Ask(question)
			if err != nil {
				return "", err
			}
			return "Elicitation completed: " + describe(answers.Elicited(key)), nil
		})
}

// question asks a model one thing.
func question(key, prompt string) worker.Question {
	return worker.CreateMessage(key, worker.CreateMessageParams{
		Messages:  []worker.SamplingMessage{{Content: []worker.Content{worker.Text(prompt)}}},
		MaxTokens: 100,
	})
}

type contact struct {
	Username string `json:"username" jsonschema:"the name you go by"`
	Email    string `json:"email" jsonschema:"where to write to" format:"email"`
}

// addInputTools adds the tools that ask for something once.
func (e *Everything) addInputTools() {
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_sampling", Description: "Has a model of the client answer a prompt.", Annotations: readOnly(),
	}, func(_ context.Context, call *worker.Call, in struct {
		Prompt string `json:"prompt" jsonschema:"what the model is asked"`
	},
	) (string, error) {
		answers, err := call.Ask(question("answer", in.Prompt))
		if err != nil {
			return "", err
		}
		return "LLM response: " + answers.Message("answer").Text(), nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "test_elicitation", Description: "Asks the user for a name and an address.", Annotations: readOnly(),
	}, func(_ context.Context, call *worker.Call, in struct {
		Message string `json:"message" jsonschema:"what the user reads above the form"`
	},
	) (string, error) {
		answers, err := call.Ask(worker.ElicitFor[contact]("contact", in.Message))
		if err != nil {
			return "", err
		}
		return "User response: " + describe(answers.Elicited("contact")), nil
	})
	e.form("test_elicitation_sep1034_defaults", "Asks with a form that is filled in beforehand.",
		worker.Elicit("defaults", "Please check what is filled in.", json.RawMessage(defaultsSchema)), "defaults")
	e.form("test_elicitation_sep1330_enums", "Asks with a form of all kinds of choices.",
		worker.Elicit("enums", "Please choose.", json.RawMessage(enumsSchema)), "enums")
	e.form("test_elicitation_url", "Asks the user to open a page.",
		worker.ElicitURL("page", "Please open this page.", "https://example.com/", "everything-page"), "page")
	e.form("test_streaming_elicitation", "Asks the user for a name.",
		worker.ElicitFor[named]("user_name", "What is your name?"), "user_name")

	worker.AddTool(e.worker, worker.Tool{
		Name: "test_missing_capability", Description: "Needs a client with a model.", Annotations: readOnly(),
	}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
		if err := call.Require(worker.CapabilitySampling); err != nil {
			return "", err
		}
		return "The client has sampling.", nil
	})
}

// addRoundTools adds the tools that the suite asks over several rounds.
func (e *Everything) addRoundTools() {
	tool := func(name, description string, run func(call *worker.Call) (string, error)) {
		worker.AddTool(e.worker, worker.Tool{Name: name, Description: description, Annotations: readOnly()},
			func(_ context.Context, call *worker.Call, _ none) (string, error) { return run(call) })
	}
	tool("test_input_required_result_elicitation", "Greets the user by a name it asks for.", func(call *worker.Call) (string, error) {
		name, err := userName(call)
		if err != nil {
			return "", err
		}
		return "Hello, " + name + "!", nil
	})
	tool("test_input_required_result_sampling", "Asks a model for a capital.", func(call *worker.Call) (string, error) {
		answers, err := call.Ask(question("capital_question", "What is the capital of France?"))
		if err != nil {
			return "", err
		}
		return "The model says: " + answers.Message("capital_question").Text(), nil
	})
	tool("test_input_required_result_list_roots", "Counts the folders of the client.", func(call *worker.Call) (string, error) {
		answers, err := call.Ask(worker.ListRoots("client_roots"))
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("The client has %d roots.", len(answers.Roots("client_roots"))), nil
	})
	tool("test_input_required_result_request_state", "Asks for a confirmation.", func(call *worker.Call) (string, error) {
		// A worker sees a state only if it is the one it gave.
		return confirmed(call, "state-ok")
	})
	tool("test_input_required_result_tampered_state", "Asks for a confirmation.", func(call *worker.Call) (string, error) {
		return confirmed(call, "the state is as it was")
	})
	tool("test_input_required_result_multiple_inputs", "Asks the user, a model and the client at once.", func(call *worker.Call) (string, error) {
		answers, err := call.Ask(
			worker.ElicitFor[named]("user_name", "What is your name?"),
			question("greeting", "Write a short greeting."),
			worker.ListRoots("client_roots"),
		)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s; greeting %s; %d roots", describe(answers.Elicited("user_name")),
			answers.Message("greeting").Text(), len(answers.Roots("client_roots"))), nil
	})
	tool("test_input_required_result_multi_round", "Asks twice, the second question depending on the first answer.", func(call *worker.Call) (string, error) {
		answers, err := call.Ask(worker.ElicitFor[named]("step1", "Step 1: what is your name?"))
		if err != nil {
			return "", err
		}
		first, ok, err := worker.Accepted[named](answers, "step1")
		if err != nil || !ok {
			return "Stopped at step 1.", err
		}
		answers, err = call.Ask(worker.ElicitFor[colour]("step2", "Step 2: what is your favourite colour, "+first.Name+"?"))
		if err != nil {
			return "", err
		}
		second, ok, err := worker.Accepted[colour](answers, "step2")
		if err != nil || !ok {
			return "Stopped at step 2.", err
		}
		return first.Name + " likes " + second.Colour + ".", nil
	})
	tool("test_input_required_result_capabilities", "Asks for whatever the client can do.", func(call *worker.Call) (string, error) {
		var questions []worker.Question
		if call.Can(worker.CapabilityElicitation) {
			questions = append(questions, worker.ElicitFor[named]("user_name", "What is your name?"))
		}
		if call.Can(worker.CapabilitySampling) {
			questions = append(questions, question("capital_question", "What is the capital of France?"))
		}
		if call.Can(worker.CapabilityRoots) {
			questions = append(questions, worker.ListRoots("client_roots"))
		}
		if _, err := call.Ask(questions...); err != nil {
			return "", err
		}
		return fmt.Sprintf("The client answered %d questions.", len(questions)), nil
	})
}

type named struct {
	Name string `json:"name" jsonschema:"your name"`
}

type colour struct {
	Colour string `json:"color" jsonschema:"a colour"`
}

// userName asks for the name of the user.
func userName(call *worker.Call) (string, error) {
	answers, err := call.Ask(worker.ElicitFor[named]("user_name", "What is your name?"))
	if err != nil {
		return "", err
	}
	answer, ok, err := worker.Accepted[named](answers, "user_name")
	if err != nil {
		return "", err
	}
	if !ok {
		return "stranger", nil
	}
	return answer.Name, nil
}

// confirmed asks for a confirmation and says so.
func confirmed(call *worker.Call, text string) (string, error) {
	type confirmation struct {
		OK bool `json:"ok" jsonschema:"whether to go on"`
	}
	answers, err := call.Ask(worker.ElicitFor[confirmation]("confirm", "Go on?"))
	if err != nil {
		return "", err
	}
	answer, accepted, err := worker.Accepted[confirmation](answers, "confirm")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s (confirmed: %v)", text, accepted && answer.OK), nil
}

const defaultsSchema = `{
	"type": "object",
	"properties": {
		"name": {"type": "string", "description": "User name", "default": "John Doe"},
		"age": {"type": "integer", "description": "User age", "default": 30},
		"score": {"type": "number", "description": "User score", "default": 95.5},
		"status": {"type": "string", "description": "User status", "enum": ["active", "inactive", "pending"], "default": "active"},
		"verified": {"type": "boolean", "description": "Verification status", "default": true}
	},
	"required": []
}`

const enumsSchema = `{
	"type": "object",
	"properties": {
		"untitledSingle": {"type": "string", "description": "One of these", "enum": ["option1", "option2", "option3"]},
		"titledSingle": {"type": "string", "description": "One of these", "oneOf": [
			{"const": "value1", "title": "First Option"},
			{"const": "value2", "title": "Second Option"},
			{"const": "value3", "title": "Third Option"}
		]},
		"legacyEnum": {"type": "string", "description": "One of these", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]},
		"untitledMulti": {"type": "array", "description": "Any of these", "minItems": 1, "maxItems": 3, "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
		"titledMulti": {"type": "array", "description": "Any of these", "minItems": 1, "maxItems": 3, "items": {"anyOf": [
			{"const": "value1", "title": "First Choice"},
			{"const": "value2", "title": "Second Choice"},
			{"const": "value3", "title": "Third Choice"}
		]}}
	},
	"required": []
}`
