package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a server, or a part of one.
type process struct {
	cmd *exec.Cmd
	// said takes the lines that name a URL; the process closes it with its end,
	// and those that find it full are dropped: nobody waits for them.
	said chan line
	// heard are the URLs by message that await has seen.
	heard map[string]string
	// ended is closed when the process has ended.
	ended chan struct{}
}

// line is a line of a log.
type line struct {
	Level   string  `json:"level"`
	Message string  `json:"msg"`
	URL     *string `json:"url"`
}

// launch starts a program, which ends with this process at the latest. What it
// writes to standard error is passed on to log, but for lines of JSON that are no
// warnings.
func launch(ctx context.Context, log io.Writer, program string, args ...string) (*process, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // what was built
	cmd.Stderr = write
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	_ = write.Close() // the process has it
	if err != nil {
		_ = read.Close() // nothing comes
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	p := &process{cmd: cmd, said: make(chan line, 16), heard: map[string]string{}, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		defer close(p.said)
		defer read.Close() //nolint:errcheck // read to its end
		lines := bufio.NewScanner(read)
		for lines.Scan() {
			var l line
			switch err := json.Unmarshal(lines.Bytes(), &l); {
			case err != nil || l.Level == "WARN" || l.Level == "ERROR":
				_, _ = fmt.Fprintf(log, "%s: %s\n", filepath.Base(program), lines.Bytes()) // it is only told
			case l.URL != nil:
				select {
				case p.said <- l:
				default:
				}
			}
		}
		_ = cmd.Wait() // how it ends is of no interest: it is told to, or calls fail
	}()
	return p, nil
}

// startTimeout is how long a server may take until it serves.
const startTimeout = time.Minute

// await waits until the process says where it serves, in a line with this
// message, and returns the URL.
func (p *process) await(ctx context.Context, message string) (string, error) {
	timer := time.NewTimer(startTimeout)
	defer timer.Stop()
	for {
		if url, ok := p.heard[message]; ok {
			return url, nil
		}
		select {
		case l, ok := <-p.said:
			if !ok {
				return "", fmt.Errorf("%v has ended", p.cmd.Args)
			}
			p.heard[l.Message] = *l.URL
		case <-timer.C:
			return "", fmt.Errorf("%v does not say that it serves", p.cmd.Args)
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// stopTimeout is how long a server may take to end by itself.
const stopTimeout = 3 * time.Second

// stop ends the process and waits for it.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill() // as above
		<-p.ended
	}
}

// tick is the unit of processor time in /proc.
const tick = 10 * time.Millisecond

// cpu is the user and system time of the process.
func (p *process) cpu() (time.Duration, error) {
	raw, err := os.ReadFile(p.proc("stat"))
	if err != nil {
		return 0, err
	}
	const user, system = 11, 12 // behind the name, which may have blanks
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	if len(fields) <= system {
		return 0, fmt.Errorf("%s: %q", p.proc("stat"), raw)
	}
	var ticks int64
	for _, field := range []string{fields[user], fields[system]} {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// memory is the resident memory of the process in bytes.
func (p *process) memory() (int64, error) {
	raw, err := os.ReadFile(p.proc("status"))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(raw), "VmRSS:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, fmt.Errorf("%s has no VmRSS", p.proc("status"))
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	return kib << 10, err
}

func (p *process) proc(file string) string {
	return filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), file)
}

// busy is the processor time that everything on this machine has taken, and
// that this process has.
func busy() (all, own time.Duration, err error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	const idle, wait, guest = 4, 5, 9 // fields; guest time is in the others already
	for i, field := range strings.Fields(line) {
		if i == 0 || i == idle || i == wait || i >= guest {
			continue
		}
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		all += time.Duration(ticks) * tick
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, 0, err
	}
	return all, time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
