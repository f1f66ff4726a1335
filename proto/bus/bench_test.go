package bus

import (
	"context"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/millrace/millrace/proto/localnats"
)

// benchConns returns connections of a caller and a worker through a TCP server,
// as between processes, without logs.
func benchConns(b *testing.B) (caller, worker *Conn) {
	b.Helper()
	ns, err := localnats.Start(localnats.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(ns.Shutdown)
	open := func() *Conn {
		conn, err := Connect(context.Background(), ConnConfig{URL: ns.ClientURL()})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(conn.Close)
		return conn
	}
	return open(), open()
}

func benchPair(b *testing.B) grpc_testing.TestServiceClient {
	b.Helper()
	caller, worker := benchConns(b)
	startServer(b, worker, ServerConfig{Slots: 1000}, testService{})
	c := startClient(b, caller, ClientConfig{})
	return grpc_testing.NewTestServiceClient(c.Pool("test"))
}

// BenchmarkRawRequest is what the bus is measured against: a request of NATS
// itself with the same payload sizes.
func BenchmarkRawRequest(b *testing.B) {
	for _, parallel := range []bool{false, true} {
		b.Run(benchName(parallel), func(b *testing.B) {
			caller, worker := benchConns(b)
			sub, err := worker.nc.QueueSubscribe("raw", "w", func(m *nats.Msg) {
				if err := m.Respond(make([]byte, 100)); err != nil {
					b.Error(err)
				}
			})
			if err != nil {
				b.Fatal(err)
			}
			defer unsubscribe(sub)
			if err := flush(b.Context(), worker.nc); err != nil {
				b.Fatal(err)
			}
			payload := make([]byte, 100)
			run(b, parallel, func() error {
				_, err := caller.nc.RequestWithContext(b.Context(), "raw", payload)
				return err
			})
		})
	}
}

func BenchmarkUnary(b *testing.B) {
	for _, parallel := range []bool{false, true} {
		b.Run(benchName(parallel), func(b *testing.B) {
			client := benchPair(b)
			req := &grpc_testing.SimpleRequest{ResponseSize: 100, Payload: &grpc_testing.Payload{Body: make([]byte, 100)}}
			run(b, parallel, func() error {
				_, err := client.UnaryCall(b.Context(), req)
				return err
			})
		})
	}
}

// BenchmarkOneEvent is a tool call: a server stream with one event.
func BenchmarkOneEvent(b *testing.B) {
	for _, parallel := range []bool{false, true} {
		b.Run(benchName(parallel), func(b *testing.B) {
			client := benchPair(b)
			req := &grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(100), Payload: &grpc_testing.Payload{Body: make([]byte, 100)}}
			run(b, parallel, func() error {
				stream, err := client.StreamingOutputCall(b.Context(), req)
				for err == nil {
					_, err = stream.Recv()
				}
				if err == io.EOF {
					return nil
				}
				return err
			})
		})
	}
}

func BenchmarkServerStream(b *testing.B) {
	for _, size := range []int32{100, 16 << 10} {
		b.Run(map[int32]string{100: "100B", 16 << 10: "16KiB"}[size], func(b *testing.B) {
			client := benchPair(b)
			const batch = 1000
			params := make([]int32, batch)
			for i := range params {
				params[i] = size
			}
			req := &grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(params...)}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for n := 0; n < b.N; n += batch {
				stream, err := client.StreamingOutputCall(b.Context(), req)
				for err == nil {
					_, err = stream.Recv()
				}
				if err != io.EOF {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLargeResult(b *testing.B) {
	client := benchPair(b)
	req := &grpc_testing.SimpleRequest{ResponseSize: 10 << 20}
	b.SetBytes(10 << 20)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.UnaryCall(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

func benchName(parallel bool) string {
	if parallel {
		return "64"
	}
	return "1"
}

// processorTime is what the process has used so far. It is what to compare on a
// machine that does other things too.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func run(b *testing.B, parallel bool, f func() error) {
	b.ReportAllocs()
	before := processorTime(b)
	defer func() {
		b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
	}()
	if !parallel {
		for b.Loop() {
			if err := f(); err != nil {
				b.Fatal(err)
			}
		}
		return
	}
	b.SetParallelism(32) // of two processors: 64 callers
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := f(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
