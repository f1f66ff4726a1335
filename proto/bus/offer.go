package bus

import (
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// wantedFor is how long an instance believes that somebody waits for a slot
	// after it was last told, and refusedFor how long after it had to refuse a
	// call: whoever waits then says so soon.
	wantedFor  = 2*wantEvery + 100*time.Millisecond
	refusedFor = 50 * time.Millisecond
)

// demand is what an instance believes of those who wait for a slot and need one of
// the manifests that it has, or any.
type demand struct {
	manifest string       // anyManifest or the hash
	until    atomic.Int64 // when the belief ends, since the start of the instance
}

// demandFor returns the demand for a manifest that this instance has; nil for any
// other.
func (s *Server) demandFor(manifest string) *demand {
	if manifest == anyManifest {
		return &s.demand
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.manifests {
		if d := s.manifests[i].demand; d.manifest == manifest {
			return d
		}
	}
	return nil
}

// onWant: somebody waits for a free slot.
func (s *Server) onWant(m *nats.Msg) {
	d := s.demandFor(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	if d == nil {
		return
	}
	s.wantedNow(d, wantedFor)
	if s.used.Load() < int32(s.cfg.Slots) {
		s.offerTo(d, "")
	}
}

// wantedNow notes that somebody waits, for a while.
func (s *Server) wantedNow(d *demand, howLong time.Duration) {
	until := int64(time.Since(s.start) + howLong)
	for _, at := range []*atomic.Int64{&d.until, &s.wanted} {
		if at.Load() < until { // a lost race costs the offers of a moment
			at.Store(until)
		}
	}
}

// isWanted reports whether somebody is likely to wait. While nobody does, it
// costs a call nothing but the look.
func (s *Server) isWanted() bool {
	until := s.wanted.Load()
	if until == 0 {
		return false
	}
	if int64(time.Since(s.start)) < until {
		return true
	}
	s.wanted.CompareAndSwap(until, 0)
	return false
}

// offer tells those who wait that there is a free slot. It is kept for nobody:
// whoever comes first gets it. While a pool has several versions, some may wait for
// one of them alone; then each sort is told of the slot, in any order, as those of
// one may have found a slot elsewhere by now.
func (s *Server) offer(limit string) {
	now := int64(time.Since(s.start))
	var wanted [keptManifests + 2]*demand // one more manifest while they change
	n := 0
	note := func(d *demand) {
		if d.until.Load() > now && n < len(wanted) {
			wanted[n] = d
			n++
		}
	}
	note(&s.demand)
	s.mu.Lock()
	for i := range s.manifests {
		note(s.manifests[i].demand)
	}
	s.mu.Unlock()
	if n == 0 {
		return
	}
	first := rand.IntN(n)
	for i := range n {
		s.offerTo(wanted[(first+i)%n], limit)
	}
}

// offerTo tells one of those who wait for the same.
func (s *Server) offerTo(d *demand, limit string) {
	if s.closing.Load() {
		return
	}
	s.offers.Add(1)
	_ = s.publish(s.conn.offerSubject(s.cfg.Pool, d.manifest), "", &frame{kind: kindOffer, instance: s.id, limit: []byte(limit)}) // lost: they try
}

// offerMore offers the next free slot when one that was offered has been taken.
func (s *Server) offerMore() {
	if s.isWanted() && s.used.Load() < int32(s.cfg.Slots) {
		s.offer("")
	}
}

// stalledAfter is how long a handler may take to notice the end of its context
// before its slot counts as stalled.
const stalledAfter = time.Second

// ServerStats are numbers of an instance. Those that count do so from its start.
type ServerStats struct {
	// Slots is how many calls may run at a time, Used how many do.
	Slots, Used int
	// Stalled is how many of Used are handlers that go on although the context
	// of their call ended more than a second ago: their deadline has passed or
	// the caller has left. Their slots come back when they return.
	Stalled int
	// Refused counts BUSY, Offers the free slots that were offered, and Fences
	// the questions of callers that did not know what became of a call.
	Refused, Offers, Fences uint64
}

// Stats returns the numbers of now. It looks at each call that runs.
func (s *Server) Stats() ServerStats {
	s.mu.Lock()
	used, fences := len(s.calls), s.fences
	s.mu.Unlock()
	return ServerStats{
		Slots: s.cfg.Slots, Used: used, Stalled: s.stalledCalls(time.Now()),
		Refused: s.busies.Load(), Offers: s.offers.Load(), Fences: fences,
	}
}

// stalledCalls counts the calls that should have ended.
func (s *Server) stalledCalls(now time.Time) int {
	n := 0
	for _, call := range s.snapshot() {
		if call.stalled(now) {
			n++
		}
	}
	return n
}

// stalled reports whether the handler has not noticed the end of its context for
// too long. When that ended is known for a deadline only; any other end is
// noticed when somebody looks, which every heartbeat does.
func (c *serverCall) stalled(now time.Time) bool {
	if c.ctx.Err() == nil {
		return false
	}
	if deadline, ok := c.ctx.Deadline(); ok && now.Sub(deadline) > stalledAfter {
		return true
	}
	since := uint32(now.Sub(c.s.start)/stalledAfter) + 1
	c.stalledAt.CompareAndSwap(0, since)
	return since-c.stalledAt.Load() > 1
}
