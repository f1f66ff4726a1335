// Command bench puts Millrace beside what one would otherwise use: a bare relay
// over NATS, which is the limit, and servers made with go-sdk and mcp-go. All of
// them are processes on this machine, have the same tools, and are visited in
// turn, several times, by the same client, which looks at every answer; a wrong
// one ends the benchmark. The table has medians and ratios: figures compare
// within one run only.
//
// It is run inside its module; `make bench-peers` does.
package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	rounds         int
	warm, measured time.Duration
	idle           int
	rest           time.Duration
	only           string
	profile        string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "how often each server is visited")
	flag.DurationVar(&o.warm, "warm", 300*time.Millisecond, "how long a server is called before anything is measured")
	flag.DurationVar(&o.measured, "time", 1500*time.Millisecond, "how long it is measured")
	flag.IntVar(&o.idle, "idle", 10_000, "how many sessions and idle streams there are")
	flag.DurationVar(&o.rest, "rest", 2*time.Second, "how long they are idle before memory is read")
	flag.StringVar(&o.only, "only", "", "measure only what matches this regular expression; idle: sessions and idle streams")
	flag.StringVar(&o.profile, "profile", "", "write a CPU profile of millrace up to this file, under the first load that -only matches, and measure nothing else")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// idleName is what -only calls the part that measures memory.
const idleName = "idle: sessions and idle streams"

func run(ctx context.Context, o options, stdout, stderr io.Writer) error {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return err
	}
	if err := raiseFiles(); err != nil {
		return err
	}
	bin, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin) //nolint:errcheck // a temporary folder
	if err := build(ctx, bin); err != nil {
		return err
	}
	b := &bench{options: o, servers: launcher{bin: bin, log: stderr}, results: &results{
		loads: map[string]map[string]*figures{}, held: map[string]*held{}, streams: o.idle,
	}, stderr: stderr}
	wanted := slices.DeleteFunc(shapes(), func(s shape) bool { return !only.MatchString(s.name) })
	if o.profile != "" {
		if len(wanted) == 0 {
			return fmt.Errorf("nothing matches %q", o.only)
		}
		return b.profile(ctx, wanted[0])
	}
	before := loadAverage()
	began := time.Now()
	for _, s := range wanted {
		if err := b.shape(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if only.MatchString(idleName) {
		if err := b.idle(ctx); err != nil {
			return fmt.Errorf("%s: %w", idleName, err)
		}
	}
	versions, err := versions(bin)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(stdout, "%s, %s, %d cores, %s. %d rounds of %v, %v in all.\n", // a full disk shows elsewhere
		time.Now().Format(time.DateOnly), runtime.Version(), runtime.NumCPU(), versions, o.rounds, o.measured, time.Since(began).Round(time.Second))
	_, _ = fmt.Fprintf(stdout, "Noise: %s. Load average before %s, after %s; while servers were measured, other processes took %.0f %% of the cores.\n\n", // as above
		b.results.noise(), before, loadAverage(), 100*b.others.Seconds()/b.watched.Seconds())
	b.results.print(stdout)
	b.results.printGoals(stdout)
	return nil
}

// bench is a run.
type bench struct {
	options

	servers launcher
	results *results
	stderr  io.Writer
	// others is the processor time that processes have taken that have nothing
	// to do with this, and watched all there was meanwhile.
	others, watched time.Duration
}

// visit starts the servers of targets and visits them in turn.
func (b *bench) visit(ctx context.Context, of []target, n need, do func(t target, s *server) error) error {
	var names []string
	for _, t := range of {
		if !slices.Contains(names, t.server) {
			names = append(names, t.server)
		}
	}
	running, err := b.servers.servers(ctx, names, n)
	defer running.stop()
	if err != nil {
		return err
	}
	for range b.rounds {
		for _, t := range of {
			if err := do(t, running[t.server]); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
		}
	}
	return nil
}

// shape measures the targets of a shape.
func (b *bench) shape(ctx context.Context, s shape) error {
	b.say("%s", s.name)
	known := map[string]bool{}
	return b.visit(ctx, s.of(), s.need, func(t target, srv *server) error {
		if s.request.kind == "" && t.fixed {
			return nil
		}
		if !known[t.name] {
			if err := settle(ctx, srv, t, &s.request); err != nil {
				return err
			}
			known[t.name] = true
		}
		all, own, err := busy()
		if err != nil {
			return err
		}
		cpu, err := srv.cpu()
		if err != nil {
			return err
		}
		began := time.Now()
		o, err := load(ctx, srv, t, &s.request, s.connections, b.warm, b.measured)
		if err != nil {
			return err
		}
		took := time.Since(began)
		allAfter, ownAfter, err := busy()
		if err != nil {
			return err
		}
		cpuAfter, err := srv.cpu()
		if err != nil {
			return err
		}
		b.others += max(0, allAfter-all-(ownAfter-own)-(cpuAfter-cpu))
		b.watched += took * time.Duration(runtime.NumCPU())
		b.results.load(s.name, t.name).add(o)
		b.say("  %-28s %8.0f calls/s  p50 %7.3f ms  p99 %7.3f ms  %8.1f CPU-µs  %7d B", t.name,
			float64(o.calls)/o.took.Seconds(), micro(o.p50)/1000, micro(o.p99)/1000, micro(o.cpu)/float64(o.calls), o.bytes)
		return nil
	})
}

// settleTimeout is how long a server that serves may take until it has heard of
// all workers.
const settleTimeout = 15 * time.Second

// settle waits until a server gives the right answer for the first time.
func settle(ctx context.Context, s *server, t target, q *request) error {
	deadline := time.Now().Add(settleTimeout)
	for {
		err := try(ctx, s, t, q)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func try(ctx context.Context, s *server, t target, q *request) error {
	c, err := newCaller(ctx, t, s.url, q, 0)
	if err != nil {
		return err
	}
	defer c.close()
	return c.once()
}

// idle measures what sessions and idle streams keep, in servers that are started
// for it, since memory does not go back.
func (b *bench) idle(ctx context.Context) error {
	b.say("%s", idleName)
	for range b.rounds {
		for _, t := range targets() {
			if !t.session && t.name != fixedAnswer {
				continue
			}
			if err := b.idleOne(ctx, t); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
		}
	}
	return nil
}

func (b *bench) idleOne(ctx context.Context, t target) error {
	s, err := b.servers.server(ctx, t.server, need{events: true})
	if err != nil {
		return err
	}
	defer s.stop()
	k, err := idle(ctx, s, t, b.options.idle, b.rest)
	if err != nil {
		return err
	}
	b.results.hold(t.name).add(k)
	b.say("  %-28s session %6.1f CPU-µs %6.2f KiB, stream %6.2f KiB", t.name, micro(k.session), k.sessionMemory, k.streamMemory)
	return nil
}

func (b *bench) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.stderr, format+"\n", args...) // it is only told
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// raiseFiles lets this process and the servers have a connection for each
// stream.
func raiseFiles() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}

func loadAverage() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := bytes.Cut(raw, []byte(" "))
	return string(first)
}

// versions are those of what is compared, as they were built.
func versions(bin string) (string, error) {
	var said []string
	for _, of := range []struct{ program, module, name string }{
		{"gosdk", "github.com/modelcontextprotocol/go-sdk", "go-sdk"},
		{"mcpgo", "github.com/mark3labs/mcp-go", "mcp-go"},
		{"relay", "github.com/nats-io/nats.go", "nats.go"},
		{"relay", "github.com/nats-io/nats-server/v2", "nats-server"},
	} {
		info, err := buildinfo.ReadFile(filepath.Join(bin, of.program))
		if err != nil {
			return "", err
		}
		for _, m := range info.Deps {
			if m.Path == of.module {
				said = append(said, of.name+" "+m.Version)
			}
		}
	}
	return strings.Join(said, ", "), nil
}
