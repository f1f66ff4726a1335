package devcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Pauses before a process is started again: the next is twice as long, unless
// the process has lived for a while.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 5 * time.Second
	livedLong  = 10 * time.Second
)

// childConfig describes a child.
type childConfig struct {
	process Process // PID and, where it is not known before, URL are empty
	message string  // what it logs when it serves
	binary  string
	args    []string
	restart bool
	output  io.Writer
	log     *slog.Logger
	spawner *spawner
}

// child is one process and, after it, those that take its place. Its goroutine
// is run; the other methods may be called concurrently.
type child struct {
	cfg    childConfig
	ready  chan struct{} // closed when it has served for the first time
	failed chan struct{} // closed when it has ended before that
	done   chan struct{} // closed when run has returned

	// replace takes who wants the process replaced. Unbuffered and never closed:
	// nobody waits for a process that is away, see done.
	replace chan *replacement

	mu      sync.Mutex
	pid     int
	url     string
	serving bool         // it has said so, and is not about to end
	awaited *replacement // whom the next process is to tell that it serves
	admin   string
}

func newChild(cfg childConfig) *child {
	return &child{
		cfg: cfg, ready: make(chan struct{}), failed: make(chan struct{}), done: make(chan struct{}),
		replace: make(chan *replacement), url: cfg.process.URL,
	}
}

// replacement is somebody's wish for another process in place of the one there
// is.
type replacement struct {
	served chan error // one result, never blocks
	ended  error      // how the first one has ended
}

var errReplaced = errors.New("another process takes its place")

// restart ends the process in order and returns when another one serves in its
// place, or with an error when one of the two did not do well.
func (c *child) restart(ctx context.Context) error {
	r := &replacement{served: make(chan error, 1)}
	select {
	case c.replace <- r:
	case <-c.done:
		return errors.New("it is away")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-r.served:
		return err
	case <-c.done:
		return errors.New("the cluster ends")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// answer tells who waits for the process, if somebody does, what has become of it.
func (c *child) answer(err error) {
	c.mu.Lock()
	r := c.awaited
	c.awaited = nil
	c.mu.Unlock()
	if r != nil {
		r.served <- errors.Join(r.ended, err)
	}
}

// process is what is known of the process now.
func (c *child) process() Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.cfg.process
	p.PID, p.URL, p.Admin = c.pid, c.url, c.admin
	return p
}

// run keeps the process until ctx ends, then ends it.
func (c *child) run(ctx context.Context) {
	defer close(c.done)
	log := c.cfg.log.With("process", c.cfg.process.Name)
	pause := firstPause
	for {
		began := time.Now()
		err := c.once(ctx, log)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errReplaced) {
			continue
		}
		c.answer(fmt.Errorf("the process in its place ended by itself: %w", err))
		log.Error("process ended by itself", "reason", err, "restart", c.cfg.restart)
		select {
		case <-c.ready:
		default:
			close(c.failed) // whoever starts the cluster gives up
			return
		}
		if !c.cfg.restart {
			return
		}
		if time.Since(began) > livedLong {
			pause = firstPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// once runs one process to its end and returns how it ended.
func (c *child) once(ctx context.Context, log *slog.Logger) error {
	lines := &lineWriter{line: func(line []byte) { c.line(ctx, line, log) }}
	cmd := exec.Command(c.cfg.binary, c.arguments()...) //nolint:gosec,noctx // the binary is this one; a context would kill it at once instead of letting it drain
	cmd.Stdout, cmd.Stderr = lines, lines
	if err := c.cfg.spawner.start(cmd); err != nil {
		return err
	}
	c.setPID(cmd.Process.Pid)
	log.Debug("process started", "pid", cmd.Process.Pid, "args", cmd.Args[1:])
	ended := make(chan error, 1) // one result
	go func() { ended <- cmd.Wait() }()
	defer c.setPID(0)
	defer lines.flush()
	select {
	case err := <-ended:
		if err == nil {
			err = errors.New("exit code 0")
		}
		return err
	case r := <-c.replace:
		c.mu.Lock()
		c.serving = false
		c.mu.Unlock()
		r.ended = terminate(cmd, ended, log)
		c.mu.Lock()
		c.awaited = r
		c.mu.Unlock()
		return errReplaced
	case <-ctx.Done():
		return terminate(cmd, ended, log)
	}
}

// terminate ends a process as a supervisor does: it is told to, and killed when
// it takes too long.
func terminate(cmd *exec.Cmd, ended <-chan error, log *slog.Logger) error {
	_ = cmd.Process.Signal(syscall.SIGTERM) // fails when it has just ended
	grace := time.NewTimer(drainGrace)
	defer grace.Stop()
	select {
	case err := <-ended:
		if err != nil {
			log.Warn("process did not end well", "reason", err)
		}
		return err
	case <-grace.C:
		log.Warn("process did not end in time, killed")
		_ = cmd.Process.Signal(os.Kill) // as above
		return <-ended
	}
}

// arguments are those of the next process. It takes the address of the one
// before, since others know it.
func (c *child) arguments() []string {
	args := slices.Clone(c.cfg.args)
	i := slices.Index(args, "--listen")
	if p := c.process(); i >= 0 && p.URL != "" {
		_, rest, _ := strings.Cut(p.URL, "://")
		args[i+1], _, _ = strings.Cut(rest, "/")
	}
	return args
}

func (c *child) setPID(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pid, c.serving = pid, c.serving && pid != 0
}

// line takes one line that the process wrote: a record of its log becomes one
// of ours, the rest goes to the output as it is.
func (c *child) line(ctx context.Context, line []byte, log *slog.Logger) {
	var record map[string]any
	if err := json.Unmarshal(line, &record); err != nil {
		// Nobody can be told that this fails.
		_, _ = fmt.Fprintf(c.cfg.output, "%s | %s\n", c.cfg.process.Name, line)
		return
	}
	message, _ := record[slog.MessageKey].(string)
	if message == c.cfg.message {
		url, _ := record["url"].(string)
		c.serves(url, log)
		return
	}
	if message == MessageAdmin {
		c.mu.Lock()
		c.admin, _ = record["url"].(string)
		c.mu.Unlock()
	}
	var level slog.Level
	text, _ := record[slog.LevelKey].(string)
	_ = level.UnmarshalText([]byte(text)) // info if it cannot be read
	for _, key := range []string{slog.MessageKey, slog.LevelKey, slog.TimeKey} {
		delete(record, key)
	}
	if c.cfg.process.Role == RoleNATS && !c.settled(ctx) {
		// Nodes that start and stop miss each other: that is no news, and they
		// call it an error.
		level = slog.LevelDebug
	}
	attrs := make([]slog.Attr, 0, len(record))
	for _, key := range slices.Sorted(maps.Keys(record)) {
		attrs = append(attrs, slog.Any(key, record[key]))
	}
	log.LogAttrs(ctx, level, message, attrs...)
}

// settled says whether the process serves and is not about to end.
func (c *child) settled(ctx context.Context) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.serving && ctx.Err() == nil
}

// serves notes that the process serves.
func (c *child) serves(url string, log *slog.Logger) {
	c.mu.Lock()
	if url != "" {
		c.url = url
	}
	c.serving = true
	pid, known := c.pid, c.url
	c.mu.Unlock()
	log.Info("process serves", "pid", pid, "url", known)
	select {
	case <-c.ready:
	default:
		close(c.ready)
	}
	c.answer(nil)
}

// lineWriter hands on what is written to it line by line. The exec package
// writes from one goroutine when both outputs are the same writer.
type lineWriter struct {
	line func([]byte)
	part []byte // of a line whose end has not come
}

// Write implements io.Writer.
func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			w.part = append(w.part, p...)
			return n, nil
		}
		w.line(append(w.part, p[:end]...))
		w.part, p = nil, p[end+1:]
	}
}

// flush hands on what is left when the process has ended.
func (w *lineWriter) flush() {
	if len(w.part) > 0 {
		w.line(w.part)
	}
}

// spawner starts processes that die with this one. The kernel kills them when
// the thread ends that started them, so all are started by one thread that
// lives until stop.
type spawner struct {
	jobs chan func() // unbuffered; closed by stop
	done chan struct{}
}

func newSpawner() (s *spawner, stop func()) {
	s = &spawner{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for job := range s.jobs {
			job()
		}
	}()
	return s, func() {
		close(s.jobs)
		<-s.done
	}
}

// start starts a command.
func (s *spawner) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = attributes()
	result := make(chan error, 1) // one result
	s.jobs <- func() { result <- cmd.Start() }
	return <-result
}
