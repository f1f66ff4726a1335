package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a test waits for what takes milliseconds.
const patience = 60 * time.Second

// TestMain is also the binary that clusters of these tests run: what matters
// here is what becomes of processes, not what they do.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 5 && os.Args[1] == "--log-format":
		os.Exit(pretend(os.Args[5], os.Args[6:]))
	case os.Getenv(asParent) != "":
		os.Exit(parent())
	}
	// The race detector waits a second at the end of each process by default.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// pretend is a process of a cluster.
func pretend(role string, args []string) int {
	terminated, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	listen := ""
	if i := slices.Index(args, "--listen"); i >= 0 {
		listen = args[i+1]
	}
	if i := slices.Index(args, "--once"); i >= 0 && os.Mkdir(args[i+1], 0o700) != nil {
		args = append(args, "--fail") // it has run before
	}
	switch {
	case slices.Contains(args, "--fail"):
		fmt.Fprint(os.Stderr, "cannot go on") // no end of line
		return 3
	case role == "nats":
		log.Error("a route is missing") // as nodes do while they start
		log.Info(MessageNATS, "url", "nats://"+listen)
		<-terminated.Done()
	case role == "edge":
		ln, err := net.Listen("tcp", listen)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 5
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				w.(http.Flusher).Flush()
				<-terminated.Done()
			}
			_, _ = fmt.Fprint(w, args)
		})}
		go func() { _ = server.Serve(ln) }()
		log.Info(MessageEdge, "url", "http://"+ln.Addr().String()+"/mcp")
		<-terminated.Done()
		_ = server.Shutdown(context.Background())
	default:
		log.Warn("a worker warns", "pool", role)
		log.Info(MessageWorker)
		<-terminated.Done()
	}
	fmt.Fprintln(os.Stderr, "goodbye")
	return 0
}

// asParent is the variable that makes this binary a parent of a cluster.
const asParent = "DEV_CLUSTER_TEST_PARENT"

// parent runs a cluster and prints the ids of its processes.
func parent() int {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c := New(Config{Binary: os.Args[0], Listener: ln, Dir: os.Getenv(asParent)})
	go func() {
		<-c.Ready()
		for _, p := range c.Processes() {
			if p.Role != RoleProxy {
				fmt.Println(p.PID)
			}
		}
		fmt.Println("all")
	}()
	if err := c.Run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

// text collects what is written.
type text struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.String()
}

// running is a cluster of a test.
type running struct {
	*Cluster
	log, output *text
	stop        func()
	ended       chan error // one result
}

// start starts a cluster of this test binary. It ends with the test.
func start(t *testing.T, cfg Config) *running {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{log: &text{}, output: &text{}, ended: make(chan error, 1)}
	cfg.Binary, cfg.Listener = os.Args[0], ln
	cfg.Output = r.output
	cfg.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	r.Cluster = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() {
		r.ended <- r.Run(ctx)
		close(r.ended)
	}()
	t.Cleanup(func() {
		cancel()
		for range r.ended { // until it has ended
		}
		if t.Failed() {
			t.Logf("log:\n%s\noutput:\n%s", r.log, r.output)
		}
	})
	return r
}

// await waits until the cluster is ready.
func (r *running) await(t *testing.T) *running {
	t.Helper()
	select {
	case <-r.Ready():
	case err := <-r.ended:
		t.Fatalf("the cluster ended: %v", err)
	case <-time.After(patience):
		t.Fatal("the cluster is not ready")
	}
	return r
}

// find returns the process of a name.
func (r *running) find(t *testing.T, name string) Process {
	t.Helper()
	for _, p := range r.Processes() {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("there is no %s", name)
	return Process{}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	limit := time.After(patience)
	for !condition() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-limit:
			t.Fatalf("in vain: %s", what)
		}
	}
}

func (r *running) get(t *testing.T, path string) *http.Response {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(strings.TrimSuffix(r.URL(), "/mcp") + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// TestLife: everything starts, is listed and serves; at the end what runs is
// finished, and edges end before workers, and those before NATS.
func TestLife(t *testing.T) {
	t.Parallel()
	r := start(t, Config{
		EdgeArgs: []string{"--more"}, WorkerArgs: map[string][]string{"glossary": {"--dir", "x"}}, Dir: t.TempDir(),
	}).await(t)
	var names []string
	pids := map[int]bool{}
	for _, p := range r.Processes() {
		names = append(names, p.Role+" "+p.Name)
		if p.PID == 0 || pids[p.PID] {
			t.Errorf("%s has process id %d", p.Name, p.PID)
		}
		pids[p.PID] = true
		if (p.URL == "") != (p.Role == RoleWorker) || (p.Pool == "") != (p.Role != RoleWorker) {
			t.Errorf("%+v", p)
		}
	}
	want := []string{
		"nats nats-1", "nats nats-2", "nats nats-3",
		"worker glossary-1", "worker glossary-2", "worker everything-1", "worker everything-2",
		"edge edge-1", "edge edge-2", "edge edge-3", "proxy proxy",
	}
	if !slices.Equal(names, want) {
		t.Errorf("processes %q, want %q", names, want)
	}
	if strings.Count(r.NATS(), "nats://127.0.0.1:") != 3 {
		t.Errorf("NATS is at %q", r.NATS())
	}
	answer, err := io.ReadAll(r.get(t, "/mcp").Body)
	if err != nil || !strings.Contains(string(answer), "--nats "+r.NATS()) || !strings.HasSuffix(string(answer), "--wait-for glossary --wait-for everything --more]") {
		t.Errorf("an edge has the arguments %s (%v)", answer, err)
	}
	if log := r.log.String(); !strings.Contains(log, `level=WARN msg="a worker warns" process=everything-2 pool=everything`) || strings.Contains(log, "ERROR") {
		t.Error("the log is not that of the processes, without what nodes say while they start")
	}

	slow := r.get(t, "/slow") // has begun
	r.stop()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(slow.Body); err != nil {
		t.Errorf("a request that ran was cut off: %v", err)
	}
	var order []string
	for line := range strings.Lines(r.output.String()) {
		name, said, _ := strings.Cut(strings.TrimSpace(line), " | ")
		if said != "goodbye" {
			t.Errorf("%s said %q", name, said)
		}
		order = append(order, r.find(t, name).Role)
	}
	if want := []string{"edge", "edge", "edge", "worker", "worker", "worker", "worker", "nats", "nats", "nats"}; !slices.Equal(order, want) {
		t.Errorf("ended in the order %q", order)
	}
	for _, p := range r.Processes() {
		if p.Role != RoleProxy && p.PID != 0 {
			t.Errorf("%s is still listed as running", p.Name)
		}
	}
}

// TestKill: a process that dies stays away, and the others serve; with Restart
// another one takes its place, at the same address.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			t.Parallel()
			r := start(t, Config{Restart: restart, NATS: 1, Workers: 1, Edges: 2, Pools: []string{"glossary"}}).await(t)
			for _, name := range []string{"edge-1", "glossary-1", "nats-1"} {
				before := r.find(t, name)
				if err := syscall.Kill(before.PID, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the end of "+name+" is logged", func() bool {
					return strings.Contains(r.log.String(), `level=ERROR msg="process ended by itself" process=`+name+` reason="signal: killed"`)
				})
				eventually(t, name+" is away or another one", func() bool {
					now := r.find(t, name)
					return restart && now.PID != 0 && now.PID != before.PID && now.URL == before.URL || !restart && now.PID == 0
				})
			}
			for range 4 {
				if resp := r.get(t, "/mcp"); resp.StatusCode != http.StatusOK {
					t.Errorf("status %s with one edge away", resp.Status)
				}
			}
			r.stop()
			if err := <-r.ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRestart: a process that is to be replaced ends in order, another one serves
// at the same address, and nobody calls that an error; what does not do well is
// reported.
func TestRestart(t *testing.T) {
	t.Parallel()
	r := start(t, Config{
		NATS: 1, Workers: 1, Edges: 2, Pools: []string{"glossary", "everything"},
		WorkerArgs: map[string][]string{"everything": {"--once", t.TempDir() + "/ran"}},
	}).await(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i, name := range []string{"edge-1", "glossary-1", "nats-1", "edge-1"} {
		before := r.find(t, name)
		if err := r.Restart(ctx, name); err != nil {
			t.Error(err)
		}
		if now := r.find(t, name); now.PID == 0 || now.PID == before.PID || now.URL != before.URL {
			t.Errorf("%+v was replaced by %+v", before, now)
		}
		if n := strings.Count(r.output.String(), " | goodbye\n"); n != i+1 {
			t.Errorf("%d processes have ended in order, want %d", n, i+1)
		}
	}
	if log := r.log.String(); strings.Contains(log, "ERROR") || strings.Contains(log, "did not end") {
		t.Error("something was logged as an error")
	}
	if err := r.Restart(ctx, "edge-7"); err == nil || !strings.Contains(err.Error(), `no process "edge-7"`) {
		t.Errorf("restart of what is not there: %v", err)
	}
	if err := r.Restart(ctx, "everything-1"); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("restart of what does not start again: %v", err)
	}
	if err := r.Restart(ctx, "everything-1"); err == nil || !strings.Contains(err.Error(), "away") {
		t.Errorf("restart of what is away: %v", err)
	}
	r.stop()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	if err := r.Restart(ctx, "edge-1"); err == nil {
		t.Error("a cluster that has ended restarts processes")
	}
}

// TestNoStart: a cluster that does not come up says which process failed, shows
// what it said, and leaves nothing behind.
func TestNoStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg  Config
		says string
	}{
		"worker": {Config{WorkerArgs: map[string][]string{"everything": {"--fail"}}}, "everything-1 ended before it served"},
		"edge":   {Config{EdgeArgs: []string{"--fail"}}, "edge-1 ended before it served"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, c.cfg)
			err := <-r.ended
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v, want %s", err, c.says)
			}
			if !strings.Contains(r.output.String(), " | cannot go on\n") {
				t.Errorf("the output is %q", r.output)
			}
			for _, p := range r.Processes() {
				if p.Role != RoleProxy && p.PID != 0 {
					t.Errorf("%s is left", p.Name)
				}
			}
		})
	}
	t.Run("no binary", func(t *testing.T) {
		t.Parallel()
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := New(Config{Binary: "/nowhere", Listener: ln}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "nats-1") {
			t.Errorf("ended with %v", err)
		}
		if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the listener is not closed: %v", err)
		}
	})
	t.Run("stopped meanwhile", func(t *testing.T) {
		t.Parallel()
		r := start(t, Config{})
		r.stop()
		if err := <-r.ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
}
