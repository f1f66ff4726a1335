// Command millrace is the one binary of Millrace: each command is a role of the
// cluster, a set of roles in one process, or a tool to look at them. Only this
// package knows flags, signals and run groups.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"

	"github.com/millrace/millrace/services/telemetry"
)

// Exit codes. Those of call tell scripts what happened.
const (
	exitOK          = 0
	exitToolError   = 1 // the tool ran and reported an error
	exitUsage       = 2 // the command line is wrong
	exitRefused     = 3 // the server answered with a JSON-RPC error
	exitUnreachable = 4 // no answer came
	exitFailed      = 5 // a role could not start or ended with an error
)

// commands is the command line.
type commands struct {
	LogLevel  slog.Level `default:"info" env:"MILLRACE_LOG_LEVEL" help:"Least severe log level: debug, info, warn or error."`
	LogFormat string     `default:"text" enum:"text,json" env:"MILLRACE_LOG_FORMAT" help:"Log format: text or json. Logs go to stderr."`

	Up         upCmd         `cmd:"" help:"Run everything in one process: NATS, an edge and workers."`
	Edge       edgeCmd       `cmd:"" help:"Run an edge."`
	NATS       natsCmd       `cmd:"" name:"nats" help:"Run a NATS node with JetStream."`
	Glossary   glossaryCmd   `cmd:"" help:"Run a worker of the glossary pool."`
	Everything everythingCmd `cmd:"" help:"Run a worker of the everything pool: one tool for each thing the protocol can do."`
	Stdio      stdioCmd      `cmd:"" help:"Serve one client over stdin and stdout."`
	Ls         lsCmd         `cmd:"" help:"List what is there: tools and resources, and with --nats pools and instances."`
	Call       callCmd       `cmd:"" help:"Call a tool."`
	DevCluster devClusterCmd `cmd:"" help:"Run a cluster of processes on this machine, behind a round-robin proxy."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
}

// app is what every command gets: the streams of the process and its log.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	log            *slog.Logger
	level          slog.Level // of log, for processes that this one starts
}

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error // nil: everything was said already
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func main() {
	os.Exit(execute(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute is the whole program but for the process around it.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var c commands
	exited := -1
	parser, err := kong.New(&c,
		kong.Name("millrace"),
		kong.Description("An MCP server platform: edges speak the protocol, workers do the work, NATS connects them."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exited = code }),
		kong.UsageOnError(),
	)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "millrace:", err) // stderr is the last resort
		return exitFailed
	}
	parsed, err := parser.Parse(args)
	if exited >= 0 { // --help
		return exited
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "millrace:", err) // as above
		return exitUsage
	}
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, log: newLogger(stderr, c.LogLevel, c.LogFormat), level: c.LogLevel}
	parsed.BindTo(ctx, (*context.Context)(nil))
	err = parsed.Run(a)
	if err == nil {
		return exitOK
	}
	if text := err.Error(); text != "" {
		_, _ = fmt.Fprintln(stderr, "millrace:", text) // as above
	}
	if exit, ok := errors.AsType[*exitError](err); ok {
		return exit.code
	}
	return exitFailed
}

// quiet is the log of a command that only looks: who comes and goes in the
// cluster meanwhile is not what its user asked. At debug level everything is.
func quiet(log *slog.Logger) *slog.Logger {
	if log.Enabled(context.Background(), slog.LevelDebug) {
		return log
	}
	return slog.New(atLeast{log.Handler(), slog.LevelWarn})
}

// atLeast is a handler that drops what is below a level.
type atLeast struct {
	slog.Handler
	level slog.Level
}

func (h atLeast) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.level && h.Handler.Enabled(ctx, l)
}

func (h atLeast) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeast{h.Handler.WithAttrs(attrs), h.level}
}

func (h atLeast) WithGroup(name string) slog.Handler {
	return atLeast{h.Handler.WithGroup(name), h.level}
}

func newLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(telemetry.LogHandler(slog.NewJSONHandler(w, opts)))
	}
	return slog.New(telemetry.LogHandler(slog.NewTextHandler(w, opts)))
}
