package bus

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/millrace/millrace/proto/bus/bustest"
)

// connectNode connects to node first of a cluster; when that dies, to another.
func connectNode(t *testing.T, c *bustest.Cluster, nodes ...int) *Conn {
	t.Helper()
	urls := make([]string, len(nodes))
	for i, n := range nodes {
		urls[i] = c.URL(n)
	}
	conn, err := Connect(within(t), ConnConfig{URL: strings.Join(urls, ","), Name: t.Name(), Logger: newLog(t).logger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func known(string) bool { return true }

// waitFor returns when news of a pool has crossed the cluster.
func waitFor(t *testing.T, cc grpc.ClientConnInterface) {
	t.Helper()
	err := cc.Invoke(within(t), "/nobody.Has/This", nil, nil, grpc.WaitForReady(true))
	wantCode(t, err, codes.Unimplemented)
}

// The battery with the caller and the worker on different nodes.
func TestBatteryOverACluster(t *testing.T) {
	t.Parallel()
	cluster := bustest.StartCluster(t, 3)
	caller, worker := connectNode(t, cluster, 0), connectNode(t, cluster, 2)
	bustest.Run(t, func(t *testing.T, s bustest.Setup) grpc.ClientConnInterface {
		t.Helper()
		pool := "test-" + newID()
		server := NewServer(worker, ServerConfig{
			Pool: pool, Grace: shortGrace, Logger: newLog(t).logger(),
			UnaryInterceptors: s.ServerUnary, StreamInterceptors: s.ServerStream, StatsHandlers: s.ServerStats,
		})
		s.Register(server)
		actor(t, server.Ready(), server.Run)
		waitFor(t, startClient(t, caller, ClientConfig{}).Pool(pool))
		return startClient(t, caller, ClientConfig{
			UnaryInterceptors: s.ClientUnary, StreamInterceptors: s.ClientStream, StatsHandlers: s.ClientStats,
		}).Pool(pool)
	})
}

// News of a subscription takes a moment to reach other nodes: a pool that is
// known to be there is found nevertheless.
func TestNoRespondersJustAfterASubscription(t *testing.T) {
	t.Parallel()
	cluster := bustest.StartCluster(t, 3)
	worker := connectNode(t, cluster, 1)
	knowing := startClient(t, connectNode(t, cluster, 0), ClientConfig{Known: known})
	simple := startClient(t, connectNode(t, cluster, 0), ClientConfig{})
	other := make(chan *nats.Msg) // nobody sends
	missed, failed := 0, 0
	const pools = 20
	for i := range pools {
		// The news has to queue up behind others, so that it takes longer.
		for n := range 500 {
			if _, err := worker.nc.ChanSubscribe(fmt.Sprintf("other.%d.%d", i, n), other); err != nil {
				t.Fatal(err)
			}
		}
		pool := fmt.Sprintf("p%d", i)
		startServer(t, worker, ServerConfig{Pool: pool}, testService{})
		// Nobody waits between Ready and the calls.
		call := func(c *Client, missed *int) {
			_, err := grpc_testing.NewTestServiceClient(c.Pool(pool)).EmptyCall(within(t), &grpc_testing.Empty{})
			if err != nil {
				wantReason(t, err, codes.Unavailable, ReasonNoResponders)
				*missed++
			}
		}
		var both sync.WaitGroup
		both.Go(func() { call(simple, &missed) })
		both.Go(func() { call(knowing, &failed) })
		both.Wait()
	}
	t.Logf("of %d pools %d were missed at first and %d in the end", pools, missed, failed)
	// On a machine that stands still, the moment may be too short for one.
	if failed > 1 {
		t.Errorf("%d of %d pools were not found", failed, pools)
	}
}

// onceService remembers which calls it ran, by their name.
type onceService struct {
	testService

	name string
	runs *sync.Map // of call to *atomic.Int32, for all instances
}

func (s *onceService) ran(id string) {
	n, _ := s.runs.LoadOrStore(id, new(atomic.Int32))
	n.(*atomic.Int32).Add(1)
}

func (s *onceService) UnaryCall(_ context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	s.ran(string(req.GetPayload().GetBody()))
	return &grpc_testing.SimpleResponse{Hostname: s.name}, nil
}

// load makes calls from several goroutines, each with a name of its own, until
// it is stopped.
type load struct {
	t      *testing.T
	runs   sync.Map
	wg     sync.WaitGroup
	cancel context.CancelFunc

	made, failed atomic.Int64
	mu           sync.Mutex
	by           map[string]int // successes by instance
	reasons      map[string]int
}

func (l *load) start(client grpc_testing.TestServiceClient, parallel int) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	for i := range parallel {
		l.wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				l.one(client, fmt.Sprintf("%d.%d", i, n))
			}
		})
	}
}

func (l *load) one(client grpc_testing.TestServiceClient, id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	resp, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: []byte(id)}})
	l.made.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.by[resp.GetHostname()]++
		return
	}
	l.failed.Add(1)
	l.reasons[Reason(err)]++
	wantCode(l.t, err, codes.Unavailable)
}

func (l *load) successes(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by[name]
}

// stop ends the load and demands that nothing ran twice, and that what
// succeeded ran.
func (l *load) stop() {
	l.t.Helper()
	l.cancel()
	l.wg.Wait()
	ran := 0
	l.runs.Range(func(id, n any) bool {
		ran++
		if n := n.(*atomic.Int32).Load(); n != 1 {
			l.t.Errorf("call %v ran %d times", id, n)
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	succeeded := 0
	for _, n := range l.by {
		succeeded += n
	}
	if succeeded > ran {
		l.t.Errorf("%d calls succeeded and %d ran", succeeded, ran)
	}
	l.t.Logf("%d calls, %d ran, succeeded %v, failed %v", l.made.Load(), ran, l.by, l.reasons)
}

func TestANodeDies(t *testing.T) {
	t.Parallel()
	cluster := bustest.StartCluster(t, 3)
	l := &load{t: t, by: map[string]int{}, reasons: map[string]int{}}
	serve := func(name string, nodes ...int) *Server {
		s, _ := startServer(t, connectNode(t, cluster, nodes...), ServerConfig{}, &onceService{name: name, runs: &l.runs})
		return s
	}
	// The first connection is to the only URL; the other nodes are learned.
	a, b := serve("a", 1), serve("b", 2)
	caller := connectNode(t, cluster, 0)
	c := startClient(t, caller, ClientConfig{Known: known})
	w := startWatcher(t, caller, WatcherConfig{OnLost: func(m Member) { c.Lost(m.Instance, m.Epoch) }})
	eventually(t, func() bool { return len(w.Members()) == 2 })
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	open := func(s *Server) grpc_testing.TestService_FullDuplexCallClient {
		stream, err := grpc_testing.NewTestServiceClient(c.Instance("test", s.Instance())).FullDuplexCall(within(t))
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	ping := func(stream grpc_testing.TestService_FullDuplexCallClient) error {
		err := stream.Send(&grpc_testing.StreamingOutputCallRequest{ResponseParameters: sizes(1000)})
		if err == nil || err == io.EOF {
			_, err = stream.Recv()
		}
		return err
	}
	through, beside := open(a), open(b)
	for _, stream := range []grpc_testing.TestService_FullDuplexCallClient{through, beside} {
		if err := ping(stream); err != nil {
			t.Fatal(err)
		}
	}
	l.start(client, 8)
	more := func(name string) {
		t.Helper()
		before := l.successes(name)
		eventually(t, func() bool { return l.successes(name) > before+50 })
	}
	more("a")
	more("b")

	// The node of worker a dies.
	cluster.Kill(1)
	more("b")
	for range 20 {
		if err := ping(beside); err != nil {
			t.Fatalf("a stream that has nothing to do with the node: %v", err)
		}
	}
	_, err := through.Recv()
	wantCode(t, err, codes.Unavailable)
	more("a") // it is back through another node

	// The node of the caller dies.
	cluster.Kill(0)
	_, err = beside.Recv()
	wantCode(t, err, codes.Unavailable)
	more("a")
	more("b")
	l.stop()
	eventually(t, func() bool { return len(c.snapshot()) == 0 && len(a.snapshot()) == 0 && len(b.snapshot()) == 0 })
}
