package telemetry

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"strings"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/millrace/millrace/edge/mcp"
)

const (
	clientTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan   = "00f067aa0ba902b7"
	clientParent = "00-" + clientTrace + "-" + clientSpan + "-01"
	hopTrace     = "11111111111111111111111111111111"
	hopParent    = "00-" + hopTrace + "-2222222222222222-01"
)

// TestTraceOfACall: one call gives one unbroken tree of spans, under the span of
// the client, from the edge over both ends of the bus to the tool; over HTTP and
// stdio, in both eras, exported over both carriers of OTLP.
func TestTraceOfACall(t *testing.T) {
	t.Parallel()
	params := func() map[string]any { return map[string]any{"name": "add", "arguments": map[string]any{"a": 1}} }
	meta := map[string]any{mcp.MetaTraceParent: clientParent, mcp.MetaProgressToken: 1}
	initialize := message(false, "initialize", map[string]any{
		"protocolVersion": mcp.Legacy().Date, "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "test", "version": "1"},
	}, nil)
	for name, c := range map[string]struct {
		grpc bool
		call func(s *system) string
		want map[string]string
	}{
		"HTTP, legacy, by header": {false, func(s *system) string {
			return s.post(message(false, "tools/call", params(), nil), "traceparent: "+clientParent).Body.String()
		}, map[string]string{"network.transport": "tcp", "mcp.protocol.version": mcp.Assumed().Date}},
		"HTTP, legacy, in _meta": {true, func(s *system) string {
			return s.post(message(false, "tools/call", params(), meta), "traceparent: "+hopParent).Body.String()
		}, map[string]string{"link": hopTrace}},
		"HTTP, legacy, in a session": {false, func(s *system) string {
			id := s.post(initialize).Header().Get(mcp.HeaderSessionID)
			return s.post(message(false, "tools/call", params(), meta), mcp.HeaderSessionID+": "+id).Body.String()
		}, map[string]string{"mcp.protocol.version": mcp.Legacy().Date, "mcp.session.id": "sha256:"}},
		"HTTP, modern, in _meta": {true, func(s *system) string {
			return s.post(message(true, "tools/call", params(), meta), modernHeaders("tools/call", "add")...).Body.String()
		}, map[string]string{"mcp.protocol.version": mcp.Modern().Date, "network.protocol.name": "http"}},
		"HTTP, modern, by header": {false, func(s *system) string {
			return s.post(message(true, "tools/call", params(), nil), append(modernHeaders("tools/call", "add"), "traceparent: "+clientParent)...).Body.String()
		}, nil},
		"stdio, legacy": {true, func(s *system) string {
			return s.stdio(initialize, message(false, "tools/call", params(), meta))
		}, map[string]string{"network.transport": "pipe", "mcp.protocol.version": mcp.Legacy().Date}},
		"stdio, modern": {false, func(s *system) string {
			return s.stdio(message(true, "tools/call", params(), meta))
		}, map[string]string{"network.transport": "pipe", "mcp.protocol.version": mcp.Modern().Date}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t)
			s := start(t, Config{Traces: &TracesConfig{GRPC: c.grpc, Endpoint: r.url}})
			if answer := c.call(s); !strings.Contains(answer, `"added"`) {
				t.Fatalf("answered %s", answer)
			}
			s.stop() // exports
			chain := chainOf(t, r.all(), clientTrace, clientSpan)
			var names []string
			for _, span := range chain {
				names = append(names, r.service[string(span.GetSpanId())]+": "+span.GetName())
			}
			want := "edge: tools/call add\nedge: millrace.v1.WorkerService/CallTool\nworker: millrace.v1.WorkerService/CallTool\nworker: execute_tool add"
			if got := strings.Join(names, "\n"); got != want {
				t.Fatalf("the tree is\n%s\nwant\n%s", got, want)
			}
			kinds := []tracev1.Span_SpanKind{
				tracev1.Span_SPAN_KIND_SERVER, tracev1.Span_SPAN_KIND_CLIENT, tracev1.Span_SPAN_KIND_SERVER, tracev1.Span_SPAN_KIND_INTERNAL,
			}
			for i, span := range chain {
				if span.GetKind() != kinds[i] || span.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR {
					t.Errorf("%s: kind %v, status %v", span.GetName(), span.GetKind(), span.GetStatus())
				}
			}
			wanted := map[string]string{
				"mcp.method.name": "tools/call", "gen_ai.tool.name": "add", "gen_ai.operation.name": "execute_tool",
				"jsonrpc.request.id": "7", "millrace.pool": "fixture", "millrace.outcome": "ok",
			}
			maps.Copy(wanted, c.want)
			got := attributes(chain[0])
			for key, value := range wanted {
				if !strings.HasPrefix(got[key], value) || got[key] == "" {
					t.Errorf("%s is %q, want %q", key, got[key], value)
				}
			}
		})
	}
}

// attributes are those of a span, and the trace that it links to.
func attributes(span *tracev1.Span) map[string]string {
	all := map[string]string{}
	for _, a := range span.GetAttributes() {
		all[a.GetKey()] = a.GetValue().GetStringValue()
	}
	for _, link := range span.GetLinks() {
		all["link"] = hex.EncodeToString(link.GetTraceId())
	}
	return all
}

// chainOf is the trace of a client's span, each span after its parent. It fails
// the test when the trace is more or less than one chain.
func chainOf(t *testing.T, spans []*tracev1.Span, traceID, parent string) []*tracev1.Span {
	t.Helper()
	children := map[string][]*tracev1.Span{}
	n := 0
	for _, span := range spans {
		if hex.EncodeToString(span.GetTraceId()) == traceID {
			n++
			key := hex.EncodeToString(span.GetParentSpanId())
			children[key] = append(children[key], span)
		}
	}
	var chain []*tracev1.Span
	for next := children[parent]; len(next) == 1; next = children[parent] {
		chain = append(chain, next[0])
		parent = hex.EncodeToString(next[0].GetSpanId())
	}
	if len(chain) != n || n == 0 {
		for _, span := range spans {
			t.Logf("%x %x < %x %s", span.GetTraceId(), span.GetSpanId(), span.GetParentSpanId(), span.GetName())
		}
		t.Fatalf("%d of %d spans are one chain", len(chain), n)
	}
	return chain
}

// TestTraceOfFailures: what went wrong shows in each span that knows of it, and
// the text of an error in none.
func TestTraceOfFailures(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	s := start(t, Config{Traces: &TracesConfig{Endpoint: r.url}})
	for _, name := range []string{"fail", "crash", "no-such-tool"} {
		s.post(message(false, "tools/call", map[string]any{"name": name, "arguments": map[string]any{}}, nil))
	}
	s.post(message(false, "no/such/method", nil, nil))
	s.stop()
	wrong := map[string]string{}
	for _, span := range r.all() {
		if kind := attributes(span)["error.type"]; kind != "" {
			wrong[span.GetName()] = kind
		}
		if raw, err := json.Marshal(span); err != nil || strings.Contains(string(raw), "locked") || strings.Contains(string(raw), "secret") {
			t.Errorf("the span tells too much: %s", raw)
		}
	}
	want := map[string]string{
		"tools/call fail": "tool_error", "execute_tool fail": "tool_error",
		"tools/call crash": "-32603", "execute_tool crash": "internal",
		"tools/call": "-32602", "unknown method": "-32601",
	}
	if !maps.Equal(wrong, want) {
		t.Errorf("error.type is\n%v\nwant\n%v", wrong, want)
	}
}

// TestLogHasTraceIDs: what is logged for a message has the ids of its trace, and
// the line of each message stands there at debug only.
func TestLogHasTraceIDs(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	s := start(t, Config{Traces: &TracesConfig{Endpoint: r.url}})
	s.post(message(false, "tools/call", map[string]any{"name": "add", "arguments": map[string]any{"a": 1}}, nil), "traceparent: "+clientParent)
	s.stop()
	found := false
	for line := range strings.Lines(s.log.String()) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		if record["msg"] != "request" {
			continue
		}
		found = true
		if record["level"] != "DEBUG" || record["trace_id"] != clientTrace || record["span_id"] == nil || record["tool"] != "add" {
			t.Errorf("the line is %s", line)
		}
	}
	if !found {
		t.Errorf("no line for the message in\n%s", s.log)
	}
}

// TestTracesFromEnv: traces are off unless the standard variables ask for them.
func TestTracesFromEnv(t *testing.T) {
	t.Parallel()
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"nothing":          {nil, "off"},
		"endpoint":         {[]string{endpoint}, "http"},
		"traces endpoint":  {[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:4318/x"}, "http"},
		"asked for":        {[]string{"OTEL_TRACES_EXPORTER=otlp"}, "http"},
		"not asked for":    {[]string{endpoint, "OTEL_TRACES_EXPORTER=none"}, "off"},
		"disabled":         {[]string{endpoint, "OTEL_SDK_DISABLED=true"}, "off"},
		"gRPC":             {[]string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, "grpc"},
		"gRPC of traces":   {[]string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc"}, "grpc"},
		"unknown protocol": {[]string{endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"}, "error"},
		"unknown exporter": {[]string{"OTEL_TRACES_EXPORTER=zipkin"}, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := TracesFromEnv(func(key string) string {
				for _, v := range c.env {
					if value, ok := strings.CutPrefix(v, key+"="); ok {
						return value
					}
				}
				return ""
			})
			got := "off"
			switch {
			case err != nil:
				got = "error"
			case cfg != nil && cfg.GRPC:
				got = "grpc"
			case cfg != nil:
				got = "http"
			}
			if got != c.want {
				t.Errorf("%s, want %s (%v)", got, c.want, err)
			}
		})
	}
}
