// Package cluster runs a development cluster for the time of a demonstration or a
// check, and restarts its edges and workers as a rolling update does.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/services/devcluster"
)

// Config says which cluster.
type Config struct {
	// Binary is the path of millrace.
	Binary string
	// Pools are the workers; empty means everything alone.
	Pools []string
	// Admin gives each process an admin listener.
	Admin bool
	// Verbose shows the log of the cluster.
	Verbose bool
	// Output takes it, and what processes say that crash.
	Output io.Writer
}

// With starts a cluster on a free port, runs show when everything serves, and ends
// the cluster when show has ended. It returns the error of whichever failed.
func With(ctx context.Context, cfg Config, show func(context.Context, *devcluster.Cluster) error) error {
	level := slog.LevelError + 1 // that processes die is what is shown
	if cfg.Verbose {
		level = slog.LevelInfo
	}
	if len(cfg.Pools) == 0 {
		cfg.Pools = []string{"everything"}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c := devcluster.New(devcluster.Config{
		Binary: cfg.Binary, Listener: ln, Pools: cfg.Pools, Admin: cfg.Admin, Output: cfg.Output,
		Logger: slog.New(slog.NewTextHandler(cfg.Output, &slog.HandlerOptions{Level: level})),
	})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error {
		defer cancel() // the cluster ends with what is shown
		select {
		case <-c.Ready():
		case <-ctx.Done():
			return nil
		}
		return show(ctx, c)
	})
	return g.Wait()
}

// RestartAll restarts every edge and then every worker with SIGTERM, the next one
// when the one before has been replaced by one that serves and pause is over. It
// says so to w, and returns how many it has restarted and what did not go well.
func RestartAll(ctx context.Context, c *devcluster.Cluster, pause time.Duration, w io.Writer) (restarted int, err error) {
	var problems []error
	for _, role := range []string{devcluster.RoleEdge, devcluster.RoleWorker} {
		for _, p := range c.Processes() {
			if p.Role != role {
				continue
			}
			began := time.Now()
			if err := c.Restart(ctx, p.Name); err != nil {
				problems = append(problems, err)
				continue
			}
			restarted++
			_, _ = fmt.Fprintf(w, "%s (%d) restarted within %v\n", p.Name, p.PID, time.Since(began).Round(10*time.Millisecond)) // nobody depends on it
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return restarted, errors.Join(append(problems, context.Cause(ctx))...)
			}
		}
	}
	return restarted, errors.Join(problems...)
}
