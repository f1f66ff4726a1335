package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strings"
	"time"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Tool describes a tool. Only Name has no useful zero value, but a tool
// without a Description is hard for a model to choose.
type Tool struct {
	// Name is what clients call: 1 to 128 of the characters A-Z, a-z, 0-9,
	// "_", "-" and ".".
	Name string
	// Title is the name for people.
	Title string
	// Description tells the model what the tool does and when to use it.
	Description string
	// InputSchema is a JSON Schema with "type":"object", of draft 2020-12 or,
	// if $schema says so, draft-07. Nil: inferred from the Go type by
	// [AddTool], any object for [Worker.AddRawTool]. Clients see it as it is
	// written here, without the space between tokens. A tool whose schema is
	// not valid or cannot be checked (a $ref out of it, a recursion without
	// end, a pattern that looks around elsewhere than at its ends) is not
	// offered, while all others are; see [Worker.Problems].
	InputSchema json.RawMessage
	// OutputSchema is the JSON Schema of the structured content. Nil: inferred
	// by AddTool, none for AddRawTool.
	OutputSchema json.RawMessage
	// Annotations are hints about what a call does to the world.
	Annotations *Annotations
	// Icons of the tool.
	Icons []Icon
	// Meta is the _meta of the definition, a JSON object.
	Meta json.RawMessage
	// Timeout is how long a call may take; the edge ends it then, and the
	// context of the handler is cancelled. 0: what the edge is set to.
	Timeout time.Duration
	// Scopes that an authenticated caller must have been granted, all of them.
	// To one who lacks any the tool does not exist: it is in no list, and a
	// call is answered as that of an unknown tool. Where the edge authenticates
	// nobody, everybody may call it.
	Scopes []string
	// Slots is how many calls of this tool run at the same time in an
	// instance, beside the limit for all ([Config]); a further one is refused
	// as busy and goes to another instance. 0: no limit of its own.
	Slots int
	// OnceOnly: what a client answers in one round of a call ([Call.Ask]) counts
	// once. By default a client can repeat a round, with the same answers or
	// others, for a quarter of an hour; for a tool that redeems something this
	// may be too often. A second use is refused, and so is every use while the
	// edges cannot reach what they remember the first one by. That costs a
	// write for each round. A client can still begin the whole call again.
	OnceOnly bool
}

// Annotations are hints about a tool. A nil hint is not given and has the
// default of the protocol; use new(true) and new(false) for the others.
type Annotations struct {
	// Title is the older place for Tool.Title.
	Title string
	// ReadOnlyHint: the tool changes nothing. By default it may. A call of a
	// read-only tool may be repeated when its worker is lost.
	ReadOnlyHint *bool
	// DestructiveHint: what it changes may be lost. By default it may.
	DestructiveHint *bool
	// IdempotentHint: a second call with the same arguments has no further
	// effect. By default it has. An idempotent call may be repeated when its
	// worker is lost.
	IdempotentHint *bool
	// OpenWorldHint: the tool reaches things outside, such as the web. By
	// default it does.
	OpenWorldHint *bool
}

// Icon is a picture for a tool, resource or prompt.
type Icon struct {
	// Src is an https: or data: URI.
	Src string
	// MIMEType of the picture; empty when Src tells.
	MIMEType string
	// Sizes the picture is good for, such as "48x48" or "any".
	Sizes []string
	// Theme is "light", "dark" or empty.
	Theme string
}

// tool is a registered tool. It does not change.
type tool struct {
	name string
	// problem is why it cannot be offered; then there is nothing else.
	problem string
	input   *schema
	output  *schema // nil when the tool has none
	entry   *millracev1.Tool
	slots   *slots
	// onceOnly: see Tool.
	onceOnly bool
	handler  func(ctx context.Context, call *Call, args json.RawMessage) (*Result, error)
}

// AddTool adds a tool that is a Go function. The schemas are inferred from In
// and Out: members are named by the json tag, described by the jsonschema tag
// and required unless the json tag says omitempty or omitzero; members the
// type does not have are refused.
//
// In is a struct, a map with string keys, or a pointer to one. It is filled
// straight from the bytes the client sent, so integers keep every digit that
// the Go type can hold (a member of type any gets a float64, as with
// encoding/json).
//
// Out is *[Result] for full control, string for one block of text, and
// otherwise any type that can be marshalled to JSON: the value becomes the
// structured content, and its JSON stands beside it as text, or what the
// type's Content method returns if it is a [Contenter]. Nil slices and maps
// are written as [] and {}.
//
// fn is called by many goroutines at once. Its context ends with the call: when
// the client cancels it, at its deadline, and at the end of the grace period
// of a worker that stops. What its error means is said in the package
// documentation.
func AddTool[In, Out any](w *Worker, t Tool, fn func(ctx context.Context, call *Call, in In) (Out, error)) {
	w.addTool(t, fn != nil, reflect.TypeFor[In](), reflect.TypeFor[Out](),
		func(ctx context.Context, call *Call, args json.RawMessage) (*Result, error) {
			var in In
			if err := decodeArguments(w.codec, args, &in); err != nil {
				return nil, err
			}
			out, err := fn(ctx, call, in)
			if err != nil {
				return nil, err
			}
			return resultOf(out), nil
		})
}

// AddRawTool adds a tool that takes its arguments as the JSON object the client
// sent, byte for byte ({} when it sent none), after they were checked against
// the input schema. It is for tools whose schema is not known when they are
// compiled. See [AddTool] for the rest.
func (w *Worker) AddRawTool(t Tool, fn func(ctx context.Context, call *Call, args json.RawMessage) (*Result, error)) {
	w.addTool(t, fn != nil, nil, nil, fn)
}

// addTool registers a tool. in and out are nil for raw tools.
func (w *Worker) addTool(t Tool, hasHandler bool, in, out reflect.Type,
	handler func(context.Context, *Call, json.RawMessage) (*Result, error),
) {
	var problem string
	w.register(func() error {
		added, err := t.build(in, out)
		if !hasHandler {
			err = errors.Join(err, errors.New("the handler is nil"))
		}
		if _, known := w.problems[t.Name]; err == nil && (known || w.tools[t.Name] != nil) {
			err = errors.New("a tool of this name was added before")
		}
		if err != nil {
			return fmt.Errorf("worker: tool %q: %w", t.Name, err)
		}
		if problem = added.problem; problem != "" {
			w.problems[t.Name] = problem
			return nil
		}
		added.handler = handler
		w.tools[t.Name] = added
		if added.slots != nil {
			w.limited.Store(true)
		}
		return nil
	})
	if problem != "" {
		w.log.Error("a tool is not offered", "pool", w.cfg.Pool, "tool", t.Name, "reason", problem)
	}
}

// RemoveTool removes a tool; a name that is not there is not an error. While
// the worker runs, the change is announced at once; calls that are running go
// on. A tool is replaced by removing it and adding the new one.
func (w *Worker) RemoveTool(name string) {
	remove(w, w.problems, name)
	remove(w, w.tools, name)
}

// oneLine joins errors for a table or a line of the log.
func oneLine(errs []error) string {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return strings.ReplaceAll(strings.Join(texts, "; "), "\n", "; ")
}

// toolName is what the specification says a tool should be called.
const toolName = `^[A-Za-z0-9_.-]{1,128}$`

// build checks the description and writes the definition.
func (t Tool) build(in, out reflect.Type) (*tool, error) {
	var mistakes []error
	if ok, _ := regexp.MatchString(toolName, t.Name); !ok {
		mistakes = append(mistakes, errors.New("the name must be 1 to 128 of the characters A-Z, a-z, 0-9, _, . and -"))
	}
	if t.Slots < 0 || t.Slots > math.MaxInt32 {
		mistakes = append(mistakes, errors.New("a negative or very large number of Slots"))
	}
	if t.Timeout < 0 {
		mistakes = append(mistakes, errors.New("a negative Timeout"))
	}
	scopes, err := scopesOf(t.Scopes)
	if err != nil {
		mistakes = append(mistakes, err)
	}
	// A type without a schema is a mistake in the program; a schema that was
	// given may have come from anywhere.
	var problems []error
	input, err := inputSchema(t.InputSchema, in)
	if err != nil && len(t.InputSchema) > 0 {
		problems = append(problems, fmt.Errorf("input schema: %w", err))
	} else if err != nil {
		mistakes = append(mistakes, fmt.Errorf("input schema: %w", err))
	}
	output, err := outputSchema(t.OutputSchema, out)
	if err != nil && len(t.OutputSchema) > 0 {
		problems = append(problems, fmt.Errorf("output schema: %w", err))
	} else if err != nil {
		mistakes = append(mistakes, fmt.Errorf("output schema: %w", err))
	}
	if err := errors.Join(mistakes...); err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return &tool{name: t.Name, problem: oneLine(problems)}, nil
	}

	var o object
	o.value("name", t.Name)
	o.text("title", t.Title)
	o.text("description", t.Description)
	o.raw("inputSchema", input.raw)
	if output != nil {
		o.raw("outputSchema", output.raw)
	}
	if a := t.Annotations; a != nil {
		o.raw("annotations", a.encode(&o))
	}
	encodeIcons(&o, t.Icons)
	encodeMeta(&o, t.Meta)
	definition, err := o.bytes()
	if err != nil {
		return nil, err
	}
	entry := &millracev1.Tool{
		Name:       t.Name,
		Definition: definition,
		TimeoutUs:  uint64(t.Timeout.Microseconds()),
		Scopes:     scopes,
	}
	if entry.Contract, err = contract(definition); err != nil {
		return nil, err
	}
	if a := t.Annotations; a != nil {
		entry.ReadOnly = a.ReadOnlyHint != nil && *a.ReadOnlyHint
		entry.Idempotent = a.IdempotentHint != nil && *a.IdempotentHint
	}
	return &tool{name: t.Name, input: input, output: output, entry: entry, slots: newSlots(t.Slots), onceOnly: t.OnceOnly}, nil
}

func (a *Annotations) encode(outer *object) []byte {
	var o object
	o.text("title", a.Title)
	o.boolean("readOnlyHint", a.ReadOnlyHint)
	o.boolean("destructiveHint", a.DestructiveHint)
	o.boolean("idempotentHint", a.IdempotentHint)
	o.boolean("openWorldHint", a.OpenWorldHint)
	raw, err := o.bytes()
	outer.err = errors.Join(outer.err, err)
	return raw
}

func encodeIcons(outer *object, icons []Icon) {
	if len(icons) == 0 {
		return
	}
	list := make([]json.RawMessage, len(icons))
	for i, icon := range icons {
		var o object
		o.value("src", icon.Src)
		o.text("mimeType", icon.MIMEType)
		if len(icon.Sizes) > 0 {
			o.value("sizes", icon.Sizes)
		}
		o.text("theme", icon.Theme)
		raw, err := o.bytes()
		if icon.Src == "" {
			err = errors.Join(err, errors.New("an icon has no Src"))
		}
		outer.err = errors.Join(outer.err, err)
		list[i] = raw
	}
	if outer.err == nil {
		outer.value("icons", list)
	}
}

// encodeMeta adds _meta.
func encodeMeta(outer *object, meta json.RawMessage) {
	encodeRawObject(outer, "_meta", meta)
}

// encodeRawObject adds a member that the author wrote as a JSON object.
func encodeRawObject(outer *object, name string, raw json.RawMessage) {
	if len(raw) == 0 {
		return
	}
	err := checkObject(name, raw)
	if err == nil {
		raw, err = compacted(raw)
	}
	if err != nil {
		outer.err = errors.Join(outer.err, err)
		return
	}
	outer.raw(name, raw)
}
