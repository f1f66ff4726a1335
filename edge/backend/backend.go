// Package backend runs the requests of both eras: it finds the pool in the
// catalog, makes the call over the bus under a deadline, and says in one of a
// few typed outcomes how it ended. It knows neither JSON-RPC codes nor HTTP:
// each era has one place that turns a Failure into its own words.
package backend

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/edge/catalog"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Pools reaches the instances of a pool; *bus.Client is one.
type Pools interface {
	Pool(pool string) grpc.ClientConnInterface
}

// Config configures a backend; the zero value works.
type Config struct {
	// CallTimeout is how long a call may go without a result or progress;
	// 0 means 60 s. A tool's own timeout takes its place.
	CallTimeout time.Duration
	// CallCeiling is the most a call may take however much progress it
	// reports; 0 means 1 h.
	CallCeiling time.Duration
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
	log     *slog.Logger
}

// New returns a backend over a catalog and the bus.
func New(c *catalog.Catalog, pools Pools, cfg Config) *Backend {
	b := &Backend{
		catalog: c,
		pools:   pools,
		timeout: cmp.Or(cfg.CallTimeout, time.Minute),
		ceiling: cmp.Or(cfg.CallCeiling, time.Hour),
		log:     cfg.Logger,
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	return b
}

// Snapshot returns the catalog, waiting for its first round of heartbeats when
// the edge has only just started, but not longer than the context allows.
func (b *Backend) Snapshot(ctx context.Context) *catalog.Snapshot {
	select {
	case <-b.catalog.Ready():
	default:
		select {
		case <-b.catalog.Ready():
		case <-ctx.Done():
		}
	}
	return b.catalog.Snapshot()
}

// Instructions are what the pools tell clients about themselves, as far as the
// catalog knows them now: it does not wait, since a handshake must not.
func (b *Backend) Instructions() string { return b.catalog.Snapshot().Instructions }

// Events takes what a call reports before its outcome. It is called by the
// goroutine that runs the call. An error ends the call: the client does not
// read any more.
type Events interface {
	Progress(*millracev1.Progress) error
	Log(*millracev1.LogMessage) error
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

// ToolOutcome is how a tool call ended: exactly one field is set.
type ToolOutcome struct {
	Result     *millracev1.ToolResult
	NeedsInput *millracev1.NeedsInput
	Task       *millracev1.TaskHandle
	Failure    *Failure
}

// CallTool runs a tool. The request's context, name, arguments and meta are
// the caller's to fill; the call ends when ctx does.
func (b *Backend) CallTool(ctx context.Context, req *millracev1.CallToolRequest, trace Trace, events Events) ToolOutcome {
	tool, ok := b.Snapshot(ctx).Tool(req.GetName())
	if !ok {
		return ToolOutcome{Failure: &Failure{Kind: UnknownTool, Subject: req.GetName()}}
	}
	call := b.begin(ctx, cmp.Or(tool.Timeout, b.timeout))
	defer call.end()
	fail := func(err error) ToolOutcome {
		f := b.failure(call, tool.Pool, err)
		f.Subject = req.GetName()
		return ToolOutcome{Failure: f}
	}
	client := millracev1.NewWorkerServiceClient(b.pools.Pool(tool.Pool))
	stream, err := client.CallTool(trace.outgoing(call), req)
	if err != nil {
		return fail(err)
	}
	for {
		ev, err := stream.Recv()
		if err != nil {
			return fail(err)
		}
		switch ev := ev.GetEvent().(type) {
		case *millracev1.CallToolResponse_Progress:
			call.progressed()
			if err := events.Progress(ev.Progress); err != nil {
				return fail(err)
			}
		case *millracev1.CallToolResponse_Log:
			if err := events.Log(ev.Log); err != nil {
				return fail(err)
			}
		case *millracev1.CallToolResponse_Result:
			return ToolOutcome{Result: ev.Result}
		case *millracev1.CallToolResponse_NeedsInput:
			return ToolOutcome{NeedsInput: ev.NeedsInput}
		case *millracev1.CallToolResponse_Task:
			return ToolOutcome{Task: ev.Task}
		case *millracev1.CallToolResponse_Error:
			f := workerFailure(ev.Error)
			f.Subject = req.GetName()
			return ToolOutcome{Failure: f}
		}
	}
}

// ResourceOutcome is how a read ended: exactly one field is set.
type ResourceOutcome struct {
	Result     *millracev1.ResourceResult
	NeedsInput *millracev1.NeedsInput
	Failure    *Failure
}

// ReadResource reads a resource; it fills in the template that matched.
func (b *Backend) ReadResource(ctx context.Context, req *millracev1.ReadResourceRequest, trace Trace, events Events) ResourceOutcome {
	pool, template, ok := b.Snapshot(ctx).Resource(req.GetUri())
	if !ok {
		return ResourceOutcome{Failure: &Failure{Kind: ResourceNotFound, Subject: req.GetUri()}}
	}
	req.UriTemplate = template
	call := b.begin(ctx, b.timeout)
	defer call.end()
	fail := func(err error) ResourceOutcome {
		f := b.failure(call, pool, err)
		f.Subject = req.GetUri()
		return ResourceOutcome{Failure: f}
	}
	client := millracev1.NewWorkerServiceClient(b.pools.Pool(pool))
	stream, err := client.ReadResource(trace.outgoing(call), req)
	if err != nil {
		return fail(err)
	}
	for {
		ev, err := stream.Recv()
		if err != nil {
			return fail(err)
		}
		switch ev := ev.GetEvent().(type) {
		case *millracev1.ReadResourceResponse_Progress:
			call.progressed()
			if err := events.Progress(ev.Progress); err != nil {
				return fail(err)
			}
		case *millracev1.ReadResourceResponse_Log:
			if err := events.Log(ev.Log); err != nil {
				return fail(err)
			}
		case *millracev1.ReadResourceResponse_Result:
			return ResourceOutcome{Result: ev.Result}
		case *millracev1.ReadResourceResponse_NeedsInput:
			return ResourceOutcome{NeedsInput: ev.NeedsInput}
		case *millracev1.ReadResourceResponse_Error:
			f := workerFailure(ev.Error)
			f.Subject = req.GetUri()
			return ResourceOutcome{Failure: f}
		}
	}
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
	timeout  time.Duration
	deadline time.Time
	timedOut atomic.Bool
}

// Deadline is the ceiling of the call.
func (c *call) Deadline() (time.Time, bool) { return c.deadline, true }

func (b *Backend) begin(ctx context.Context, timeout time.Duration) *call {
	c := &call{timeout: min(timeout, b.ceiling), deadline: time.Now().Add(b.ceiling)}
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

func (c *call) end() {
	c.timer.Stop()
	c.cancel(nil)
}

// failure says in the backend's terms why a call gave no outcome.
func (b *Backend) failure(c *call, pool string, err error) *Failure {
	switch {
	case c.timedOut.Load():
		return &Failure{Kind: Timeout, Timeout: c.timeout}
	case c.Err() != nil:
		return &Failure{Kind: Cancelled, Cause: context.Cause(c)}
	case errors.Is(err, io.EOF):
		// A stream that ends well without an outcome is a broken worker.
		b.log.Error("worker ended a call without an outcome", "pool", pool)
		return &Failure{Kind: Internal}
	}
	reason := bus.Reason(err)
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return &Failure{Kind: Timeout, Timeout: c.timeout}
	case codes.ResourceExhausted:
		if reason == bus.ReasonOverloaded {
			return &Failure{Kind: Overloaded, Pool: pool}
		}
		b.log.Error("message over a limit", "pool", pool, "error", err)
		return &Failure{Kind: TooLarge, Message: status.Convert(err).Message()}
	case codes.Unavailable:
		b.log.Warn("call not served", "pool", pool, "reason", reason, "error", err)
		if reason == bus.ReasonNoResponders {
			return &Failure{Kind: Unavailable, Pool: pool}
		}
		return &Failure{Kind: WorkerLost, Pool: pool}
	case codes.Canceled:
		return &Failure{Kind: WorkerLost, Pool: pool}
	default:
		b.log.Error("call failed", "pool", pool, "error", err)
		return &Failure{Kind: Internal}
	}
}
