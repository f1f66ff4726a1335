// Command chaos breaks a cluster on purpose and counts what becomes of calls.
//
// It runs three NATS nodes with JetStream, three edges behind a round-robin
// proxy and four workers, each in a network namespace of its own, under a load
// of calls in both eras. Faults are injected one after another: processes are
// killed and frozen, parted from the network, slowed down, their connections
// reset, and a disk is filled. Each fault ends and the cluster is whole again
// before the next begins.
//
// Afterwards an oracle compares what clients were told with what workers wrote
// down before they did anything: that every call was answered, that no call
// ran twice that must not, that none ran of which a client was told that it did
// not, and that nobody got the answer of somebody else. It ends with 0 when all
// of that holds.
//
// Needs Linux, and root for the namespaces; nothing of them outlives it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	millrace   string
	rounds     int
	calls      int
	rate       float64
	long       time.Duration
	only       string
	seed       uint64
	json, keep string
	verbose    bool
}

var errShown = errors.New("the cluster did not keep its promises") // the report says which

func main() {
	if len(os.Args) > 1 && os.Args[1] == workerCommand {
		exit(runWorker(os.Args[2:]))
	}
	var o options
	flag.StringVar(&o.millrace, "millrace", "", "path of the millrace binary, built with overlay/overlay.json")
	flag.IntVar(&o.rounds, "rounds", 20, "how often each fault is injected")
	flag.IntVar(&o.calls, "calls", 100_000, "how many calls at least")
	flag.Float64Var(&o.rate, "rate", 80, "calls a second")
	flag.DurationVar(&o.long, "long", 5*time.Second, "how long the longest calls take")
	flag.StringVar(&o.only, "faults", "", "names of faults, separated by commas; empty: all")
	flag.Uint64Var(&o.seed, "seed", 0, "seed of all that is left to chance; 0: another one each time")
	flag.StringVar(&o.json, "json", "", "file for the summary as JSON")
	flag.StringVar(&o.keep, "keep", "", "folder for the logs of the processes and what is wrong in detail; empty: not kept")
	flag.BoolVar(&o.verbose, "v", false, "say what happens")
	flag.Parse()
	if !contained() {
		exit(contain())
	}
	if o.seed == 0 {
		o.seed = rand.Uint64() //nolint:gosec // printed, so that a run can be repeated
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout)
	stop()
	exit(err)
}

func exit(err error) {
	if err == nil {
		os.Exit(0) //nolint:forbidigo // this is main
	}
	fmt.Fprintln(os.Stderr, "chaos:", err)
	os.Exit(1) //nolint:forbidigo // the same
}

// run runs the whole suite.
func run(ctx context.Context, o options, stdout io.Writer) error {
	faults, err := choose(o.only)
	if err != nil {
		return err
	}
	dir := o.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "millrace-chaos-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir) //nolint:errcheck // it lies where the system cleans up
	} else if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // for people to read
		return err
	}
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintf(stdout, time.Now().Format("15:04:05.000 ")+format+"\n", args...)
	}
	say("seed %d", o.seed)
	began := time.Now()
	c, err := newCluster(o, dir, say)
	if err != nil {
		return err
	}
	defer c.stop()
	if err := c.start(ctx); err != nil {
		return err
	}
	say("the cluster serves: %s", strings.Join(c.names(), " "))
	r, err := c.experiment(ctx, faults)
	if err != nil {
		return err
	}
	r.Took = time.Since(began).Round(time.Second).String()
	r.Seed = o.seed
	if err := r.write(stdout, o.json); err != nil {
		return err
	}
	if !r.passed() {
		return errShown
	}
	return nil
}
