// Package devcluster runs a whole cluster on one machine, as processes that can
// be killed: NATS nodes with JetStream, edges, workers of each pool, and a
// round-robin proxy in front of the edges.
//
// It exists to show that no edge is special: whatever works through its proxy
// works without sticky sessions. It is for development and tests; a real
// deployment has something better to supervise processes.
package devcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/services/devcluster/proxy"
)

// What a process of the cluster logs when it serves; the record of an edge and
// of a NATS node has the attribute "url".
const (
	MessageEdge   = "serving MCP"
	MessageNATS   = "NATS node serves"
	MessageWorker = "worker serves"
	// MessageAdmin is of the admin listener of any of them.
	MessageAdmin = "admin listener serves"
)

// Roles of processes.
const (
	RoleNATS   = "nats"
	RoleEdge   = "edge"
	RoleWorker = "worker"
	RoleProxy  = "proxy"
)

const (
	// startTimeout is how long the parts of a cluster may take to be ready on a
	// machine that is busy; they take about two seconds on one that is not.
	startTimeout = 2 * time.Minute
	// drainGrace is how long processes may take to end when they are told to,
	// a little longer than they give their calls.
	drainGrace = 20 * time.Second
	// natsAttempts is how often ports for NATS are chosen: between the choice
	// and the start of a node somebody else may take one.
	natsAttempts = 3
)

// Config describes a cluster. Binary and Listener have no useful zero value.
type Config struct {
	// Binary is the path of millrace.
	Binary string
	// Listener is where the proxy serves; Run closes it.
	Listener net.Listener
	// Edges and NATS are how many there are, Workers how many of each pool; 0
	// means 3, 3 and 2.
	Edges, NATS, Workers int
	// Pools are the workers to run; empty means glossary and everything.
	Pools []string
	// EdgeArgs and WorkerArgs are further arguments of all edges, and of the
	// workers of a pool by its name.
	EdgeArgs   []string
	WorkerArgs map[string][]string
	// Admin gives each process an admin listener on a port of its own.
	Admin bool
	// Restart starts a process again that has ended by itself. Otherwise it
	// stays away, as on a machine that is lost.
	Restart bool
	// Dir is a folder for what the nodes store; empty means a temporary one
	// that is removed in the end.
	Dir string
	// LogLevel is that of the processes.
	LogLevel slog.Level
	// Output takes what processes write that is no record of their log, such as
	// the report of a crash; nil discards.
	Output io.Writer
	// Logger takes the log of all processes, and what happens to them; nil
	// discards.
	Logger *slog.Logger
}

// Process is one process of a cluster.
type Process struct {
	// Role is one of the roles above, Pool that of a worker.
	Role, Pool string
	// Name is unique in the cluster, such as "edge-2".
	Name string
	// PID is 0 while the process is away.
	PID int
	// URL is where it is reached; empty for workers.
	URL string
	// Admin is the URL of its admin listener; empty when it has none.
	Admin string
}

// Cluster is an actor: Run starts its processes and supervises them. The other
// methods may be called concurrently.
type Cluster struct {
	cfg   Config
	log   *slog.Logger
	ready chan struct{} // closed when everything serves

	mu       sync.Mutex
	children []*child // in the order in which they were started
	natsURLs string
}

// New returns a cluster that Run starts.
func New(cfg Config) *Cluster {
	cfg.Edges = cmp.Or(cfg.Edges, 3)
	cfg.NATS = cmp.Or(cfg.NATS, 3)
	cfg.Workers = cmp.Or(cfg.Workers, 2)
	if len(cfg.Pools) == 0 {
		cfg.Pools = []string{"glossary", "everything"}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Output == nil {
		cfg.Output = io.Discard
	}
	return &Cluster{cfg: cfg, log: cfg.Logger, ready: make(chan struct{})}
}

// Ready returns a channel that is closed when every edge serves and sees every
// pool, every worker takes calls, and the proxy has seen all edges ready.
func (c *Cluster) Ready() <-chan struct{} { return c.ready }

// URL is the MCP endpoint behind the proxy.
func (c *Cluster) URL() string { return "http://" + c.cfg.Listener.Addr().String() + "/mcp" }

// NATS is where clients of the bus reach the nodes, several URLs separated by
// commas; empty before they are there.
func (c *Cluster) NATS() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.natsURLs
}

// Processes returns the processes as they are now, this one with the proxy last.
func (c *Cluster) Processes() []Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Process, 0, len(c.children)+1)
	for _, child := range c.children {
		all = append(all, child.process())
	}
	return append(all, Process{Role: RoleProxy, Name: RoleProxy, PID: os.Getpid(), URL: c.URL()})
}

// Restart ends the process of that name as a supervisor does, with SIGTERM and
// time to drain, starts another in its place, an edge or a NATS node at the same
// address, and returns when that serves. It fails when the first one ended with an
// error or had to be killed, when the other one did not come to serve, when the
// process is away, and when ctx ends; the restart goes on then. It may be called
// when the cluster is ready, for one process at a time.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	c.mu.Lock()
	i := slices.IndexFunc(c.children, func(child *child) bool { return child.cfg.process.Name == name })
	var found *child
	if i >= 0 {
		found = c.children[i]
	}
	c.mu.Unlock()
	if found == nil {
		return fmt.Errorf("dev-cluster: there is no process %q to restart", name)
	}
	if err := found.restart(ctx); err != nil {
		return fmt.Errorf("dev-cluster: restart of %s: %w", name, err)
	}
	return nil
}

// Run starts the cluster and supervises it until ctx ends; then the processes
// end in the order in which they drain: edges, workers, NATS. It fails when the
// cluster does not come up.
func (c *Cluster) Run(ctx context.Context) (err error) {
	defer c.cfg.Listener.Close() //nolint:errcheck // the server has closed it already
	dir := c.cfg.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "millrace-dev-cluster-"); err != nil {
			return fmt.Errorf("dev-cluster: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	spawner, stopSpawner := newSpawner()
	defer stopSpawner()

	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	nats, urls, err := c.startNATS(starting, spawner, dir)
	defer nats.stop()
	if err != nil {
		return c.failure(ctx, err)
	}
	c.mu.Lock()
	c.natsURLs = urls
	c.mu.Unlock()

	workers := c.newTier(spawner)
	defer workers.stop()
	for _, pool := range c.cfg.Pools {
		for i := range c.cfg.Workers {
			workers.start(Process{Role: RoleWorker, Pool: pool, Name: pool + "-" + strconv.Itoa(i+1)}, MessageWorker,
				append([]string{pool, "--nats", urls}, c.cfg.WorkerArgs[pool]...))
		}
	}
	edges := c.newTier(spawner)
	defer edges.stop()
	for i := range c.cfg.Edges {
		args := []string{"edge", "--nats", urls, "--listen", "127.0.0.1:0"}
		for _, pool := range c.cfg.Pools {
			args = append(args, "--wait-for", pool)
		}
		edges.start(Process{Role: RoleEdge, Name: "edge-" + strconv.Itoa(i+1)}, MessageEdge, append(args, c.cfg.EdgeArgs...))
	}
	if err := errors.Join(edges.wait(starting), workers.wait(starting)); err != nil {
		return c.failure(ctx, err)
	}
	return c.serve(ctx, starting, edges)
}

// serve runs the proxy until ctx ends, and ends the edges behind it.
func (c *Cluster) serve(ctx, starting context.Context, edges *tier) error {
	var backends []proxy.Backend
	for _, p := range edges.processes() {
		backends = append(backends, proxy.Backend{Name: p.Name, URL: strings.TrimSuffix(p.URL, "/mcp")})
	}
	front, err := proxy.New(proxy.Config{Backends: backends, Logger: c.log})
	if err != nil {
		return err
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: front, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx)) // the proxy outlives the calls of its edges
	g, serving := errgroup.WithContext(serving)
	g.Go(func() error { return front.Run(serving) })
	g.Go(func() error {
		if err := server.Serve(c.cfg.Listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("dev-cluster: proxy: %w", err)
		}
		return nil
	})
	end := func() error {
		edges.stop()
		stop()
		_ = server.Close() // what was asked of edges that are gone has no answer any more
		return g.Wait()
	}
	if err := front.WaitReady(starting); err != nil {
		return errors.Join(c.failure(ctx, err), end())
	}
	close(c.ready)
	select {
	case <-ctx.Done():
	case <-serving.Done(): // the proxy has failed
	}
	return end()
}

// failure is the error of a start, unless it was asked to end meanwhile.
func (c *Cluster) failure(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return fmt.Errorf("dev-cluster: %w", err)
	}
	return nil
}

// startNATS starts the nodes and returns them, even when it fails, and their
// URLs for clients. Each node knows all others before it starts, since
// JetStream counts them to know what a majority is.
func (c *Cluster) startNATS(ctx context.Context, s *spawner, dir string) (nodes *tier, urls string, err error) {
	for attempt := 1; ; attempt++ {
		nodes = c.newTier(s)
		ports, err := freePorts(2 * c.cfg.NATS)
		if err != nil {
			return nodes, "", err
		}
		clients, routes := make([]string, c.cfg.NATS), make([]string, c.cfg.NATS)
		for i := range c.cfg.NATS {
			clients[i], routes[i] = "nats://"+ports[2*i], ports[2*i+1]
		}
		for i := range c.cfg.NATS {
			name := "nats-" + strconv.Itoa(i+1)
			data := filepath.Join(dir, name)
			if err := os.MkdirAll(data, 0o700); err != nil {
				return nodes, "", err
			}
			args := []string{"nats", "--name", name, "--listen", ports[2*i], "--data", data}
			if c.cfg.NATS > 1 {
				args = append(args, "--cluster-listen", ports[2*i+1])
				for _, route := range routes {
					args = append(args, "--route", route)
				}
			}
			nodes.start(Process{Role: RoleNATS, Name: name, URL: clients[i]}, MessageNATS, args)
		}
		if err = nodes.wait(ctx); err == nil {
			return nodes, strings.Join(clients, ","), nil
		}
		if attempt == natsAttempts || ctx.Err() != nil {
			return nodes, "", err
		}
		c.log.Warn("NATS did not start, once more with other ports", "error", err)
		nodes.stop()
		nodes.forget()
	}
}

// freePorts returns n addresses on the loopback interface that nobody listened
// on a moment ago.
func freePorts(n int) ([]string, error) {
	ports := make([]string, 0, n)
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close() //nolint:errcheck // kept until all are chosen, so that they differ
		ports = append(ports, ln.Addr().String())
	}
	return ports, nil
}

// tier is the processes of a role. They start and end together.
type tier struct {
	cluster *Cluster
	spawner *spawner
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	members []*child // of one goroutine: that of Run
}

func (c *Cluster) newTier(s *spawner) *tier {
	t := &tier{cluster: c, spawner: s}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// start starts one process; message is what it logs when it serves.
func (t *tier) start(p Process, message string, args []string) {
	cfg := &t.cluster.cfg
	if cfg.Admin {
		args = append(args, "--admin", "127.0.0.1:0")
	}
	child := newChild(childConfig{
		process: p, message: message, binary: cfg.Binary,
		args:    append([]string{"--log-format", "json", "--log-level", cfg.LogLevel.String()}, args...),
		restart: cfg.Restart, output: cfg.Output, log: t.cluster.log, spawner: t.spawner,
	})
	t.members = append(t.members, child)
	t.cluster.mu.Lock()
	t.cluster.children = append(t.cluster.children, child)
	t.cluster.mu.Unlock()
	t.running.Go(func() { child.run(t.ctx) })
}

// wait returns when all serve, or with an error that names one which does not.
func (t *tier) wait(ctx context.Context) error {
	for _, child := range t.members {
		select {
		case <-child.ready:
		case <-child.failed:
			return fmt.Errorf("%s ended before it served", child.cfg.process.Name)
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w", child.cfg.process.Name, context.Cause(ctx))
		}
	}
	return nil
}

// processes returns the processes of the tier.
func (t *tier) processes() []Process {
	all := make([]Process, 0, len(t.members))
	for _, child := range t.members {
		all = append(all, child.process())
	}
	return all
}

// stop ends all processes and returns when they have ended. It may be called
// more than once.
func (t *tier) stop() {
	t.cancel()
	t.running.Wait()
}

// forget takes the processes out of what the cluster lists.
func (t *tier) forget() {
	t.cluster.mu.Lock()
	defer t.cluster.mu.Unlock()
	t.cluster.children = slices.DeleteFunc(t.cluster.children, func(c *child) bool { return slices.Contains(t.members, c) })
}
