package bus

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

const (
	// defaultEventMemory is how much of its events an instance keeps by default,
	// and keptEvent what an event costs of it besides its bytes.
	defaultEventMemory = 8 << 20
	keptEvent          = 128
	// keptRoom is how many bytes the flags of an event take at most.
	keptRoom = 4
	// eventsKept is how long it keeps them: whoever follows asks within seconds.
	eventsKept = time.Minute
)

// eventMemory is what an instance still has of the events that it has published,
// for those who missed them: a stream of JetStream without a leader takes nothing
// in, and nobody tells who publishes. An event costs a copy and an entry in two
// lists. It may be used concurrently.
type eventMemory struct {
	limit int

	mu      sync.Mutex
	size    int
	streams map[string][]*keptRound
	// queue has a round for each of its events, the oldest event first.
	queue []*keptRound
}

// keptRound is a round whose events are kept; the lock of the memory guards it. It
// is forgotten with its last event once it has ended.
type keptRound struct {
	stream  string // its session and its name
	round   uint32
	subject string
	events  []keptBytes // oldest first
	ended   bool
}

// keptBytes is an event as it was published.
type keptBytes struct {
	number uint64
	at     time.Time
	b      []byte
}

// newKeptRound returns a round without events; subject is the valid one of an
// OPEN.
func newKeptRound(subject string) *keptRound {
	_, rest, _ := strings.Cut(subject, "."+tokenEvents)
	i := strings.LastIndexByte(rest, '.')
	round, err := strconv.ParseUint(rest[i+1:], 36, 32)
	if err != nil {
		return nil // whoever follows does not read it either
	}
	return &keptRound{stream: rest[:i], round: uint32(round), subject: subject}
}

// add keeps an event that was published, and lets go of the oldest ones.
func (m *eventMemory) add(r *keptRound, f *frame, published []byte) {
	// Of a field that comes twice the last one counts.
	b := make([]byte, 0, len(published)+keptRoom)
	b = appendVarint(append(b, published...), fieldFlags, uint64(f.flags|FlagAgain))
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(r.events) == 0 {
		if m.streams == nil {
			m.streams = make(map[string][]*keptRound)
		}
		m.streams[r.stream] = append(m.streams[r.stream], r)
	}
	r.events = append(r.events, keptBytes{number: f.seq, at: now, b: b})
	r.ended = f.kind == kindEnd
	m.queue = append(m.queue, r)
	m.size += len(b) + keptEvent
	for m.size > m.limit {
		m.dropLocked()
	}
	m.expireLocked(now)
}

// expire lets go of what is old.
func (m *eventMemory) expire(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked(now)
}

func (m *eventMemory) expireLocked(now time.Time) {
	for len(m.queue) > 0 && now.Sub(m.queue[0].events[0].at) > eventsKept {
		m.dropLocked()
	}
}

// dropLocked lets go of the oldest event.
func (m *eventMemory) dropLocked() {
	r := m.queue[0]
	m.queue[0] = nil
	m.queue = m.queue[1:]
	m.size -= len(r.events[0].b) + keptEvent
	r.events[0] = keptBytes{}
	if r.events = r.events[1:]; len(r.events) > 0 {
		return
	}
	r.events = nil
	rounds := m.streams[r.stream]
	for i := range rounds {
		if rounds[i] == r {
			rounds = append(rounds[:i:i], rounds[i+1:]...)
			break
		}
	}
	if m.streams[r.stream] = rounds; len(rounds) == 0 {
		delete(m.streams, r.stream)
	}
}

// missed is an event that is to be published again.
type missed struct {
	subject string
	b       []byte
}

// find returns what there is of a stream, and those events that are asked for.
func (m *eventMemory) find(stream string, from, until place) (rounds []*busv1.RoundEvents, events []missed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.streams[stream] {
		if r.round < from.round {
			continue
		}
		known := &busv1.RoundEvents{Round: r.round, Ended: r.ended}
		for _, e := range r.events {
			at := place{r.round, e.number}
			if at.compare(from) < 0 || until != (place{}) && at.compare(until) >= 0 {
				continue
			}
			known.Repeated++
			events = append(events, missed{r.subject, e.b})
		}
		rounds = append(rounds, known)
	}
	return rounds, events
}

// keep remembers an event that was published. sendMu is held.
func (c *serverCall) keep(f *frame, published []byte) {
	e := c.events
	if e.kept == nil && !e.unkeepable {
		e.kept = newKeptRound(e.subject)
		e.unkeepable = e.kept == nil
	}
	if e.kept != nil {
		c.s.events.add(e.kept, f, published)
	}
}

// onEvents answers whoever follows a call and has heard nothing for a while, or
// misses something: it publishes again what is missing and still there, to the
// events themselves, so that it is stored if it can be now.
func (s *Server) onEvents(m *nats.Msg) {
	var req busv1.EventsRequest
	if !strings.HasPrefix(m.Reply, s.replyP) || proto.Unmarshal(m.Data, &req) != nil {
		return
	}
	stream := req.GetSession() + "." + req.GetStream()
	running := map[uint32]bool{}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.wg.Add(1)
	for _, call := range s.calls {
		if call.events != nil && strings.Contains(call.events.subject, "."+tokenEvents+stream+".") {
			if r := newKeptRound(call.events.subject); r != nil && r.round >= req.GetRound() {
				running[r.round] = true
			}
		}
	}
	s.mu.Unlock()
	// To publish may take a while, which the goroutine that reads has not got.
	go func() {
		defer s.wg.Done()
		resp := &busv1.EventsResponse{Instance: s.cfg.ID}
		// After a look at what runs: what has ended meanwhile is kept.
		rounds, events := s.events.find(stream, place{req.GetRound(), req.GetNumber()}, place{req.GetUntilRound(), req.GetUntil()})
		for _, r := range rounds {
			// The last of what it had to say is not kept, if it neither runs
			// nor has an end.
			if r.GetEnded() || running[r.GetRound()] || r.GetRepeated() > 0 {
				resp.Rounds = append(resp.Rounds, r)
			}
			delete(running, r.GetRound())
		}
		for round := range running {
			resp.Rounds = append(resp.Rounds, &busv1.RoundEvents{Round: round})
		}
		if len(events) > 0 {
			s.logger.Debug("events are published again", "stream", req.GetStream(), "events", len(events))
		}
		for _, e := range events {
			_ = s.conn.publish(e.subject, "", e.b) // lost: asked again
		}
		if b, err := proto.Marshal(resp); err == nil {
			_ = s.conn.publish(m.Reply, "", b) // the same
		}
	}()
}
