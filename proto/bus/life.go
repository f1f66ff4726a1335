package bus

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"
)

// maxSigns bounds the instances that are remembered.
const maxSigns = 4096

// lifeSigns counts the frames of each instance. Only the goroutine that reads
// frames changes the map, so it reads it without the lock.
type lifeSigns struct {
	mu   sync.Mutex
	from map[string]*lifeSign
}

// lifeSign is how many frames an instance has sent to this client.
type lifeSign struct {
	frames atomic.Uint64
	purged uint64 // how many they were when the map was last purged
}

// sign notes a frame.
func (l *lifeSign) sign() { l.frames.Add(1) }

// of returns the sign of an instance that has sent a frame.
func (s *lifeSigns) of(instance []byte) *lifeSign {
	if l := s.from[string(instance)]; l != nil {
		return l
	}
	l := &lifeSign{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from == nil {
		s.from = make(map[string]*lifeSign)
	}
	if len(s.from) >= maxSigns {
		for id, old := range s.from {
			if n := old.frames.Load(); n == old.purged {
				delete(s.from, id) // it has said nothing since the last time
			} else {
				old.purged = n
			}
		}
	}
	s.from[string(instance)] = l
	return l
}

// Heard returns how many frames of calls the instance has sent to this client:
// whoever sends is alive. It is made for [WatcherConfig].
func (c *Client) Heard(instance string) uint64 {
	c.signs.mu.Lock()
	defer c.signs.mu.Unlock()
	if l := c.signs.from[instance]; l != nil {
		return l.frames.Load()
	}
	return 0
}

// mark is something to be done once everything has been read that the NATS
// server had for this client when it was set.
type mark struct {
	n  uint64
	do func()
}

// whenRead calls f on the goroutine that reads frames, once it has read what is
// on the way here. A message to ourselves arrives behind that. Without a
// connection nothing is on the way, and f is called at once.
func (c *Client) whenRead(f func()) {
	c.mu.Lock()
	c.marked++
	n := c.marked
	c.marks = append(c.marks, mark{n, f})
	c.mu.Unlock()
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	if err := c.conn.nc.Publish(c.prefix+tokenMark, b[:]); err != nil {
		c.reached(n)
	}
}

// reached does what the marks up to n wait for. Marks before n whose messages
// were lost are among them.
func (c *Client) reached(n uint64) {
	c.mu.Lock()
	i := 0
	for i < len(c.marks) && c.marks[i].n <= n {
		i++
	}
	due := c.marks[:i:i]
	c.marks = c.marks[i:]
	c.mu.Unlock()
	for _, m := range due {
		m.do()
	}
}

// clock is the time that this process was able to use: what it stood still
// (stopped, swapped out, starved) is taken out. The sweep sets it.
type clock struct {
	last time.Time     // of the sweep
	lost time.Duration // in all
}

// sweep is called every clientSweep, or as late as this process makes it.
func (k *clock) sweep(now time.Time) {
	if gap := now.Sub(k.last); gap > 2*clientSweep {
		k.lost += gap - clientSweep
	}
	k.last = now
}
