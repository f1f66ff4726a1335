package bustest

import (
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// readyWait is how long a server may take to come up, and a cluster to find
// together.
const readyWait = 20 * time.Second

// Cluster is some NATS servers that listen on the loopback interface. With more
// than one they form a cluster. Its methods may be called concurrently.
type Cluster struct {
	t     testing.TB
	nodes []*server.Server
	opts  []*server.Options

	mu   sync.Mutex
	dead map[int]bool
}

// StartCluster starts n servers and returns when each knows all others. They
// stop when the test ends.
func StartCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	c := &Cluster{t: t, dead: make(map[int]bool)}
	t.Cleanup(func() {
		for i := range c.nodes {
			c.Kill(i)
		}
	})
	for i := range n {
		opts := &server.Options{
			ServerName: "node" + strconv.Itoa(i),
			Host:       "127.0.0.1",
			Port:       server.RANDOM_PORT,
			NoSigs:     true,
			NoLog:      true,
			MaxPayload: 1 << 20,
		}
		if n > 1 {
			opts.Cluster = server.ClusterOpts{Name: "bustest", Host: "127.0.0.1", Port: server.RANDOM_PORT}
		}
		if i > 0 {
			opts.Routes = []*url.URL{{Scheme: "nats", Host: c.nodes[0].ClusterAddr().String()}}
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
	}
	return c
}

// URL is where clients reach node i.
func (c *Cluster) URL(i int) string { return c.nodes[i].ClientURL() }

// Kill stops node i without telling anybody first. A node that is dead stays
// dead.
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
