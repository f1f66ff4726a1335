package bus

import (
	"context"
	"flag"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/proto/bus/bustest"
)

var fenceCalls = flag.Int("fence.calls", 1600, "how many calls TestTheFence makes")

// counter executes calls that must not be executed twice.
type counter struct {
	testService

	mu   sync.Mutex
	runs map[int]int
}

func (s *counter) UnaryCall(ctx context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	n, err := strconv.Atoi(strings.TrimLeft(string(req.GetPayload().GetBody()), "0"))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.runs[n]++
	s.mu.Unlock()
	if n%3 == 0 { // long enough that the ACCEPT goes alone
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return &grpc_testing.SimpleResponse{Username: strconv.Itoa(n)}, nil
}

// nothingRan are the reasons those after which it is certain that no handler ran.
var nothingRan = map[string]bool{
	ReasonNoResponders: true, ReasonDisconnected: true, ReasonOverloaded: true, ReasonNotStarted: true,
}

// frameKinds are the steps of the beginning of a call.
var frameKinds = map[string]uint32{
	"open": kindOpen, "accept": kindAccept, "end": kindEnd, "busy": kindBusy, "fence": kindFence, "fenced": kindFenced,
	"cancel": kindCancel,
}

// TestTheFence loses the frames that begin calls, one kind after another and all
// together, of calls that must not be executed twice, while instances are killed
// and come back. Whatever the caller is told is true.
func TestTheFence(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lose  []string
		share float64
		late  bool // OPENs are late instead of lost
		kill  bool
	}{
		"open":            {lose: []string{"open"}, share: 0.3},
		"accept":          {lose: []string{"accept", "end"}, share: 0.3},
		"busy":            {lose: []string{"busy"}, share: 0.5},
		"fence":           {lose: []string{"open", "fence"}, share: 0.3},
		"fenced":          {lose: []string{"open", "fenced"}, share: 0.3},
		"all":             {lose: []string{"open", "accept", "end", "busy", "fence", "fenced", "cancel"}, share: 0.2},
		"late opens":      {lose: []string{"open"}, share: 0.3, late: true},
		"killed":          {kill: true},
		"all, and killed": {lose: []string{"open", "accept", "end", "busy", "fence", "fenced", "cancel"}, share: 0.1, kill: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var losing []uint32
				for _, kind := range tc.lose {
					losing = append(losing, frameKinds[kind])
				}
				r := &fenceRun{t: t, calls: *fenceCalls / 9, kill: tc.kill, counter: &counter{runs: make(map[int]int)}}
				r.run(func(rnd *rand.Rand, f *frame) time.Duration {
					for _, kind := range losing {
						if f.kind == kind && rnd.Float64() < tc.share {
							if tc.late && kind == kindOpen {
								return time.Duration(1+rnd.IntN(4000)) * time.Millisecond
							}
							return lose
						}
					}
					return 0
				})
			})
		})
	}
}

// fenceRun is one run of TestTheFence.
type fenceRun struct {
	t     *testing.T
	calls int
	kill  bool
	*counter

	answered, refused, unsure atomic.Int64
}

func (r *fenceRun) run(fate func(*rand.Rand, *frame) time.Duration) {
	t := r.t
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(1, uint64(r.calls)))
	f := &faults{ns: startNATS(t)}
	f.fate = func(_ bool, subject, _ string, payload []byte) time.Duration {
		var f frame
		if strings.Contains(subject, ".hb.") || strings.Contains(subject, ".rq.") || f.decode(payload) != nil {
			return 0
		}
		mu.Lock()
		defer mu.Unlock()
		return fate(rnd, &f)
	}
	const instances = 3
	start := func() (kill func()) {
		conn := connect(t, f.ns)
		s := NewServer(conn, ServerConfig{Pool: "test", Slots: 8, Grace: shortGrace})
		grpc_testing.RegisterTestServiceServer(s, r)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-s.Ready()
		var once sync.Once
		kill = func() {
			once.Do(func() {
				conn.Close() // it says nothing more, whatever it did
				cancel()
				<-done
			})
		}
		t.Cleanup(kill)
		return kill
	}
	var kills []func()
	for range instances {
		kills = append(kills, start())
	}
	conn := connectFaulty(t, f)
	var c *Client
	w := NewWatcher(conn, WatcherConfig{
		OnLost: func(m Member) { c.Lost(m.Instance, m.Epoch) },
		Heard:  func(instance string) uint64 { return c.Heard(instance) },
	})
	c = startClient(t, conn, ClientConfig{Members: w})
	actor(t, w.Synced(), w.Run)
	<-time.After(syncLimit)

	stop := make(chan struct{})
	var killer sync.WaitGroup
	if r.kill {
		killer.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(250 * time.Millisecond):
				}
				kills[i%instances]()
				kills[i%instances] = start()
			}
		})
	}
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	next := atomic.Int64{}
	var callers sync.WaitGroup
	for range 30 { // more than there are slots for at times
		callers.Go(func() {
			for {
				n := int(next.Add(1))
				if n > r.calls {
					return
				}
				if r.kill {
					<-time.After(200 * time.Millisecond)
				}
				r.call(client, n)
			}
		})
	}
	callers.Wait()
	close(stop)
	killer.Wait()
	<-time.After(time.Minute) // whatever is late has arrived
	r.check()
}

// call makes one call and compares what it is told with what happened so far.
func (r *fenceRun) call(client grpc_testing.TestServiceClient, n int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	body := strconv.Itoa(n)
	if n%10 == 0 {
		body = strings.Repeat("0", 300_000) + body // a request in several frames
	}
	resp, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: []byte(body)}})
	switch reason := Reason(err); {
	case err == nil:
		r.answered.Add(1)
		if resp.GetUsername() != strconv.Itoa(n) {
			r.t.Errorf("call %d got the answer of %s", n, resp.GetUsername())
		}
		r.want(n, 1)
	case nothingRan[reason]:
		r.refused.Add(1)
		r.want(n, 0)
		r.mu.Lock()
		r.runs[n] = 1 // so that a later run counts as the second
		r.mu.Unlock()
	default:
		r.unsure.Add(1)
		if reason == "" && status.Code(err) != codes.DeadlineExceeded { // the END was lost
			r.t.Errorf("call %d ended with %v", n, err)
		}
	}
}

func (r *fenceRun) want(n, runs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs[n] != runs {
		r.t.Errorf("call %d was executed %d times and should have been %d times", n, r.runs[n], runs)
	}
}

func (r *fenceRun) check() {
	r.mu.Lock()
	defer r.mu.Unlock()
	executed := 0
	for n, runs := range r.runs {
		if runs > 1 {
			r.t.Errorf("call %d was executed twice, or although its caller was told that it was not", n)
		}
		executed++
	}
	answered, refused, unsure := r.answered.Load(), r.refused.Load(), r.unsure.Load()
	r.t.Logf("%d calls: %d executed, %d answered, %d certainly not executed, %d may have been", r.calls, executed-int(refused), answered, refused, unsure)
	if answered+refused+unsure != int64(r.calls) || answered == 0 {
		r.t.Error("that does not add up")
	}
	if maybe := int64(executed) - answered - refused; maybe < 0 || maybe > unsure {
		r.t.Errorf("%d executions were told to nobody", maybe)
	}
}

// Without anybody lost, an OPEN that is lost is made good unnoticed.
func TestALostOpenIsOfferedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &faults{ns: startNATS(t)}
		var lost atomic.Int32
		f.fate = func(toServer bool, subject, _ string, _ []byte) time.Duration {
			if toServer && strings.Contains(subject, ".rpc.") && lost.Add(1) <= 2 {
				return lose
			}
			return 0
		}
		startServer(t, connect(t, f.ns), ServerConfig{}, testService{})
		conn := connectFaulty(t, f)
		w := startWatcher(t, conn, WatcherConfig{})
		c := startClient(t, conn, ClientConfig{Members: w})
		time.Sleep(syncLimit)
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		began := time.Now()
		must[*grpc_testing.SimpleResponse](t)(client.UnaryCall(within(t), &grpc_testing.SimpleRequest{Payload: bustest.Body(1 << 20)}))
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("it took %v", took)
		}
		lost.Store(0)
		_, err := client.EmptyCall(within(t), &grpc_testing.Empty{})
		if err != nil || lost.Load() != 3 {
			t.Errorf("%v after %d tries", err, lost.Load())
		}
		lost.Store(-1000)
		_, err = client.EmptyCall(within(t), &grpc_testing.Empty{})
		wantReason(t, err, codes.Unavailable, ReasonNotStarted)
	})
}

// An instance says what it knows, and keeps what it has promised.
func TestAFenceAtTheInstance(t *testing.T) {
	t.Parallel()
	var m callMemory
	now := time.Now()
	caller := m.caller(callerKey{client: "a", run: 1}, now)
	key := func(id uint64) callKey { return callKey{caller: caller, id: id} }
	for id := range uint64(10) {
		m.ran(key(id))
	}
	if got := m.fence(key(3)); got.String() != "FENCE_DONE" || m.isFenced(key(3)) {
		t.Errorf("a call that has run: %v", got)
	}
	if got := m.fence(key(11)); got.String() != "FENCE_NEVER" || !m.isFenced(key(11)) || m.isFenced(key(12)) {
		t.Errorf("a call that has not run: %v", got)
	}
	// Two generations later it knows that it does not know.
	for id := range uint64(2*mostKept + 2*keptCalls) {
		m.ran(key(100 + id))
	}
	if got := m.fence(key(3)); got.String() != "FENCE_UNKNOWN" || !m.isFenced(key(3)) {
		t.Errorf("a call that is forgotten: %v", got)
	}
	last := uint64(100 + 2*mostKept + 2*keptCalls)
	if got := m.fence(key(last)); got.String() != "FENCE_NEVER" {
		t.Errorf("a newer call that has not run: %v", got)
	}
	// And so it is with what it has promised.
	m.recent, m.older = nil, nil
	for id := range uint64(2 * keptFences) {
		m.fence(key(last + 2*id))
	}
	if !m.isFenced(key(last)) || !m.isFenced(key(11)) || m.isFenced(key(last+4*keptFences)) {
		t.Error("a promise is forgotten")
	}
	other := m.caller(callerKey{client: "a", run: 2}, now)
	if got := m.fence(callKey{caller: other, id: 3}); got.String() != "FENCE_NEVER" || m.isFenced(callKey{caller: other, id: 4}) {
		t.Errorf("another run of the caller: %v", got)
	}
	for i := range 2 * keptCallers {
		m.caller(callerKey{client: strconv.Itoa(i)}, now.Add(3*maxTimeout))
	}
	if len(m.known) > 2*keptCallers+1 || len(m.known) != len(m.callers) || m.known[caller] != nil {
		t.Errorf("%d callers are remembered", len(m.known))
	}
}

// News that somebody who was asked is gone may be read when the question is over
// and the call is about to be offered again: it is no answer to that offer, and must
// not have the call pushed twice.
func TestLateNewsOfAFence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		c := startClient(t, connect(t, ns), ClientConfig{Known: func(string) bool { return true }})
		hole, err := connect(t, ns).nc.Subscribe("mr.main.rpc.>", func(*nats.Msg) {}) // the OPEN is lost
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		result := make(chan error, 1) // one call
		go func() {
			_, err := grpc_testing.NewTestServiceClient(c.Pool("test")).UnaryCall(within(t), slow("x", 100))
			result <- err
		}()
		synctest.Wait()
		unsubscribe(hole)
		service := &slowService{}
		for range 2 {
			startServer(t, connect(t, ns), ServerConfig{}, service)
		}
		call := c.snapshot()[0]
		// What settle does about a call that did not start, with the news between its
		// two steps.
		call.mu.Lock()
		call.fence, call.lastPush, call.firstPush = nil, time.Time{}, time.Now()
		call.mu.Unlock()
		call.onNoResponders()
		if !c.rename(call) {
			t.Fatal("the call has ended")
		}
		call.repush()
		if err := <-result; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		service.mu.Lock()
		defer service.mu.Unlock()
		if n := len(service.order); n != 1 {
			t.Errorf("the call ran %d times", n)
		}
	})
}
