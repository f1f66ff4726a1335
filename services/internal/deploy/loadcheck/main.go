// Command loadcheck runs every load test of deploy/k6 once and briefly, and holds
// it to what it promises:
//
//	loadcheck K6 MILLRACE FOLDER
//
// The scripts run against a development cluster, rolling.js while its processes
// are restarted, and calls.js also against one process that wants a token. Limits
// of durations are out of the way, as the machine may be busy; that everything is
// answered, and rightly, is not. That thresholds do fail a run is checked too.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/services/devcluster"
	"github.com/millrace/millrace/services/internal/demos/cluster"
)

const (
	// limit is how long all of it may take; only a fault takes longer.
	limit = 5 * time.Minute
	// together is how many scripts run at the same time: they mostly wait.
	together = 3
	// passed and crossed are what k6 exits with when all thresholds hold, and when
	// one does not.
	passed  = 0
	crossed = 99
)

// library is the file that is no script.
const library = "mcp.js"

// settings are what a script is told by its environment, beside what all are.
type settings []string

// relaxed are the limits of a machine that is busy.
func relaxed() settings {
	return settings{"P95=30000", "P99=60000", "DROPPED=0.5", "BUFFERED=0.5", "DRIFT=1000"}
}

// smokes are the brief forms of the scripts.
func smokes() map[string]settings {
	return map[string]settings{
		"calls":    {"RATE=20", "DURATION=4s"},
		"progress": {"RATE=4", "DURATION=5s"},
		"sessions": {"RATE=5", "DURATION=4s"},
		"mixed":    {"RATE=20", "DURATION=6s"},
		"idle":     {"RATE=4", "DURATION=8s", "STREAMS=20"},
		"spike":    {"RATE=5", "PEAK=5", "DURATION=10s"},
		"soak":     {"RATE=10", "DURATION=8s"},
		rolling:    {"RATE=15", "DURATION=20s"},
	}
}

// rolling is the script that runs alone, while the cluster is restarted.
const rolling = "rolling"

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadcheck:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) != 3 {
		return errors.New("want K6 MILLRACE FOLDER")
	}
	out, err := os.MkdirTemp("", "millrace-load-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(out) //nolint:errcheck // it lies where the system cleans up
	s := &suite{k6: args[0], folder: args[2], out: out}
	if err := s.complete(); err != nil {
		return err
	}
	began := time.Now()
	restarted := 0
	err = cluster.With(ctx, cluster.Config{Binary: args[1], Output: stderr}, func(ctx context.Context, c *devcluster.Cluster) error {
		origin := strings.TrimSuffix(c.URL(), "/mcp")
		if err := s.all(ctx, origin); err != nil {
			return err
		}
		if err := s.bites(ctx, origin); err != nil {
			return err
		}
		var err error
		restarted, err = s.rolling(ctx, origin, c)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.token(ctx, args[1]); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%d load tests pass in their brief form, one of them while %d processes were restarted; thresholds fail runs; %v\n",
		len(smokes()), restarted, time.Since(began).Round(time.Second))
	return err
}

// suite runs scripts.
type suite struct {
	k6, folder string
	out        string // for summaries
}

// complete checks that each script has a brief form, and that the Job can run it.
func (s *suite) complete() error {
	found, err := filepath.Glob(filepath.Join(s.folder, "*.js"))
	if err != nil {
		return err
	}
	kustomization, err := os.ReadFile(filepath.Join(s.folder, "kustomization.yaml"))
	if err != nil {
		return err
	}
	var problems []error
	brief := smokes()
	for _, path := range found {
		name := filepath.Base(path)
		if !bytes.Contains(kustomization, []byte("      - "+name+"\n")) {
			problems = append(problems, fmt.Errorf("%s is not in kustomization.yaml", name))
		}
		script := strings.TrimSuffix(name, ".js")
		if _, ok := brief[script]; !ok && name != library {
			problems = append(problems, fmt.Errorf("%s has no brief form in loadcheck", name))
		}
		delete(brief, script)
	}
	for script := range brief {
		problems = append(problems, fmt.Errorf("%s.js is not there", script))
	}
	return errors.Join(problems...)
}

// all runs every script but one, some at a time.
func (s *suite) all(ctx context.Context, origin string) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(together)
	for script, own := range smokes() {
		if script == rolling {
			continue
		}
		g.Go(func() error { return s.pass(ctx, script, origin, own) })
	}
	return g.Wait()
}

// bites runs a script with a limit that cannot be kept.
func (s *suite) bites(ctx context.Context, origin string) error {
	const script = "calls"
	code, said, err := s.start(ctx, script, origin, slices.Concat(smokes()[script], relaxed(), settings{"DURATION=1s", "P95=0.0001"}))
	if err != nil {
		return err
	}
	if code != crossed {
		return fmt.Errorf("%s.js ends with %d when a threshold fails, want %d:\n%s", script, code, crossed, said)
	}
	r, err := s.read(script)
	if err != nil {
		return err
	}
	if r.summary.Passed || r.junit.Suite.Failures != 2 || r.failed() != 2 {
		return fmt.Errorf("%s.js: 2 thresholds failed, and its summaries say %v, %d and %d", script, r.summary.Passed, r.junit.Suite.Failures, r.failed())
	}
	return nil
}

// rolling runs the script for a rolling restart during one, and returns how many
// processes were replaced meanwhile.
func (s *suite) rolling(ctx context.Context, origin string, c *devcluster.Cluster) (restarted int, err error) {
	loaded, done := context.WithCancel(ctx)
	defer done()
	var restart sync.WaitGroup
	var problem error
	restart.Go(func() {
		select {
		case <-time.After(time.Second): // calls are running
			restarted, problem = cluster.RestartAll(loaded, c, 200*time.Millisecond, io.Discard)
		case <-loaded.Done():
		}
	})
	err = s.pass(ctx, rolling, origin, smokes()[rolling])
	cut := ctx.Err() == nil // by us, below
	done()
	restart.Wait()
	if problem != nil && !(cut && errors.Is(problem, context.Canceled)) {
		err = errors.Join(err, problem)
	}
	// A busy machine may not get through all of them; the demonstration does.
	if err == nil && restarted == 0 {
		err = errors.New("rolling.js passed, but nothing was restarted meanwhile")
	}
	return restarted, err
}

// token runs a script against a process that wants to know who calls.
func (s *suite) token(ctx context.Context, millrace string) error {
	secret := rand.Text()
	file := filepath.Join(s.out, "tokens.yaml")
	if err := os.WriteFile(file, []byte("- token: "+secret+"\n  subject: k6\n"), 0o600); err != nil {
		return err
	}
	up, err := startUp(ctx, millrace, "--worker", "everything", "--tokens", file)
	if err != nil {
		return err
	}
	own := slices.Concat(smokes()["calls"], settings{"DURATION=1s", "TOKEN=" + secret})
	err = s.pass(ctx, "calls", up.origin, own)
	if err == nil {
		var code int
		if code, _, err = s.start(ctx, "calls", up.origin, slices.Concat(own, settings{"TOKEN=" + secret + "-wrong"})); err == nil && code == passed {
			err = errors.New("calls.js passes where it is let nothing do")
		}
	}
	return errors.Join(err, up.stop())
}

// pass runs a script that must pass, and checks its summaries.
func (s *suite) pass(ctx context.Context, script, origin string, own settings) error {
	code, said, err := s.start(ctx, script, origin, slices.Concat(relaxed(), own))
	if err != nil {
		return err
	}
	if code != passed {
		return fmt.Errorf("%s.js ended with %d:\n%s", script, code, said)
	}
	r, err := s.read(script)
	if err != nil {
		return err
	}
	return r.good(script)
}

// start runs a script to its end, and returns what k6 exits with and what it said.
// Of settings that are there twice the last one counts.
func (s *suite) start(ctx context.Context, script, origin string, own settings) (code int, said string, err error) {
	args := []string{"run", "--quiet", "--no-usage-report", "--no-color", "--address", "", "--include-system-env-vars=false"}
	for _, setting := range append(own, "BASE_URL="+origin, "SUMMARY="+filepath.Join(s.out, script)) {
		args = append(args, "-e", setting)
	}
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, s.k6, append(args, filepath.Join(s.folder, script+".js"))...)
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); exited && ctx.Err() == nil {
		err = nil
	}
	if err != nil {
		return 0, "", fmt.Errorf("%s.js: %w\n%s", script, err, output.String())
	}
	return cmd.ProcessState.ExitCode(), output.String(), nil
}
