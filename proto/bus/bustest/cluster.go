package bustest

import (
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// readyWait is how long a server may take to come up, and a cluster to find
// together or to elect another leader.
const readyWait = 30 * time.Second

// Cluster is some NATS servers that listen on the loopback interface. With more
// than one they form a cluster. Its methods may be called concurrently.
type Cluster struct {
	t         testing.TB
	jetStream bool
	payload   int32
	dir       string // of the files of JetStream
	nodes     []*server.Server
	opts      []*server.Options

	mu   sync.Mutex
	dead map[int]bool
}

// ClusterOption changes how a cluster starts.
type ClusterOption func(*Cluster)

// JetStream turns JetStream on, with files in a temporary folder of each server.
// StartCluster waits until the servers have elected a leader.
func JetStream() ClusterOption { return func(c *Cluster) { c.jetStream = true } }

// MaxPayload sets max_payload of all servers in bytes; it is 1 MiB otherwise.
func MaxPayload(n int32) ClusterOption { return func(c *Cluster) { c.payload = n } }

// StartCluster starts n servers and returns when each knows all others. They
// stop when the test ends.
func StartCluster(t testing.TB, n int, options ...ClusterOption) *Cluster {
	t.Helper()
	c := &Cluster{t: t, payload: 1 << 20, dead: make(map[int]bool)}
	for _, option := range options {
		option(c)
	}
	if c.jetStream {
		c.dir = t.TempDir() // removed last, so asked for first
	}
	t.Cleanup(func() {
		for i := range c.nodes {
			c.Kill(i)
		}
	})
	var routes []string
	if c.jetStream && n > 1 {
		routes = c.reserve(n)
	}
	for i := range n {
		opts := &server.Options{
			ServerName: "node" + strconv.Itoa(i),
			Host:       "127.0.0.1",
			Port:       server.RANDOM_PORT,
			NoSigs:     true,
			NoLog:      true,
			MaxPayload: c.payload,
		}
		if n > 1 {
			opts.Cluster = server.ClusterOpts{Name: "bustest", Host: "127.0.0.1", Port: server.RANDOM_PORT}
		}
		if i > 0 && routes == nil {
			opts.Routes = []*url.URL{{Scheme: "nats", Host: c.nodes[0].ClusterAddr().String()}}
		}
		if c.jetStream {
			c.store(opts, i, routes)
		}
		node, err := server.NewServer(opts)
		if err != nil {
			t.Fatal(err)
		}
		c.nodes, c.opts = append(c.nodes, node), append(c.opts, opts)
		node.Start()
		if !node.ReadyForConnections(readyWait) {
			t.Fatalf("node %d is not ready", i)
		}
	}
	for _, node := range c.nodes {
		poll(t, func() bool { return node.NumRemotes() == n-1 })
		if c.jetStream {
			poll(t, func() bool { return n == 1 || node.JetStreamIsCurrent() })
		}
	}
	if c.jetStream && n > 1 {
		// Only the leader knows the others.
		poll(t, func() bool {
			return slices.ContainsFunc(c.nodes, func(node *server.Server) bool { return len(node.JetStreamClusterPeers()) == n })
		})
	}
	return c
}

// reserve finds free addresses. A server of a cluster with JetStream learns from
// its routes for how many others it has to wait, so they are needed before the
// first one starts.
func (c *Cluster) reserve(n int) []string {
	c.t.Helper()
	addrs := make([]string, n)
	for i := range addrs {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			c.t.Fatal(err)
		}
		defer ln.Close() //nolint:errcheck // nobody has used it
		addrs[i] = ln.Addr().String()
	}
	return addrs
}

// store sets where JetStream keeps its files and, in a cluster, which server it
// is of those that the routes name.
func (c *Cluster) store(opts *server.Options, i int, routes []string) {
	c.t.Helper()
	opts.JetStream = true
	opts.StoreDir = filepath.Join(c.dir, opts.ServerName)
	opts.JetStreamMaxMemory = 1 << 30
	opts.JetStreamMaxStore = 1 << 30
	opts.Routes = nil
	for j, route := range routes {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: route})
		if j == i {
			addr, err := netip.ParseAddrPort(route)
			if err != nil {
				c.t.Fatal(err)
			}
			opts.Cluster.Port = int(addr.Port())
		}
	}
}

// Leader is which server leads a stream of JetStream now; -1: none does.
func (c *Cluster) Leader(stream string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, node := range c.nodes {
		if !c.dead[i] && node.JetStreamIsStreamLeader("$G", stream) {
			return i
		}
	}
	return -1
}

// URL is where clients reach node i.
func (c *Cluster) URL(i int) string { return c.nodes[i].ClientURL() }

// Kill stops node i without telling anybody first.
func (c *Cluster) Kill(i int) {
	c.mu.Lock()
	dead := c.dead[i]
	c.dead[i] = true
	c.mu.Unlock()
	if !dead {
		c.nodes[i].Shutdown()
		c.nodes[i].WaitForShutdown()
	}
}

// Restart starts node i, which is dead, at its old addresses.
func (c *Cluster) Restart(i int) {
	c.t.Helper()
	opts := c.opts[i].Clone()
	if addr, ok := c.nodes[i].Addr().(*net.TCPAddr); ok {
		opts.Port = addr.Port
	}
	if addr := c.nodes[i].ClusterAddr(); addr != nil {
		opts.Cluster.Port = addr.Port
	}
	node, err := server.NewServer(opts)
	if err != nil {
		c.t.Fatal(err)
	}
	node.Start()
	c.mu.Lock()
	c.nodes[i] = node
	delete(c.dead, i)
	c.mu.Unlock()
	if !node.ReadyForConnections(readyWait) {
		c.t.Fatalf("node %d is not ready again", i)
	}
}

// SetMaxPayload changes max_payload of node i as a reload of its configuration
// does.
func (c *Cluster) SetMaxPayload(i int, n int32) {
	c.t.Helper()
	opts := c.opts[i].Clone()
	opts.MaxPayload = n
	if err := c.nodes[i].ReloadOptions(opts); err != nil {
		c.t.Fatal(err)
	}
}

// Subscriptions is how many subscriptions node i has, its own ones included.
func (c *Cluster) Subscriptions(i int) int { return int(c.nodes[i].NumSubscriptions()) }

// Messages is how many messages node i has taken from clients so far.
func (c *Cluster) Messages(i int) (in, out int64) {
	c.t.Helper()
	v, err := c.nodes[i].Varz(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return v.InMsgs, v.OutMsgs
}

// poll waits for a condition that something else brings about.
func poll(t testing.TB, ok func() bool) {
	t.Helper()
	limit := time.After(readyWait)
	for !ok() {
		select {
		case <-limit:
			t.Fatal("it never happened")
		case <-time.After(time.Millisecond):
		}
	}
}
