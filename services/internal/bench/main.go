// Command bench measures what sessions cost, side by side with the servers of
// two other libraries: Millrace as NATS, two edges and a worker, and each of the
// others as the one process it can be. All have the same tools and are visited in
// turn, several times, by the same client; the report has medians. Figures
// compare within one run only.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	rounds, sessions, calls, cancels, events, replays, idle int
	rest                                                    time.Duration
	only                                                    string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "how often each server is visited")
	flag.IntVar(&o.sessions, "sessions", 2000, "sessions that are begun in a round")
	flag.IntVar(&o.calls, "calls", 5000, "short calls in a round")
	flag.IntVar(&o.cancels, "cancels", 300, "calls that are cancelled in a round")
	flag.IntVar(&o.events, "events", 400, "events of the call that is resumed")
	flag.IntVar(&o.replays, "replays", 50, "how often it is resumed in a round")
	flag.IntVar(&o.idle, "idle", 10_000, "idle streams")
	flag.DurationVar(&o.rest, "rest", 5*time.Second, "how long they are idle before memory is read")
	flag.StringVar(&o.only, "only", "", "measure only this: sessions, calls, cancel, replay or idle")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// measure is one thing that is measured.
type measure struct {
	name string
	// events: the servers of others keep what they send, which costs them
	// elsewhere.
	events bool
	// rounds: 0 means as often as is asked for.
	rounds int
	run    func(context.Context, *target, options, *results) error
}

func run(ctx context.Context, o options, stdout io.Writer) error {
	// The streams of one process and their clients.
	limit := syscall.Rlimit{}
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("run it inside the repository: %w", err)
	}
	bin, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin) //nolint:errcheck // a temporary folder
	if err := build(ctx, strings.TrimSpace(string(root)), bin); err != nil {
		return err
	}
	r := &results{values: map[string]map[string][]float64{}}
	for _, m := range []measure{
		{name: "sessions", run: measureSessions},
		{name: "calls", run: measureCalls},
		{name: "cancel", run: measureCancel},
		{name: "replay", run: measureReplay, events: true},
		{name: "idle", run: measureIdle, rounds: 1},
	} {
		if o.only != "" && o.only != m.name {
			continue
		}
		if err := m.all(ctx, bin, o, r); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	r.print(stdout)
	return nil
}

// all measures one thing on all servers, which are started for it.
func (m measure) all(ctx context.Context, bin string, o options, r *results) error {
	var targets []*target
	defer func() {
		for _, t := range targets {
			t.stop()
		}
	}()
	for _, begin := range []func() (*target, error){
		func() (*target, error) { return startMillrace(ctx, bin) },
		func() (*target, error) { return startPeer(ctx, bin, "go-sdk 1.8.0", "gosdk", m.events) },
		func() (*target, error) { return startPeer(ctx, bin, "mcp-go 1.2.1", "mcpgo", m.events) },
	} {
		t, err := begin()
		if t != nil {
			targets = append(targets, t)
		}
		if err != nil {
			return err
		}
	}
	rounds := o.rounds
	if m.rounds > 0 {
		rounds = m.rounds
	}
	for range rounds {
		for _, t := range targets {
			if err := m.run(ctx, t, o, r); err != nil {
				// A server that cannot do something is no reason to measure
				// nothing.
				fmt.Fprintf(os.Stderr, "bench: %s: %s: %v\n", m.name, t.name, err)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// results are what was measured, by what it is and the server.
type results struct {
	values map[string]map[string][]float64
	order  []string
}

// add adds a value of which the median is told.
func (r *results) add(t *target, what string, value float64) {
	if r.values[what] == nil {
		r.values[what] = map[string][]float64{}
		r.order = append(r.order, what)
	}
	r.values[what][t.name] = append(r.values[what][t.name], value)
}

// sample adds a time of which the distribution is told.
func (r *results) sample(t *target, what string, d time.Duration) {
	r.add(t, what, float64(d)/float64(time.Millisecond))
}

// print writes a table.
func (r *results) print(w io.Writer) {
	servers := map[string]bool{}
	for _, of := range r.values {
		for name := range maps.Keys(of) {
			servers[name] = true
		}
	}
	columns := slices.Sorted(maps.Keys(servers))
	_, _ = fmt.Fprintf(w, "| | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	row := func(what string, value func([]float64) string) {
		cells := make([]string, len(columns))
		for i, name := range columns {
			cells[i] = "-"
			if values := slices.Sorted(slices.Values(r.values[what][name])); len(values) > 0 {
				cells[i] = value(values)
			}
		}
		_, _ = fmt.Fprintf(w, "| %s | %s |\n", what, strings.Join(cells, " | "))
	}
	at := func(share float64) func([]float64) string {
		return func(sorted []float64) string {
			return fmt.Sprintf("%.3g", sorted[int(share*float64(len(sorted)-1)+0.5)])
		}
	}
	const median, worst = 0.5, 0.99
	for _, what := range r.order {
		if !strings.HasSuffix(what, ", ms") {
			row(what, at(median))
			continue
		}
		row(what, func(sorted []float64) string { return at(median)(sorted) + " / " + at(worst)(sorted) })
	}
	if load, err := os.ReadFile(filepath.Join("/proc", "loadavg")); err == nil {
		_, _ = fmt.Fprintf(w, "\nTimes are p50 / p99. Load of the machine at the end: %s", load)
	}
}
