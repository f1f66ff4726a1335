package edge

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
)

// BenchmarkCall measures one tools/call through the whole of Millrace in one
// process, without HTTP parsing and sockets: edge, NATS, worker and back. It
// reports what docs/performance.md says about a short call: NATS messages each
// way, and that no call makes a subscription.
func BenchmarkCall(b *testing.B) {
	server, err := localnats.Start(localnats.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Shutdown()
	ctx, cancel := context.WithCancel(context.Background())
	connect := func(name string) *bus.Conn {
		conn, err := bus.Connect(ctx, bus.ConnConfig{InProcess: server, Name: name})
		if err != nil {
			b.Fatal(err)
		}
		return conn
	}
	edgeConn, workerConn := connect("edge"), connect("worker")
	defer edgeConn.Close()
	defer workerConn.Close()
	w := fixture(&system{ran: &counter{}}, workerConn)
	e, err := New(edgeConn, Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 2) // one result of each
	go func() { done <- w.Run(ctx, workerConn) }()
	go func() { done <- e.Run(ctx) }()
	defer func() {
		cancel()
		for range cap(done) {
			if err := <-done; err != nil {
				b.Error(err)
			}
		}
	}()
	ready, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if err := e.WaitReady(ready, "fixture"); err != nil {
		b.Fatal(err)
	}
	handler := e.Handler()
	for _, c := range []struct {
		name, body string
		headers    map[string]string
	}{
		{"legacy", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"` + string(bytes.Repeat([]byte("x"), 100)) + `"}}}`, nil},
		{"modern", modernMessage("1", "tools/call", `{"name":"echo","arguments":{"text":"`+string(bytes.Repeat([]byte("x"), 100))+`"}}`), map[string]string{
			mcp.HeaderProtocolVersion: mcp.Modern().Date, mcp.HeaderMethod: "tools/call", mcp.HeaderName: "echo",
		}},
		{"list", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			nats := edgeConn.NATS()
			before, subscriptions := nats.Stats(), nats.NumSubscriptions()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp", bytes.NewReader([]byte(c.body)))
					r.Header.Set("Content-Type", "application/json")
					r.Header.Set("Accept", "application/json, text/event-stream")
					for k, v := range c.headers {
						r.Header.Set(k, v)
					}
					recorder := httptest.NewRecorder()
					handler.ServeHTTP(recorder, r)
					if recorder.Code != http.StatusOK {
						b.Fatalf("%d %s", recorder.Code, recorder.Body)
					}
				}
			})
			after := nats.Stats()
			b.ReportMetric(float64(after.OutMsgs-before.OutMsgs)/float64(b.N), "nats-out/op")
			b.ReportMetric(float64(after.InMsgs-before.InMsgs)/float64(b.N), "nats-in/op")
			b.ReportMetric(float64(nats.NumSubscriptions()-subscriptions), "new-subscriptions")
		})
	}
}
