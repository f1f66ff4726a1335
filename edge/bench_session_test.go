package edge

import (
	"net/http"
	"strings"
	"testing"

	"github.com/millrace/millrace/edge/mcp"
)

// BenchmarkSession measures what a session costs: initialize, and a tools/call
// of 100 bytes without a session, in one whose streams cannot be resumed (there
// is no store, or its revision has no such thing) and in one where they can. All
// parties are in this process; docs/performance.md has the figures.
func BenchmarkSession(b *testing.B) {
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"` + strings.Repeat("x", 100) + `"}}}`
	initialize := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"bench","version":"1.0.0"}}}`
	for _, c := range []struct {
		name, text, date string
		store            bool
	}{
		{"initialize", initialize, "", true},
		{"call without a session", call, "", true},
		{"call without a store", call, "2025-11-25", false},
		{"call resumable 2025-06-18", call, "2025-06-18", true},
		{"call resumable 2025-11-25", call, "2025-11-25", true},
	} {
		b.Run(c.name, func(b *testing.B) {
			e, conn := benchEdge(b, c.store)
			handler := e.Handler()
			headers := map[string]string{mcp.HeaderProtocolVersion: "2025-11-25"}
			if c.date != "" {
				headers = benchSession(b, handler, c.date)
			}
			nats := conn.NATS()
			b.ReportAllocs()
			b.ResetTimer()
			before, cpu := nats.Stats(), cpuTime(b)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if recorder := benchPost(b, handler, c.text, headers); recorder.Code != http.StatusOK {
						b.Errorf("%d %s", recorder.Code, recorder.Body)
						return
					}
				}
			})
			b.StopTimer()
			reportCPU(b, cpu)
			after := nats.Stats()
			b.ReportMetric(float64(after.OutMsgs-before.OutMsgs)/float64(b.N), "nats-out/op")
		})
	}
}
