package telemetry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/peer"
	"github.com/millrace/millrace/proto/bus"
)

// edgePool is the pool of the edges, which is none of workers.
const edgePool = peer.Pool

// Observer observes the messages of an edge; nil when nothing is measured.
func (t *Telemetry) Observer() edge.Observer {
	if !t.observes() {
		return nil
	}
	return observer{t}
}

// CallObserver observes the calls of an edge; nil when nothing is measured.
func (t *Telemetry) CallObserver() backend.Observer {
	if !t.observes() {
		return nil
	}
	return observer{t}
}

// Lost notes that an instance of a worker is gone.
func (t *Telemetry) Lost(m bus.Member) {
	if t.metrics == nil || m.Pool == edgePool {
		return
	}
	t.metrics.edges.left(m)
	if !m.Draining {
		t.metrics.lost.WithLabelValues(t.metrics.pools.label(m.Pool)).Inc()
	}
}

// observer is a Telemetry as an edge sees it.
type observer struct{ t *Telemetry }

// request is what is measured of one message.
type request struct {
	t         *Telemetry
	span      trace.Span // nil: it is not traced
	ctx       context.Context
	began     time.Time
	method    string
	era       string
	transport edge.Transport
	tool      string
	isRequest bool
	eventSent atomic.Bool
	last      atomic.Pointer[called] // the last call to a worker
}

// called is what a request has to know of its calls.
type called struct{ pool, outcome string }

type requestKey struct{}

// Begin implements edge.Observer.
func (o observer) Begin(ctx context.Context, m *edge.Message) (context.Context, edge.Observation) {
	r := &request{
		t: o.t, began: time.Now(), method: methodLabel(m.Request.Message.Method), era: "legacy", transport: m.Transport,
		tool: m.Tool, isRequest: m.Request.Message.Kind() == jsonrpc.Request,
	}
	if m.Modern {
		r.era = "modern"
	}
	if o.t.provider != nil {
		ctx, r.span = o.t.begin(ctx, m, r.method)
	}
	ctx = context.WithValue(ctx, requestKey{}, r)
	r.ctx = ctx
	return ctx, r
}

// Rejected implements edge.Observer.
func (o observer) Rejected(status int) {
	if o.t.metrics != nil {
		o.t.metrics.rejections.WithLabelValues(strconv.Itoa(status)).Inc()
	}
}

// Resumed implements edge.Observer.
func (o observer) Resumed(events int) {
	if o.t.metrics != nil {
		o.t.metrics.resumes.WithLabelValues().Inc()
		o.t.metrics.replayed.WithLabelValues().Add(float64(events))
	}
}

// Called implements backend.Observer.
func (o observer) Called(ctx context.Context, c backend.Called) {
	outcome := callOutcome(&c)
	if r, ok := ctx.Value(requestKey{}).(*request); ok {
		r.last.Store(&called{c.Pool, outcome})
	}
	m := o.t.metrics
	if m == nil {
		return
	}
	pool, method := m.pools.label(c.Pool), methodLabel(c.Method)
	m.calls.WithLabelValues(pool, method, outcome).Inc()
	m.callTimes.WithLabelValues(pool, method).Observe(time.Since(c.Began).Seconds())
	if c.Repeated {
		m.repeated.WithLabelValues(pool).Inc()
	}
	if c.Tool != "" {
		// Where the names end, one name stands for the rest of all pools.
		tool := m.tools.label(c.Tool)
		m.toolCalls.WithLabelValues(pool, tool, outcome).Inc()
	}
}

// Event implements edge.Observation.
func (r *request) Event() {
	if r.t.metrics == nil || !r.isRequest || !r.eventSent.CompareAndSwap(false, true) {
		return
	}
	r.t.metrics.firsts.WithLabelValues(r.method, r.era).Observe(time.Since(r.began).Seconds())
}

// End implements edge.Observation.
func (r *request) End(a *exchange.Answer, rev *mcp.Revision) {
	last := r.last.Load()
	outcome := requestOutcome(a, last)
	took := time.Since(r.began)
	if m := r.t.metrics; m != nil {
		m.requests.WithLabelValues(r.method, r.era, outcome).Inc()
		m.durations.WithLabelValues(r.method, r.era).Observe(took.Seconds())
		if r.method == mcp.MethodInitialize && outcome == "ok" && rev != nil {
			m.sessions.WithLabelValues(rev.Date, string(r.transport)).Inc()
		}
	}
	if r.t.log.Enabled(r.ctx, slog.LevelDebug) {
		attrs := []slog.Attr{
			slog.String("method", r.method), slog.String("era", r.era), slog.String("transport", string(r.transport)),
			slog.String("outcome", outcome), slog.Duration("took", took),
		}
		if r.tool != "" {
			attrs = append(attrs, slog.String("tool", r.tool))
		}
		if last != nil {
			attrs = append(attrs, slog.String("pool", last.pool))
		}
		r.t.log.LogAttrs(r.ctx, slog.LevelDebug, "request", attrs...)
	}
	if r.span != nil {
		r.endSpan(a, rev, outcome, last)
	}
}

// methodLabel is a method of the protocol, or "other": clients write what they
// like.
func methodLabel(method string) string {
	switch method {
	case mcp.MethodInitialize, mcp.MethodPing, mcp.MethodDiscover, mcp.MethodToolsList, mcp.MethodToolsCall,
		mcp.MethodResourcesList, mcp.MethodResourcesRead, mcp.MethodResourceTemplatesList, mcp.MethodPromptsList,
		mcp.MethodPromptsGet, mcp.MethodComplete, mcp.MethodSetLevel, mcp.MethodSubscribe, mcp.MethodUnsubscribe,
		mcp.MethodListen, mcp.NotificationInitialized, mcp.NotificationCancelled, mcp.NotificationProgress,
		"notifications/roots/list_changed":
		return method
	default:
		return other
	}
}

// callOutcome is how a call to a worker ended, in one word.
func callOutcome(c *backend.Called) string {
	switch {
	case c.Failure != nil:
		return failureOutcome(c.Failure.Kind)
	case c.NeedsInput:
		return "input_required"
	case c.ToolError:
		return "tool_error"
	default:
		return "ok"
	}
}

func failureOutcome(k backend.Kind) string {
	switch k {
	case backend.UnknownTool, backend.UnknownPrompt, backend.UnknownTemplate, backend.InvalidArguments,
		backend.ResourceNotFound, backend.MissingCapability, backend.Custom, backend.NoInput:
		return "refused"
	case backend.URLRequired:
		return "input_required"
	case backend.Unavailable:
		return "unavailable"
	case backend.Overloaded:
		return "overloaded"
	case backend.WorkerLost:
		return "worker_lost"
	case backend.Timeout:
		return "timeout"
	case backend.Cancelled:
		return "cancelled"
	case backend.TooLarge:
		return "too_large"
	case backend.ResultLost:
		return "result_lost"
	case backend.Moved:
		return "handed_over"
	default:
		return "internal"
	}
}

// requestOutcome is how a message ended, in the same words. Where a worker was
// called, it knows best, unless the edge has failed afterwards.
func requestOutcome(a *exchange.Answer, last *called) string {
	switch {
	case a.Left:
		return "handed_over"
	case a.Withheld:
		return "cancelled"
	case last != nil && (a.Code == 0 || last.failed()):
		return last.outcome
	case a.Code == 0:
		return "ok"
	case a.Code == jsonrpc.CodeInternal:
		return "internal"
	default:
		return "refused"
	}
}

// failed reports whether the call had no outcome that its worker meant.
func (c *called) failed() bool {
	return c.outcome != "ok" && c.outcome != "tool_error" && c.outcome != "input_required"
}

// begin begins the span of a message. Its parent is what the message names; an
// HTTP request that names another one is linked.
func (t *Telemetry) begin(ctx context.Context, m *edge.Message, method string) (context.Context, trace.Span) {
	propagator := propagation.TraceContext{}
	meta := propagation.MapCarrier{}
	for _, key := range []string{mcp.MetaTraceParent, mcp.MetaTraceState} {
		if v, ok := jsonrpc.String(m.Request.Message.Meta.Get(key)); ok {
			meta[key] = v
		}
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	hop := trace.SpanContextFromContext(propagator.Extract(context.Background(), propagation.HeaderCarrier(m.Request.Header)))
	var parent trace.SpanContext
	if len(meta) > 0 {
		parent = trace.SpanContextFromContext(propagator.Extract(context.Background(), meta))
	}
	switch {
	case parent.IsValid() && hop.IsValid() && !parent.Equal(hop):
		options = append(options, trace.WithLinks(trace.Link{SpanContext: hop}))
	case !parent.IsValid():
		parent = hop
	}
	if parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	name := method
	if name == other {
		name = "unknown method"
	}
	if subject := m.Tool + m.Prompt; subject != "" { // one of them at most
		name += " " + subject
	}
	ctx, span := t.tracer.Start(ctx, name, options...)
	if span.IsRecording() {
		span.SetAttributes(attributesOf(m)...)
	}
	return ctx, span
}

// attributesOf are those of the semantic conventions for MCP that are known
// before a message is served.
func attributesOf(m *edge.Message) []attribute.KeyValue {
	msg := &m.Request.Message
	list := []attribute.KeyValue{attribute.String("mcp.method.name", cut(msg.Method))}
	if m.Transport == edge.TransportStdio {
		list = append(list, attribute.String("network.transport", "pipe"))
	} else {
		list = append(list, attribute.String("network.transport", "tcp"), attribute.String("network.protocol.name", "http"))
	}
	if msg.ID != nil {
		id, ok := jsonrpc.String(msg.ID)
		if !ok {
			id = string(msg.ID)
		}
		list = append(list, attribute.String("jsonrpc.request.id", cut(id)))
	}
	switch msg.Method {
	case mcp.MethodToolsCall:
		list = append(list, attribute.String("gen_ai.operation.name", "execute_tool"))
	case mcp.MethodResourcesRead, mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		if uri, ok := jsonrpc.String(msg.Params.Get("uri")); ok {
			list = append(list, attribute.String("mcp.resource.uri", cut(uri)))
		}
	}
	if m.Tool != "" {
		list = append(list, attribute.String("gen_ai.tool.name", m.Tool))
	}
	if m.Prompt != "" {
		list = append(list, attribute.String("gen_ai.prompt.name", m.Prompt))
	}
	if id := m.Request.Header.Get(mcp.HeaderSessionID); id != "" {
		// Whoever has the id has the session; a trace tells only which are the
		// same.
		sum := sha256.Sum256([]byte(id))
		list = append(list, attribute.String("mcp.session.id", "sha256:"+hex.EncodeToString(sum[:8])))
	}
	return list
}

// endSpan says how a message ended.
func (r *request) endSpan(a *exchange.Answer, rev *mcp.Revision, outcome string, last *called) {
	defer r.span.End()
	if !r.span.IsRecording() {
		return
	}
	if rev != nil {
		r.span.SetAttributes(attribute.String("mcp.protocol.version", rev.Date))
	}
	if last != nil {
		r.span.SetAttributes(attribute.String("millrace.pool", last.pool))
	}
	r.span.SetAttributes(attribute.String("millrace.outcome", outcome))
	switch {
	case a.Code != 0:
		code := strconv.Itoa(a.Code)
		r.span.SetAttributes(attribute.String("rpc.response.status_code", code), attribute.String("error.type", code))
		r.span.SetStatus(codes.Error, outcome)
	case outcome != "ok" && outcome != "input_required" && outcome != "handed_over":
		r.span.SetAttributes(attribute.String("error.type", outcome))
		if outcome != "cancelled" {
			r.span.SetStatus(codes.Error, outcome)
		}
	}
}

// cut bounds what a client wrote, and makes it text.
func cut(s string) string {
	const most = 256
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "?")
}
