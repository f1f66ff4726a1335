package bus

import (
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

const (
	// keptCalls and keptFor are what an instance remembers of the calls that it
	// has run: at least so many, and at least for so long unless they are more
	// than mostKept.
	keptCalls = 4096
	keptFor   = 5 * time.Second
	mostKept  = 1 << 18
	// keptFences is how many fenced calls of one caller are remembered one by
	// one.
	keptFences = 4096
	// keptCallers is how many callers are remembered before those are forgotten
	// that have not called for longer than any call lasts.
	keptCallers = 1024
)

// callerKey is one run of a caller. The ids of its calls only grow.
type callerKey struct {
	client string
	run    uint32
}

// callKey is a call in the memory of an instance, without pointers.
type callKey struct {
	caller uint32
	id     uint64
}

// callerMemory is what an instance knows of a caller.
type callerMemory struct {
	key      callerKey
	last     time.Time           // when it last called
	fenced   map[uint64]struct{} // calls that must not begin any more
	fencedTo uint64              // nor does any up to this one
	doneTo   uint64              // up to here calls may have run that are forgotten
}

// callMemory is what an instance remembers of calls, so that it can say of one
// whether it has run here. It costs a call one entry in a list. The lock of the
// server guards it.
type callMemory struct {
	callers map[callerKey]uint32
	known   map[uint32]*callerMemory
	next    uint32
	// recent and older are two generations of the calls that have run.
	recent, older []callKey
	began         time.Time // of recent
}

// caller returns the number of a caller.
func (m *callMemory) caller(key callerKey, now time.Time) uint32 {
	if n, ok := m.callers[key]; ok {
		m.known[n].last = now
		return n
	}
	if m.callers == nil {
		m.callers, m.known = make(map[callerKey]uint32), make(map[uint32]*callerMemory)
	}
	if len(m.callers) >= keptCallers {
		for n, c := range m.known {
			if now.Sub(c.last) > 2*maxTimeout {
				delete(m.known, n)
				delete(m.callers, c.key)
			}
		}
	}
	m.next++
	key.client = strings.Clone(key.client) // a part of a message
	m.callers[key] = m.next
	m.known[m.next] = &callerMemory{key: key, last: now}
	return m.next
}

// ran notes that a call has run and ended.
func (m *callMemory) ran(k callKey) {
	if len(m.recent) >= keptCalls {
		if now := time.Now(); now.Sub(m.began) >= keptFor || len(m.recent) >= mostKept {
			for _, old := range m.older {
				if c := m.known[old.caller]; c != nil {
					c.doneTo = max(c.doneTo, old.id)
				}
			}
			m.recent, m.older = m.older[:0], m.recent
			m.began = now
		}
	}
	m.recent = append(m.recent, k)
}

// fence answers for a call that does not run now, and keeps it from beginning.
func (m *callMemory) fence(k callKey) busv1.Frame_Fence {
	for _, list := range [][]callKey{m.recent, m.older} {
		if slices.Contains(list, k) {
			return busv1.Frame_FENCE_DONE
		}
	}
	c := m.known[k.caller]
	if len(c.fenced) >= keptFences {
		for id := range c.fenced {
			c.fencedTo = max(c.fencedTo, id)
		}
		clear(c.fenced)
	}
	if c.fenced == nil {
		c.fenced = make(map[uint64]struct{})
	}
	c.fenced[k.id] = struct{}{}
	if k.id <= c.doneTo {
		return busv1.Frame_FENCE_UNKNOWN
	}
	return busv1.Frame_FENCE_NEVER
}

// isFenced reports whether a call must not begin.
func (m *callMemory) isFenced(k callKey) bool {
	c := m.known[k.caller]
	if k.id <= c.fencedTo {
		return true
	}
	_, ok := c.fenced[k.id]
	return ok
}

// callOf returns who called, from the reply subject of an OPEN, and the id of the
// call.
func (s *Server) callOf(reply string) (key callerKey, id uint64, ok bool) {
	rest, ok := strings.CutPrefix(reply, s.replyP)
	if !ok {
		return callerKey{}, 0, false
	}
	client, call, ok := strings.Cut(rest, ".")
	if !ok || !validToken(client) {
		return callerKey{}, 0, false
	}
	id, ok = parseCall(call)
	return callerKey{client: client, run: uint32(id >> runShift)}, id, ok
}

// onFence answers a caller that does not know what became of its OPEN, and makes
// sure that the call does not begin here later. It runs on the goroutine that
// reads from the bus.
func (s *Server) onFence(m *nats.Msg) {
	key, id, ok := s.callOf(m.Reply)
	if !ok {
		return
	}
	f := frame{kind: kindFenced, instance: s.id, epoch: s.epoch.Load()}
	s.mu.Lock()
	s.fences++
	k := callKey{caller: s.memory.caller(key, time.Now()), id: id}
	var running *serverCall
	for _, call := range s.calls {
		if call.key() == k {
			running = call
			break
		}
	}
	if running != nil {
		s.wg.Add(1) // it runs, so Run still waits
		s.mu.Unlock()
		f.fence, f.ctl = uint32(busv1.Frame_FENCE_RUNNING), []byte(running.ctl)
		// The answer comes behind what the call has to say so far; and to say
		// it may take a while, which this goroutine has not got.
		go func() {
			defer s.wg.Done()
			running.flush()
			_ = s.publish(m.Reply, "", &f) // lost: the caller asks again
		}()
		return
	}
	f.fence = uint32(s.memory.fence(k))
	s.mu.Unlock()
	_ = s.publish(m.Reply, "", &f)
}
