package edge

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/jetstream"
	"github.com/millrace/millrace/edge/legacy"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	"github.com/millrace/millrace/worker"
)

// clusterSize is how many edges a cluster has.
const clusterSize = 3

// cluster is several edges over one NATS server with JetStream, in this process
// and under the real clock. Its own client goes to the edges in turn, over a new
// connection for each request; that of a node goes to one edge.
type cluster struct {
	*system

	server *localnats.Server
	cfg    Config
	nodes  []*node
	turn   atomic.Uint32
	// storeDown makes the stores of all edges fail.
	storeDown atomic.Bool
	// ended gets the name of each run of the tool "linger" whose context has
	// ended.
	ended chan string
}

// node is one edge of a cluster.
type node struct {
	*system

	link  *link
	store *jetstream.Store
	// kill ends the edge as kill -9 does.
	kill   func()
	killed atomic.Bool
}

// testKey signs what the edges of a cluster hand out.
func testKey() seal.Key { return seal.Key{ID: 1, Secret: []byte("0123456789abcdef0123456789abcdef")} }

// usualTellTimeout is that of Config, for tests of edges that hear late.
const usualTellTimeout = 150 * time.Millisecond

// startCluster starts a cluster that stops with the test. Keys and Store of cfg
// are set.
func startCluster(t testing.TB, cfg Config) *cluster {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	cfg.Keys = []seal.Key{testKey()}
	// Most tests are not about edges that are slow because the machine is busy.
	cfg.TellTimeout = cmp.Or(cfg.TellTimeout, 10*time.Second)
	server, err := localnats.Start(localnats.Config{Logger: cfg.Logger, JetStream: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	c := &cluster{
		system: &system{t: t, ran: &counter{}, wire: newWire(t)}, server: server, cfg: cfg,
		ended: make(chan string, 10_000), // more than any test has
	}
	c.conn = func(name string) *bus.Conn { return c.connect(name, &link{server: server}) }
	c.workerConn, c.stopWorker = c.startWorker()
	c.addLinger()
	var starting sync.WaitGroup
	c.nodes = make([]*node, clusterSize)
	for i := range c.nodes {
		starting.Go(func() { c.nodes[i] = c.startNode() })
	}
	starting.Wait()
	c.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		for range c.nodes {
			if n := c.nodes[int(c.turn.Add(1))%len(c.nodes)]; !n.killed.Load() {
				return n.dial(ctx, network, address)
			}
		}
		return nil, errors.New("every edge is dead")
	}
	c.client = c.httpClient(&http.Transport{DisableKeepAlives: true})
	c.settle()
	return c
}

// addLinger adds a tool that reports progress at once and ends with its call.
func (c *cluster) addLinger() {
	type in struct {
		Name string `json:"name"`
		// Beat: progress goes on.
		Beat bool `json:"beat,omitempty"`
	}
	over := make(chan struct{})
	c.t.Cleanup(func() { close(over) }) // before the worker stops, which would wait
	worker.AddTool(c.worker, worker.Tool{Name: "linger", Description: "Waits for its end."},
		func(ctx context.Context, call *worker.Call, in in) (string, error) {
			beat := time.NewTicker(20 * time.Millisecond)
			defer beat.Stop()
			for n := 1.0; ; {
				call.Progress(n, 0, "")
				select {
				case <-beat.C:
					if in.Beat {
						n++
					}
				case <-ctx.Done():
					c.ended <- in.Name
					return "", context.Cause(ctx)
				case <-over:
					return "", nil
				}
			}
		})
}

func (c *cluster) connect(name string, l *link) *bus.Conn {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.ConnConfig{InProcess: l, Name: name, Logger: c.cfg.Logger})
	if err != nil {
		c.t.Error(err)
		return nil
	}
	c.t.Cleanup(conn.Close)
	return conn
}

// startNode starts an edge and waits until it serves.
func (c *cluster) startNode() *node {
	n := &node{
		system: &system{t: c.t, ran: c.ran, wire: c.wire, worker: c.worker, conn: c.conn},
		link:   &link{server: c.server},
	}
	conn := c.connect("edge", n.link)
	cfg := c.cfg
	var err error
	if n.store, err = jetstream.New(conn, jetstream.Config{Memory: true, Logger: cfg.Logger}); err != nil {
		c.t.Error(err)
		return n
	}
	cfg.Store, cfg.Streams = &switchedStore{n.store, &c.storeDown}, n.store
	if n.edge, err = New(conn, cfg); err != nil {
		c.t.Error(err)
		return n
	}
	runCtx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for name, actor := range map[string]func(context.Context) error{"edge": n.edge.Run, "store": n.store.Run} {
		running.Go(func() {
			if err := actor(runCtx); err != nil && !n.killed.Load() {
				c.t.Errorf("%s: %v", name, err)
			}
		})
	}
	c.t.Cleanup(func() {
		stop()
		running.Wait()
	})
	closeHTTP, freeze := n.serveCuttable()
	n.kill = sync.OnceFunc(func() {
		n.killed.Store(true)
		// No goodbye: first nothing of it leaves any more, on either side.
		freeze()
		n.link.cut()
		conn.Close()
		closeHTTP()
		stop()
		running.Wait()
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.edge.WaitReady(ctx, "fixture"); err != nil {
		c.t.Error(err)
	}
	eventually(c.t, "the store", n.store.Available)
	return n
}

// restart starts an edge in place of a dead one.
func (c *cluster) restart(i int) {
	c.nodes[i].kill()
	c.nodes[i] = c.startNode()
	c.settle()
}

// settle waits until the edges that live see each other, and those only, and all
// see the same lists.
func (c *cluster) settle() {
	c.t.Helper()
	var alive []*node
	for _, n := range c.nodes {
		if !n.killed.Load() {
			alive = append(alive, n)
		}
	}
	eventually(c.t, "the edges to see each other", func() bool {
		for _, n := range alive {
			if len(n.edge.Edges()) != len(alive) || n.edge.Catalog().Snapshot().ToolsDigest != alive[0].edge.Catalog().Snapshot().ToolsDigest {
				return false
			}
			if _, ok := n.edge.Catalog().Snapshot().Tool("linger"); !ok {
				return false
			}
		}
		return true
	})
}

// hub returns what watches for changes on an edge.
func (n *node) hub() *notify.Hub {
	for _, era := range n.edge.eras {
		if l, ok := era.(*legacy.Era); ok {
			return l.Changes
		}
	}
	return nil
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Errorf("still waiting for %s", what)
			return
		}
	}
}

// soon returns the next value of a channel, "end" when it is closed.
func soon(t testing.TB, what string, from <-chan string) string {
	t.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	select {
	case v, ok := <-from:
		if !ok {
			return "end"
		}
		return v
	case <-limit.C:
		t.Fatalf("still waiting for %s", what)
		return ""
	}
}

// soon returns the next message, "end" at the end of the stream.
func (c *callStream) soon(t testing.TB, what string) string {
	t.Helper()
	return soon(t, what, c.events)
}

// switchedStore is a store that can be made to fail, and does not fail for any
// other reason: on a busy machine JetStream takes longer than a client would be
// let wait, which these tests are not about.
type switchedStore struct {
	session.Store

	down *atomic.Bool
}

func (s *switchedStore) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	err = s.try(ctx, func() error {
		value, revision, err = s.Store.Get(ctx, key)
		return err
	})
	return value, revision, err
}

func (s *switchedStore) Put(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (written uint64, err error) {
	err = s.try(ctx, func() error {
		written, err = s.Store.Put(ctx, key, value, revision, ttl)
		return err
	})
	return written, err
}

func (s *switchedStore) try(ctx context.Context, request func() error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if s.down.Load() {
			return session.ErrUnavailable
		}
		if err := request(); !errors.Is(err, session.ErrUnavailable) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// link is the way of one edge to NATS.
type link struct {
	server *localnats.Server

	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

// InProcessConn connects, unless the link has been cut.
func (l *link) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return nil, io.ErrClosedPipe
	}
	conn, err := l.server.InProcessConn()
	if err == nil {
		l.conns = append(l.conns, conn)
	}
	return conn, err
}

// cut ends all connections, and there will be no others until it is mended.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	for _, conn := range l.conns {
		conn.Close()
	}
}

// mend allows connections again.
func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = false
}

// blink ends all connections; others may be made.
func (l *link) blink() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.conns {
		conn.Close()
	}
	l.conns = nil
}

// frozenConn is the edge's end of a client's connection; what a frozen one
// writes is lost.
type frozenConn struct {
	net.Conn

	frozen *atomic.Bool
}

func (c frozenConn) Write(p []byte) (int, error) {
	if c.frozen.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// frozenListener makes such connections.
type frozenListener struct {
	*pipeListener

	frozen *atomic.Bool
}

func (l frozenListener) Accept() (net.Conn, error) {
	conn, err := l.pipeListener.Accept()
	if err != nil {
		return nil, err
	}
	return frozenConn{conn, l.frozen}, nil
}

// serveCuttable serves the edge over pipes. freeze makes everything it writes
// vanish.
func (n *node) serveCuttable() (stop, freeze func()) {
	frozen := &atomic.Bool{}
	ln := frozenListener{&pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}, frozen}
	server := &http.Server{Handler: n.edge.Handler(), ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			n.t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() {
		server.Close()
		<-done
	})
	n.dial = ln.dial
	n.t.Cleanup(stop)
	n.client = n.httpClient(&http.Transport{DisableKeepAlives: true})
	return stop, func() { frozen.Store(true) }
}
