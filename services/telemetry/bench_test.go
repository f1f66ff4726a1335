package telemetry

import (
	"net/http"
	"syscall"
	"testing"
	"time"
)

// BenchmarkCall measures what one tools/call costs that is measured: all of
// Millrace in one process, and where all is sampled also the collector. Off is
// the same as BenchmarkCall of package edge.
func BenchmarkCall(b *testing.B) {
	for _, c := range []struct {
		name, sampler string
		metrics       bool
		traces        bool
	}{
		{name: "off"},
		{name: "metrics", metrics: true},
		{name: "metrics and traces, none sampled", metrics: true, traces: true, sampler: "always_off"},
		{name: "metrics and traces, all sampled", metrics: true, traces: true, sampler: "always_on"},
	} {
		b.Run(c.name, func(b *testing.B) {
			cfg := Config{Metrics: c.metrics}
			if c.traces {
				b.Setenv("OTEL_TRACES_SAMPLER", c.sampler)
				cfg.Traces = &TracesConfig{Endpoint: newReceiver(b).url}
			}
			s := start(b, cfg)
			body := message(false, "tools/call", map[string]any{"name": "quick"}, nil)
			before := cpuTime(b)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if r := s.post(body); r.Code != http.StatusOK {
						b.Errorf("%d %s", r.Code, r.Body)
					}
				}
			})
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N)/float64(time.Microsecond), "cpu-µs/op")
		})
	}
}

// cpuTime is what this process has used of the processors.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
