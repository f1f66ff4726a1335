package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// patience is how long a test waits for something that should be there in
// milliseconds, before it calls it a failure.
const patience = 20 * time.Second

// journal is a log that a test can read.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

func (j *journal) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(j, nil)) }

// startBus starts a NATS server for one test.
func startBus(t testing.TB) *localnats.Server {
	t.Helper()
	server, err := localnats.Start(localnats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	return server
}

func connect(t testing.TB, server *localnats.Server) *bus.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.ConnConfig{InProcess: server})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// running is an actor that a test has started.
type running struct {
	t     testing.TB
	stop  context.CancelFunc
	ended chan struct{} // closed when Run has returned err
	err   error
}

// start runs an actor until the test ends, and waits until it is ready.
func start(t testing.TB, run func(context.Context) error, ready <-chan struct{}) *running {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &running{t: t, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		wait(t, r.ended, "an actor to end")
	})
	select {
	case <-ready:
	case <-r.ended:
		t.Fatalf("an actor ended before it was ready: %v", r.err)
	case <-time.After(patience):
		t.Fatal("an actor does not get ready")
	}
	return r
}

func wait(t testing.TB, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("waiting for %s takes too long", what)
	}
}

// serve runs w on a connection of its own.
func serve(t testing.TB, server *localnats.Server, w *worker.Worker) *running {
	t.Helper()
	conn := connect(t, server)
	return start(t, func(ctx context.Context) error { return w.Run(ctx, conn) }, w.Ready())
}

// dial returns a client of the pool "test", as an edge has it.
func dial(t testing.TB, server *localnats.Server) millracev1.WorkerServiceClient {
	t.Helper()
	client := bus.NewClient(connect(t, server), bus.ClientConfig{})
	start(t, client.Run, client.Ready())
	return millracev1.NewWorkerServiceClient(client.Pool("test"))
}

// pair runs w and returns a client of it.
func pair(t testing.TB, w *worker.Worker) millracev1.WorkerServiceClient {
	t.Helper()
	server := startBus(t)
	serve(t, server, w)
	return dial(t, server)
}

func newWorker(log *slog.Logger) *worker.Worker {
	return worker.New(worker.Config{Pool: "test", Version: "1.2.3", Logger: log})
}

// callTool makes a call and collects all its events.
func callTool(ctx context.Context, client millracev1.WorkerServiceClient, req *millracev1.CallToolRequest) ([]*millracev1.CallToolResponse, error) {
	stream, err := client.CallTool(ctx, req)
	if err != nil {
		return nil, err
	}
	var events []*millracev1.CallToolResponse
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		events = append(events, event)
	}
}

// outcome makes a call that must have one event only.
func outcome(t testing.TB, client millracev1.WorkerServiceClient, name, args string) *millracev1.CallToolResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := callTool(ctx, client, &millracev1.CallToolRequest{Name: name, Arguments: []byte(args)})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(events) != 1 {
		t.Fatalf("%s: %d events, want one outcome: %v", name, len(events), events)
	}
	return events[0]
}

// readResource reads a resource, which must have one event only.
func readResource(t testing.TB, client millracev1.WorkerServiceClient, uri, template string) *millracev1.ReadResourceResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := client.ReadResource(ctx, &millracev1.ReadResourceRequest{Uri: uri, UriTemplate: template})
	if err != nil {
		t.Fatal(err)
	}
	event, err := stream.Recv()
	if err != nil {
		t.Fatalf("%s: %v", uri, err)
	}
	if next, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("%s: a second event %v, %v", uri, next, err)
	}
	return event
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
