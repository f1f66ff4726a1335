package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Answers are the answers to the questions of one [Call.Ask], by their keys.
type Answers struct {
	codec *codec
	raw   map[string]json.RawMessage
}

// Action is what a user did about a form or page.
type Action string

// The actions. The zero Action is that of a question which was not asked.
const (
	// ActionAccept: the user submitted the form, or agreed to open the page.
	ActionAccept Action = "accept"
	// ActionDecline: the user said no.
	ActionDecline Action = "decline"
	// ActionCancel: the user closed the dialog without a choice.
	ActionCancel Action = "cancel"
)

// ElicitResult is the answer to [Elicit], [ElicitFor] and [ElicitURL].
type ElicitResult struct {
	Action Action
	// Content is the form as it was filled in, a JSON object that fits the
	// schema. Nil unless a form was accepted.
	Content json.RawMessage
}

// Root is a folder that a client works in.
type Root struct {
	// URI of the folder, a file: URI.
	URI string `json:"uri"`
	// Name for people; may be empty.
	Name string `json:"name,omitempty"`
	// Meta is _meta, a JSON object; nil when there is none.
	Meta json.RawMessage `json:"_meta,omitempty"`
}

// Raw returns an answer as the client gave it; nil if there was no such
// question.
func (a Answers) Raw(key string) json.RawMessage { return a.raw[validText(key)] }

// Elicited returns what the user did about a form or page. The zero value
// means that the key is not one of such a question.
func (a Answers) Elicited(key string) ElicitResult {
	var result struct {
		Action  Action          `json:"action"`
		Content json.RawMessage `json:"content"`
	}
	if !a.read(key, &result) || result.Action != ActionAccept {
		return ElicitResult{Action: result.Action}
	}
	if !isObject(result.Content) {
		return ElicitResult{Action: result.Action} // of a page
	}
	return ElicitResult{Action: result.Action, Content: result.Content}
}

// Message returns what the model wrote. The zero value means that the key is
// not one of a [CreateMessage].
func (a Answers) Message(key string) CreateMessageResult {
	var result CreateMessageResult
	if !a.read(key, &result) {
		return CreateMessageResult{}
	}
	return result
}

// Roots returns the folders; nil if the key is not one of a [ListRoots].
func (a Answers) Roots(key string) []Root {
	var result struct {
		Roots []Root `json:"roots"`
	}
	if !a.read(key, &result) {
		return nil
	}
	return result.Roots
}

// read decodes an answer, which was checked when it came in.
func (a Answers) read(key string, into any) bool {
	raw, ok := a.raw[validText(key)]
	return ok && a.codec.unmarshal(raw, into) == nil
}

// Accepted returns a form as the user filled it in. accepted is false, and the
// value zero, if the user declined or cancelled; [Answers.Elicited] says
// which. It fails if the key is not one of a form, or if T does not take what
// the schema of the form allows.
func Accepted[T any](answers Answers, key string) (value T, accepted bool, err error) {
	result := answers.Elicited(key)
	switch result.Action {
	case "":
		return value, false, internalf("there is no answer to a form by the key %q", key)
	case ActionAccept:
	default:
		return value, false, nil
	}
	content := result.Content
	if content == nil {
		content = json.RawMessage("{}")
	}
	if err := decodeArguments(answers.codec, content, &value); err != nil {
		if detail, ok := errors.AsType[*argumentsError](err); ok {
			err = errors.New(detail.detail)
		}
		return value, false, fmt.Errorf("the answer to %q: %w", key, err)
	}
	return value, true, nil
}

// checkElicitResult checks the answer to a form, or to a page if form is nil.
func checkElicitResult(raw json.RawMessage, form *schemaOfForm) error {
	members, err := membersOf(raw)
	if err != nil {
		return err
	}
	action, err := stringOf(members["action"])
	if err != nil {
		return fmt.Errorf("the action %w", err)
	}
	switch Action(action) {
	case ActionDecline, ActionCancel:
		return nil
	case ActionAccept:
	default:
		return errors.New("the action must be accept, decline or cancel")
	}
	if form == nil {
		return nil
	}
	content := members["content"]
	if content == nil {
		content = json.RawMessage("{}") // right if the form requires nothing
	}
	return form.validate(content)
}

func checkCreateMessageResult(raw json.RawMessage) error {
	members, err := membersOf(raw)
	if err != nil {
		return err
	}
	role, err := stringOf(members["role"])
	if err != nil || Role(role) != RoleUser && Role(role) != RoleAssistant {
		return errors.New("the role must be user or assistant")
	}
	if _, err := stringOf(members["model"]); err != nil {
		return fmt.Errorf("the model %w", err)
	}
	blocks, err := blocksOf(members["content"])
	if err != nil {
		return err
	}
	for _, block := range blocks {
		members, err := membersOf(block)
		if err != nil {
			return err
		}
		if _, err := stringOf(members["type"]); err != nil {
			return fmt.Errorf("the type of a block %w", err)
		}
	}
	return nil
}

func checkListRootsResult(raw json.RawMessage) error {
	members, err := membersOf(raw)
	if err != nil {
		return err
	}
	var roots []json.RawMessage
	if err := json.Unmarshal(members["roots"], &roots); err != nil || roots == nil {
		return errors.New("the roots must be an array")
	}
	for _, root := range roots {
		members, err := membersOf(root)
		if err != nil {
			return err
		}
		if _, err := stringOf(members["uri"]); err != nil {
			return fmt.Errorf("the URI of a root %w", err)
		}
	}
	return nil
}

// membersOf returns the members of an object. Their names are exact.
func membersOf(raw json.RawMessage) (map[string]json.RawMessage, error) {
	if !isObject(raw) {
		return nil, errors.New("it must be a JSON object")
	}
	var members map[string]json.RawMessage
	err := json.Unmarshal(raw, &members)
	return members, err
}

func stringOf(raw json.RawMessage) (string, error) {
	if !strings.HasPrefix(string(raw), `"`) {
		return "", errors.New("must be a string")
	}
	var text string
	err := json.Unmarshal(raw, &text)
	return text, err
}

// blocksOf returns one content block or several.
func blocksOf(raw json.RawMessage) ([]json.RawMessage, error) {
	if isObject(raw) {
		return []json.RawMessage{raw}, nil
	}
	var blocks []json.RawMessage
	if err := json.Unmarshal(raw, &blocks); err != nil || blocks == nil {
		return nil, errors.New("the content must be a block or an array of blocks")
	}
	return blocks, nil
}
