// Package telemetry is what operators see of a process: metrics for Prometheus,
// traces for OpenTelemetry, log lines with trace ids, and an admin listener with
// health, metrics and profiles.
//
// The packages that do the work know nothing of it. Each declares what it can
// tell in a small interface (edge.Observer, backend.Observer, stats handlers of
// gRPC, middleware of workers); this package implements them all, and the binary
// puts them together. Nothing is global: what one Telemetry counts, another in
// the same process does not see.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Config configures a Telemetry; the zero value measures nothing.
type Config struct {
	// Service is the name of the process among others, such as "millrace-edge";
	// OTEL_SERVICE_NAME has the last word. Version is that of the software.
	Service, Version string
	// Metrics counts for /metrics.
	Metrics bool
	// Traces says how traces are exported; nil: they are not.
	Traces *TracesConfig
	// Pprof serves profiles on the admin listener.
	Pprof bool
	// Logger gets one line for each message of a client at level debug, and
	// what goes wrong here; nil discards.
	Logger *slog.Logger
}

// Telemetry measures one process. Run must be running while it does. Its
// methods are safe for concurrent use.
type Telemetry struct {
	cfg      Config
	log      *slog.Logger
	metrics  *metrics                 // nil: nothing is counted
	provider *sdktrace.TracerProvider // nil: nothing is traced
	tracer   trace.Tracer

	mu       sync.Mutex
	stopping bool
	parts    []part
}

// part is a part of the process that may be ready or not.
type part struct {
	name  string
	ready func() (ok bool, reason string)
}

// New returns a Telemetry. It connects to nothing before there is something to
// export.
func New(ctx context.Context, cfg Config) (*Telemetry, error) {
	t := &Telemetry{cfg: cfg, log: cfg.Logger, tracer: noop.NewTracerProvider().Tracer(scope)}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	if cfg.Metrics {
		t.metrics = newMetrics(cfg.Version)
	}
	if cfg.Traces != nil {
		provider, err := newProvider(ctx, cfg, t.log)
		if err != nil {
			return nil, fmt.Errorf("telemetry: %w", err)
		}
		t.provider, t.tracer = provider, provider.Tracer(scope, trace.WithInstrumentationVersion(cfg.Version))
	}
	return t, nil
}

// observes reports whether anybody learns of a message.
func (t *Telemetry) observes() bool {
	return t.metrics != nil || t.provider != nil || t.log.Enabled(context.Background(), slog.LevelDebug)
}

// AddPart makes readiness depend on a part of the process. ready is called by
// many goroutines; its reason says what is missing.
func (t *Telemetry) AddPart(name string, ready func() (ok bool, reason string)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.parts = append(t.parts, part{name, ready})
}

// Stopping makes the process unready for good: it is called when it is told to
// stop, before anything in it does.
func (t *Telemetry) Stopping() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopping = true
}

// Ready reports whether all parts of the process are ready, and if not, why.
func (t *Telemetry) Ready() (ok bool, reason string) {
	t.mu.Lock()
	stopping, parts := t.stopping, t.parts
	t.mu.Unlock()
	if stopping {
		return false, "stopping"
	}
	for _, p := range parts {
		if ok, reason := p.ready(); !ok {
			return false, p.name + ": " + reason
		}
	}
	return true, ""
}

// flushTimeout is how long what was measured last may take to be exported.
const flushTimeout = 5 * time.Second

// Run serves the admin listener, nil for none, until ctx ends; then it exports
// what is left of the traces. It is to be the last part of a process that stops,
// so that the end of the others is seen. It closes the listener.
func (t *Telemetry) Run(ctx context.Context, ln net.Listener) error {
	var err error
	if ln == nil {
		<-ctx.Done()
	} else {
		err = t.serve(ctx, ln)
	}
	if t.provider == nil {
		return err
	}
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if flushErr := t.provider.Shutdown(flush); flushErr != nil {
		// A collector that is away must not make a good end a bad one.
		t.log.Warn("the last traces could not be exported", "error", flushErr)
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
