package bus

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
)

// turnsOf is the order in which calls of a queue are taken.
func turnsOf(t *turns, newest bool) string {
	var order []string
	for {
		call := t.next(newest)
		if call == nil {
			return strings.Join(order, " ")
		}
		order = append(order, call.method)
	}
}

func TestTurns(t *testing.T) {
	t.Parallel()
	fill := func() (*turns, map[string]*seat) {
		q, seats := &turns{}, make(map[string]*seat)
		// Principal a has two sessions, of which one calls a lot; b and c call
		// once or twice.
		for _, name := range []string{"a1.1", "a1.2", "a1.3", "a1.4", "a2.1", "b1.1", "a1.5", "b1.2", "c1.1"} {
			seats[name] = q.add(&clientCall{method: name}, &fairKey{name[:1], name[:2]}, false)
		}
		return q, seats
	}
	q, _ := fill()
	if got, want := turnsOf(q, false), "a1.1 b1.1 c1.1 a2.1 b1.2 a1.2 a1.3 a1.4 a1.5"; got != want {
		t.Errorf("oldest first: %s, want %s", got, want)
	}
	q, _ = fill()
	if got, want := turnsOf(q, true), "a1.5 b1.2 c1.1 a2.1 b1.1 a1.4 a1.3 a1.2 a1.1"; got != want {
		t.Errorf("newest first: %s, want %s", got, want)
	}
	q, seats := fill()
	for _, gone := range []string{"a1.1", "a2.1", "c1.1", "b1.1", "b1.2"} {
		q.remove(seats[gone])
	}
	for _, back := range []string{"x", "y"} {
		seats[back] = q.add(&clientCall{method: back}, nil, true)
	}
	q.remove(q.add(&clientCall{method: "z"}, nil, true))
	if q.n != 6 {
		t.Errorf("%d calls wait", q.n)
	}
	if got, want := turnsOf(q, false), "x y a1.2 a1.3 a1.4 a1.5"; got != want {
		t.Errorf("with some gone and some back: %s, want %s", got, want)
	}
	if q.n != 0 || len(q.byName) != 0 || q.principals.Len() != 0 {
		t.Errorf("something is left: %+v", q)
	}
}

// slowService takes a time that each request names, and notes the order in which
// the calls began and how many ran at a time.
type slowService struct {
	testService

	mu         sync.Mutex
	order      []string
	now, atMax int
}

func (s *slowService) UnaryCall(ctx context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	s.mu.Lock()
	s.order = append(s.order, string(req.GetPayload().GetBody()))
	s.now++
	s.atMax = max(s.atMax, s.now)
	s.mu.Unlock()
	select {
	case <-time.After(time.Duration(req.GetResponseSize()) * time.Millisecond):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	return &grpc_testing.SimpleResponse{}, nil
}

func slow(name string, ms int) *grpc_testing.SimpleRequest {
	return &grpc_testing.SimpleRequest{ResponseSize: int32(ms), Payload: &grpc_testing.Payload{Body: []byte(name)}}
}

// Principals take turns, and those of a session go in order.
func TestWaitingIsFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		service := &slowService{}
		startServer(t, connect(t, ns), ServerConfig{Slots: 1}, service)
		c := startClient(t, connect(t, ns), ClientConfig{})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		var calls sync.WaitGroup
		call := func(name string) {
			calls.Go(func() {
				if _, err := client.UnaryCall(within(t), slow(name, 20), Fair(name[:1], name[:2])); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		for _, name := range []string{"a0", "a1", "a2", "a3", "a4", "a5", "a6", "b1", "b2", "c1"} {
			call(name)
		}
		calls.Wait()
		// Which of a is out for a try while the others come is a matter of chance.
		order := service.order
		place := make(map[string]int)
		for i, name := range order {
			place[name] = i
		}
		if len(order) != 10 || place["b1"] > 4 || place["c1"] > 5 || place["b2"] > 7 || place["a6"] < 7 {
			t.Errorf("served in the order %v", order)
		}
		if service.atMax > 1 {
			t.Errorf("%d calls ran in one slot", service.atMax)
		}
	})
}

// A slot that becomes free goes to whoever waits without delay, at whatever
// instance it is.
func TestOffersAreTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		service := &slowService{}
		const instances, each, calls = 3, 2, 60
		for range instances {
			startServer(t, connect(t, ns), ServerConfig{Slots: each}, service)
		}
		var clients []grpc_testing.TestServiceClient
		var cs []*Client
		for range 3 {
			c := startClient(t, connect(t, ns), ClientConfig{WaitBudget: 10 * time.Second})
			cs = append(cs, c)
			clients = append(clients, grpc_testing.NewTestServiceClient(c.Pool("test")))
		}
		began := time.Now()
		var wait sync.WaitGroup
		for i := range calls {
			wait.Go(func() {
				if _, err := clients[i%3].UnaryCall(context.Background(), slow("x", 100)); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		// Ten rounds without a pause.
		if took, least := time.Since(began), calls/(instances*each)*100*time.Millisecond; took > least+least/10 {
			t.Errorf("it took %v, and %v would have been enough", took, least)
		}
		if service.atMax != instances*each {
			t.Errorf("%d calls ran at a time", service.atMax)
		}
		for _, c := range cs {
			q := c.queue(poolKey{"test", anyManifest})
			if c.Waiting("test") != 0 || q.waiting.Load() != 0 || q.sub != nil || q.main.probe != nil || q.main.out != 0 {
				t.Errorf("something is left: %+v", q)
			}
		}
	})
}

// Who cannot be served in time is told at once when that is known, and at the end
// of the budget at the latest; the error says when to come again.
func TestWaitingHasBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		startServer(t, connect(t, ns), ServerConfig{Slots: 1}, &slowService{})
		conn := connect(t, ns)
		w := startWatcher(t, conn, WatcherConfig{})
		c := startClient(t, conn, ClientConfig{Members: w})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		var wait sync.WaitGroup
		var early, late, served atomic.Int32
		call := func(n, ms int) {
			for range n {
				wait.Go(func() {
					began := time.Now()
					_, err := client.UnaryCall(within(t), slow("x", ms))
					took := time.Since(began)
					if err == nil {
						served.Add(1)
						return
					}
					wantReason(t, err, codes.ResourceExhausted, ReasonOverloaded)
					if after, ok := RetryAfter(err); !ok || after <= 0 {
						t.Errorf("come again after %v, %v", after, ok)
					}
					switch {
					case took < 10*time.Millisecond:
						early.Add(1)
					case took >= 490*time.Millisecond && took < 600*time.Millisecond:
						late.Add(1)
					default:
						t.Errorf("refused after %v", took)
					}
				})
			}
		}
		// One slot, and one call that keeps it: the queue has its bound.
		call(1, 2000)
		synctest.Wait()
		call(40, 1)
		time.Sleep(3 * time.Second)
		wait.Wait()
		if served.Load() != 1 || late.Load() != minWaiting || early.Load() != 40-minWaiting {
			t.Errorf("served %d, refused %d at once and %d in time", served.Load(), early.Load(), late.Load())
		}
		// When the pace is known, no more are let in than may be served in time;
		// of those, the newest go first.
		early.Store(0)
		late.Store(0)
		served.Store(0)
		for range 400 { // 2 calls every 50 ms, each of which takes 50 ms
			call(2, 50)
			time.Sleep(50 * time.Millisecond)
		}
		wait.Wait()
		if early.Load() < 50 || served.Load() < 380 {
			t.Errorf("served %d, refused %d at once and %d in time", served.Load(), early.Load(), late.Load())
		}
	})
}

// A deadline bounds the wait as well, and a call that is cancelled waits no more.
func TestWaitingEndsWithTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		startServer(t, connect(t, ns), ServerConfig{Slots: 1}, &slowService{})
		c := startClient(t, connect(t, ns), ClientConfig{})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		go func() { _, _ = client.UnaryCall(within(t), slow("x", 5000)) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(within(t), 400*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := client.UnaryCall(ctx, slow("x", 1))
		wantReason(t, err, codes.ResourceExhausted, ReasonOverloaded)
		if took := time.Since(began); took < 95*time.Millisecond || took > 200*time.Millisecond {
			t.Errorf("a quarter of the time was %v", took)
		}
		ctx, cancel = context.WithCancel(within(t))
		done := make(chan error, 1)
		go func() {
			_, err := client.UnaryCall(ctx, slow("x", 1))
			done <- err
		}()
		time.Sleep(50 * time.Millisecond)
		if got := c.Waiting("test"); got > 1 {
			t.Errorf("%d calls wait", got)
		}
		cancel()
		wantCode(t, <-done, codes.Canceled)
		synctest.Wait()
		if q := c.queue(poolKey{"test", anyManifest}); q.count() != 0 || q.waiting.Load() != 0 || q.sub != nil {
			t.Errorf("something is left: %+v", q)
		}
	})
}

// Calls that a limit of their own holds up do not hold up others, and get its
// slots as they become free.
func TestALimitHoldsUpItsOwnCallsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		service := &slowService{}
		var used atomic.Int32
		admit := func(ctx context.Context, _ string, head []byte) (context.Context, func(), string, bool) {
			if !strings.Contains(string(head), "rare") {
				return ctx, nil, "", true
			}
			if used.Add(1) > 1 {
				used.Add(-1)
				return ctx, nil, "rare", false
			}
			return ctx, func() { used.Add(-1) }, "rare", true
		}
		startServer(t, connect(t, ns), ServerConfig{Slots: 4, Admit: admit}, service)
		c := startClient(t, connect(t, ns), ClientConfig{WaitBudget: 10 * time.Second})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		began := time.Now()
		var rare, other sync.WaitGroup
		for range 10 {
			rare.Go(func() {
				if _, err := client.UnaryCall(within(t), slow("rare", 100)); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		for range 30 {
			other.Go(func() {
				if _, err := client.UnaryCall(within(t), slow("other", 10)); err != nil {
					t.Error(err)
				}
			})
		}
		other.Wait()
		if took := time.Since(began); took > 250*time.Millisecond {
			t.Errorf("the other calls took %v", took)
		}
		rare.Wait()
		if took := time.Since(began); took < time.Second || took > 1100*time.Millisecond {
			t.Errorf("ten calls of 100 ms, one at a time, took %v", took)
		}
		synctest.Wait()
		if q := c.queue(poolKey{"test", anyManifest}); q.count() != 0 || len(q.lanes) != 0 || q.sub != nil {
			t.Errorf("something is left: %+v", q)
		}
	})
}

// Offers that are lost, or that nobody keeps, cost a moment and no call.
func TestLostOffers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &faults{ns: startNATS(t)}
		f.fate = func(toServer bool, subject, _ string, _ []byte) time.Duration {
			if !toServer && strings.Contains(subject, ".cap.") || toServer && strings.Contains(subject, ".want.") {
				return lose
			}
			return 0
		}
		startServer(t, connect(t, f.ns), ServerConfig{Slots: 1}, &slowService{})
		c := startClient(t, connectFaulty(t, f), ClientConfig{WaitBudget: 10 * time.Second})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		began := time.Now()
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				if _, err := client.UnaryCall(within(t), slow("x", 20)); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if took := time.Since(began); took > 20*(20+64)*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// The instance that offered is gone when the call gets there.
func TestAnOfferOfAnInstanceThatIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		startServer(t, connect(t, ns), ServerConfig{Slots: 1}, &slowService{})
		c := startClient(t, connect(t, ns), ClientConfig{})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		var wait sync.WaitGroup
		for range 4 {
			wait.Go(func() {
				if _, err := client.UnaryCall(within(t), slow("x", 100)); err != nil {
					t.Error(err)
				}
			})
		}
		other := connect(t, ns)
		for range 40 {
			time.Sleep(7 * time.Millisecond)
			b := (&frame{kind: kindOffer, instance: []byte("nobody")}).appendTo(nil)
			if err := other.nc.Publish("mr.main.cap.test._", b); err != nil {
				t.Fatal(err)
			}
		}
		for _, junk := range [][]byte{nil, {0xff}, (&frame{kind: kindOffer, instance: []byte("a.b")}).appendTo(nil), (&frame{kind: kindOpen}).appendTo(nil)} {
			if err := other.nc.Publish("mr.main.cap.test._", junk); err != nil {
				t.Fatal(err)
			}
		}
		wait.Wait()
	})
}

// Many callers, few slots, cancels at random: nothing is left, and what was
// refused did not run.
func TestWaitingUnderStress(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	var ran sync.Map
	service := funcService{Unary: func(ctx context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
		ran.Store(string(req.GetPayload().GetBody()), true)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(req.GetResponseSize()) * time.Microsecond):
		}
		return &grpc_testing.SimpleResponse{}, nil
	}}
	for range 2 {
		startServer(t, connect(t, ns), ServerConfig{Slots: 2}, service)
	}
	c := startClient(t, connect(t, ns), ClientConfig{WaitBudget: 20 * time.Millisecond})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	var callers sync.WaitGroup
	var ok, refused, cancelled atomic.Int64
	for i := range 16 {
		callers.Go(func() {
			for n := range 150 {
				name := fmt.Sprintf("%d-%d", i, n)
				ctx, cancel := context.WithTimeout(within(t), 30*time.Second)
				if n%7 == 0 {
					time.AfterFunc(time.Duration(n*13)*time.Microsecond, cancel)
				}
				_, err := client.UnaryCall(ctx, slow(name, (n%5)*100), Fair(name[:1], name))
				cancel()
				switch {
				case err == nil:
					ok.Add(1)
				case Reason(err) == ReasonOverloaded:
					refused.Add(1)
					if _, yes := ran.Load(name); yes {
						t.Errorf("%s was refused and ran", name)
					}
				default:
					wantCode(t, err, codes.Canceled)
					cancelled.Add(1)
				}
			}
		})
	}
	callers.Wait()
	t.Logf("%d answered, %d refused, %d cancelled", ok.Load(), refused.Load(), cancelled.Load())
	if ok.Load() == 0 {
		t.Error("nothing was answered")
	}
	eventually(t, func() bool { return len(c.snapshot()) == 0 })
	q := c.queue(poolKey{"test", anyManifest})
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.main.n != 0 || q.main.out != 0 || q.sub != nil || len(q.main.byName) != 0 {
		t.Errorf("something is left: %+v", q)
	}
}

// A call that ends in the moment in which its turn comes leaves nothing behind: its
// lane rests, and the next call goes out at once.
func TestACallThatEndsWhenItsTurnComes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		startServer(t, connect(t, ns), ServerConfig{Slots: 1}, &slowService{})
		c := startClient(t, connect(t, ns), ClientConfig{})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		q := c.queue(poolKey{"test", anyManifest})
		q.mu.Lock()
		q.main.served, q.main.pace = paceAfter, float64(time.Millisecond) // as if the pool had been busy before
		q.mu.Unlock()
		first, second := make(chan error, 1), make(chan error, 1) // one result each
		go func() {
			_, err := client.UnaryCall(within(t), slow("first", 300))
			first <- err
		}()
		synctest.Wait()
		running := c.snapshot()[0]
		ctx, cancel := context.WithCancel(within(t))
		defer cancel()
		go func() {
			_, err := client.UnaryCall(ctx, slow("second", 1))
			second <- err
		}()
		synctest.Wait()
		var waits *clientCall
		for _, call := range c.snapshot() {
			if call != running {
				waits = call
			}
		}
		q.mu.Lock()
		for q.main.n == 0 { // it is out for a try
			q.mu.Unlock()
			time.Sleep(100 * time.Microsecond)
			q.mu.Lock()
		}
		cancel()
		for ended := false; !ended; { // and is on its way to leave the queue
			runtime.Gosched()
			waits.mu.Lock()
			ended = waits.ended
			waits.mu.Unlock()
		}
		if q.takeLocked(&q.main, "", time.Now()) != nil {
			t.Error("a call that has ended was taken")
		}
		q.mu.Unlock()
		wantCode(t, <-second, codes.Canceled)
		if err := <-first; err != nil {
			t.Error(err)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if q.main.n != 0 || q.main.out != 0 || !q.main.since.IsZero() || q.main.probe != nil || q.waiting.Load() != 0 || q.sub != nil || q.want != nil {
			t.Errorf("something is left: %+v", q)
		}
		began := time.Now()
		if _, err := client.UnaryCall(within(t), slow("third", 1)); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took >= 2*time.Millisecond {
			t.Errorf("the next call, which runs for a millisecond, took %v", took)
		}
	})
}

// That no call got a slot lately says that the pool is slow only while somebody
// waits for one.
func TestTheEstimateOfAnEmptyLane(t *testing.T) {
	t.Parallel()
	since := time.Now()
	now := since.Add(3 * time.Second)
	l := &lane{served: paceAfter, pace: float64(time.Millisecond), since: since, last: since, out: 1}
	if got := l.estimate(2, now); got != 2*time.Millisecond {
		t.Errorf("nobody waits, and the second call is to wait for %v", got)
	}
	l.n = 1
	if got := l.estimate(2, now); got != 3*time.Second {
		t.Errorf("one has waited for 3 s, and the second call is to wait for %v", got)
	}
}
