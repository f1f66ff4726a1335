package telemetry

import (
	"runtime"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metric describes a metric.
type Metric struct {
	// Name is the full one, Kind is counter, gauge or histogram.
	Name, Kind, Help string
	Labels           []string
}

// other is the label of what there are too many of, or what is not known.
const other = "other"

const (
	// maxPools is how many pools have series of their own in one process, and
	// maxTools how many tools: no worker, and even less a client, decides how
	// much the monitoring has to keep. The rest is counted as "other".
	maxPools = 256
	maxTools = 512
)

// latencies are the bounds of histograms in seconds: from a call that needs one
// NATS message each way to one that reports progress for minutes.
func latencies() []float64 {
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
}

// metrics are those of one process. What happens is counted in vectors; what is
// there is looked at by collectors when somebody asks.
type metrics struct {
	registry *prometheus.Registry
	defined  []Metric
	pools    names
	tools    names

	requests   *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	firsts     *prometheus.HistogramVec
	rejections *prometheus.CounterVec
	sessions   *prometheus.CounterVec
	resumes    *prometheus.CounterVec
	replayed   *prometheus.CounterVec

	calls     *prometheus.CounterVec
	callTimes *prometheus.HistogramVec
	repeated  *prometheus.CounterVec
	toolCalls *prometheus.CounterVec
	lost      *prometheus.CounterVec
	busErrors *prometheus.CounterVec

	workerCalls *prometheus.CounterVec
	workerTimes *prometheus.HistogramVec

	edges   *edgeCollector
	workers *workerCollector
	conns   *connCollector
}

func newMetrics(version string) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), pools: names{most: maxPools}, tools: names{most: maxTools}}
	m.requests = m.counter("millrace_edge_requests_total", "Messages of clients that were served, by how they ended.", "method", "era", "outcome")
	m.durations = m.histogram("millrace_edge_request_duration_seconds", "Time from a message of a client to its answer.", "method", "era")
	m.firsts = m.histogram("millrace_edge_first_event_seconds", "Time from a request to the first event that was sent before its answer, for requests with any.", "method", "era")
	m.rejections = m.counter("millrace_edge_rejections_total", "HTTP requests that did not become a message, by the status they were answered with.", "status")
	m.sessions = m.counter("millrace_edge_sessions_total", "Sessions that were begun by initialize.", "revision", "transport")
	m.resumes = m.counter("millrace_edge_resumes_total", "Streams whose client had come back for the rest.")
	m.replayed = m.counter("millrace_edge_replayed_events_total", "Events sent to clients that had come back, stored and new ones.")
	m.calls = m.counter("millrace_pool_calls_total", "Calls to workers that have ended, as the edge saw it.", "pool", "method", "outcome")
	m.callTimes = m.histogram("millrace_pool_call_duration_seconds", "Time from a call to a worker to its outcome, as the edge saw it.", "pool", "method")
	m.repeated = m.counter("millrace_pool_calls_repeated_total", "Calls that were made again because their worker was lost.", "pool")
	m.toolCalls = m.counter("millrace_tool_calls_total", "Calls of tools that have ended, as the edge saw it.", "pool", "tool", "outcome")
	m.lost = m.counter("millrace_pool_instances_lost_total", "Instances of workers that vanished without leaving.", "pool")
	m.busErrors = m.counter("millrace_bus_errors_total", "Calls over the bus that failed, by the reason of the carrier or the gRPC code.", "reason")
	m.workerCalls = m.counter("millrace_worker_calls_total", "Calls that a worker has served, by how they ended.", "pool", "method", "outcome")
	m.workerTimes = m.histogram("millrace_worker_call_duration_seconds", "Time in the handlers of a worker.", "pool", "method")
	m.edges, m.workers, m.conns = newEdgeCollector(m), newWorkerCollector(m), newConnCollector(m)

	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "millrace_build_info", Help: "1; the labels say what runs here."}, []string{"version", "go"})
	m.define("gauge", "millrace_build_info", "1; the labels say what runs here.", "version", "go")
	build.WithLabelValues(version, runtime.Version()).Set(1)
	m.registry.MustRegister(build, m.edges, m.workers, m.conns,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	// What has no labels is there from the start, so that a rate is none but 0.
	m.resumes.WithLabelValues()
	m.replayed.WithLabelValues()
	return m
}

// Metrics are all metrics of a process but those of the Go runtime and the
// operating system, which are go_* and process_*.
func Metrics() []Metric { return newMetrics("").defined }

func (m *metrics) define(kind, name, help string, labels ...string) {
	m.defined = append(m.defined, Metric{Name: name, Kind: kind, Help: help, Labels: labels})
}

func (m *metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	m.define("counter", name, help, labels...)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *metrics) histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	m.define("histogram", name, help, labels...)
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: latencies()}, labels)
	m.registry.MustRegister(v)
	return v
}

// looked describes a metric that a collector finds out when it is asked.
type looked struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func (m *metrics) gauge(name, help string, labels ...string) looked {
	m.define("gauge", name, help, labels...)
	return looked{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

func (m *metrics) count(name, help string, labels ...string) looked {
	m.define("counter", name, help, labels...)
	return looked{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

func (l looked) send(out chan<- prometheus.Metric, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(l.desc, l.kind, value, labels...)
}

// names bounds how many values a label has.
type names struct {
	most int

	mu    sync.RWMutex
	known map[string]string
}

// label returns the value of the label for a name.
func (n *names) label(name string) string {
	n.mu.RLock()
	label, ok := n.known[name]
	full := len(n.known) >= n.most
	n.mu.RUnlock()
	if ok {
		return label
	}
	if full {
		return other
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if label, ok := n.known[name]; ok {
		return label
	}
	if len(n.known) >= n.most {
		return other
	}
	if n.known == nil {
		n.known = map[string]string{}
	}
	label = strings.ToValidUTF8(name, "?")
	n.known[strings.Clone(name)] = label
	return label
}
