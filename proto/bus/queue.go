package bus

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// Bounds of how many calls of a pool wait at one client: four for each slot
	// that is its share, within these.
	minWaiting, maxWaiting = 16, 1024
	waitingPerSlot         = 4
	// newestAfter is how long calls have to wait without a break until the
	// newest goes first: then the oldest have no time left to be of use, and to
	// serve them first would make everybody late.
	newestAfter = time.Second
	// wantEvery is how often a client says that it waits.
	wantEvery = 250 * time.Millisecond
	// paceShare is the weight of the past in the mean time between two calls
	// that get a slot, paceAfter how many of them it takes to be trusted.
	paceShare = 15.0 / 16
	paceAfter = 8
	// offerQueue is how many offers may wait for the goroutine that takes them.
	// Further ones are dropped, and the slots are found by trying.
	offerQueue = 4096
	// poolEdges is the pool of the edges, see docs/wire.md: they share the slots.
	poolEdges = "_edge"
)

// poolQueue holds the calls to a pool that wait for a free slot. An instance
// that has one offers it, and the call whose turn it is goes directly there.
type poolQueue struct {
	c *Client
	// The calls of a queue are good for the same instances: while a pool has
	// several versions, one of another version can do nothing for them.
	poolKey
	// waiting is how many calls without a limit of their own wait or are out
	// for a try: newcomers do not overtake them.
	waiting atomic.Int32

	mu    sync.Mutex
	main  lane
	lanes map[string]*lane // calls that a limit of their own holds up, by its name
	sub   *nats.Subscription
	want  *time.Timer
	bound int
	sized time.Time // when bound was found
}

// lane is a queue with its own pace.
type lane struct {
	q     *poolQueue
	limit string
	turns
	out   int       // calls that were taken out and have not been answered yet
	since time.Time // since when there is always somebody
	probe *time.Timer
	tries int // of the head without an offer

	served int       // calls that got a slot
	last   time.Time // when the last one did
	pace   float64   // mean nanoseconds between two of them
}

// wait is what a call needs that has to wait for a slot.
type wait struct {
	until time.Time
	timer *time.Timer
	// lane and seat are where the call waits; without a seat it is out for a try,
	// without a lane it does neither. The lock of the queue guards them.
	lane *lane
	seat *seat
}

// queue returns the queue of a pool, or of those of its instances that have a
// manifest.
func (c *Client) queue(key poolKey) *poolQueue {
	if q, ok := c.queues.Load(key); ok {
		return q.(*poolQueue)
	}
	q := &poolQueue{c: c, poolKey: key}
	q.main.q = q
	got, _ := c.queues.LoadOrStore(key, q)
	return got.(*poolQueue)
}

// Waiting returns how many calls to a pool wait for a free slot now, whatever
// version of it they need.
func (c *Client) Waiting(pool string) int {
	n := 0
	c.queues.Range(func(key, q any) bool {
		if key.(poolKey).pool == pool {
			n += q.(*poolQueue).count()
		}
		return true
	})
	return n
}

// idle reports whether nobody waits or is out for a try.
func (q *poolQueue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.main.n == 0 && q.main.out == 0 && len(q.lanes) == 0
}

func (q *poolQueue) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.main.n
	for _, l := range q.lanes {
		n += l.n
	}
	return n
}

// overloaded is the status of a call that got no slot.
func overloaded(pool string, waiting int, after time.Duration) error {
	after = max(after, time.Millisecond)
	text := fmt.Sprintf("every instance of pool %s is busy and %d calls wait; a slot is expected in %v", pool, waiting, after.Round(time.Millisecond))
	return failure(codes.ResourceExhausted, ReasonOverloaded, text, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
}

// RetryAfter returns how long it is likely to take until a call that was refused
// as OVERLOADED would be served; false when the error does not say.
func RetryAfter(err error) (time.Duration, bool) {
	st, ok := status.FromError(err)
	if !ok {
		return 0, false
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

// join lets a call wait, or refuses it. limit is what holds it up, if that is not
// the lack of any slot; back says that it waited there before, and keeps its
// place.
func (q *poolQueue) join(call *clientCall, limit string, back bool) {
	now := time.Now()
	q.mu.Lock()
	l := q.laneLocked(limit)
	if w := call.wait; w != nil && w.lane != nil {
		old := w.lane
		q.settledLocked(call)
		if old != l {
			q.restLocked(old)
		}
	}
	call.mu.Lock()
	if call.ended || call.accepted {
		call.mu.Unlock()
		q.restLocked(l)
		q.mu.Unlock()
		return
	}
	if call.pushes == 0 {
		call.firstPush = now // of a call that waits before its first push
	}
	var until time.Time
	if call.wait != nil {
		until = call.wait.until
	} else {
		until = call.firstPush.Add(min(q.c.cfg.WaitBudget, call.deadline.Sub(call.firstPush)/4))
	}
	left := until.Sub(now)
	after := l.estimate(l.n+1, now)
	if left <= 0 || !back && (l.n >= q.boundLocked(now) || after > left) {
		waiting := l.n
		call.mu.Unlock()
		q.restLocked(l)
		q.mu.Unlock()
		call.fail(overloaded(q.pool, waiting, max(after, q.c.cfg.WaitBudget)))
		return
	}
	call.target = ""
	if call.wait == nil {
		call.wait = &wait{until: until, timer: time.AfterFunc(left, call.waitedOut)}
	}
	call.mu.Unlock()
	call.wait.lane = l
	call.wait.seat = l.add(call, call.opts.fair, back)
	q.busyLocked(l, now)
	q.mu.Unlock()
}

// wasIn reports whether a call that comes back was in the lane of a limit.
func (q *poolQueue) wasIn(call *clientCall, limit string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return call.wait.lane != nil && call.wait.lane.limit == limit
}

// laneLocked returns the lane of a limit.
func (q *poolQueue) laneLocked(limit string) *lane {
	if limit == "" {
		return &q.main
	}
	l := q.lanes[limit]
	if l == nil {
		l = &lane{q: q, limit: limit}
		if q.lanes == nil {
			q.lanes = make(map[string]*lane)
		}
		q.lanes[limit] = l
	}
	return l
}

// busyLocked sees to it that a lane with somebody in it is served.
func (q *poolQueue) busyLocked(l *lane, now time.Time) {
	q.waiting.Store(int32(q.main.n + q.main.out))
	if l.since.IsZero() {
		l.since, l.last, l.tries = now, now, 0
		// Covers an offer that was made just before the subscription.
		l.probe = time.AfterFunc(backoff(0), l.try)
	}
	if q.sub != nil {
		return
	}
	// It may have been dropped, see dropManifests.
	q.c.queues.LoadOrStore(q.poolKey, q)
	sub, err := q.c.conn.nc.ChanQueueSubscribe(q.c.conn.offerSubject(q.pool, q.manifest), "edges", q.c.offers)
	if err != nil {
		return // the connection is closed; slots are found by trying until the calls end
	}
	q.sub = sub
	if q.want == nil {
		q.want = time.AfterFunc(wantEvery, q.sayWanted)
		_ = q.c.conn.publish(q.c.conn.wantSubject(q.pool, q.manifest), "", nil) // lost: said again
	}
}

// sayWanted tells the instances that somebody waits, as long as that is so.
func (q *poolQueue) sayWanted() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.want == nil {
		return
	}
	if q.sub == nil {
		q.want = nil
		return
	}
	_ = q.c.conn.publish(q.c.conn.wantSubject(q.pool, q.manifest), "", nil) // lost: said again
	q.want.Reset(wantEvery)
}

// restLocked stops what serves a lane without anybody in it. Others may need the
// offers.
func (q *poolQueue) restLocked(l *lane) {
	q.waiting.Store(int32(q.main.n + q.main.out))
	if l.n == 0 && l.out == 0 {
		l.since = time.Time{}
		if l.probe != nil {
			l.probe.Stop()
			l.probe = nil
		}
		if l.limit != "" {
			delete(q.lanes, l.limit)
		}
	}
	if q.sub == nil || q.main.n > 0 {
		return
	}
	for _, l := range q.lanes {
		if l.n > 0 {
			return
		}
	}
	unsubscribe(q.sub)
	q.sub = nil
}

// takeLocked takes out the call whose turn it is, for a try at target ("": any
// instance); nil when nobody waits. The caller pushes it.
func (q *poolQueue) takeLocked(l *lane, target string, now time.Time) *clientCall {
	for {
		call := l.next(now.Sub(l.since) >= newestAfter)
		if call == nil {
			return nil
		}
		call.wait.seat = nil
		call.mu.Lock()
		gone := call.ended || call.accepted
		call.target = target
		call.mu.Unlock()
		// One that has ended or was accepted is out as well: whoever did that is
		// on its way to leave, which gives the lane its rest.
		l.out++
		if !gone {
			return call
		}
	}
}

// settledLocked: the try of a call has an answer, or the call has ended.
func (q *poolQueue) settledLocked(call *clientCall) {
	w := call.wait
	if w == nil || w.lane == nil {
		return
	}
	if w.seat != nil {
		w.lane.remove(w.seat)
	} else {
		w.lane.out--
	}
	w.lane, w.seat = nil, nil
}

// anew makes a call, whose try had no answer and did not start it, one that has
// not waited yet.
func (q *poolQueue) anew(call *clientCall) {
	q.leave(call, false)
	q.mu.Lock()
	defer q.mu.Unlock()
	call.mu.Lock()
	defer call.mu.Unlock()
	call.wait.timer.Stop()
	call.wait = nil
}

// leave forgets a call that has ended; got says that it got a slot.
func (q *poolQueue) leave(call *clientCall, got bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if call.wait == nil || call.wait.lane == nil {
		return
	}
	l := call.wait.lane
	q.settledLocked(call)
	if got {
		l.serve(time.Now())
	}
	q.restLocked(l)
}

// serve notes that a call got a slot.
func (l *lane) serve(now time.Time) {
	gap := float64(now.Sub(l.last))
	l.last = now
	if l.served == 0 {
		l.pace = gap
	} else {
		l.pace = l.pace*paceShare + gap*(1-paceShare)
	}
	l.served++
}

// estimate is how long the n-th call of the lane is likely to wait.
func (l *lane) estimate(n int, now time.Time) time.Duration {
	if l.served < paceAfter || l.since.IsZero() {
		return 0
	}
	pace := l.pace
	if l.n > 0 { // else nobody would have taken a slot
		pace = max(pace, float64(now.Sub(l.last))/2) // slower lately
	}
	return time.Duration(pace * float64(n))
}

// boundLocked is how many calls may wait in a lane.
func (q *poolQueue) boundLocked(now time.Time) int {
	if q.bound > 0 && now.Sub(q.sized) < time.Second {
		return q.bound
	}
	q.sized = now
	q.bound = maxWaiting / waitingPerSlot
	if members := q.c.cfg.Members; members != nil {
		slots, edges := 0, 0
		for _, m := range members.Members() {
			switch {
			case m.Pool == poolEdges:
				edges++
			case m.Pool == q.pool && q.hasWhatIsNeeded(&m):
				slots += m.Slots
			}
		}
		edges = max(edges, 1)
		q.bound = min(max((slots+edges-1)/edges*waitingPerSlot, minWaiting), maxWaiting)
	}
	return q.bound
}

// hasWhatIsNeeded reports whether an instance of the pool can serve the calls.
func (q *poolQueue) hasWhatIsNeeded(m *Member) bool {
	return q.manifest == anyManifest || slices.ContainsFunc(m.Manifests, func(h Hash) bool { return h.String() == q.manifest })
}

// offered gives a free slot of an instance to a call that waits. limit is what
// there is room in again, if that is not any slot.
func (q *poolQueue) offered(instance, limit string) {
	now := time.Now()
	q.mu.Lock()
	var call *clientCall
	if l := q.lanes[limit]; l != nil {
		call = q.takeLocked(l, instance, now)
	}
	if call == nil {
		call = q.takeLocked(&q.main, instance, now)
	}
	q.mu.Unlock()
	if call != nil {
		call.repush()
	}
}

// try offers the head of a lane to any instance: nobody has offered anything, and
// offers may be lost.
func (l *lane) try() {
	q := l.q
	q.mu.Lock()
	if l.since.IsZero() || l.probe == nil {
		q.mu.Unlock()
		return
	}
	call := q.takeLocked(l, "", time.Now())
	l.tries++
	l.probe.Reset(backoff(l.tries))
	q.mu.Unlock()
	if call != nil {
		call.repush()
	}
}

// waitedOut ends a call that has waited for too long. One that is out for a try
// is ended by the answer.
func (call *clientCall) waitedOut() {
	q := call.cc.queue
	q.mu.Lock()
	if call.wait == nil || call.wait.seat == nil {
		q.mu.Unlock()
		return
	}
	l := call.wait.lane
	waiting, after := l.n, l.estimate(l.n, time.Now())
	q.settledLocked(call) // from here on nobody can try it any more
	q.restLocked(l)
	q.mu.Unlock()
	call.fail(overloaded(q.pool, waiting, max(after, q.c.cfg.WaitBudget)))
}

// takeOffers gives what instances offer to the calls that wait, until quit is
// closed.
func (c *Client) takeOffers(quit <-chan struct{}) {
	for {
		select {
		case m := <-c.offers:
			var f frame
			if f.decode(m.Data) != nil || f.kind != kindOffer || !validToken(string(f.instance)) {
				continue
			}
			subject, ok := strings.CutPrefix(m.Subject, c.conn.prefix+"cap.")
			if !ok {
				continue
			}
			pool, manifest, _ := strings.Cut(subject, ".")
			if q, ok := c.queues.Load(poolKey{pool, manifest}); ok {
				q.(*poolQueue).offered(string(f.instance), string(f.limit))
			}
		case <-quit:
			return
		}
	}
}
