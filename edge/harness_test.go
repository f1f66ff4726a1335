package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	"github.com/millrace/millrace/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// system is a whole Millrace: NATS, a worker and an edge, in this process and
// without a socket, so that it also runs in a bubble of fake time.
type system struct {
	t      testing.TB
	edge   *Edge
	client *http.Client
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	// wire checks what leaves the edge through client and serveStdio.
	wire *wire
	// worker is the fixture that was started last.
	worker *worker.Worker
	conn   func(name string) *bus.Conn
	// lost says which of the tools that lose their connection have done so.
	lost [2]atomic.Bool
	// ran counts the executions of the tool "danger".
	ran *counter
	// workerConn is the fixture worker's connection; closing it is how a
	// killed process looks from outside.
	workerConn *bus.Conn
	// stopWorker stops the fixture worker and waits for it.
	stopWorker func()
}

// counter counts.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add() { c.mu.Lock(); c.n++; c.mu.Unlock() }
func (c *counter) value() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// start starts a system that stops with the test.
func start(t testing.TB, cfg Config) *system {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	if _, ok := t.(*testing.F); ok {
		log = slog.New(slog.DiscardHandler) // what fuzzing provokes is worth an error each time
	}
	if cfg.Logger == nil {
		cfg.Logger = log
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server, err := localnats.Start(localnats.Config{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	s := &system{t: t, ran: &counter{}, wire: newWire(t)}
	s.conn = func(name string) *bus.Conn {
		conn, err := bus.Connect(ctx, bus.ConnConfig{InProcess: server, Name: name, Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	s.workerConn, s.stopWorker = s.startWorker()
	if s.edge, err = New(s.conn("edge"), cfg); err != nil {
		t.Fatal(err)
	}
	run(t, "edge", s.edge.Run)
	if err := s.edge.WaitReady(ctx, "fixture"); err != nil {
		t.Fatal(err)
	}
	s.serveHTTP()
	return s
}

// startWorker starts an instance of the fixture.
func (s *system) startWorker() (conn *bus.Conn, stop func()) {
	conn = s.conn("worker")
	w := fixture(s, conn)
	s.worker = w
	return conn, run(s.t, "worker", func(ctx context.Context) error {
		if err := w.Run(ctx, conn); err != nil && conn.Connected() {
			return err
		}
		return nil
	})
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

// serveHTTP serves the edge over pipes.
func (s *system) serveHTTP() {
	ln := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: s.edge.Handler(), ReadHeaderTimeout: time.Minute, Protocols: protocols}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.t.Error(err)
		}
	}()
	s.dial = ln.dial
	s.t.Cleanup(func() {
		server.Close()
		<-done
	})
	s.client = s.httpClient(&http.Transport{DisableKeepAlives: true})
}

// httpClient returns a client of its own connections.
func (s *system) httpClient(transport *http.Transport) *http.Client {
	transport.DialContext = s.dial
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: s.wire.transport(transport)}
}

// http2Client returns a client that speaks HTTP/2 without TLS, on one
// connection.
func (s *system) http2Client() *http.Client {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	return s.httpClient(&http.Transport{Protocols: protocols})
}

// pipeListener is a listener without a network.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.IPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// post sends a body with headers, "Key: value" each.
func (s *system) post(ctx context.Context, body string, headers ...string) *http.Response {
	s.t.Helper()
	return s.do(ctx, http.MethodPost, body, append(headers, "Content-Type: application/json")...)
}

// do sends a request with headers, "Key: value" each.
func (s *system) do(ctx context.Context, method, body string, headers ...string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost/mcp", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range headers {
		key, value, _ := strings.Cut(h, ": ")
		req.Header.Set(key, value)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

// body reads a response to its end.
func body(t testing.TB, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// fixture is a worker with a tool for each thing an edge must pass on right.
func fixture(s *system, conn *bus.Conn) *worker.Worker {
	w := worker.New(worker.Config{Pool: "fixture", Version: "1.0.0", Instructions: "For tests.", Logger: slog.New(slog.DiscardHandler)})
	w.AddRawTool(worker.Tool{
		Name: "echo", Description: "Returns its arguments.", InputSchema: json.RawMessage(`{"type":"object"}`),
	}, func(_ context.Context, _ *worker.Call, args json.RawMessage) (*worker.Result, error) {
		if len(args) == 0 {
			args = json.RawMessage(`{}`)
		}
		return &worker.Result{Content: []worker.Content{worker.Text(string(args))}, Structured: args}, nil
	})
	w.AddRawTool(worker.Tool{
		Name: "region", Description: "Mirrors its arguments into headers.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"N"},"dry":{"type":"boolean","x-mcp-header":"Dry"}}}`),
	}, func(_ context.Context, _ *worker.Call, args json.RawMessage) (*worker.Result, error) {
		s.ran.add()
		return &worker.Result{Content: []worker.Content{worker.Text(string(args))}}, nil
	})
	type addIn struct {
		A int64 `json:"a"`
		B int64 `json:"b"`
	}
	type addOut struct {
		Sum int64 `json:"sum"`
	}
	worker.AddTool(w, worker.Tool{
		Name: "add", Title: "Add", Description: "Adds two integers.",
		Annotations: &worker.Annotations{ReadOnlyHint: new(true)},
	}, func(_ context.Context, _ *worker.Call, in addIn) (addOut, error) {
		return addOut{in.A + in.B}, nil
	})
	type countIn struct {
		N       int `json:"n"`
		DelayMS int `json:"delay_ms,omitempty"`
	}
	worker.AddTool(w, worker.Tool{Name: "count", Description: "Counts to n, with progress."},
		func(ctx context.Context, call *worker.Call, in countIn) (string, error) {
			for i := 1; i <= in.N; i++ {
				select {
				case <-ctx.Done():
					return "", context.Cause(ctx)
				case <-time.After(time.Duration(in.DelayMS) * time.Millisecond):
				}
				call.Progress(float64(i), float64(in.N), "counting")
			}
			return "counted", nil
		})
	type none struct{}
	worker.AddTool(w, worker.Tool{Name: "fail", Description: "Reports an error."},
		func(context.Context, *worker.Call, none) (string, error) {
			return "", errors.New("the file is locked")
		})
	worker.AddTool(w, worker.Tool{Name: "refuse", Description: "Answers with a JSON-RPC error."},
		func(context.Context, *worker.Call, none) (string, error) {
			return "", &worker.ProtocolError{Code: -1234, Message: "not on Sundays", Data: json.RawMessage(`{"day":"Sunday"}`)}
		})
	worker.AddTool(w, worker.Tool{Name: "crash", Description: "Panics."},
		func(context.Context, *worker.Call, none) (string, error) {
			panic("secret of the handler")
		})
	worker.AddTool(w, worker.Tool{Name: "danger", Description: "Counts its executions."},
		func(context.Context, *worker.Call, none) (string, error) {
			s.ran.add()
			return "done", nil
		})
	worker.AddTool(w, worker.Tool{Name: "hang", Description: "Never answers."},
		func(ctx context.Context, _ *worker.Call, _ none) (string, error) {
			<-ctx.Done()
			s.ran.add()
			return "", context.Cause(ctx)
		})
	w.AddRawTool(worker.Tool{
		Name: "lines", Description: "Returns JSON with line breaks.", InputSchema: json.RawMessage("{\n  \"type\": \"object\"\n}"),
	}, func(_ context.Context, _ *worker.Call, _ json.RawMessage) (*worker.Result, error) {
		return &worker.Result{
			Content:    []worker.Content{worker.RawContent(json.RawMessage("{\n\"type\":\"text\",\r\n\"text\":\"a\"}"))},
			Structured: json.RawMessage("{\n  \"a\": 1\n}"),
		}, nil
	})
	worker.AddTool(w, worker.Tool{Name: "tricky", Description: "Returns text that breaks careless framing, after some progress."},
		func(_ context.Context, call *worker.Call, _ none) (string, error) {
			call.Progress(1, 2, "")
			return tricky, nil
		})
	type answer struct {
		Name string `json:"name"`
	}
	worker.AddTool(w, worker.Tool{Name: "ask", Description: "Asks who the user is, then for the client's roots if it has any."},
		func(_ context.Context, call *worker.Call, _ none) (string, error) {
			answers, err := call.Ask(worker.ElicitFor[answer]("who", "Who are you?"))
			if err != nil {
				return "", err
			}
			who, accepted, err := worker.Accepted[answer](answers, "who")
			if err != nil {
				return "", err
			}
			if !accepted {
				return "nobody: " + string(answers.Elicited("who").Action), nil
			}
			s.ran.add()
			if !call.Can(worker.CapabilityRoots) {
				return who.Name, nil
			}
			if answers, err = call.Ask(worker.ListRoots("where")); err != nil {
				return "", err
			}
			return fmt.Sprintf("%s with %d roots", who.Name, len(answers.Roots("where"))), nil
		})
	worker.AddTool(w, worker.Tool{Name: "log", Description: "Logs a message at each level."},
		func(_ context.Context, call *worker.Call, _ none) (string, error) {
			for level := worker.LevelDebug; level <= worker.LevelEmergency; level++ {
				call.Log(level, "fixture", "at "+level.String())
			}
			return "logged", nil
		})
	for _, harmless := range []bool{true, false} {
		name := "lose-once"
		if harmless {
			name += "-harmless"
		}
		lost := &s.lost[map[bool]int{true: 1}[harmless]]
		worker.AddTool(w, worker.Tool{
			Name: name, Description: "Loses its connection the first time.", Annotations: &worker.Annotations{IdempotentHint: new(harmless)},
		}, func(context.Context, *worker.Call, none) (string, error) {
			if lost.CompareAndSwap(false, true) {
				conn.Close()
			}
			return "survived", nil
		})
	}
	w.AddPrompt(worker.Prompt{
		Name: "greeting", Title: "Greeting", Description: "Greets somebody.",
		Arguments: []worker.PromptArgument{{Name: "name", Required: true, Complete: worker.CompleteFrom("Ala", "Alicja", "Ola")}, {Name: "style"}},
	}, func(_ context.Context, _ *worker.Call, args map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{Messages: []worker.PromptMessage{{Role: "user", Content: worker.Text("Greet " + args["name"] + ".")}}}, nil
	})
	w.AddResource(worker.Resource{URI: "memo://notes/one", Name: "one", MIMEType: "text/plain"},
		func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
			return worker.TextContents("text/plain", "first note"), nil
		})
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "term://{slug}", Name: "term"},
		func(_ context.Context, _ *worker.Call, req worker.ReadRequest) (*worker.Contents, error) {
			if req.Vars["slug"] != "known" {
				return nil, worker.ErrResourceNotFound
			}
			return worker.TextContents("text/plain", "about "+req.Vars["slug"]), nil
		})
	return w
}
