package load

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
)

var full = flag.Bool("load.full", false, "measure everything that docs/performance.md shows")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	short, long = time.Millisecond, 500 * time.Millisecond
	longShare   = 0.1
	slots       = 8    // of a worker
	edges       = 8    // callers
	backlog     = 1024 // of a worker in a blind queue group
	warmUp      = 5 * time.Second
	budget      = 500 * time.Millisecond // of waiting
)

// mean is how long a call takes on average.
const mean = time.Duration(float64(short)*(1-longShare) + float64(long)*longShare)

// result is what came of one call.
type result struct {
	long     bool
	took     time.Duration
	ended    time.Duration // since the beginning
	answered bool
	refused  bool
}

// strategy finds a worker for calls.
type strategy interface {
	// worker runs a worker on a connection until ctx ends.
	worker(ctx context.Context, t *testing.T, conn *bus.Conn)
	// edge returns what makes calls on a connection, until ctx ends.
	edge(ctx context.Context, t *testing.T, conn *bus.Conn) func(ctx context.Context, d time.Duration) error
}

var errRefused = errors.New("refused")

// scenario is one cell of the table.
type scenario struct {
	workers int
	load    float64
	measure time.Duration
}

// figures are what is read from the results.
type figures struct {
	calls, refused, failed int
	p50, p99, p999         time.Duration // of the short ones
	useful                 float64       // share of the capacity that did work answered in time
	slowestRefusal         time.Duration
	messages               float64 // out of edges and workers, for each call
}

func (s scenario) run(t *testing.T, how strategy) figures {
	var f figures
	synctest.Test(t, func(t *testing.T) {
		ns, err := localnats.Start(localnats.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Shutdown()
		ctx, cancel := context.WithCancel(t.Context())
		var conns []*bus.Conn
		open := func() *bus.Conn {
			conn, err := bus.Connect(ctx, bus.ConnConfig{URL: "nats://127.0.0.1:1", Dialer: delayed{ns}})
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
			return conn
		}
		var actors sync.WaitGroup
		for range s.workers {
			conn := open()
			actors.Go(func() { how.worker(ctx, t, conn) })
		}
		var call []func(context.Context, time.Duration) error
		for range edges {
			call = append(call, how.edge(ctx, t, open()))
		}
		time.Sleep(2 * time.Second)
		before := sent(conns)
		f = s.traffic(call)
		f.messages = float64(sent(conns)-before) / float64(f.calls)
		cancel()
		actors.Wait()
		time.Sleep(5 * time.Second) // edges end
		for _, conn := range conns {
			conn.Close()
		}
	})
	return f
}

// sent is how many messages were published so far.
func sent(conns []*bus.Conn) uint64 {
	var n uint64
	for _, conn := range conns {
		n += conn.NATS().Stats().OutMsgs
	}
	return n
}

// traffic makes the calls and reads the results of those that came after the
// warm-up.
func (s scenario) traffic(call []func(context.Context, time.Duration) error) figures {
	var (
		mu      sync.Mutex
		results []result
		callers sync.WaitGroup
		all     int
	)
	capacity := float64(s.workers*slots) / mean.Seconds() // calls a second
	every := float64(edges) / (capacity * s.load)         // mean seconds between two of an edge
	began := time.Now()
	for i := range edges {
		rnd := rand.New(rand.NewPCG(uint64(s.workers*1000)+uint64(s.load*100), uint64(i)))
		callers.Go(func() {
			var mine sync.WaitGroup
			defer mine.Wait()
			for {
				<-time.After(time.Duration(rnd.ExpFloat64() * every * float64(time.Second)))
				if time.Since(began) > warmUp+s.measure {
					return
				}
				d := short
				if rnd.Float64() < longShare {
					d = long
				}
				mine.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
					defer cancel()
					start := time.Now()
					err := call[i](ctx, d)
					r := result{long: d == long, took: time.Since(start), ended: time.Since(began), answered: err == nil, refused: errors.Is(err, errRefused)}
					mu.Lock()
					defer mu.Unlock()
					all++
					results = append(results, r)
				})
			}
		})
	}
	callers.Wait()
	f := s.read(results)
	f.calls = all
	return f
}

// read makes figures of the calls that began after the warm-up. The capacity is
// compared with the work of those that ended while there was traffic.
func (s scenario) read(results []result) figures {
	var f figures
	var took []time.Duration
	work := 0.0
	for _, r := range results {
		d := short
		if r.long {
			d = long
		}
		inTime := r.answered && r.took <= budget+d+100*time.Millisecond
		if inTime && r.ended >= warmUp && r.ended < warmUp+s.measure {
			work += d.Seconds()
		}
		if r.ended-r.took < warmUp {
			continue
		}
		switch {
		case r.refused:
			f.refused++
			f.slowestRefusal = max(f.slowestRefusal, r.took)
		case !r.answered:
			f.failed++
		}
		if r.long {
			continue
		}
		if !r.answered {
			r.took = math.MaxInt64 // a miss
		}
		took = append(took, r.took)
	}
	slices.Sort(took)
	at := func(q float64) time.Duration { return took[min(int(q*float64(len(took))), len(took)-1)] }
	f.p50, f.p99, f.p999 = at(0.5), at(0.99), at(0.999)
	f.useful = work / (float64(s.workers*slots) * s.measure.Seconds())
	return f
}

// late is the bus: late binding.
type late struct{}

// sleeper is the service: a call takes as long as it says.
type sleeper struct {
	grpc_testing.UnimplementedTestServiceServer
}

func (sleeper) UnaryCall(_ context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	<-time.After(time.Duration(req.GetResponseSize()) * time.Microsecond)
	return &grpc_testing.SimpleResponse{}, nil
}

func (late) worker(ctx context.Context, t *testing.T, conn *bus.Conn) {
	s := bus.NewServer(conn, bus.ServerConfig{Pool: "test", Slots: slots})
	grpc_testing.RegisterTestServiceServer(s, sleeper{})
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
}

func (late) edge(ctx context.Context, t *testing.T, conn *bus.Conn) func(context.Context, time.Duration) error {
	var c *bus.Client
	w := bus.NewWatcher(conn, bus.WatcherConfig{
		OnLost: func(m bus.Member) { c.Lost(m.Instance, m.Epoch) },
		Heard:  func(instance string) uint64 { return c.Heard(instance) },
	})
	c = bus.NewClient(conn, bus.ClientConfig{Members: w})
	peer := bus.NewServer(conn, bus.ServerConfig{Pool: "_edge", ID: c.ID()})
	for _, run := range []func(context.Context) error{w.Run, c.Run, peer.Run} {
		go func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		}()
	}
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	return func(ctx context.Context, d time.Duration) error {
		_, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{ResponseSize: int32(d.Microseconds())})
		if bus.Reason(err) == bus.ReasonOverloaded {
			return errRefused
		}
		if err != nil {
			t.Error(err)
		}
		return err
	}
}

// blind is a queue group of NATS as it is: the server picks a worker, which lets
// the call wait until it has a slot.
type blind struct{}

func (blind) worker(ctx context.Context, t *testing.T, conn *bus.Conn) {
	waiting := make(chan *nats.Msg, backlog) // the subscription sends, refusing when it is full; never closed
	var busy sync.WaitGroup
	for range slots {
		busy.Go(func() {
			for {
				select {
				case m := <-waiting:
					us, _ := strconv.Atoi(string(m.Data)) // our own
					<-time.After(time.Duration(us) * time.Microsecond)
					if err := m.Respond([]byte("ok")); err != nil {
						t.Error(err)
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	sub, err := conn.NATS().QueueSubscribe("blind", "w", func(m *nats.Msg) {
		select {
		case waiting <- m:
		default:
			if err := m.Respond([]byte("busy")); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Error(err)
		return
	}
	busy.Wait()
	_ = sub.Unsubscribe() // the connection ends as well
}

func (blind) edge(_ context.Context, t *testing.T, conn *bus.Conn) func(context.Context, time.Duration) error {
	return func(ctx context.Context, d time.Duration) error {
		m, err := conn.NATS().RequestWithContext(ctx, "blind", strconv.AppendInt(nil, d.Microseconds(), 10))
		if err != nil {
			t.Error(err)
			return err
		}
		if string(m.Data) == "busy" {
			return errRefused
		}
		return nil
	}
}

func (f figures) String() string {
	ms := func(d time.Duration) string {
		if d == math.MaxInt64 {
			return "missed"
		}
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%d calls, short ones p50 %s, p99 %s, p99.9 %s; refused %d, after %s at most; %.1f %% of the capacity of use; %.2f messages a call",
		f.calls, ms(f.p50), ms(f.p99), ms(f.p999), f.refused, ms(f.slowestRefusal), 100*f.useful, f.messages)
}

// TestLoad makes the same calls by late binding and by a blind queue group.
func TestLoad(t *testing.T) {
	t.Parallel()
	scenarios := []scenario{{workers: 2, load: 0.9, measure: 2 * time.Second}, {workers: 2, load: 1.5, measure: 2 * time.Second}}
	if *full {
		scenarios = nil
		for _, load := range []float64{0.7, 0.9, 1.2} {
			for _, workers := range []int{4, 16} {
				scenarios = append(scenarios, scenario{workers: workers, load: load, measure: 60 * time.Second})
			}
		}
	}
	for _, s := range scenarios {
		t.Run(fmt.Sprintf("%d workers at %.1f", s.workers, s.load), func(t *testing.T) {
			t.Parallel()
			got, other := s.run(t, late{}), s.run(t, blind{})
			t.Logf("late binding: %v", got)
			t.Logf("blind queues: %v", other)
			if got.failed > 0 || other.failed > 0 {
				t.Errorf("%d and %d calls failed", got.failed, other.failed)
			}
			if got.calls != other.calls {
				t.Errorf("%d and %d calls: that is no comparison", got.calls, other.calls)
			}
			if got.slowestRefusal > budget+100*time.Millisecond {
				t.Errorf("a call was refused after %v", got.slowestRefusal)
			}
			if s.load > 1 && (got.refused == 0 || got.useful < 0.9) {
				t.Errorf("overloaded: %v", got)
			}
		})
	}
}
