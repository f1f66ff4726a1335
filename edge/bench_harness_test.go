package edge

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/jetstream"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
)

// benchEdge starts an edge and a worker without what tests watch for. With a
// store its sessions can be resumed.
func benchEdge(b *testing.B, store bool) (*Edge, *bus.Conn) {
	b.Helper()
	server, err := localnats.Start(localnats.Config{JetStream: store})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(server.Shutdown)
	ctx, cancel := context.WithCancel(context.Background())
	connect := func(name string) *bus.Conn {
		conn, err := bus.Connect(ctx, bus.ConnConfig{InProcess: server, Name: name})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(conn.Close)
		return conn
	}
	edgeConn, workerConn := connect("edge"), connect("worker")
	w := fixture(&system{ran: &counter{}}, workerConn)
	actors := []func(context.Context) error{func(ctx context.Context) error { return w.Run(ctx, workerConn) }}
	cfg := Config{Logger: slog.New(slog.DiscardHandler), Keys: []seal.Key{testKey()}}
	if store {
		if cfg.Streams, err = jetstream.New(edgeConn, jetstream.Config{Memory: true}); err != nil {
			b.Fatal(err)
		}
		cfg.Store = cfg.Streams
		actors = append(actors, cfg.Streams.Run)
	}
	e, err := New(edgeConn, cfg)
	if err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	for _, actor := range append(actors, e.Run) {
		running.Go(func() {
			if err := actor(ctx); err != nil {
				b.Error(err)
			}
		})
	}
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
	ready, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if err := e.WaitReady(ready, "fixture"); err != nil {
		b.Fatal(err)
	}
	if store {
		eventually(b, "the store", cfg.Streams.Available)
	}
	return e, edgeConn
}

// benchPost makes a request to a handler as a client would, and returns its
// answer.
func benchPost(b *testing.B, handler http.Handler, text string, headers map[string]string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "http://localhost/mcp", strings.NewReader(text))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range headers {
		r.Header.Set(k, v)
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, r)
	return recorder
}

// cpuTime is what this process has used of the processors.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// reportCPU reports the processor time of an operation.
func reportCPU(b *testing.B, before time.Duration) {
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N)/float64(time.Microsecond), "cpu-µs/op")
}

// benchSession begins a session.
func benchSession(b *testing.B, handler http.Handler, date string) (headers map[string]string) {
	recorder := benchPost(b, handler, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+date+`","capabilities":{},"clientInfo":{"name":"bench","version":"1.0.0"}}}`, nil)
	id := recorder.Header().Get(mcp.HeaderSessionID)
	if id == "" {
		b.Fatalf("no session: %d %s", recorder.Code, recorder.Body)
	}
	return map[string]string{mcp.HeaderSessionID: id}
}
