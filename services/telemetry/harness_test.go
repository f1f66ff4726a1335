package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	"github.com/millrace/millrace/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver is a collector of traces: OTLP over HTTP and gRPC, on one port.
type receiver struct {
	collectorv1.UnimplementedTraceServiceServer

	url string

	mu      sync.Mutex
	spans   []*tracev1.Span
	service map[string]string // by span id
	changed chan struct{}     // closed and replaced when spans come
}

func newReceiver(t testing.TB) *receiver {
	t.Helper()
	r := &receiver{service: map[string]string{}, changed: make(chan struct{})}
	over := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(over, r)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ProtoMajor == 2 {
			over.ServeHTTP(w, req)
			return
		}
		body := io.Reader(req.Body)
		if req.Header.Get("Content-Encoding") == "gzip" {
			unzipped, err := gzip.NewReader(req.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = unzipped
		}
		raw, err := io.ReadAll(body)
		var export collectorv1.ExportTraceServiceRequest
		if err := errors.Join(err, proto.Unmarshal(raw, &export)); err != nil || req.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", req.URL.Path, err)
		}
		r.take(&export)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	server.Config.Protocols = &http.Protocols{}
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// Export implements the service of OTLP.
func (r *receiver) Export(_ context.Context, req *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	r.take(req)
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (r *receiver) take(req *collectorv1.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range req.GetResourceSpans() {
		service := ""
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, s := range resource.GetScopeSpans() {
			r.spans = append(r.spans, s.GetSpans()...)
			for _, span := range s.GetSpans() {
				r.service[string(span.GetSpanId())] = service
			}
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// all are the spans that have come.
func (r *receiver) all() []*tracev1.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*tracev1.Span(nil), r.spans...)
}

// system is a whole Millrace that is measured: the edge and the worker each by a
// Telemetry of its own, as processes are.
type system struct {
	t       testing.TB
	edge    *edge.Edge
	handler http.Handler
	edgeT   *Telemetry
	workerT *Telemetry
	stop    func() // of everything, in the order of a process
	log     *lockedBuffer
}

// lockedBuffer is a log.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns what was written.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func start(t testing.TB, cfg Config) *system {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := &system{t: t, log: &lockedBuffer{}}
	level := slog.LevelDebug
	if _, ok := t.(*testing.B); ok {
		level = slog.LevelWarn
	}
	log := slog.New(LogHandler(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: level})))
	nats, err := localnats.Start(localnats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Shutdown)
	connect := func(name string) *bus.Conn {
		conn, err := bus.Connect(ctx, bus.ConnConfig{InProcess: nats, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	measure := func(service string) *Telemetry {
		cfg := cfg
		cfg.Service, cfg.Logger = service, log
		m, err := New(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	s.edgeT, s.workerT = measure("edge"), measure("worker")

	w, workerConn := fixture(), connect("worker")
	s.workerT.AddWorker(w)
	s.workerT.AddConn("worker", workerConn)

	edgeConn := connect("edge")
	ec := edge.Config{
		Observer: s.edgeT.Observer(), Calls: s.edgeT.CallObserver(), Lost: s.edgeT.Lost,
		CallStats: s.edgeT.CallStats(), PeerStats: s.edgeT.ServerStats(), Logger: log,
	}
	if s.edge, err = edge.New(edgeConn, ec); err != nil {
		t.Fatal(err)
	}
	s.edgeT.AddEdge(s.edge)
	s.edgeT.AddConn("edge", edgeConn)
	s.edgeT.AddPart("edge", s.edge.Ready)
	s.handler = s.edge.Handler()

	stops := []func(){
		run(t, "edge", s.edge.Run),
		run(t, "worker", func(ctx context.Context) error { return w.Run(ctx, workerConn) }),
		run(t, "edge telemetry", func(ctx context.Context) error { return s.edgeT.Run(ctx, nil) }),
		run(t, "worker telemetry", func(ctx context.Context) error { return s.workerT.Run(ctx, nil) }),
	}
	s.stop = func() {
		for _, stop := range stops {
			stop()
		}
	}
	t.Cleanup(s.stop)
	if err := s.edge.WaitReady(ctx, "fixture"); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs an actor until stop or the end of the test.
func run(t testing.TB, name string, actor func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1) // one result
	go func() { done <- actor(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// fixture is a worker with a tool for each way a call can end.
func fixture() *worker.Worker {
	w := worker.New(worker.Config{Pool: "fixture", Version: "1.0.0"})
	type none struct{}
	worker.AddTool(w, worker.Tool{Name: "add", Description: "Adds."}, func(_ context.Context, call *worker.Call, in struct {
		A int `json:"a"`
	},
	) (string, error) {
		call.Progress(1, 2, "half")
		return "added", nil
	})
	worker.AddTool(w, worker.Tool{Name: "quick", Description: "Does nothing."}, func(context.Context, *worker.Call, none) (string, error) {
		return "done", nil
	})
	worker.AddTool(w, worker.Tool{Name: "fail", Description: "Fails."}, func(context.Context, *worker.Call, none) (string, error) {
		return "", errors.New("the file is locked")
	})
	worker.AddTool(w, worker.Tool{Name: "crash", Description: "Panics."}, func(context.Context, *worker.Call, none) (string, error) {
		panic("secret")
	})
	w.AddPrompt(worker.Prompt{Name: "greeting", Description: "Greets."}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{Messages: []worker.PromptMessage{{Role: "user", Content: worker.Text("hello")}}}, nil
	})
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "term://{slug}", Name: "term"},
		func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
			return worker.TextContents("text/plain", "a term"), nil
		})
	return w
}

// post makes a request over HTTP with headers, "Key: value" each.
func (s *system) post(body string, headers ...string) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://localhost/mcp", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for _, h := range headers {
		key, value, _ := strings.Cut(h, ": ")
		r.Header.Set(key, value)
	}
	recorder := httptest.NewRecorder()
	s.handler.ServeHTTP(recorder, r)
	return recorder
}

// stdio sends lines to the edge as a client on stdio does, and returns what it
// answered.
func (s *system) stdio(lines ...string) string {
	s.t.Helper()
	var out lockedBuffer
	if err := s.edge.ServeStdio(s.t.Context(), strings.NewReader(strings.Join(lines, "\n")+"\n"), &out); err != nil {
		s.t.Error(err)
	}
	return out.String()
}

// request is a request with members in _meta. In the modern era the rest of
// _meta is what that era wants.
func message(modern bool, method string, params, meta map[string]any) string {
	all := map[string]any{}
	if modern {
		all[mcp.MetaProtocolVersion] = mcp.Modern().Date
		all[mcp.MetaClientCapabilities] = map[string]any{}
	}
	maps.Copy(all, meta)
	if params == nil {
		params = map[string]any{}
	}
	if len(all) > 0 {
		params["_meta"] = all
	}
	raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(raw)
}

// modernHeaders are what the modern era wants in headers.
func modernHeaders(method, name string) []string {
	list := []string{mcp.HeaderProtocolVersion + ": " + mcp.Modern().Date, mcp.HeaderMethod + ": " + method}
	if name != "" {
		list = append(list, mcp.HeaderName+": "+name)
	}
	return list
}

// listenLocal is a listener on a free port.
func listenLocal(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}
