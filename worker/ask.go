package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
)

// ErrNeedsInput is returned by [Call.Ask] while there are questions without an
// answer. A handler returns it, as it is or wrapped with %w; the round ends
// then, and the handler runs again when the client has answered.
var ErrNeedsInput = errors.New("the call needs input from the client")

// MissingCapabilityError says that the client lacks what a handler needs. A
// handler that returns it ends the call with the error of the protocol for
// that, which tells the client what to declare.
type MissingCapabilityError struct {
	// Missing capabilities.
	Missing []Capability
}

// Error implements error.
func (e *MissingCapabilityError) Error() string {
	return fmt.Sprintf("the client lacks capabilities: %v", e.Missing)
}

// Question is something to ask of the client, or of the user there. Make one
// with [Elicit], [ElicitFor], [ElicitURL], [CreateMessage] or [ListRoots]; the
// zero value is not valid. A Question does not change and may be asked by many
// calls.
//
// The key names the question within a call, for all its rounds: an answer that
// was given stays the answer. To ask again, take another key.
type Question struct {
	key    string
	method string
	params []byte
	needs  []Capability
	// valid says what is wrong with an answer.
	valid func(answer json.RawMessage) error
	err   error // why the question cannot be asked
}

// The requests that a client can be asked to serve.
const (
	methodElicit        = "elicitation/create"
	methodCreateMessage = "sampling/createMessage"
	methodListRoots     = "roots/list"
)

// Elicit asks the user to fill in a form. The schema is a JSON Schema as
// elicitation allows it: an object whose properties are strings, numbers,
// integers, booleans, or choices of strings. It must not ask for secrets: the
// client and the model may see the answer; use [ElicitURL] for those.
func Elicit(key, message string, schema json.RawMessage) Question {
	return elicit(key, message, func() (*schemaOfForm, error) { return parseForm(schema) })
}

// ElicitFor asks the user to fill in a form whose fields are those of T, a
// struct of strings, numbers, booleans, times and slices of chosen strings.
// Fields are named by the json tag and required unless it says omitempty or
// omitzero or they are pointers; the jsonschema tag describes a field, and the
// tags title, format, default and enum (choices, separated by commas) say what
// those keywords say. [Accepted] reads the answer.
func ElicitFor[T any](key, message string) Question {
	return elicit(key, message, func() (*schemaOfForm, error) { return inferForm(reflect.TypeFor[T]()) })
}

func elicit(key, message string, schema func() (*schemaOfForm, error)) Question {
	q := Question{key: validText(key), method: methodElicit, needs: []Capability{CapabilityElicitation}}
	form, err := schema()
	if err != nil {
		q.err = fmt.Errorf("the schema of the form: %w", err)
		return q
	}
	var o object
	o.value("mode", "form")
	o.value("message", message)
	o.raw("requestedSchema", form.raw)
	q.params, q.err = o.bytes()
	q.valid = func(raw json.RawMessage) error { return checkElicitResult(raw, form) }
	return q
}

// ElicitURL asks the user to do something on a web page, such as to sign in
// somewhere. What happens there does not pass through the client: the answer
// says whether the user agreed to go, not what was done. elicitationID names
// the interaction for revisions that know such a name; it is not guessable and
// used for one interaction only.
func ElicitURL(key, message, address, elicitationID string) Question {
	q := Question{key: validText(key), method: methodElicit, needs: []Capability{CapabilityElicitationURL}}
	if u, err := url.Parse(address); err != nil || u.Scheme == "" {
		q.err = errors.New("the page needs an absolute URL")
		return q
	}
	var o object
	o.value("mode", "url")
	o.value("message", message)
	o.value("url", address)
	o.text("elicitationId", validText(elicitationID)) // as ElicitationComplete says it
	q.params, q.err = o.bytes()
	q.valid = func(raw json.RawMessage) error { return checkElicitResult(raw, nil) }
	return q
}

// CreateMessage asks a model of the client to write a message.
func CreateMessage(key string, params CreateMessageParams) Question {
	q := Question{key: validText(key), method: methodCreateMessage, needs: []Capability{CapabilitySampling}, valid: checkCreateMessageResult}
	if len(params.Tools) > 0 || params.ToolChoice != "" {
		q.needs = append(q.needs, CapabilitySamplingTools)
	}
	if params.IncludeContext != "" && params.IncludeContext != "none" {
		q.needs = append(q.needs, CapabilitySamplingContext)
	}
	q.params, q.err = params.encode()
	return q
}

// ListRoots asks for the folders that the client works in.
func ListRoots(key string) Question {
	return Question{
		key: validText(key), method: methodListRoots, params: []byte("{}"),
		needs: []Capability{CapabilityRoots}, valid: checkListRootsResult,
	}
}

// Ask asks questions, all at once, and returns the answers when all are there.
// Until then it returns [ErrNeedsInput], which the handler should return at
// once: the round ends, the client answers, and the handler is run again from
// its beginning, most likely by another instance, with the answers. All that
// was asked and not answered in a round is put to the client together.
//
// CODE BEFORE ASK RUNS AGAIN IN EVERY ROUND. Ask first, and act after; what
// must come before, such as a reservation, belongs in [Once]. A handler has to
// ask the same questions by the same keys each time it gets that far. No round
// has to follow: a client may never answer.
//
// An answer that does not fit its question (a form that does not fit its
// schema, say) counts as none: the question is asked again. That a user
// declines or cancels is an answer. A client that answers a question with an
// error will not be asked it again: Ask returns a [*ClientError], in later
// rounds as well.
//
// Ask returns a [*MissingCapabilityError] and asks nothing if the client lacks
// a capability for one of the questions; see [Call.Can]. All answers and what
// Once keeps must fit into 256 KiB of JSON.
func (c *Call) Ask(questions ...Question) (Answers, error) {
	if c.method == MethodComplete {
		return Answers{}, internalf("a completion cannot ask for input")
	}
	var needs []Capability
	asked := map[string]bool{}
	for _, q := range questions {
		switch {
		case q.method == "":
			return Answers{}, internalf("a question is the zero value")
		case q.key == "":
			return Answers{}, internalf("a question (%s) has no key", q.method)
		case q.err != nil:
			return Answers{}, internalf("the question %q cannot be asked: %v", q.key, q.err)
		case asked[q.key]:
			return Answers{}, internalf("the question %q is asked twice at once", q.key)
		}
		asked[q.key] = true
		needs = append(needs, q.needs...)
	}
	if err := c.Require(needs...); err != nil {
		return Answers{}, err
	}
	answers, err := c.rounds.ask(questions)
	if err != nil {
		return Answers{}, err
	}
	return Answers{codec: c.w.codec, raw: answers}, nil
}

// encode writes the question as an input request.
func (q *Question) encode() []byte {
	b := append([]byte(`{"method":"`), q.method...)
	b = append(b, `","params":`...)
	b = append(b, q.params...)
	return append(b, '}')
}
