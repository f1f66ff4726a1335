// Command soak runs a cluster at half of its capacity for a while and reports
// how the memory and the goroutines of each process grow.
//
// It starts three NATS nodes with JetStream, three edges behind a round-robin
// proxy and two workers, measures how many calls a second they do at most, and
// makes half as many in both eras: short calls, calls with progress, calls that
// are cancelled, sessions that are left and sessions that are ended. Before the
// time that counts the cluster is warmed up for longer than events are kept.
//
// With -large it does something else: it has results of 50 MiB go through the
// edges in both eras and over stdio, and reports how much memory that took.
//
// It ends with 0 when no call failed and nothing grew by more than it may.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/millrace/millrace/services/devcluster"
	"github.com/millrace/millrace/services/internal/demos/cluster"
)

// options are the flags.
type options struct {
	millrace   string
	warm, last time.Duration
	share      float64
	rate       float64
	large      bool
	verbose    bool
}

var errShown = errors.New("the cluster does not hold") // the report says why

func main() {
	var o options
	flag.StringVar(&o.millrace, "millrace", "", "path of the millrace binary")
	flag.DurationVar(&o.warm, "warm", 6*time.Minute, "how long the load runs before anything counts; events are kept for five minutes")
	flag.DurationVar(&o.last, "for", 10*time.Minute, "how long it runs then")
	flag.Float64Var(&o.share, "share", 0.5, "share of the capacity that is used")
	flag.Float64Var(&o.rate, "rate", 0, "calls a second; 0: a share of the capacity, which is measured")
	flag.BoolVar(&o.large, "large", false, "measure what large results take instead")
	flag.BoolVar(&o.verbose, "v", false, "show the log of the cluster")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// run starts a cluster and measures it.
func run(ctx context.Context, o options, stdout, stderr io.Writer) error {
	return cluster.With(ctx, cluster.Config{Binary: o.millrace, Admin: true, Verbose: o.verbose, Output: stderr}, func(ctx context.Context, c *devcluster.Cluster) error {
		if o.large {
			return largeResults(ctx, o, c, stdout)
		}
		return soak(ctx, o, c, stdout)
	})
}

// soak measures the capacity, runs the load, and judges.
func soak(ctx context.Context, o options, c *devcluster.Cluster, stdout io.Writer) error {
	l := newLoad(c.URL())
	rate := o.rate
	if rate == 0 {
		capacity, err := l.capacity(ctx)
		if err != nil {
			return err
		}
		rate = capacity * o.share
		_, _ = fmt.Fprintf(stdout, "capacity %.0f calls a second, load %.0f\n", capacity, rate)
	}
	loading, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.run(loading, rate)
	}()
	pause(ctx, o.warm)
	samples, err := watch(ctx, c, o.last)
	stop()
	<-ended
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	held := report(stdout, samples)
	if !l.report(stdout) || !held {
		return errShown
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
