package telemetry

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"

	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/worker"
)

// carrier is gRPC metadata as a propagator sees it.
type carrier metadata.MD

// Get returns the first value of a key.
func (c carrier) Get(key string) string {
	if v := metadata.MD(c).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set replaces the values of a key.
func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// Keys returns the keys.
func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for key := range c {
		keys = append(keys, key)
	}
	return keys
}

// CallStats are the stats handlers of the calls that an edge makes over the bus;
// nil when nothing is measured.
func (t *Telemetry) CallStats() []stats.Handler {
	if t.metrics == nil && t.provider == nil {
		return nil
	}
	return []stats.Handler{&rpcStats{t: t, client: true}}
}

// ServerStats are the stats handlers of the calls that a worker or an edge takes
// from the bus; nil when nothing is traced.
func (t *Telemetry) ServerStats() []stats.Handler {
	if t.provider == nil {
		return nil
	}
	return []stats.Handler{&rpcStats{t: t}}
}

// rpcStats makes a span of each call on one side of the bus, and passes the
// trace context over it. Baggage is passed on by the edge, unread.
type rpcStats struct {
	t      *Telemetry
	client bool
}

// spanKey is the key of the span that a handler has begun. The span of the
// context may be another one.
type spanKey struct{ h *rpcStats }

// TagRPC begins the span.
func (h *rpcStats) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if h.t.provider == nil {
		return ctx
	}
	propagator := propagation.TraceContext{}
	kind := trace.SpanKindServer
	var out metadata.MD
	if h.client {
		kind = trace.SpanKindClient
		out, _ = metadata.FromOutgoingContext(ctx) // a copy
		if !trace.SpanContextFromContext(ctx).IsValid() {
			// A call that another edge had begun.
			ctx = propagator.Extract(ctx, carrier(out))
		}
	} else if in, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = propagator.Extract(ctx, carrier(in))
	}
	method := info.FullMethodName
	if len(method) > 0 && method[0] == '/' {
		method = method[1:]
	}
	ctx, span := h.t.tracer.Start(ctx, method, trace.WithSpanKind(kind))
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("rpc.system.name", "grpc"),
			attribute.String("rpc.method", method),
			attribute.String("network.protocol.name", "nats"),
		)
	}
	if h.client {
		if out == nil {
			out = metadata.MD{}
		}
		out.Delete("tracestate")
		propagator.Inject(ctx, carrier(out))
		ctx = metadata.NewOutgoingContext(ctx, out)
	}
	return context.WithValue(ctx, spanKey{h}, span)
}

// HandleRPC ends the span, and counts errors.
func (h *rpcStats) HandleRPC(ctx context.Context, event stats.RPCStats) {
	end, ok := event.(*stats.End)
	if !ok {
		return
	}
	code := status.Code(end.Error)
	if h.client && h.t.metrics != nil {
		if reason := busReason(end.Error, code); reason != "" {
			h.t.metrics.busErrors.WithLabelValues(reason).Inc()
		}
	}
	span, ok := ctx.Value(spanKey{h}).(trace.Span)
	if !ok || !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("rpc.response.status_code", statusCode(code)))
	if code != grpccodes.OK {
		kind := statusCode(code)
		if reason := bus.Reason(end.Error); reason != "" {
			kind = reason
		}
		span.SetAttributes(attribute.String("error.type", kind))
		if code != grpccodes.Canceled {
			span.SetStatus(codes.Error, status.Convert(end.Error).Message())
		}
	}
	span.End()
}

// TagConn and HandleConn do nothing: the bus has no connections for each call.
func (h *rpcStats) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (h *rpcStats) HandleConn(context.Context, stats.ConnStats) {}

// busReason is the label of a call that failed; empty: it did not, or its caller
// left.
func busReason(err error, code grpccodes.Code) string {
	switch reason := bus.Reason(err); reason {
	case bus.ReasonNoResponders, bus.ReasonDisconnected, bus.ReasonNotAccepted, bus.ReasonFrameLost, bus.ReasonGoesOn,
		bus.ReasonWorkerLost, bus.ReasonDraining, bus.ReasonOverloaded:
		return reason
	}
	if code == grpccodes.OK || code == grpccodes.Canceled {
		return ""
	}
	return statusCode(code)
}

// statusCode is a code as the conventions write it; they are few.
func statusCode(c grpccodes.Code) string {
	names := [...]string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
		"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
	}
	if int(c) < len(names) {
		return names[c]
	}
	return "UNKNOWN"
}

// AddWorker measures a worker that does not run yet: its load, its calls, and a
// span of each around the handler.
func (t *Telemetry) AddWorker(w *worker.Worker) {
	if t.metrics != nil {
		t.metrics.workers.add(w)
	}
	if handlers := t.ServerStats(); handlers != nil {
		w.UseStats(handlers...)
	}
	if t.metrics != nil || t.provider != nil {
		w.Use(t.around(w.Pool()))
	}
}

// around is middleware that measures the calls of a pool.
func (t *Telemetry) around(pool string) func(worker.Handler) worker.Handler {
	return func(next worker.Handler) worker.Handler {
		return func(ctx context.Context, call *worker.Call) error {
			began := time.Now()
			var span trace.Span
			if t.provider != nil {
				ctx, span = t.tracer.Start(ctx, handlerSpan(call))
				if span.IsRecording() {
					span.SetAttributes(handlerAttributes(pool, call)...)
				}
			}
			err := next(ctx, call)
			outcome := call.Outcome(err)
			method := methodLabel(string(call.Method()))
			if t.metrics != nil {
				t.metrics.workerCalls.WithLabelValues(pool, method, string(outcome)).Inc()
				t.metrics.workerTimes.WithLabelValues(pool, method).Observe(time.Since(began).Seconds())
			}
			if span != nil && span.IsRecording() {
				endHandler(span, outcome, err)
			}
			return err
		}
	}
}

// handlerSpan is the name of the span around a handler: tools by the
// conventions of generative AI, the rest like the methods of MCP. The names are
// those of the author, not of a client.
func handlerSpan(call *worker.Call) string {
	switch call.Method() {
	case worker.MethodCallTool:
		return "execute_tool " + call.Name()
	case worker.MethodReadResource:
		if call.URITemplate() != "" {
			return string(call.Method()) + " " + call.URITemplate()
		}
		return string(call.Method())
	default:
		return string(call.Method()) + " " + call.Name()
	}
}

func handlerAttributes(pool string, call *worker.Call) []attribute.KeyValue {
	list := []attribute.KeyValue{
		attribute.String("mcp.method.name", string(call.Method())),
		attribute.String("mcp.protocol.version", call.ProtocolVersion()),
		attribute.String("millrace.pool", pool),
	}
	switch call.Method() {
	case worker.MethodCallTool:
		list = append(list, attribute.String("gen_ai.operation.name", "execute_tool"),
			attribute.String("gen_ai.tool.name", call.Name()), attribute.String("gen_ai.tool.type", "function"))
	case worker.MethodReadResource:
		list = append(list, attribute.String("mcp.resource.uri", cut(call.Name())))
	case worker.MethodGetPrompt:
		list = append(list, attribute.String("gen_ai.prompt.name", call.Name()))
	case worker.MethodComplete:
	}
	return list
}

// endHandler says how a handler ended. The text of its error is in the log of
// the worker: it may be about what only the caller may know.
func endHandler(span trace.Span, outcome worker.Outcome, err error) {
	span.SetAttributes(attribute.String("millrace.outcome", string(outcome)))
	switch outcome {
	case worker.OutcomeResult, worker.OutcomeNeedsInput:
	case worker.OutcomeCancelled:
		span.SetAttributes(attribute.String("error.type", string(outcome)))
		if errors.Is(err, context.DeadlineExceeded) {
			span.SetStatus(codes.Error, "the deadline of the call has passed")
		}
	default:
		span.SetAttributes(attribute.String("error.type", string(outcome)))
		span.SetStatus(codes.Error, "")
	}
	span.End()
}
