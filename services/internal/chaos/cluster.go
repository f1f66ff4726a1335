package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/services/devcluster/proxy"
)

// How many there are of each, and how large the disk of a node is.
const (
	nodes, edges, workers = 3, 3, 4
	disk                  = 96 << 20
)

// callTimeout is how long a call may go without a result or progress.
const callTimeout = 15 * time.Second

// cluster is all processes, and the proxy in front of the edges, which is this
// one.
type cluster struct {
	opts    options
	dir     string
	say     func(format string, args ...any)
	all     []*process
	links   []*link // to the nodes, of those processes that have links
	url     string
	front   *proxy.Proxy
	notes   map[string]int // what is worth saying, and how often it happened
	running sync.WaitGroup
	cancel  context.CancelFunc
}

func newCluster(o options, dir string, say func(string, ...any)) (*cluster, error) {
	if err := openNetwork(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &cluster{opts: o, dir: dir, say: say, cancel: func() {}, notes: map[string]int{}}
	for _, sub := range []string{"ledger", "log", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil { //nolint:gosec // for people to read
			return nil, err
		}
	}
	var urls, routes []string
	for i := range nodes {
		urls = append(urls, "nats://"+address(10+i)+":4222")
		routes = append(routes, "--route", address(10+i)+":6222")
	}
	millrace := []string{o.millrace, "--log-format", "json", "--log-level", "debug"}
	for i := range nodes {
		name := roleNATS + "-" + strconv.Itoa(i+1)
		c.add(roleNATS, name, address(10+i), append(append(append([]string(nil), millrace...),
			"nats", "--name", name, "--listen", address(10+i)+":4222", "--cluster-listen", address(10+i)+":6222", "--data", c.disk(name)), routes...)...)
	}
	for i := range workers {
		name := roleWorker + "-" + strconv.Itoa(i+1)
		c.add(roleWorker, name, address(30+i), self, workerCommand, "-nats", strings.Join(urls, ","), "-name", name,
			"-ledger", filepath.Join(dir, "ledger"), "-status", c.status(name))
	}
	for i := range edges {
		name := roleEdge + "-" + strconv.Itoa(i+1)
		c.add(roleEdge, name, address(20+i), append(append([]string(nil), millrace...),
			"edge", "--nats", strings.Join(urls, ","), "--listen", address(20+i)+":8080", "--wait-for", pool, "--call-timeout", callTimeout.String())...)
	}
	for _, p := range c.all {
		if err := openHost(p.name, p.address); err != nil {
			return nil, err
		}
		if p.role == roleNATS {
			if err := commands("mkdir -p "+c.disk(p.name), fmt.Sprintf("mount -t tmpfs -o size=%d tmpfs %s", disk, c.disk(p.name))); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

func address(host int) string { return network + strconv.Itoa(host) }

// disk is the folder of a node, a file system of its own.
func (c *cluster) disk(node string) string { return filepath.Join(c.dir, "run", node) }

func (c *cluster) status(name string) string { return filepath.Join(c.dir, "run", name+".socket") }

func (c *cluster) add(role, name, address string, args ...string) {
	c.all = append(c.all, &process{
		role: role, name: name, address: address, args: args,
		log: filepath.Join(c.dir, "log", name), status: c.status(name),
	})
}

func (c *cluster) names() []string {
	names := make([]string, 0, len(c.all))
	for _, p := range c.all {
		names = append(names, p.name)
	}
	return names
}

// of returns the processes of a role.
func (c *cluster) of(role string) []*process {
	var some []*process
	for _, p := range c.all {
		if p.role == role {
			some = append(some, p)
		}
	}
	return some
}

func (c *cluster) named(name string) *process {
	for _, p := range c.all {
		if p.name == name {
			return p
		}
	}
	return nil
}

// start starts everything and returns when it serves.
func (c *cluster) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, p := range c.of(roleNATS) {
		if err := p.start(); err != nil {
			return err
		}
	}
	if err := until(ctx, c.jetStreamServes); err != nil {
		return err
	}
	running, stop := context.WithCancel(context.Background())
	c.cancel = stop
	if err := c.openLinks(running); err != nil {
		return err
	}
	for _, p := range append(c.of(roleWorker), c.of(roleEdge)...) {
		if err := p.start(); err != nil {
			return err
		}
	}
	if err := c.openFront(running); err != nil {
		return err
	}
	if err := c.front.WaitReady(ctx); err != nil {
		return err
	}
	return until(ctx, c.streamsWhole)
}

// openFront serves the proxy in front of the edges.
func (c *cluster) openFront(ctx context.Context) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.url = "http://" + ln.Addr().String() + "/mcp"
	cfg := proxy.Config{Logger: slog.New(slog.DiscardHandler)}
	for _, p := range c.of(roleEdge) {
		cfg.Backends = append(cfg.Backends, proxy.Backend{Name: p.name, URL: "http://" + p.address + ":8080"})
	}
	if c.front, err = proxy.New(cfg); err != nil {
		return err
	}
	server := &http.Server{Handler: c.front, ReadHeaderTimeout: 10 * time.Second}
	c.running.Go(func() { _ = c.front.Run(ctx) }) // it has no other errors than that of ctx
	c.running.Go(func() { _ = server.Serve(ln) }) // it ends with the next line
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}

// linked are the processes whose connections to NATS go through links. Not all
// do, so that the usual way is tested too.
func (c *cluster) linked() []*process {
	return []*process{c.named("edge-3"), c.named("worker-4")}
}

// openLinks makes a link to each node, and leads the linked processes there:
// they believe to speak to the nodes.
func (c *cluster) openLinks(ctx context.Context) error {
	for i, node := range c.of(roleNATS) {
		listen := net.JoinHostPort(own, strconv.Itoa(4300+i))
		ln, err := net.Listen("tcp", listen)
		if err != nil {
			return err
		}
		l := newLink(ln, node.address+":4222")
		c.links = append(c.links, l)
		c.running.Go(func() { l.run(ctx) })
		for _, p := range c.linked() {
			if err := iptables(p.name, "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-d", node.address, "--dport", "4222", "-j", "DNAT", "--to-destination", listen); err != nil {
				return err
			}
		}
	}
	return nil
}

// stop ends everything, in order.
func (c *cluster) stop() {
	for _, role := range []string{roleEdge, roleWorker, roleNATS} {
		var ending sync.WaitGroup
		for _, p := range c.of(role) {
			if p.cmd != nil && p.running() {
				ending.Go(func() {
					if p.end(syscall.SIGTERM, 20*time.Second) != nil {
						c.say("%s did not end when it was told to", p.name)
						_ = p.kill() // the namespace ends anyway
					}
				})
			}
		}
		ending.Wait()
	}
	c.cancel()
	c.running.Wait()
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// until asks again and again until there is nothing wrong, and returns what is
// still wrong when ctx ends.
func until(ctx context.Context, wrong func() error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := wrong()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// jetStreamServes says whether every node answers for JetStream: before the
// first edge there are no streams.
func (c *cluster) jetStreamServes() error {
	for _, p := range c.of(roleNATS) {
		if _, err := request(p.address+":4222", "$JS.API.INFO"); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// streamsWhole says what a stream lacks, as each node sees it.
func (c *cluster) streamsWhole() error {
	for _, p := range c.of(roleNATS) {
		for _, name := range streams {
			info, err := stream(p.address+":4222", name)
			if err == nil {
				err = info.whole(nodes)
			}
			if err != nil {
				return fmt.Errorf("stream %s: %w", name, err)
			}
		}
	}
	return nil
}

// leader is the node that leads what is stored of running calls.
func (c *cluster) leader() (*process, error) {
	var errs []error
	for _, p := range c.of(roleNATS) {
		info, err := stream(p.address+":4222", "mr_main_events")
		if err == nil && info.Cluster.Leader != "" {
			return c.named(info.Cluster.Leader), nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no leader: %w", errors.Join(errs...))
}

// whole says what the cluster lacks: a process, readiness, a replica, or that
// an edge or a worker has done something since a time.
func (c *cluster) whole(l *load, since time.Time) error {
	for _, p := range c.all {
		if !p.running() {
			return fmt.Errorf("%s is not there", p.name)
		}
	}
	now, cancel := context.WithTimeout(context.Background(), time.Nanosecond) // what is known, without waiting
	defer cancel()
	if err := c.front.WaitReady(now); err != nil {
		return err
	}
	if silent := l.silent(c, since); silent != "" {
		return fmt.Errorf("%s has served nothing since", silent)
	}
	return c.streamsWhole()
}
