package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// environment is that of the tests without what configures Millrace.
func environment(more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MILLRACE_") || strings.HasPrefix(v, "OTEL_") || strings.HasPrefix(v, "GORACE=")
	})
	// The race detector waits a second at the end of each process by default.
	return append(append(env, "GORACE=atexit_sleep_ms=0"), more...)
}

// text collects what a process writes, and tells who waits for it.
type text struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{} // closed and replaced with each write
}

// Write implements io.Writer.
func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.changed != nil {
		close(x.changed)
		x.changed = nil
	}
	return x.buf.Write(p)
}

// String returns what has been written so far.
func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.String()
}

// await returns the first match of the pattern and its groups, waiting for it;
// nil when done is closed or patience ends before.
func (x *text) await(pattern string, done <-chan struct{}) []string {
	re := regexp.MustCompile(pattern)
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		x.mu.Lock()
		if x.changed == nil {
			x.changed = make(chan struct{})
		}
		changed, match := x.changed, re.FindStringSubmatch(x.buf.String())
		x.mu.Unlock()
		if match != nil {
			return match
		}
		select {
		case <-changed:
		case <-done:
			return re.FindStringSubmatch(x.String())
		case <-deadline.C:
			return nil
		}
	}
}

// process is one running millrace.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr text
	done           chan struct{} // closed when it has ended
}

// start starts the binary. When the test ends and it still runs, it is told to
// end, and must; however it ended, it must not have had a data race.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startTo(t, nil, args...)
}

// startTo is start for a test that reads stdout itself.
func startTo(t *testing.T, stdout io.Writer, args ...string) *process {
	t.Helper()
	return startBinary(t, millrace(t), stdout, args...)
}

// startBinary is startTo for another build of the binary.
func startBinary(t *testing.T, binary string, stdout io.Writer, args ...string) *process {
	t.Helper()
	p := &process{t: t, done: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Env = environment()
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // ProcessState has the outcome
	}()
	t.Cleanup(func() {
		select {
		case <-p.done:
		default:
			p.signal(syscall.SIGTERM)
			p.exitCode()
		}
		if strings.Contains(p.stderr.String(), "WARNING: DATA RACE") {
			t.Errorf("%v had a data race", p.cmd.Args)
		}
		if t.Failed() {
			t.Logf("%v said:\n%s", p.cmd.Args, p.stderr.String())
		}
	})
	return p
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("%v: %v", p.cmd.Args, err)
	}
}

// exitCode waits for the end and returns the exit code, -1 after a signal that
// killed the process. A process that does not end is killed and fails the test.
func (p *process) exitCode() int {
	p.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-p.done:
	case <-deadline.C:
		p.signal(syscall.SIGQUIT) // shows the goroutines
		<-p.done
		p.t.Errorf("%v did not end", p.cmd.Args)
	}
	return p.cmd.ProcessState.ExitCode()
}

// log waits for a line of the log and returns the groups of the pattern.
func (p *process) log(pattern string) []string {
	p.t.Helper()
	match := p.stderr.await(pattern, p.done)
	if match == nil {
		p.t.Fatalf("%v did not log %s; it said:\n%s", p.cmd.Args, pattern, p.stderr.String())
	}
	return match[1:]
}

// server is a running edge, alone or with everything else.
type server struct {
	*process
	url string // of the MCP endpoint
}

// serve starts a command that serves MCP over HTTP, on a port of its own, and
// waits until it is ready.
func serve(t *testing.T, command string, args ...string) *server {
	t.Helper()
	return serveBinary(t, millrace(t), command, args...)
}

// serveBinary is serve for another build of the binary.
func serveBinary(t *testing.T, binary, command string, args ...string) *server {
	t.Helper()
	p := startBinary(t, binary, nil, append([]string{command, "--listen", "127.0.0.1:0"}, args...)...)
	return &server{p, p.log(`msg="serving MCP" url=(\S+)`)[0]}
}

// result is how a command ended.
type result struct {
	stdout, stderr string
	code           int
}

// command runs the binary to its end.
func command(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	return execute(t, stdin, exec.Command(millrace(t), args...))
}

// execute runs a command to its end. It may be called by any goroutine of a
// test that waits for it.
func execute(t *testing.T, stdin string, cmd *exec.Cmd) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	bounded := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	bounded.Dir, bounded.Env = cmd.Dir, cmd.Env
	if bounded.Env == nil {
		bounded.Env = environment()
	}
	bounded.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	bounded.Stdout, bounded.Stderr = &stdout, &stderr
	bounded.WaitDelay = 20 * time.Second // a grandchild may hold the pipes, and a busy machine be slow to empty them
	err := bounded.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Errorf("%v: %v\n%s", cmd.Args, err, stderr.String())
		return result{code: -1}
	}
	if strings.Contains(stderr.String(), "WARNING: DATA RACE") {
		t.Errorf("%v had a data race:\n%s", cmd.Args, stderr.String())
	}
	return result{stdout.String(), stderr.String(), bounded.ProcessState.ExitCode()}
}
