// Command edgekill shows that a running call survives its edge. It starts a
// cluster of three edges behind a round-robin proxy, begins many calls, kills
// with SIGKILL the edge that holds the most of them while all are running,
// reconnects every broken stream through the proxy, and counts: results that
// were collected, and executions that workers saw.
//
// It ends with 0 when every result was collected once, every call was executed
// once, and no progress was lost or came twice; otherwise it says what was.
package main

import (
	"cmp"
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
	"github.com/millrace/millrace/services/internal/demos/client"
	"github.com/millrace/millrace/services/internal/demos/cluster"
)

// options are the flags.
type options struct {
	millrace        string
	calls, sessions int
	duration, every time.Duration
	verbose         bool
}

// patience is how long the cluster may take beyond the calls themselves.
const patience = 60 * time.Second

var errShown = errors.New("calls did not survive their edge") // the report says how

func main() {
	var o options
	flag.StringVar(&o.millrace, "millrace", "", "path of the millrace binary")
	flag.IntVar(&o.calls, "calls", 100, "how many calls")
	flag.IntVar(&o.sessions, "sessions", 0, "how many sessions they are spread over; 0: one for four calls")
	flag.DurationVar(&o.duration, "duration", 10*time.Second, "how long a call takes; the edge is killed in the middle")
	flag.DurationVar(&o.every, "every", 500*time.Millisecond, "time between two reports of progress")
	flag.BoolVar(&o.verbose, "v", false, "show the log of the cluster")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "edgekill:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// run starts a cluster and shows the demonstration on it.
func run(ctx context.Context, o options, stdout, stderr io.Writer) error {
	return cluster.With(ctx, cluster.Config{Binary: o.millrace, Verbose: o.verbose, Output: stderr}, func(ctx context.Context, c *devcluster.Cluster) error {
		r, err := show(ctx, o, c, stdout)
		if err != nil {
			return err
		}
		if r.print(stdout); !r.passed() {
			return errShown
		}
		return nil
	})
}

// show makes the calls, kills an edge and collects what comes back.
func show(ctx context.Context, o options, running *devcluster.Cluster, stdout io.Writer) (*outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, o.duration+patience)
	defer cancel()
	c := client.New(running.URL(), false)
	batch := fmt.Sprintf("edge-kill-%d", os.Getpid())
	sessions := make([]string, cmp.Or(o.sessions, (o.calls+3)/4))
	for i := range sessions {
		var err error
		if sessions[i], err = c.Initialize(ctx); err != nil {
			return nil, fmt.Errorf("initialize: %w", err)
		}
	}
	all := make([]*client.Call, o.calls)
	steps := max(int(o.duration/o.every), 1)
	began := time.Now()
	finished := make(chan *client.Call, len(all)) // one each, never blocks
	for i := range all {
		all[i] = c.NewCall(sessions[i%len(sessions)], i+1, client.Work{Batch: batch, Item: fmt.Sprintf("item-%03d", i+1), Steps: steps, Every: o.every})
		go func() {
			all[i].Run(ctx)
			finished <- all[i]
		}()
	}
	_, _ = fmt.Fprintf(stdout, "%d calls of %v in %d sessions are running\n", len(all), o.duration, len(sessions))

	select {
	case <-time.After(time.Until(began.Add(o.duration / 2))):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	r := &outcome{calls: all, steps: steps}
	for _, call := range all {
		if call.Identified() {
			r.identified++
		}
	}
	victim, held := mostHeld(running, all)
	r.edge, r.held = victim.Name, held
	_, _ = fmt.Fprintf(stdout, "kill -9 %d: %s, which holds %d of them\n", victim.PID, victim.Name, held)
	process, err := os.FindProcess(victim.PID)
	if err != nil {
		return nil, err
	}
	if err := process.Kill(); err != nil {
		return nil, fmt.Errorf("kill -9 %d: %w", victim.PID, err)
	}
	for range all {
		<-finished // bounded by ctx
	}
	r.took = time.Since(began)
	r.runs, err = c.Runs(ctx, batch, 2)
	return r, err
}

// mostHeld returns the edge that holds the most running calls.
func mostHeld(running *devcluster.Cluster, all []*client.Call) (most devcluster.Process, held int) {
	holding := map[string]int{}
	for _, call := range all {
		if seen := call.Seen(); seen.ServedBy != "" && seen.Results == 0 {
			holding[seen.ServedBy]++
		}
	}
	for _, p := range running.Processes() {
		if p.Role == devcluster.RoleEdge && (most.Name == "" || holding[p.Name] > held) {
			most, held = p, holding[p.Name]
		}
	}
	return most, held
}
