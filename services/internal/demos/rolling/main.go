// Command rolling shows that a rolling restart loses nothing. It starts a cluster
// of three edges and two workers behind a round-robin proxy, calls a tool at a
// constant rate in both eras, and restarts all edges and workers one after another
// with SIGTERM while it does.
//
// Most calls are short; the others take some seconds and report progress, so that
// each restart finds some of them running. It ends with 0 when every request got
// an orderly answer, every result was collected once, no progress was lost or came
// twice, and every process ended well; otherwise it says what was.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/services/devcluster"
	"github.com/millrace/millrace/services/internal/demos/client"
	"github.com/millrace/millrace/services/internal/demos/cluster"
	"github.com/millrace/millrace/services/internal/demos/report"
)

// options are the flags.
type options struct {
	millrace string
	rate     int
	long     time.Duration
	pause    time.Duration
	verbose  bool
}

const (
	// longOneIn: of so many calls one is long.
	longOneIn = 5
	// every is the time between two reports of progress of a long call.
	every = 200 * time.Millisecond
	// slots is how many calls one worker runs at the same time, by default.
	slots = 64
	// sessions are those of the legacy era; each lives through all restarts.
	sessions = 10
	// patience is how long everything may take, on a machine that is busy.
	patience = 5 * time.Minute
)

var errShown = errors.New("the restart was noticed") // the report says how

func main() {
	var o options
	flag.StringVar(&o.millrace, "millrace", "", "path of the millrace binary")
	flag.IntVar(&o.rate, "rate", 50, "calls a second, half of them in each era")
	flag.DurationVar(&o.long, "long", 3*time.Second, "how long one call in five takes")
	flag.DurationVar(&o.pause, "pause", 2*time.Second, "time between two restarts")
	flag.BoolVar(&o.verbose, "v", false, "show the log of the cluster")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rolling:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, o options, stdout, stderr io.Writer) error {
	if o.rate < 2 {
		return fmt.Errorf("a rate of %d is none for two eras", o.rate)
	}
	if busy := float64(o.rate) * o.long.Seconds() / longOneIn; busy > slots*3/4 {
		return fmt.Errorf("%.0f calls at a time are too many for the one worker that is left during a restart", busy)
	}
	return cluster.With(ctx, cluster.Config{Binary: o.millrace, Verbose: o.verbose, Output: stderr}, func(ctx context.Context, c *devcluster.Cluster) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		r, err := show(ctx, o, c, stdout)
		if err != nil {
			return err
		}
		counts := r.counts()
		report.Print(stdout, counts, r.reasons(), r.took)
		if !report.Passed(counts) {
			return errShown
		}
		return nil
	})
}

// show calls at the rate, restarts everything, and collects what comes back.
func show(ctx context.Context, o options, running *devcluster.Cluster, stdout io.Writer) (*outcome, error) {
	l := &load{options: o, client: client.New(running.URL(), true), batch: fmt.Sprintf("rolling-%d", os.Getpid())}
	defer l.client.CloseIdle()
	for range sessions {
		session, err := l.client.Initialize(ctx)
		if err != nil {
			return nil, fmt.Errorf("initialize: %w", err)
		}
		l.sessions = append(l.sessions, session)
	}
	began := time.Now()
	calling, stop := context.WithCancel(ctx)
	finished := make(chan []*client.Call, 1) // one result
	go func() { finished <- l.run(calling, ctx) }()
	_, _ = fmt.Fprintf(stdout, "%d calls a second in both eras, one in %d takes %v\n", o.rate, longOneIn, o.long) // nobody depends on it
	r := &outcome{steps: l.steps()}
	select {
	case <-time.After(o.pause):
		r.restarted, r.problem = cluster.RestartAll(ctx, running, o.pause, stdout)
	case <-ctx.Done():
	}
	stop()
	r.calls = <-finished
	r.took = time.Since(began)
	for _, p := range running.Processes() {
		if p.Role == devcluster.RoleEdge || p.Role == devcluster.RoleWorker {
			r.processes++
		}
	}
	return r, context.Cause(ctx)
}

// load is the calls.
type load struct {
	options

	client   *client.Client
	sessions []string
	batch    string
}

func (l *load) steps() int { return max(int(l.long/every), 1) }

// run begins calls at the rate until calling ends, and returns all of them when
// the last one has its result or ctx has ended.
func (l *load) run(calling, ctx context.Context) []*client.Call {
	var all []*client.Call
	var running sync.WaitGroup
	// The open model: a call begins at its time, however the others do.
	tick := time.NewTicker(time.Second / time.Duration(l.rate))
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-calling.Done():
			running.Wait()
			return all
		}
		work := client.Work{Batch: l.batch, Item: fmt.Sprintf("item-%05d", n), Every: every}
		// Pairs, since odd calls are of one era and even ones of the other.
		if n/2%longOneIn == 0 {
			work.Steps = l.steps()
		}
		session := ""
		if n%2 == 0 {
			session = l.sessions[n/2%len(l.sessions)]
		}
		call := l.client.NewCall(session, n, work)
		all = append(all, call)
		running.Go(func() { call.Run(ctx) })
	}
}

// outcome is what has come of the calls.
type outcome struct {
	calls                []*client.Call
	steps                int // of a long call
	processes, restarted int
	problem              error // of the restarts
	took                 time.Duration
}

// counts are the lines of the report.
func (o *outcome) counts() []report.Count {
	var long, modern, collected, twice, failed, resumed, lost, repeated int
	var took []time.Duration
	for _, c := range o.calls {
		seen := c.Seen()
		if c.Work().Steps > 0 {
			long++
			missing, more := seen.Progressed(o.steps)
			lost += missing
			repeated += more
		} else {
			took = append(took, seen.Took)
		}
		if c.Modern() {
			modern++
		}
		collected += min(seen.Results, 1)
		twice += max(seen.Results-1, 0)
		failed += len(seen.Failed)
		if seen.Resumed > 0 {
			resumed++
		}
	}
	slices.Sort(took)
	at := func(share float64) int {
		if len(took) == 0 {
			return 0
		}
		return int(took[min(int(share*float64(len(took))), len(took)-1)].Milliseconds())
	}
	n := len(o.calls)
	figure := func(what string, got int) report.Count { return report.Count{What: what, Got: got, Want: got} }
	return []report.Count{
		{What: "edges and workers restarted in order", Got: o.restarted, Want: o.processes},
		{What: "calls", Got: n, Want: 1, AtLeast: true},
		figure("of these in the legacy era, in sessions", n-modern),
		figure("of these in the modern era", modern),
		figure("of these long, with progress", long),
		{What: "requests that failed", Got: failed},
		{What: "results collected", Got: collected, Want: n},
		{What: "results that came twice", Got: twice},
		{What: "progress notifications lost", Got: lost},
		{What: "progress notifications repeated or out of order", Got: repeated},
		figure("calls whose stream was taken up on another edge", resumed),
		figure("ms: the median of short calls", at(0.5)),
		figure("ms: 99 in 100 of them took less", at(0.99)),
		figure("ms: the slowest of them", at(1)),
	}
}

// reasons say what has failed.
func (o *outcome) reasons() []string {
	var reasons []string
	if o.problem != nil {
		reasons = append(reasons, o.problem.Error())
	}
	for _, c := range o.calls {
		seen := c.Seen()
		for _, err := range seen.Failed {
			reasons = append(reasons, fmt.Sprintf("call %d: %v", c.ID(), err))
		}
		if seen.Failure != nil {
			reasons = append(reasons, fmt.Sprintf("call %d: %v", c.ID(), seen.Failure))
		}
	}
	return reasons
}
