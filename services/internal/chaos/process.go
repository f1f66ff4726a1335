package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Roles of processes.
const (
	roleNATS   = "nats"
	roleEdge   = "edge"
	roleWorker = "worker"
)

// process is one process of the cluster and, after it, those that take its
// place. Its methods may be called concurrently.
type process struct {
	role, name, address string
	args                []string // the command line, without its namespace
	log                 string   // file of all that it writes
	status              string   // socket that tells the number of goroutines

	mu      sync.Mutex
	cmd     *exec.Cmd     // nil before the first start
	ended   chan struct{} // closed when cmd has ended
	wanted  bool          // it was not we who ended it, if it has ended
	crashes int           // how often it ended by itself
}

// start starts the process.
func (p *process) start() error {
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // for people to read
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // the process has its own
	line := within(p.name, p.args...)
	cmd := exec.Command(line[0], line[1:]...) //nolint:gosec,noctx // it is ended by stop, kill, or the end of the namespace
	cmd.Stdout, cmd.Stderr = file, file
	cmd.Env = append(cmd.Environ(), "MILLRACE_CHAOS_STATUS="+p.status)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	ended := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.ended, p.wanted = cmd, ended, true
	p.mu.Unlock()
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		p.mu.Lock()
		if p.wanted && p.cmd == cmd {
			p.crashes++
		}
		p.mu.Unlock()
		close(ended)
	}()
	return nil
}

// pid is the process id; nsenter becomes the program that it starts.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// running says whether the process is there.
func (p *process) running() bool {
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	select {
	case <-ended:
		return false
	default:
		return true
	}
}

// crashed is how often the process ended without being told to.
func (p *process) crashed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crashes
}

// signal sends a signal.
func (p *process) signal(s syscall.Signal) error {
	return syscall.Kill(p.pid(), s)
}

// kill kills the process and returns when it is gone.
func (p *process) kill() error {
	return p.end(syscall.SIGKILL, time.Minute)
}

// end sends the signal that is to end the process, and waits.
func (p *process) end(s syscall.Signal, patience time.Duration) error {
	p.mu.Lock()
	p.wanted = false
	ended := p.ended
	p.mu.Unlock()
	if err := p.signal(s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	select {
	case <-ended:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s does not end", p.name)
	}
}

// Usage is what a process takes.
type Usage struct {
	Goroutines int     `json:"goroutines"`
	RSS        float64 `json:"rssMiB"`
	Files      int     `json:"files"`
}

// usage measures the process, and returns where its goroutines stand.
func (p *process) usage() (u Usage, stacks string, err error) {
	conn, err := (&net.Dialer{Timeout: time.Second}).Dial("unix", p.status)
	if err != nil {
		return u, "", fmt.Errorf("%s: %w", p.name, err)
	}
	defer conn.Close()                                    //nolint:errcheck // it has been read
	_ = conn.SetDeadline(time.Now().Add(time.Second * 5)) // fails on a connection that has ended
	r := bufio.NewReader(conn)
	first, err := r.ReadString('\n')
	if err != nil {
		return u, "", fmt.Errorf("%s: %w", p.name, err)
	}
	if u.Goroutines, err = strconv.Atoi(strings.TrimSpace(first)); err != nil {
		return u, "", err
	}
	all, err := io.ReadAll(r)
	if err != nil {
		return u, "", fmt.Errorf("%s: %w", p.name, err)
	}
	proc := "/proc/" + strconv.Itoa(p.pid())
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		return u, "", err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.Atoi(strings.Fields(kib)[0]) // the kernel writes numbers
			u.RSS = float64(n*10/1024) / 10
		}
	}
	files, err := os.ReadDir(proc + "/fd")
	u.Files = len(files)
	return u, string(all), err
}
