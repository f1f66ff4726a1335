package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/edge/mcp"
)

// callCmd calls one tool.
type callCmd struct {
	serverFlags
	Tool string   `arg:"" help:"Name of the tool."`
	Arg  []string `short:"a" sep:"none" placeholder:"K=V" help:"One argument; repeat for several. Numbers, true, false, null and JSON go as such where the tool takes them."`
	JSON string   `name:"json" placeholder:"OBJECT" help:"All arguments as one JSON object; - reads it from stdin."`
	Raw  bool     `help:"Print the whole result as JSON instead of its text."`
}

// Help is the long help of the command.
func (c *callCmd) Help() string {
	return `The result goes to stdout, progress to stderr. Exit codes: 0 the tool
returned a result, 1 it reported an error, 2 the command line is wrong, 3 the
server answered with an error, 4 no answer came.`
}

// Run calls the tool.
func (c *callCmd) Run(ctx context.Context, a *app) error {
	if c.JSON != "" && len(c.Arg) > 0 {
		return &exitError{exitUsage, errors.New("--arg and --json exclude each other")}
	}
	return c.withEdge(ctx, a, func(ctx context.Context, cl *client, _ *edge.Edge) error {
		arguments, err := c.arguments(ctx, a, cl)
		if err != nil {
			return err
		}
		bar := &progressPrinter{out: a.stderr}
		raw, err := cl.request(ctx, mcp.MethodToolsCall, c.Tool, map[string]any{"name": c.Tool, "arguments": arguments}, bar.report)
		bar.end()
		if err != nil {
			return err
		}
		return c.print(a.stdout, raw)
	})
}

// arguments builds the arguments from the flags.
func (c *callCmd) arguments(ctx context.Context, a *app, cl *client) (json.RawMessage, error) {
	if len(c.Arg) == 0 {
		text := c.JSON
		if text == "-" {
			raw, err := io.ReadAll(a.stdin)
			if err != nil {
				return nil, fmt.Errorf("reading stdin: %w", err)
			}
			text = string(raw)
		}
		if text == "" {
			text = "{}"
		}
		if !json.Valid([]byte(text)) || !strings.HasPrefix(strings.TrimSpace(text), "{") {
			return nil, &exitError{exitUsage, errors.New("--json must be one JSON object")}
		}
		return json.RawMessage(text), nil
	}
	types, err := c.argumentTypes(ctx, cl)
	if err != nil {
		return nil, err
	}
	arguments := map[string]json.RawMessage{}
	for _, arg := range c.Arg {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, &exitError{exitUsage, fmt.Errorf("--arg %q is not of the form key=value", arg)}
		}
		if arguments[key] != nil {
			return nil, &exitError{exitUsage, fmt.Errorf("--arg %s is given twice", key)}
		}
		if arguments[key], err = argument(value, types[key]); err != nil {
			return nil, err
		}
	}
	raw, err := json.Marshal(arguments)
	if err != nil {
		return nil, fmt.Errorf("arguments: %w", err)
	}
	return raw, nil
}

// argument writes a value as the type the tool's schema gives it; without one,
// what reads as JSON is JSON and the rest is a string.
func argument(value, schemaType string) (json.RawMessage, error) {
	if schemaType != "string" && json.Valid([]byte(value)) {
		return json.RawMessage(value), nil
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("argument: %w", err)
	}
	return raw, nil
}

// argumentTypes reads the types of the tool's arguments from its schema.
func (c *callCmd) argumentTypes(ctx context.Context, cl *client) (map[string]string, error) {
	tools, err := cl.list(ctx, mcp.MethodToolsList, "tools")
	if err != nil {
		return nil, err
	}
	types := map[string]string{}
	for _, raw := range tools {
		var tool struct {
			Name        string `json:"name"`
			InputSchema struct {
				Properties map[string]struct {
					Type any `json:"type"`
				} `json:"properties"`
			} `json:"inputSchema"`
		}
		if err := json.Unmarshal(raw, &tool); err != nil || tool.Name != c.Tool {
			continue
		}
		for name, property := range tool.InputSchema.Properties {
			if t, ok := property.Type.(string); ok {
				types[name] = t
			}
		}
	}
	return types, nil
}

// print writes the result and turns a tool error into its exit code.
func (c *callCmd) print(w io.Writer, raw json.RawMessage) error {
	var result struct {
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"content"`
		IsError bool `json:"isError"`
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return fmt.Errorf("the result cannot be read: %w", err)
	}
	var out strings.Builder
	if c.Raw {
		out.Write(raw)
		out.WriteByte('\n')
	} else {
		for _, block := range result.Content {
			if block.Type == "text" {
				out.WriteString(strings.TrimRight(block.Text, "\n") + "\n")
			} else {
				out.WriteString("[" + block.Type + " content: --raw shows it]\n")
			}
		}
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	if result.IsError {
		return &exitError{code: exitToolError}
	}
	return nil
}

// progressPrinter shows the progress of a call: as a bar on a terminal, else
// as a line each.
type progressPrinter struct {
	out io.Writer
	bar *progressbar.ProgressBar
}

func (p *progressPrinter) report(ev progress) {
	if f, ok := p.out.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		total := ""
		if ev.Total != nil {
			total = fmt.Sprintf("/%g", *ev.Total)
		}
		_, _ = fmt.Fprintf(p.out, "progress %g%s %s\n", ev.Progress, total, ev.Message) // progress is no result
		return
	}
	if p.bar == nil {
		most := int64(-1)
		if ev.Total != nil {
			most = int64(*ev.Total)
		}
		p.bar = progressbar.NewOptions64(most, progressbar.OptionSetWriter(p.out), progressbar.OptionClearOnFinish())
	}
	p.bar.Describe(ev.Message)
	_ = p.bar.Set64(int64(ev.Progress)) // as above
}

func (p *progressPrinter) end() {
	if p.bar != nil {
		_ = p.bar.Finish() // as above
	}
}
