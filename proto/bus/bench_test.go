package bus

import (
	"context"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/millrace/millrace/proto/bus/bustest"
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

func benchPair(b *testing.B, impl grpc_testing.TestServiceServer) grpc_testing.TestServiceClient {
	b.Helper()
	caller, worker := benchConns(b)
	return benchClient(b, caller, worker, impl)
}

func benchClient(b *testing.B, caller, worker *Conn, impl grpc_testing.TestServiceServer) grpc_testing.TestServiceClient {
	b.Helper()
	startServer(b, worker, ServerConfig{Slots: 1000}, impl)
	c := startClient(b, caller, ClientConfig{})
	return grpc_testing.NewTestServiceClient(c.Pool("test"))
}

// plainConns is benchConns with the client library as it is.
func plainConns(b *testing.B) (caller, worker *nats.Conn) {
	b.Helper()
	ns, err := localnats.Start(localnats.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(ns.Shutdown)
	open := func() *nats.Conn {
		nc, err := nats.Connect(ns.ClientURL())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(nc.Close)
		return nc
	}
	return open(), open()
}

// leanService answers without a look at metadata, so that what is measured is
// the carrier.
type leanService struct{ testService }

func (leanService) UnaryCall(_ context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	return &grpc_testing.SimpleResponse{Payload: bustest.Body(int(req.GetResponseSize()))}, nil
}

func (leanService) StreamingOutputCall(req *grpc_testing.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	for _, p := range req.GetResponseParameters() {
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: bustest.Body(int(p.GetSize()))}); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkRawRequest is what the bus is measured against: a request of NATS
// itself with the same payload sizes.
func BenchmarkRawRequest(b *testing.B) {
	for _, parallel := range []bool{false, true} {
		b.Run(benchName(parallel), func(b *testing.B) {
			caller, worker := plainConns(b)
			sub, err := worker.QueueSubscribe("raw", "w", func(m *nats.Msg) {
				if err := m.Respond(make([]byte, 100)); err != nil {
					b.Error(err)
				}
			})
			if err != nil {
				b.Fatal(err)
			}
			defer unsubscribe(sub)
			if err := flush(b.Context(), worker); err != nil {
				b.Fatal(err)
			}
			payload := make([]byte, 100)
			run(b, parallel, func() error {
				_, err := caller.RequestWithContext(b.Context(), "raw", payload)
				return err
			})
		})
	}
}

// BenchmarkUnary says besides the time what a call costs: allocations of all
// three (caller, server, worker), NATS messages each way, new subscriptions.
func BenchmarkUnary(b *testing.B) {
	for _, parallel := range []bool{false, true} {
		b.Run(benchName(parallel), func(b *testing.B) {
			caller, worker := benchConns(b)
			client := benchClient(b, caller, worker, leanService{})
			req := &grpc_testing.SimpleRequest{ResponseSize: 100, Payload: bustest.Body(100)}
			defer reportTraffic(b, caller, worker)()
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
			caller, worker := benchConns(b)
			client := benchClient(b, caller, worker, leanService{})
			req := &grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(100), Payload: bustest.Body(100)}
			defer reportTraffic(b, caller, worker)()
			run(b, parallel, func() error { return oneEvent(b.Context(), client, req) })
		})
	}
}

func oneEvent(ctx context.Context, client grpc_testing.TestServiceClient, req *grpc_testing.StreamingOutputCallRequest) error {
	stream, err := client.StreamingOutputCall(ctx, req)
	for err == nil {
		_, err = stream.Recv()
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// reportTraffic reports the messages and subscriptions of the calls that were
// made until the returned function is called.
func reportTraffic(b *testing.B, caller, worker *Conn) func() {
	b.Helper()
	before, subscriptions := caller.nc.Stats(), caller.nc.NumSubscriptions()+worker.nc.NumSubscriptions()
	return func() {
		after, n := caller.nc.Stats(), float64(b.N)
		b.ReportMetric(float64(after.OutMsgs-before.OutMsgs)/n, "msgs-out/op")
		b.ReportMetric(float64(after.InMsgs-before.InMsgs)/n, "msgs-in/op")
		b.ReportMetric(float64(caller.nc.NumSubscriptions()+worker.nc.NumSubscriptions()-subscriptions)/n, "subs/op")
	}
}

// A short call of either kind is one message each way, as the server counts
// them, and subscribes nothing.
func TestTheCostOfACall(t *testing.T) {
	t.Parallel()
	cluster := bustest.StartCluster(t, 1)
	caller, worker := connectNode(t, cluster, 0), connectNode(t, cluster, 0)
	startServer(t, worker, ServerConfig{}, leanService{})
	c := startClient(t, caller, ClientConfig{})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	const calls = 50
	subscriptions := cluster.Subscriptions(0)
	sent, received := caller.nc.Stats(), worker.nc.Stats()
	for range calls {
		must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(within(t), &grpc_testing.SimpleRequest{ResponseSize: 100}))
	}
	if got := cluster.Subscriptions(0); got != subscriptions {
		t.Errorf("%d subscriptions, %d before", got, subscriptions)
	}
	callerNow, workerNow := caller.nc.Stats(), worker.nc.Stats()
	if out, in := callerNow.OutMsgs-sent.OutMsgs, workerNow.InMsgs-received.InMsgs; out != calls || in != calls {
		t.Errorf("%d calls sent %d messages, of which %d arrived", calls, out, in)
	}
	// A machine that stands still for 5 ms may see an ACCEPT alone.
	if in := callerNow.InMsgs - sent.InMsgs; in < calls || in > calls+calls/2 {
		t.Errorf("%d calls were answered with %d messages", calls, in)
	}
}

func BenchmarkServerStream(b *testing.B) {
	for _, size := range []int32{100, 16 << 10} {
		b.Run(map[int32]string{100: "100B", 16 << 10: "16KiB"}[size], func(b *testing.B) {
			client := benchPair(b, leanService{})
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
	client := benchPair(b, leanService{})
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
