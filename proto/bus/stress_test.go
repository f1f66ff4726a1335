package bus

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/proto/bus/bustest"
)

// fickleService answers at once, later or only when it is told to stop, as the
// request says.
type fickleService struct{ testService }

func fickle(ctx context.Context, n int32) error {
	switch n % 3 {
	case 0:
		return nil
	case 1:
		<-ctx.Done()
		return ctx.Err()
	default:
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(n) * time.Microsecond):
			return nil
		}
	}
}

func (s fickleService) UnaryCall(ctx context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	if err := fickle(ctx, req.GetResponseSize()); err != nil {
		return nil, err
	}
	return s.testService.UnaryCall(ctx, req)
}

func (s fickleService) StreamingOutputCall(req *grpc_testing.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	if err := s.testService.StreamingOutputCall(req, stream); err != nil {
		return err
	}
	return fickle(stream.Context(), req.GetResponseParameters()[0].GetSize())
}

// fickleCall makes one call of a random kind and is cancelled at a random
// moment: before it begins, on the way, in the middle or after its end.
func fickleCall(client grpc_testing.TestServiceClient, rnd *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	switch pause := rnd.IntN(1500); {
	case pause < 200:
		go cancel()
	case pause < 300:
		cancel()
	default:
		timer := time.AfterFunc(time.Duration(pause)*time.Microsecond, cancel)
		defer timer.Stop()
	}
	n := rnd.Int32N(1000)
	switch rnd.IntN(4) {
	case 0:
		_, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{ResponseSize: n, Payload: bustest.Body(rnd.IntN(300))})
		return err
	case 1:
		stream, err := client.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(n, n, 100*n)})
		for err == nil {
			_, err = stream.Recv()
		}
		return err
	case 2:
		stream, err := client.StreamingInputCall(ctx)
		for i := 0; err == nil && i < 5; i++ {
			err = stream.Send(&grpc_testing.StreamingInputCallRequest{Payload: bustest.Body(int(n) * 200)})
		}
		if stream != nil {
			_, err = stream.CloseAndRecv()
		}
		return err
	default:
		stream, err := client.FullDuplexCall(ctx)
		for i := 0; err == nil && i < 3; i++ {
			if err = stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(n)}); err == nil {
				_, err = stream.Recv()
			}
		}
		if n%2 == 0 || stream == nil {
			return err // nobody reads its end
		}
		_ = stream.CloseSend() // the status is with Recv
		for err == nil {
			_, err = stream.Recv()
		}
		return err
	}
}

// goroutines counts those that carry a label, without the idle ones that a
// server keeps for calls to come.
func goroutines(t testing.TB, label string) int {
	t.Helper()
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		t.Fatal(err)
	}
	n := 0
	for block := range strings.SplitSeq(b.String(), "\n\n") {
		if !strings.Contains(block, label) || strings.Contains(block, "bus.(*Server).serve+") && !strings.Contains(block, "bus.(*serverCall)") {
			continue
		}
		if m := regexp.MustCompile(`(?m)^(\d+) @`).FindStringSubmatch(block); m != nil {
			k, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
	}
	return n
}

// cancels makes n calls that are cancelled at random moments and demands that
// nothing is left of them.
func cancels(t testing.TB, cluster *bustest.Cluster, n int) {
	t.Helper()
	label := "cancels-" + newID()
	pprof.Do(context.Background(), pprof.Labels("test", label), func(context.Context) {
		open := func() *Conn {
			conn, err := Connect(within(t), ConnConfig{URL: cluster.URL(0)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(conn.Close)
			return conn
		}
		caller, worker := open(), open()
		const slots = 8
		s, _ := startServer(t, worker, ServerConfig{Slots: slots}, fickleService{})
		c := startClient(t, caller, ClientConfig{WaitBudget: -1})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		if _, err := client.EmptyCall(within(t), &grpc_testing.Empty{}); err != nil {
			t.Fatal(err)
		}
		subscriptions := cluster.Subscriptions(0)
		before := goroutines(t, label)

		var (
			callers  sync.WaitGroup
			outcomes [17]atomic.Int64
		)
		const parallel = 24 // more than slots, so that some are refused
		for i := range parallel {
			callers.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(n), uint64(i)))
				for range n / parallel {
					err := fickleCall(client, rnd)
					if err == io.EOF {
						err = nil
					}
					code := status.Code(err)
					outcomes[code].Add(1)
					switch code {
					case codes.OK, codes.Canceled, codes.ResourceExhausted:
					default:
						t.Errorf("a call ended with %v", err)
					}
				}
			})
		}
		callers.Wait()
		if outcomes[codes.OK].Load() == 0 || outcomes[codes.Canceled].Load() < int64(n)/10 {
			t.Errorf("%d calls succeeded and %d were cancelled: that was no test",
				outcomes[codes.OK].Load(), outcomes[codes.Canceled].Load())
		}
		t.Logf("OK %d, cancelled %d, refused %d", outcomes[codes.OK].Load(), outcomes[codes.Canceled].Load(), outcomes[codes.ResourceExhausted].Load())

		eventually(t, func() bool { return len(c.snapshot()) == 0 && len(s.snapshot()) == 0 && s.used.Load() == 0 })
		eventually(t, func() bool { return goroutines(t, label) <= before })
		if got := cluster.Subscriptions(0); got != subscriptions {
			t.Errorf("%d subscriptions, %d before", got, subscriptions)
		}
		// All slots are there for others.
		var streams []grpc_testing.TestService_FullDuplexCallClient
		for range slots {
			stream, err := client.FullDuplexCall(within(t))
			if err == nil {
				err = stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(1)})
			}
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, stream)
		}
		for _, stream := range streams {
			if err := stream.CloseSend(); err != nil {
				t.Error(err)
			}
			if _, err := stream.Recv(); err != io.EOF {
				t.Error(err)
			}
		}
	})
}

func TestRandomCancelsLeaveNothing(t *testing.T) {
	t.Parallel()
	cancels(t, bustest.StartCluster(t, 1), 4000)
}

// BenchmarkRandomCancels is the same with b.N calls: -benchtime=20000x.
func BenchmarkRandomCancels(b *testing.B) {
	cancels(b, bustest.StartCluster(b, 1), max(b.N, 1000))
}

// repeatService sends a payload as often as its interval says, so that the
// request for a long stream is small.
type repeatService struct{ testService }

func (repeatService) StreamingOutputCall(req *grpc_testing.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	p := req.GetResponseParameters()[0]
	m := &grpc_testing.StreamingOutputCallResponse{Payload: bustest.Body(int(p.GetSize()))}
	for range p.GetIntervalUs() {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// largeStream asks for a stream of n messages of size bytes.
func largeStream(n, size int32) *grpc_testing.StreamingOutputCallRequest {
	return &grpc_testing.StreamingOutputCallRequest{ResponseParameters: []*grpc_testing.ResponseParameters{{Size: size, IntervalUs: n}}}
}

// latencies makes n small calls and returns how long they took, sorted.
func latencies(t testing.TB, client grpc_testing.TestServiceClient, n int) []time.Duration {
	t.Helper()
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		if _, err := client.UnaryCall(context.Background(), &grpc_testing.SimpleRequest{ResponseSize: 100}); err != nil {
			t.Fatal(err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took
}

// heap is what is reachable now.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one fills the pools' victims
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestAStalledReaderHoldsNoMemory measures the process, so nothing may run
// beside it.
//
//nolint:paralleltest // see above
func TestAStalledReaderHoldsNoMemory(t *testing.T) {
	ns := bustest.StartCluster(t, 1)
	open := func() *Conn {
		conn, err := Connect(within(t), ConnConfig{URL: ns.URL(0)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	startServer(t, open(), ServerConfig{}, repeatService{})
	c := startClient(t, open(), ClientConfig{})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	latencies(t, client, 100)
	const messages, size = 2000, 16 << 10 // 32 MB
	before := heap()
	stream, err := client.StreamingOutputCall(within(t), largeStream(messages, size))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	// The sender stands still when the window is shut.
	calls := c.snapshot()
	if len(calls) != 1 {
		t.Fatalf("%d calls", len(calls))
	}
	call := calls[0]
	eventually(t, func() bool {
		call.mu.Lock()
		defer call.mu.Unlock()
		return call.in.used >= call.in.window-size
	})
	latencies(t, client, 200)
	if grown := heap() - before; grown > defaultWindow+defaultChunk+(1<<20) {
		t.Errorf("the reader holds %d KiB", grown>>10)
	}
	for i := 1; i < messages; i++ {
		if m, err := stream.Recv(); err != nil || len(m.GetPayload().GetBody()) != size {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Error(err)
	}
}

// resident is the resident size of the process in MiB, 0 where the system does
// not tell.
func resident() float64 {
	debug.FreeOSMemory() // or it is the high-water mark of garbage
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return float64(pages*os.Getpagesize()) / (1 << 20)
}

// BenchmarkStalledReader stalls the reader of a stream of 320 MB for the time of
// 20,000 small calls, and reports the memory of all (caller, server, worker) and
// the latency of the calls with the stream and without.
func BenchmarkStalledReader(b *testing.B) {
	for b.Loop() {
		client := benchPair(b, repeatService{})
		const messages, size = 20_000, 16 << 10
		latencies(b, client, 2000)
		idle := latencies(b, client, 20_000)
		before := resident()
		stream, err := client.StreamingOutputCall(context.Background(), largeStream(messages, size))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			b.Fatal(err)
		}
		latencies(b, client, 200)
		stalled := latencies(b, client, 20_000)
		during := resident()
		for i := 1; i < messages; i++ {
			if _, err := stream.Recv(); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := stream.Recv(); err != io.EOF {
			b.Fatal(err)
		}
		us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
		b.ReportMetric(before, "rss-before-MiB")
		b.ReportMetric(during, "rss-stalled-MiB")
		b.ReportMetric(resident(), "rss-after-MiB")
		b.ReportMetric(us(idle[len(idle)/2]), "idle-p50-us")
		b.ReportMetric(us(idle[len(idle)*99/100]), "idle-p99-us")
		b.ReportMetric(us(stalled[len(stalled)/2]), "stalled-p50-us")
		b.ReportMetric(us(stalled[len(stalled)*99/100]), "stalled-p99-us")
	}
}
