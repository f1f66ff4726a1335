package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Prompt describes a prompt: a template of messages that a user picks. Only
// Name has no useful zero value.
type Prompt struct {
	// Name is the name for programs, Title the one for people.
	Name, Title string
	// Description tells people what the prompt is for.
	Description string
	// Arguments of the prompt, in the order they should be asked for.
	Arguments []PromptArgument
	// Icons of the prompt.
	Icons []Icon
	// Meta is the _meta of the definition, a JSON object.
	Meta json.RawMessage
	// Scopes that an authenticated caller must have been granted; see
	// [Tool].Scopes.
	Scopes []string
}

// PromptArgument describes an argument. Its value is a text.
type PromptArgument struct {
	// Name is the name for programs, Title the one for people.
	Name, Title string
	// Description tells people what to give.
	Description string
	// Required: a prompt without it is refused.
	Required bool
	// Complete suggests values while one is typed; nil: there are none.
	Complete CompleteFunc
}

// PromptResult is a prompt, filled in.
type PromptResult struct {
	// Description of it as it was filled in; empty leaves it out.
	Description string
	// Messages for the model.
	Messages []PromptMessage
	// Meta is _meta, a JSON object; nil leaves it out.
	Meta json.RawMessage
}

// PromptMessage is one message of a prompt.
type PromptMessage struct {
	// Role of who says it; empty: RoleUser.
	Role Role
	// Content is what is said.
	Content Content
}

// PromptFunc fills in a prompt. args has what the client sent, by name; those
// that are required are there. The specification does not say what an argument
// means that the prompt does not declare: such a one is passed on as well. It
// is called by many goroutines at once; see [AddTool] for its context. A
// [*ProtocolError] or [InvalidArguments] is shown to the client, and it may
// [Call.Ask]; any other error is an internal error, which only the log
// explains.
type PromptFunc func(ctx context.Context, call *Call, args map[string]string) (*PromptResult, error)

// prompt is a registered prompt. It does not change.
type prompt struct {
	name     string
	required []string
	complete map[string]CompleteFunc // nil where an argument has none
	entry    *millracev1.Prompt
	get      PromptFunc
}

// AddPrompt adds a prompt. While the worker runs, the change is announced at
// once; a mistake is logged then, and the prompt is not added.
func (w *Worker) AddPrompt(p Prompt, get PromptFunc) {
	w.register(func() error {
		added, err := p.build(get)
		if err == nil && w.prompts[p.Name] != nil {
			err = errors.New("a prompt of this name was added before")
		}
		if err != nil {
			return fmt.Errorf("worker: prompt %q: %w", p.Name, err)
		}
		w.prompts[p.Name] = added
		return nil
	})
}

// RemovePrompt removes a prompt; a name that is not there is not an error.
// While the worker runs, the change is announced at once; calls that are
// running go on.
func (w *Worker) RemovePrompt(name string) { remove(w, w.prompts, name) }

func (p Prompt) build(get PromptFunc) (*prompt, error) {
	built := &prompt{name: p.Name, complete: map[string]CompleteFunc{}, get: get}
	scopes, err := scopesOf(p.Scopes)
	mistakes := []error{err}
	if p.Name == "" {
		mistakes = append(mistakes, errors.New("the name is empty"))
	}
	if !utf8.ValidString(p.Name) {
		mistakes = append(mistakes, errors.New("the name is no UTF-8"))
	}
	if get == nil {
		mistakes = append(mistakes, errors.New("the handler is nil"))
	}
	arguments := make([]json.RawMessage, len(p.Arguments))
	var completed []string
	for i, a := range p.Arguments {
		if _, twice := built.complete[a.Name]; twice || a.Name == "" {
			mistakes = append(mistakes, fmt.Errorf("the name %q of an argument is empty or used twice", a.Name))
		}
		if !utf8.ValidString(a.Name) {
			mistakes = append(mistakes, fmt.Errorf("the name %q of an argument is no UTF-8", a.Name))
		}
		built.complete[a.Name] = a.Complete
		if a.Complete != nil {
			completed = append(completed, a.Name)
		}
		var o object
		o.value("name", a.Name)
		o.text("title", a.Title)
		o.text("description", a.Description)
		if a.Required {
			built.required = append(built.required, a.Name)
			o.value("required", true)
		}
		raw, err := o.bytes()
		mistakes = append(mistakes, err)
		arguments[i] = raw
	}
	var o object
	o.value("name", p.Name)
	o.text("title", p.Title)
	o.text("description", p.Description)
	if len(arguments) > 0 {
		o.value("arguments", arguments)
	}
	encodeIcons(&o, p.Icons)
	encodeMeta(&o, p.Meta)
	definition, err := o.bytes()
	if err := errors.Join(append(mistakes, err)...); err != nil {
		return nil, err
	}
	built.entry = &millracev1.Prompt{Name: p.Name, Definition: definition, Completed: completed, Scopes: scopes}
	return built, nil
}

// run checks the arguments and fills the prompt in.
func (p *prompt) run(ctx context.Context, c *codec, call *Call) (*millracev1.PromptResult, error) {
	args := map[string]string{}
	if len(call.args) > 0 {
		var raw map[string]json.RawMessage
		if err := c.unmarshal(call.args, &raw); err != nil || raw == nil {
			return nil, InvalidArguments("the arguments must be a JSON object")
		}
		for name, value := range raw {
			text, err := stringOf(value)
			if err != nil {
				return nil, InvalidArguments(fmt.Sprintf("the argument %s must be a string", quote(name)))
			}
			args[name] = text
		}
	}
	var missing []string
	for _, name := range p.required {
		if _, ok := args[name]; !ok {
			missing = append(missing, quote(name))
		}
	}
	if len(missing) > 0 {
		return nil, InvalidArguments("missing required argument " + strings.Join(missing, ", "))
	}
	result, err := p.get(ctx, call, args)
	if err != nil {
		return nil, err
	}
	return result.encode()
}

func (r *PromptResult) encode() (*millracev1.PromptResult, error) {
	if r == nil {
		return nil, internalf("the handler returned neither a prompt nor an error")
	}
	out := []byte{'['}
	for i, message := range r.Messages {
		content, err := message.Content.MarshalJSON()
		var o object
		o.role(message.Role)
		o.raw("content", content)
		raw, bad := o.bytes()
		if err := errors.Join(err, bad); err != nil {
			return nil, internalf("a message cannot be written: %v", err)
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, raw...)
	}
	if err := checkObject("_meta", r.Meta); err != nil {
		return nil, internalf("the prompt cannot be written: %v", err)
	}
	return &millracev1.PromptResult{Description: validText(r.Description), Messages: append(out, ']'), Meta: r.Meta}, nil
}

// role adds the role of a message.
func (o *object) role(r Role) {
	switch r {
	case "":
		r = RoleUser
	case RoleUser, RoleAssistant:
	default:
		o.err = errors.Join(o.err, fmt.Errorf("the role %q is neither user nor assistant", r))
	}
	o.value("role", r)
}
