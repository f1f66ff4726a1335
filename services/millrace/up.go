package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
)

// upCmd runs everything in one process.
type upCmd struct {
	edgeFlags
	workerFlags
	measureFlags
	Worker      []string `default:"glossary" env:"MILLRACE_WORKERS" help:"Worker to run; repeat for several."`
	Development bool     `default:"true" negatable:"" env:"MILLRACE_DEVELOPMENT" help:"Show callers what is wrong with a result that does not fit the output schema of its tool."`
	NATSListen  string   `name:"nats-listen" env:"MILLRACE_NATS_LISTEN" placeholder:"ADDR" help:"Address on which workers and edges of other processes can join; without it NATS has no port."`
	Data        string   `env:"MILLRACE_DATA" placeholder:"DIR" help:"Folder where sessions and the key that signs them are kept; without it they end with the process."`
}

// Run runs the roles until one ends or a signal comes.
func (c *upCmd) Run(ctx context.Context, a *app) error {
	cfg, more, err := c.config(a)
	if err != nil {
		return err
	}
	ln, err := listen(c.Listen)
	if err != nil {
		return err
	}
	defer ln.Close() //nolint:errcheck // the server has closed it already
	m, err := c.measure(ctx, a, "millrace")
	if err != nil {
		return err
	}
	defer m.close()
	c.development = c.Development
	r := &roles{app: a, store: &storage{memory: c.Data == ""}, measured: m}
	server := localnats.Config{Listen: c.NATSListen, DataDir: c.Data, JetStream: true}
	e, actors, err := r.embedded(ctx, server, cfg, c.Worker, &c.workerFlags)
	if err != nil {
		return err
	}
	p := m.newProcess(ctx, a)
	p.add(r.http(ln, e, c.Worker, 0))
	p.add(more...)
	p.add(actors...)
	p.add(m.actor(a))
	return p.run()
}

// listen binds an address. It is called before anything starts, so that a
// taken port is an error at once.
func listen(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	return ln, nil
}

// maxDrainDelay leaves calls some of the time that the door has to stop.
const maxDrainDelay = 10 * time.Second

// edgeCmd runs one edge of a cluster.
type edgeCmd struct {
	natsFlags
	edgeFlags
	measureFlags
	WaitFor    []string      `placeholder:"POOL" help:"Pool that must be there before the edge says that it serves; repeat for several."`
	DrainDelay time.Duration `default:"1s" env:"MILLRACE_DRAIN_DELAY" help:"How long an edge that is told to stop, and is unready, still takes requests: longer than the load balancer takes to notice. At most 10s."`
}

// Run runs the edge until a signal comes.
func (c *edgeCmd) Run(ctx context.Context, a *app) error {
	if c.DrainDelay < 0 || c.DrainDelay > maxDrainDelay {
		return &exitError{exitUsage, fmt.Errorf("--drain-delay must be from 0 to %v, not %v", maxDrainDelay, c.DrainDelay)}
	}
	cfg, more, err := c.config(a)
	if err != nil {
		return err
	}
	ln, err := listen(c.Listen)
	if err != nil {
		return err
	}
	defer ln.Close() //nolint:errcheck // the server has closed it already
	m, err := c.measure(ctx, a, "millrace-edge")
	if err != nil {
		return err
	}
	defer m.close()
	r := &roles{app: a, conn: c.conn(), store: &storage{}, measured: m}
	e, edgeActor, err := r.edge(ctx, cfg)
	if err != nil {
		return err
	}
	p := m.newProcess(ctx, a)
	p.add(r.http(ln, e, c.WaitFor, c.DrainDelay), edgeActor)
	p.add(more...)
	p.add(m.actor(a))
	return p.run()
}

// glossaryCmd runs one worker of the glossary pool.
type glossaryCmd struct {
	natsFlags
	workerFlags
	measureFlags
	Development bool `env:"MILLRACE_DEVELOPMENT" help:"Show callers what is wrong with a result that does not fit the output schema of its tool."`
}

// Run runs the worker until a signal comes.
func (c *glossaryCmd) Run(ctx context.Context, a *app) error {
	c.development = c.Development
	return runWorker(ctx, a, c.conn(), "glossary", &c.workerFlags, &c.measureFlags)
}

// runWorker runs one worker of a cluster until a signal comes.
func runWorker(ctx context.Context, a *app, conn bus.ConnConfig, name string, flags *workerFlags, measured *measureFlags) error {
	m, err := measured.measure(ctx, a, "millrace-worker-"+name)
	if err != nil {
		return err
	}
	defer m.close()
	r := &roles{app: a, conn: conn, measured: m}
	w, err := r.worker(ctx, name, flags)
	if err != nil {
		return err
	}
	p := m.newProcess(ctx, a)
	p.add(w, m.actor(a))
	return p.run()
}

// everythingCmd runs one worker of the everything pool.
type everythingCmd struct {
	natsFlags
	measureFlags
	Development bool `env:"MILLRACE_DEVELOPMENT" help:"Show callers what is wrong with a result that does not fit the output schema of its tool."`
}

// Run runs the worker until a signal comes.
func (c *everythingCmd) Run(ctx context.Context, a *app) error {
	return runWorker(ctx, a, c.conn(), "everything", &workerFlags{development: c.Development}, &c.measureFlags)
}

// versionCmd prints the version.
type versionCmd struct{}

// Run prints it.
func (c *versionCmd) Run(a *app) error {
	_, err := fmt.Fprintln(a.stdout, "millrace", version())
	return err
}
