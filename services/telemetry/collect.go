package telemetry

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/edge/catalog"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/worker"
)

// EdgeSource is an edge that is looked at; *edge.Edge is one.
type EdgeSource interface {
	// Stats and Members are the edge's.
	Stats() edge.Stats
	Members() []bus.Member
	Catalog() *catalog.Catalog
}

// WorkerSource is a worker that is looked at; *worker.Worker is one.
type WorkerSource interface {
	// Pool and Load are the worker's.
	Pool() string
	Load() worker.Load
}

// ConnSource is a connection that is looked at; *bus.Conn is one.
type ConnSource interface {
	// Connected and Counts are the connection's.
	Connected() bool
	Counts() bus.ConnCounts
}

// AddEdge has an edge looked at when somebody asks for metrics. A process has
// one at most.
func (t *Telemetry) AddEdge(e EdgeSource) {
	if t.metrics != nil {
		t.metrics.edges.set(e)
	}
}

// AddConn has a connection to the bus looked at. The name tells it from the
// others of the process.
func (t *Telemetry) AddConn(name string, c ConnSource) {
	if t.metrics != nil {
		t.metrics.conns.add(name, c)
	}
}

// edgeCollector looks at the edge of the process.
type edgeCollector struct {
	m                          *metrics
	openStreams, catalogReady  looked
	queued, running, stalled   looked
	instances, slots, used     looked
	items, conflicts, problems looked

	mu   sync.Mutex
	edge EdgeSource // nil: there is none
	// gone are pools whose last instance to go did not say that it leaves: they
	// are missed, and not removed, as long as none is back.
	gone map[string]bool
}

func newEdgeCollector(m *metrics) *edgeCollector {
	return &edgeCollector{
		m: m, gone: map[string]bool{},
		openStreams:  m.gauge("millrace_edge_open_streams", "SSE streams that are open to clients."),
		catalogReady: m.gauge("millrace_catalog_ready", "Whether the edge knows what workers there are, 0 or 1."),
		queued:       m.gauge("millrace_pool_calls_queued", "Calls that wait until an instance takes them.", "pool"),
		running:      m.gauge("millrace_pool_calls_running", "Calls that an instance has taken.", "pool"),
		stalled:      m.gauge("millrace_pool_calls_stalled", "Running calls whose worker waits until the client reads.", "pool"),
		instances:    m.gauge("millrace_pool_instances", "Live instances as the edge sees them; 0: the last one vanished without leaving.", "pool", "state"),
		slots:        m.gauge("millrace_pool_slots", "Calls that the ready instances can run at a time.", "pool"),
		used:         m.gauge("millrace_pool_slots_used", "Calls that the ready instances ran at their last heartbeat.", "pool"),
		items:        m.gauge("millrace_catalog_items", "What the workers offer, by its kind.", "kind"),
		conflicts:    m.gauge("millrace_catalog_conflicts", "Names that a pool announces and another one keeps."),
		problems:     m.gauge("millrace_catalog_problems", "What is announced and not offered, conflicts included."),
	}
}

func (c *edgeCollector) set(e EdgeSource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.edge = e
}

// left notes that an instance has gone.
func (c *edgeCollector) left(m bus.Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.Draining {
		delete(c.gone, m.Pool)
	} else if len(c.gone) < maxPools {
		c.gone[m.Pool] = true
	}
}

// Describe implements prometheus.Collector.
func (c *edgeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, l := range []looked{
		c.openStreams, c.catalogReady, c.queued, c.running, c.stalled, c.instances, c.slots, c.used,
		c.items, c.conflicts, c.problems,
	} {
		out <- l.desc
	}
}

// poolState is what is there of one pool.
type poolState struct {
	ready, draining, slots, used int
	calls                        bus.PoolCalls
}

// Collect implements prometheus.Collector.
func (c *edgeCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	e := c.edge
	pools := map[string]*poolState{}
	for pool := range c.gone {
		pools[c.m.pools.label(pool)] = &poolState{}
	}
	c.mu.Unlock()
	if e == nil {
		return
	}
	// Pools beyond the bound are one.
	of := func(pool string) *poolState {
		label := c.m.pools.label(pool)
		if pools[label] == nil {
			pools[label] = &poolState{}
		}
		return pools[label]
	}
	stats := e.Stats()
	for pool, calls := range stats.Calls {
		if pool == edgePool {
			continue
		}
		p := of(pool)
		p.calls.Queued += calls.Queued
		p.calls.Running += calls.Running
		p.calls.Stalled += calls.Stalled
	}
	for _, m := range e.Members() {
		p := of(m.Pool)
		if m.Draining {
			p.draining++
			continue
		}
		p.ready++
		p.slots += m.Slots
		p.used += m.Used
	}
	c.openStreams.send(out, float64(stats.OpenStreams))
	for pool, p := range pools {
		c.queued.send(out, float64(p.calls.Queued), pool)
		c.running.send(out, float64(p.calls.Running), pool)
		c.stalled.send(out, float64(p.calls.Stalled), pool)
		c.instances.send(out, float64(p.ready), pool, "ready")
		c.instances.send(out, float64(p.draining), pool, "draining")
		c.slots.send(out, float64(p.slots), pool)
		c.used.send(out, float64(p.used), pool)
	}
	c.collectCatalog(e.Catalog(), out)
}

func (c *edgeCollector) collectCatalog(from *catalog.Catalog, out chan<- prometheus.Metric) {
	ready := 0.0
	select {
	case <-from.Ready():
		ready = 1
	default:
	}
	c.catalogReady.send(out, ready)
	s := from.Snapshot()
	conflicts := 0
	for _, p := range s.Problems {
		if p.Conflict {
			conflicts++
		}
	}
	c.items.send(out, float64(len(s.Tools)), "tool")
	c.items.send(out, float64(len(s.Resources)), "resource")
	c.items.send(out, float64(len(s.Templates)), "resource_template")
	c.items.send(out, float64(len(s.Prompts)), "prompt")
	c.conflicts.send(out, float64(conflicts))
	c.problems.send(out, float64(len(s.Problems)))
}

// workerCollector looks at the workers of the process.
type workerCollector struct {
	busy, slots, stalled, refused looked

	mu      sync.Mutex
	workers []WorkerSource
}

func newWorkerCollector(m *metrics) *workerCollector {
	return &workerCollector{
		busy:    m.gauge("millrace_pool_busy_ratio", "Slots in use of an instance, from 0 to 1.", "pool"),
		slots:   m.gauge("millrace_worker_slots", "Calls that an instance can run at a time.", "pool"),
		stalled: m.gauge("millrace_worker_handlers_stalled", "Handlers that go on although their call has ended, and keep its slot.", "pool"),
		refused: m.count("millrace_worker_refusals_total", "Calls that an instance has refused as busy; the edge asks another one, or the same again.", "pool"),
	}
}

func (c *workerCollector) add(w WorkerSource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.workers = append(c.workers, w)
}

// Describe implements prometheus.Collector.
func (c *workerCollector) Describe(out chan<- *prometheus.Desc) {
	for _, l := range []looked{c.busy, c.slots, c.stalled, c.refused} {
		out <- l.desc
	}
}

// Collect implements prometheus.Collector.
func (c *workerCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	workers := c.workers
	c.mu.Unlock()
	for _, w := range workers {
		load := w.Load()
		if load.Slots == 0 {
			continue // it does not serve
		}
		c.busy.send(out, float64(load.Used)/float64(load.Slots), w.Pool())
		c.slots.send(out, float64(load.Slots), w.Pool())
		c.stalled.send(out, float64(load.Stalled), w.Pool())
		c.refused.send(out, float64(load.Refused), w.Pool())
	}
}

// connCollector looks at the connections of the process to the bus.
type connCollector struct {
	connected, messages, bytes, disconnects, faults, slow looked

	mu    sync.Mutex
	conns map[string]ConnSource
}

func newConnCollector(m *metrics) *connCollector {
	return &connCollector{
		conns:       map[string]ConnSource{},
		connected:   m.gauge("millrace_bus_connected", "Whether the connection to NATS is up, 0 or 1.", "connection"),
		messages:    m.count("millrace_bus_messages_total", "NATS messages.", "connection", "direction"),
		bytes:       m.count("millrace_bus_bytes_total", "Payload of NATS messages in bytes.", "connection", "direction"),
		disconnects: m.count("millrace_bus_disconnects_total", "How often the connection to NATS was lost.", "connection"),
		faults:      m.count("millrace_bus_connection_errors_total", "Errors that NATS or its client library has reported, such as a refused permission.", "connection"),
		slow:        m.count("millrace_bus_slow_consumer_total", "How often messages were dropped because they were not read in time.", "connection"),
	}
}

func (c *connCollector) add(name string, conn ConnSource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[name] = conn
}

// Describe implements prometheus.Collector.
func (c *connCollector) Describe(out chan<- *prometheus.Desc) {
	for _, l := range []looked{c.connected, c.messages, c.bytes, c.disconnects, c.faults, c.slow} {
		out <- l.desc
	}
}

// Collect implements prometheus.Collector.
func (c *connCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, conn := range c.conns {
		up := 0.0
		if conn.Connected() {
			up = 1
		}
		n := conn.Counts()
		c.connected.send(out, up, name)
		c.messages.send(out, float64(n.InMessages), name, "in")
		c.messages.send(out, float64(n.OutMessages), name, "out")
		c.bytes.send(out, float64(n.InBytes), name, "in")
		c.bytes.send(out, float64(n.OutBytes), name, "out")
		c.disconnects.send(out, float64(n.Disconnects), name)
		c.faults.send(out, float64(n.Errors), name)
		c.slow.send(out, float64(n.Slow), name)
	}
}
