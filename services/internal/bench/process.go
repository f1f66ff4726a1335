package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// target is one server that is measured.
type target struct {
	name string
	// urls are its endpoints: what is begun on the first one goes on at the
	// last, where a server has several.
	urls []string
	// fronts are the processes that hold the connections of clients; all are
	// those and the others that work for them.
	fronts, all []*exec.Cmd
	// nats is where the store is asked; empty for servers without one.
	nats string
}

func (t *target) first() string { return t.urls[0] }
func (t *target) last() string  { return t.urls[len(t.urls)-1] }

// stop kills all processes and waits for them.
func (t *target) stop() {
	for _, cmd := range t.all {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
	}
}

// cpu is the processor time of all processes.
func (t *target) cpu() time.Duration {
	var total time.Duration
	for _, cmd := range t.all {
		total += processorTime(cmd.Process.Pid)
	}
	return total
}

// memory is the resident memory of the processes that hold connections.
func (t *target) memory() (bytes int64) {
	for _, cmd := range t.fronts {
		bytes += residentMemory(cmd.Process.Pid)
	}
	return bytes
}

// tick is the unit of processor time in /proc.
const tick = 10 * time.Millisecond

// processorTime is the user and system time of a process; 0 when it is gone.
func processorTime(pid int) time.Duration {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), ") ") // behind the name
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick
}

// residentMemory is that of a process; 0 when it is gone.
func residentMemory(pid int) int64 {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), "VmRSS:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, _ := strconv.ParseInt(fields[0], 10, 64)
	return kib << 10
}

// build builds the programs into a folder.
func build(ctx context.Context, root, into string) error {
	for _, b := range []struct {
		dir      string
		packages []string
	}{
		{root, []string{"./services/millrace", "./services/internal/bench/worker"}},
		{filepath.Join(root, "services/internal/bench/peers"), []string{"./gosdk", "./mcpgo"}},
	} {
		cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-o", into + "/"}, b.packages...)...) //nolint:gosec // of the table
		cmd.Dir, cmd.Stderr = b.dir, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("building %v: %w", b.packages, err)
		}
	}
	return nil
}

// start starts a process that ends with this one at the latest.
func start(ctx context.Context, output io.Writer, program string, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // what was built
	cmd.Stdout, cmd.Stderr = output, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	return cmd, nil
}

// edges is how many Millrace has here.
const edges = 2

// startMillrace starts NATS with JetStream, two edges and a worker.
func startMillrace(ctx context.Context, bin string) (*target, error) {
	t := &target{name: "Millrace"}
	run := func(front bool, program string, args ...string) error {
		cmd, err := start(ctx, nil, filepath.Join(bin, program), args...)
		if err != nil {
			return err
		}
		t.all = append(t.all, cmd)
		if front {
			t.fronts = append(t.fronts, cmd)
		}
		return nil
	}
	ports, err := freePorts(1 + edges)
	if err != nil {
		return nil, err
	}
	t.nats = "nats://" + ports[0]
	if err := run(false, "millrace", "--log-level=error", "nats", "--listen="+ports[0]); err != nil {
		return nil, err
	}
	if err := await(ctx, func() bool { return listens(ctx, ports[0]) }); err != nil {
		return t, err
	}
	if err := run(false, "worker", "-nats="+t.nats); err != nil {
		return t, err
	}
	for _, address := range ports[1:] {
		if err := run(true, "millrace", "--log-level=error", "edge", "--nats="+t.nats, "--listen="+address, "--wait-for=bench"); err != nil {
			return t, err
		}
		t.urls = append(t.urls, "http://"+address+"/mcp")
		if err := await(ctx, func() bool { return serves(ctx, "http://"+address+"/mcp") }); err != nil {
			return t, err
		}
	}
	return t, nil
}

// startPeer starts a server of another library: one process.
func startPeer(ctx context.Context, bin, name, program string, events bool) (*target, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close() //nolint:errcheck // nothing more is read
	cmd, err := start(ctx, write, filepath.Join(bin, program), "-events="+strconv.FormatBool(events))
	write.Close() //nolint:errcheck,gosec // the process has it
	if err != nil {
		return nil, err
	}
	t := &target{name: name, fronts: []*exec.Cmd{cmd}, all: []*exec.Cmd{cmd}}
	url, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		return t, fmt.Errorf("%s has not said where it serves: %w", program, err)
	}
	t.urls = []string{strings.TrimSpace(url)}
	return t, nil
}

// freePorts returns addresses nobody listens on now.
func freePorts(n int) ([]string, error) {
	addresses := make([]string, n)
	for i := range addresses {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close() //nolint:errcheck // only its number was wanted
		addresses[i] = ln.Addr().String()
	}
	return addresses, nil
}

// await waits until a condition is met.
func await(ctx context.Context, met func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for !met() {
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("a server does not come up: %w", context.Cause(ctx))
		}
	}
	return nil
}

func listens(ctx context.Context, address string) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// serves reports whether an edge has the tools.
func serves(ctx context.Context, url string) bool {
	c := newClient()
	defer c.http.CloseIdleConnections()
	answer, err := c.post(ctx, url, "", call(1, "echo", `{"text":"ready"}`, ""))
	return err == nil && strings.Contains(answer, `"ready"`)
}
