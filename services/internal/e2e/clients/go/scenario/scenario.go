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
//	[--mode MODE] [--scenario full|cancel] (http URL | stdio COMMAND ARGS...)
type CommandLine struct {
	Mode, Scenario string
	Transport      string
	Target         []string
}

// Parse reads the command line without the name of the program.
func Parse(args []string) (CommandLine, error) {
	c := CommandLine{Scenario: "full"}
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
	if len(args) < 2 || args[0] != "http" && args[0] != "stdio" {
		return c, errors.New("usage: [--mode MODE] [--scenario full|cancel] (http URL | stdio COMMAND ARGS...)")
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
	Errors          []Failure       `json:"errors"`
}

// Client does the steps. Connect returns the negotiated revision. Results are
// marshalled to JSON for the report.
type Client interface {
	Connect(ctx context.Context) (version string, err error)
	List(ctx context.Context) (tools, resources, templates []string, err error)
	Call(ctx context.Context, tool string, arguments map[string]any, progressToken string) (any, error)
	Read(ctx context.Context, uri string) (any, error)
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
	call := func(ctx context.Context, tool string, arguments map[string]any, token string) (judge func()) {
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
	if line.Scenario == "cancel" {
		cancelled, cancel := context.WithCancel(ctx)
		defer cancel()
		const progressToken = "reindex-cancelled" //nolint:gosec // it names progress and opens nothing
		w.listen(func() {
			if progress, _ := w.of(progressToken, 0); len(progress) >= 2 {
				cancel()
			}
		})
		call(cancelled, "reindex", map[string]any{}, progressToken)
		call(ctx, "get_term", map[string]any{"slug": "agent-readiness"}, "")
		return nil
	}
	if r.Tools, r.Resources, r.Templates, err = c.List(ctx); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	call(ctx, "search_term", map[string]any{"query": "context engineering"}, "")
	call(ctx, "get_term", map[string]any{"slug": "agent-readiness"}, "")
	call(ctx, "get_term", map[string]any{}, "")
	call(ctx, "no_such_tool", map[string]any{}, "")
	read, err := c.Read(ctx, "memo://notes/projekt")
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if r.Read, err = json.Marshal(read); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	judge := call(ctx, "reindex", map[string]any{}, "reindex-whole")
	call(ctx, "get_term", map[string]any{"slug": "mcp"}, "")
	judge() // again: what came late counts too
	return nil
}
