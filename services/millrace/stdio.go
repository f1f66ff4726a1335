package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/proto/localnats"
)

// stdioCmd serves one client, as desktop applications start servers.
type stdioCmd struct {
	workerFlags
	natsAccess
	measureFlags
	namespaceFlag
	limitFlags
	NATS        string        `name:"nats" env:"MILLRACE_NATS" placeholder:"URL" help:"NATS of a cluster to serve; without it the workers run in this process."`
	Worker      []string      `default:"glossary" env:"MILLRACE_WORKERS" help:"Worker to run when there is no --nats; repeat for several."`
	Development bool          `default:"true" negatable:"" env:"MILLRACE_DEVELOPMENT" help:"Show callers what is wrong with a result that does not fit the output schema of its tool; for workers of this process."`
	Grace       time.Duration `default:"10s" help:"How long running calls may go on when the client has closed its end."`
}

// Run serves until the client closes its end or a signal comes.
func (c *stdioCmd) Run(ctx context.Context, a *app) error {
	// Clients close stderr before they have read the last answers; a line of
	// the log must not end the process then. A closed stdout is still noticed:
	// the write fails.
	signal.Ignore(syscall.SIGPIPE)
	cfg := edge.Config{
		Server: mcp.Implementation{Name: "millrace", Title: "Millrace", Version: version()},
		Grace:  c.Grace,
		Logger: a.log,

		NamespaceConflicts: c.NamespaceConflicts,
	}
	c.apply(&cfg)
	m, err := c.measure(ctx, a, "millrace-stdio")
	if err != nil {
		return err
	}
	defer m.close()
	c.development = c.Development
	r := &roles{app: a, measured: m}
	var (
		e      *edge.Edge
		actors []actor
		pools  []string
	)
	if c.NATS == "" {
		pools = c.Worker
		e, actors, err = r.embedded(ctx, localnats.Config{}, cfg, c.Worker, &c.workerFlags)
	} else {
		r.conn = c.access(c.NATS)
		actors = make([]actor, 1)
		e, actors[0], err = r.edge(ctx, cfg)
	}
	if err != nil {
		return err
	}
	p := m.newProcess(ctx, a)
	p.add(actor{"stdio", func(ctx context.Context) error {
		// A client may write before the workers have said hello.
		wait, cancel := context.WithTimeout(ctx, readyTimeout)
		defer cancel()
		if err := e.WaitReady(wait, pools...); err != nil {
			return err
		}
		return e.ServeStdio(ctx, a.stdin, clientOutput(a.stdout))
	}}, actor{"client", func(ctx context.Context) error { return watchReader(ctx, a.stdout) }})
	p.add(actors...)
	p.add(m.actor(a))
	return p.run()
}

// clientOutput is what answers are written to.
func clientOutput(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok {
		return output{f}
	}
	return w
}

// output is a stdout that can tell whether the client keeps up; the edge asks
// before it writes an answer behind progress (edge.ReadWaiter).
type output struct{ *os.File }

// readPoll is how often WaitRead looks.
const readPoll = 50 * time.Microsecond

// WaitRead returns when the client has read all that was written, or after the
// time given.
func (o output) WaitRead(limit time.Duration) {
	for begun := time.Now(); unread(o.File) > 0 && time.Since(begun) < limit; {
		time.Sleep(readPoll)
	}
}

// readerInterval is how often watchReader looks.
const readerInterval = 500 * time.Millisecond

// watchReader returns an error when the other end of stdout is closed: a client
// that was killed reads no answers, so none are worked for. A write would tell,
// but a call that takes an hour writes nothing.
func watchReader(ctx context.Context, stdout io.Writer) error {
	f, ok := stdout.(*os.File)
	tick := time.NewTicker(readerInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if ok && readerGone(f) {
				return errors.New("the client does not read any more")
			}
		}
	}
}
