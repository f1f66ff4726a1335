package edge

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/millrace/millrace/edge/mcp"
)

// BenchmarkCall measures one tools/call through the whole of Millrace in one
// process, without HTTP parsing and sockets: edge, NATS, worker and back. It
// reports what docs/performance.md says about a short call: NATS messages each
// way, and that no call makes a subscription.
func BenchmarkCall(b *testing.B) {
	e, conn := benchEdge(b, false)
	nats := conn.NATS()
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
			before, subscriptions := nats.Stats(), nats.NumSubscriptions()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "http://localhost/mcp", bytes.NewReader([]byte(c.body)))
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
