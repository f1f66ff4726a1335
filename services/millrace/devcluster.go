package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/services/devcluster"
)

// devClusterCmd runs a cluster of processes on this machine.
type devClusterCmd struct {
	workerFlags
	Listen  string   `default:"127.0.0.1:8080" env:"MILLRACE_LISTEN" help:"Address of the proxy in front of the edges."`
	Edges   int      `default:"3" help:"How many edges."`
	Nats    int      `name:"nats" default:"3" help:"How many NATS nodes."`
	Workers int      `default:"2" help:"How many workers of each pool."`
	Worker  []string `default:"glossary,everything" help:"Pool to run; repeat for several."`
	Restart bool     `help:"Start a process again that has ended by itself."`
	EdgeArg []string `placeholder:"ARG" sep:"none" help:"Further argument of each edge, such as --edge-arg=--call-timeout=5s; repeat for several."`
}

// Help is the long help.
func (c *devClusterCmd) Help() string {
	return "Starts NATS nodes with JetStream, edges, workers and a round-robin proxy on this machine, each a process " +
		"that can be killed (the proxy is this one), and lists them. What works here works without sticky sessions."
}

// Run runs the cluster until a signal comes; a second one ends it at once.
func (c *devClusterCmd) Run(ctx context.Context, a *app) error {
	for _, n := range []int{c.Edges, c.Nats, c.Workers} {
		if n < 1 {
			return &exitError{exitUsage, fmt.Errorf("a cluster needs at least one of each, not %d", n)}
		}
	}
	if err := knownWorkers(c.Worker); err != nil {
		return err
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this binary: %w", err)
	}
	ln, err := listen(c.Listen)
	if err != nil {
		return err
	}
	cfg := devcluster.Config{
		Binary: binary, Listener: ln, Edges: c.Edges, NATS: c.Nats, Workers: c.Workers,
		Pools: c.Worker, EdgeArgs: c.EdgeArg, Restart: c.Restart,
		LogLevel: a.level, Output: a.stderr, Logger: a.log,
	}
	if c.Dir != "" {
		cfg.WorkerArgs = map[string][]string{"glossary": {"--dir", c.Dir}}
	}
	cluster := devcluster.New(cfg)
	// Not a group of actors as elsewhere: each role may take its time to drain,
	// and this process must not be gone before the last one has.
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return cluster.Run(ctx) })
	g.Go(func() error {
		select {
		case <-cluster.Ready():
		case <-ctx.Done():
			return nil
		}
		if err := printProcesses(a.stdout, cluster); err != nil {
			return err
		}
		a.log.Info(devcluster.MessageEdge, "url", cluster.URL())
		return nil
	})
	return g.Wait()
}

// printProcesses lists the processes and says where they serve.
func printProcesses(w io.Writer, cluster *devcluster.Cluster) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(role, name, pid, url string) {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", role, name, pid, url) // Flush reports the error
	}
	row("ROLE", "NAME", "PID", "URL")
	for _, p := range cluster.Processes() {
		url := p.URL
		if url == "" {
			url = "-"
		}
		row(p.Role, p.Name, strconv.Itoa(p.PID), url)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("writing the list: %w", err)
	}
	if _, err := fmt.Fprintf(w, "serving MCP at %s\n", cluster.URL()); err != nil {
		return fmt.Errorf("writing the list: %w", err)
	}
	return nil
}
