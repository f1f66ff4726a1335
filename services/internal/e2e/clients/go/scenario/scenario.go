// Package scenario is what every client written in Go does with a server, and
// how it reports it: the same steps and the same report as scenario.mjs. A
// client hands in its own way of doing each step; the report is one JSON
// object, which the tests judge: nothing is judged here.
package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
)

// CommandLine is the command line of every client program:
//
//	[--mode MODE] [--scenario glossary|cancel|everything|features] (http URL | sse URL | stdio COMMAND ARGS...)
type CommandLine struct {
	Mode, Scenario string
	Transport      string
	Target         []string
}

// Parse reads the command line without the name of the program.
func Parse(args []string) (CommandLine, error) {
	c := CommandLine{Scenario: "glossary"}
	for len(args) >= 2 && strings.HasPrefix(args[0], "--") {
		switch args[0] {
		case "--mode":
			c.Mode = args[1]
		case "--scenario":
			c.Scenario = args[1]
		default:
			return c, fmt.Errorf("unknown option %s", args[0])
		}
		args = args[2:]
	}
	if len(args) < 2 || args[0] != "http" && args[0] != "sse" && args[0] != "stdio" {
		return c, errors.New("usage: [--mode MODE] [--scenario glossary|cancel|everything|features] (http URL | sse URL | stdio COMMAND ARGS...)")
	}
	c.Transport, c.Target = args[0], args[1:]
	return c, nil
}

// Failure is an error as the user of the client library sees it. Code and Data
// are those of JSON-RPC, where the library gives them.
type Failure struct {
	Code    int64           `json:"code,omitempty"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Call is how one tool call went.
type Call struct {
	Tool     string            `json:"tool"`
	Result   json.RawMessage   `json:"result"`
	Error    *Failure          `json:"error"`
	Progress []json.RawMessage `json:"progress"`
	// ProgressBeforeResult says whether no progress came after the answer.
	ProgressBeforeResult bool `json:"progressBeforeResult"`
}

// Report is what a client program prints.
type Report struct {
	Client          string          `json:"client"`
	Mode            string          `json:"mode"`
	ProtocolVersion string          `json:"protocolVersion"`
	Tools           []string        `json:"tools"`
	Resources       []string        `json:"resources"`
	Templates       []string        `json:"templates"`
	Calls           []*Call         `json:"calls"`
	Read            json.RawMessage `json:"read"`
	Prompt          json.RawMessage `json:"prompt"`
	Completion      json.RawMessage `json:"completion"`
	Features        *Features       `json:"features,omitempty"`
	Errors          []Failure       `json:"errors"`
}

// Client does the steps. Connect returns the negotiated revision. Results are
// marshalled to JSON for the report.
type Client interface {
	Connect(ctx context.Context) (version string, err error)
	List(ctx context.Context) (tools, resources, templates []string, err error)
	Call(ctx context.Context, tool string, arguments map[string]any, progressToken string) (any, error)
	Read(ctx context.Context, uri string) (any, error)
	Prompt(ctx context.Context, name string, arguments map[string]string) (any, error)
	// Complete completes an argument of a prompt.
	Complete(ctx context.Context, prompt, argument, value string) (any, error)
	// SetLevel asks for log messages from a level on, as the revision does it.
	SetLevel(ctx context.Context, level string) error
	// Follow asks to be told of changes of the lists and of a resource, as the
	// revision does it. It may return before that has begun; stop ends it.
	Follow(ctx context.Context, uri string) (stop func(ctx context.Context) error, err error)
	Close() error
	Failure(err error) Failure
}

// Watch collects what arrives, in its order. A client library calls Progress
// with the token and the parameters of each notification before it reads the
// next message, and Answer for each answer that may follow progress.
type Watch struct {
	mu       sync.Mutex
	arrived  []arrival
	onChange func()
	notices  []Notice
}

type arrival struct {
	token    string // empty: an answer
	progress json.RawMessage
}

// Progress records a progress notification.
func (w *Watch) Progress(token string, params any) {
	raw, err := json.Marshal(params)
	if err != nil {
		raw = json.RawMessage("null")
	}
	w.add(arrival{token, raw})
}

// Answer records that an answer arrived.
func (w *Watch) Answer() { w.add(arrival{}) }

// Notified records what the user of the library is told besides progress.
func (w *Watch) Notified(method, subject string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notices = append(w.notices, Notice{method, subject})
}

func (w *Watch) noticed() []Notice {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Notice{}, w.notices...)
}

func (w *Watch) add(a arrival) {
	w.mu.Lock()
	w.arrived = append(w.arrived, a)
	changed := w.onChange
	w.mu.Unlock()
	if changed != nil {
		changed()
	}
}

func (w *Watch) listen(changed func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onChange = changed
}

// of returns the progress of a token and whether all of it came before the
// answer that ended its call, which is the first answer after it began.
func (w *Watch) of(token string, begin int) (progress []json.RawMessage, before bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	answered := false
	before = true
	progress = []json.RawMessage{}
	for _, a := range w.arrived[begin:] {
		switch a.token {
		case "":
			answered = true
		case token:
			progress = append(progress, a.progress)
			before = before && !answered
		}
	}
	return progress, before
}

func (w *Watch) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.arrived)
}

// Run goes through the scenario and prints the report.
func Run(ctx context.Context, name string, line CommandLine, c Client, w *Watch, out io.Writer) error {
	r := &Report{Client: name, Mode: line.Mode, Errors: []Failure{}}
	if err := r.run(ctx, line, c, w); err != nil {
		r.Errors = append(r.Errors, c.Failure(err))
	}
	if err := json.NewEncoder(out).Encode(r); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func (r *Report) run(ctx context.Context, line CommandLine, c Client, w *Watch) (err error) {
	if r.ProtocolVersion, err = c.Connect(ctx); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() {
		if closeErr := c.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("close: %w", closeErr))
		}
	}()
	switch line.Scenario {
	case "cancel":
		r.cancel(ctx, c, w)
		return nil
	case "everything":
		return r.everything(ctx, c, w)
	case "features":
		r.features(ctx, c, w)
		return nil
	default:
		return r.glossary(ctx, c, w)
	}
}

// call makes one call. What came late counts too: judge looks again.
func (r *Report) call(ctx context.Context, c Client, w *Watch, tool string, arguments map[string]any, token string) (judge func()) {
	entry := &Call{Tool: tool}
	r.Calls = append(r.Calls, entry)
	begin := w.len()
	result, err := c.Call(ctx, tool, arguments, token)
	w.Answer()
	if err != nil {
		failure := c.Failure(err)
		entry.Error = &failure
	} else if entry.Result, err = json.Marshal(result); err != nil {
		r.Errors = append(r.Errors, c.Failure(err))
	}
	judge = func() { entry.Progress, entry.ProgressBeforeResult = w.of(token, begin) }
	judge()
	return judge
}

// keep writes a result into the report.
func keep(into *json.RawMessage, result any, err error) error {
	if err == nil {
		*into, err = json.Marshal(result)
	}
	return err
}

func (r *Report) cancel(ctx context.Context, c Client, w *Watch) {
	cancelled, cancel := context.WithCancel(ctx)
	defer cancel()
	const progressToken = "reindex-cancelled" //nolint:gosec // it names progress and opens nothing
	w.listen(func() {
		if progress, _ := w.of(progressToken, 0); len(progress) >= 2 {
			cancel()
		}
	})
	r.call(cancelled, c, w, "reindex", map[string]any{}, progressToken)
	r.call(ctx, c, w, "get_term", map[string]any{"slug": "agent-readiness"}, "")
}

func (r *Report) glossary(ctx context.Context, c Client, w *Watch) (err error) {
	if r.Tools, r.Resources, r.Templates, err = c.List(ctx); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	r.call(ctx, c, w, "search_term", map[string]any{"query": "context engineering"}, "")
	r.call(ctx, c, w, "get_term", map[string]any{"slug": "agent-readiness"}, "")
	r.call(ctx, c, w, "get_term", map[string]any{}, "")
	r.call(ctx, c, w, "no_such_tool", map[string]any{}, "")
	read, err := c.Read(ctx, "memo://notes/projekt")
	if err := keep(&r.Read, read, err); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	judge := r.call(ctx, c, w, "reindex", map[string]any{}, "reindex-whole")
	r.call(ctx, c, w, "get_term", map[string]any{"slug": "mcp"}, "")
	judge()
	return nil
}

func (r *Report) everything(ctx context.Context, c Client, w *Watch) (err error) {
	if r.Tools, _, _, err = c.List(ctx); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	var judges []func()
	for i := range 100 {
		judges = append(judges, r.call(ctx, c, w, "count", map[string]any{"n": 20, "delay_ms": 1}, fmt.Sprintf("count-%d", i)))
	}
	read, err := c.Read(ctx, "test://static-binary")
	if err := keep(&r.Read, read, err); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	prompt, err := c.Prompt(ctx, "test_prompt_with_arguments", map[string]string{"arg1": "one", "arg2": "two"})
	if err := keep(&r.Prompt, prompt, err); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	completion, err := c.Complete(ctx, "test_prompt_with_arguments", "arg1", "par")
	if err := keep(&r.Completion, completion, err); err != nil {
		return fmt.Errorf("complete: %w", err)
	}
	for _, call := range asking() {
		r.call(ctx, c, w, call.tool, call.arguments, "")
	}
	for _, judge := range judges {
		judge()
	}
	return nil
}

// toolCall is a call without progress.
type toolCall struct {
	tool      string
	arguments map[string]any
}

// asking are the tools that ask: the first three for a form, for a model and
// for the roots.
func asking() []toolCall {
	return []toolCall{
		{"test_elicitation", map[string]any{"message": "Who are you?"}},
		{"test_sampling", map[string]any{"prompt": "a question"}},
		{"test_input_required_result_list_roots", map[string]any{}},
		{"test_input_required_result_elicitation", map[string]any{}},
		{"test_input_required_result_sampling", map[string]any{}},
		{"test_input_required_result_multi_round", map[string]any{}},
		{"test_input_required_result_multiple_inputs", map[string]any{}},
	}
}

// Fill fills in a form as the user of every client does: schema is that of the
// form, as it is.
func Fill(schema any) (map[string]any, error) {
	raw, err := json.Marshal(schema)
	if err != nil {
		return nil, fmt.Errorf("form: %w", err)
	}
	var form struct {
		Properties map[string]any `json:"properties"`
	}
	if err := json.Unmarshal(raw, &form); err != nil {
		return nil, fmt.Errorf("form: %w", err)
	}
	user := map[string]any{"name": "Ada", "username": "ada", "email": "ada@example.com", "color": "green", "ok": true}
	filled := map[string]any{}
	for key := range form.Properties {
		filled[key] = user[key]
	}
	return filled, nil
}

// Sample says what the model of every client answers to a message with one
// block of text.
func Sample(content any) (string, error) {
	raw, err := json.Marshal(content)
	if err != nil {
		return "", fmt.Errorf("message: %w", err)
	}
	var block struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &block); err != nil {
		return "", fmt.Errorf("message: %w", err)
	}
	return "answer to " + block.Text, nil
}

// Roots are the folders of every client, by URI.
func Roots() []string { return []string{"file:///a", "file:///b"} }
