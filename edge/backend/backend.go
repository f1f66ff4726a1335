// Package backend runs the requests of both eras: it finds the pool in the
// catalog, makes the call over the bus under a deadline, and says in one of a
// few typed outcomes how it ended. It knows neither JSON-RPC codes nor HTTP:
// each era has one place that turns a Failure into its own words.
package backend

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/millrace/millrace/edge/catalog"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Pools reaches the instances of a pool; *bus.Client is one.
type Pools interface {
	Pool(pool string) grpc.ClientConnInterface
	Instance(pool, instance string) grpc.ClientConnInterface
	Offering(pool string, manifest bus.Hash) grpc.ClientConnInterface
}

// Observer hears of calls, for metrics and traces.
type Observer interface {
	// Called is told of a call when it has ended, with the context it was made
	// under. It is called by many goroutines at a time and must not wait.
	Called(ctx context.Context, c Called)
}

// Called is a call to a pool that has ended.
type Called struct {
	// Pool has served it, or was to.
	Pool string
	// Method is the one of the protocol.
	Method string
	// Tool is the name of the tool; empty for other methods. It is in the catalog.
	Tool string
	// Began is when it was made first; Repeated: it was made twice.
	Began    time.Time
	Repeated bool
	// Failure says why there was no outcome, or which error the worker has sent;
	// nil: there was another outcome.
	Failure *Failure
	// NeedsInput: its outcome was questions. ToolError: it was a result that says
	// the tool has failed.
	NeedsInput, ToolError bool
}

// Config configures a backend; the zero value works.
type Config struct {
	// CallTimeout is how long a call may go without a result or progress;
	// 0 means 60 s. A tool's own timeout takes its place.
	CallTimeout time.Duration
	// CallCeiling is the most a call may take however much progress it
	// reports; 0 means 1 h.
	CallCeiling time.Duration
	// Observer hears of every call that has ended; nil: nobody does.
	Observer Observer
	// Logger reports the inner errors that clients are not shown; nil
	// discards.
	Logger *slog.Logger
}

// Backend runs requests. It is safe for concurrent use.
type Backend struct {
	catalog *catalog.Catalog
	pools   Pools
	timeout time.Duration
	ceiling time.Duration
	observe Observer
	log     *slog.Logger
}

// New returns a backend over a catalog and the bus.
func New(c *catalog.Catalog, pools Pools, cfg Config) *Backend {
	b := &Backend{
		catalog: c,
		pools:   pools,
		timeout: cmp.Or(cfg.CallTimeout, time.Minute),
		ceiling: cmp.Or(cfg.CallCeiling, time.Hour),
		observe: cfg.Observer,
		log:     cfg.Logger,
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	return b
}

// Timeout is how long a call may go without a result or progress, where its tool
// says nothing else.
func (b *Backend) Timeout() time.Duration { return b.timeout }

// Snapshot returns the catalog as the caller sees it (see catalog.For), waiting
// for its first round of heartbeats when the edge has only just started, but
// not longer than the context allows.
func (b *Backend) Snapshot(ctx context.Context, caller *millracev1.Principal) *catalog.Snapshot {
	select {
	case <-b.catalog.Ready():
	default:
		select {
		case <-b.catalog.Ready():
		case <-ctx.Done():
		}
	}
	return b.catalog.Snapshot().For(caller)
}

// Known returns the catalog as the caller sees it and as far as it is known
// now: it does not wait, since a handshake must not.
func (b *Backend) Known(caller *millracev1.Principal) *catalog.Snapshot {
	return b.catalog.Snapshot().For(caller)
}

// Trace is the W3C trace context of a request; empty fields are left out.
type Trace struct {
	Parent, State, Baggage string
}

// outgoing adds the trace context to the metadata of a call.
func (t Trace) outgoing(ctx context.Context) context.Context {
	if t.Parent == "" {
		return ctx
	}
	pairs := []string{"traceparent", t.Parent}
	if t.State != "" {
		pairs = append(pairs, "tracestate", t.State)
	}
	if t.Baggage != "" {
		pairs = append(pairs, "baggage", t.Baggage)
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

// errTimeout is the cause of a call that ran out of time.
var errTimeout = errors.New("backend: no result or progress in time")

// call is the context of one call. Its deadline is the ceiling, and that is
// what the worker is told; the one timer it has is the shorter wait for a
// result or progress.
type call struct {
	context.Context
	cancel   context.CancelCauseFunc
	timer    *time.Timer
	began    time.Time
	timeout  time.Duration
	deadline time.Time
	own      bool // the timeout is that of the tool
	timedOut atomic.Bool
}

// Deadline is the ceiling of the call.
func (c *call) Deadline() (time.Time, bool) { return c.deadline, true }

func (b *Backend) begin(ctx context.Context, timeout time.Duration) *call {
	now := time.Now()
	c := &call{began: now, timeout: min(timeout, b.ceiling), deadline: now.Add(b.ceiling)}
	c.Context, c.cancel = context.WithCancelCause(ctx)
	c.timer = time.AfterFunc(c.timeout, func() {
		c.timedOut.Store(true)
		c.cancel(errTimeout)
	})
	return c
}

// progressed gives the call its full time again, up to the ceiling.
func (c *call) progressed() {
	if c.timer.Stop() {
		c.timer.Reset(min(c.timeout, time.Until(c.deadline)))
	}
}

// timeoutOf says which of the limits has ended the call.
func (b *Backend) timeoutOf(c *call) *Failure {
	f := &Failure{Kind: Timeout, Timeout: c.timeout, Limit: LimitTimeout}
	switch {
	case c.timeout >= b.ceiling || !time.Now().Before(c.deadline):
		f.Timeout, f.Limit = b.ceiling, LimitCeiling
	case c.own:
		f.Limit = LimitTool
	}
	return f
}

func (c *call) end() {
	c.timer.Stop()
	c.cancel(nil)
}
