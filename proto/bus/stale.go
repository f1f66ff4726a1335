package bus

import (
	"context"
	"time"
)

// tickEvery is how often an instance notes that it is alive.
const tickEvery = 250 * time.Millisecond

// staleness bounds how long a message has waited in the queue of a
// subscription. Messages carry no time of arrival and no wall clock is
// trusted, so it marks the end of the queue at a known time: what is read
// after the mark came later than that. One goroutine uses it.
type staleness struct {
	idle  bool      // the queue was empty after the last message
	left  int       // messages before the mark
	floor time.Time // no earlier did the current message arrive
	mark  time.Time // when the mark was set
}

func (s *staleness) init(now time.Time) { s.idle, s.floor, s.mark = true, now, now }

// begin returns an upper bound of the age of the message read now.
func (s *staleness) begin(now time.Time) time.Duration {
	if s.idle {
		// The reader slept until this message came.
		s.floor, s.mark, s.left = now, now, 0
	} else if s.left > 0 {
		s.left--
	}
	return now.Sub(s.floor)
}

// end notes how many messages wait after the current one was handled.
func (s *staleness) end(now func() time.Time, pending int) {
	s.idle = pending == 0
	if s.idle || s.left > 0 {
		return
	}
	s.floor, s.mark, s.left = s.mark, now(), pending
}

// tick notes that this process runs. After a long pause (stopped, swapped out,
// starved) whatever waited in sockets meanwhile may be stale; a round trip
// through the NATS server shows that it has been read.
func (r *serverRun) tick(ctx context.Context, now time.Time) {
	s := r.s
	since := now.Sub(s.start)
	if pause := since - time.Duration(s.lastTick.Load()); pause > 2*tickEvery {
		s.stalled.Store(max(s.stalled.Load(), int64(pause)))
	}
	s.lastTick.Store(int64(since))
	s.events.expire(now)
	if s.stalled.Load() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tickEvery)
	defer cancel()
	if s.conn.nc.FlushWithContext(ctx) == nil {
		s.stalled.Store(0)
	}
}

// stalledFor is how long this process stood still before it read what it reads
// now.
func (s *Server) stalledFor(now time.Time) time.Duration {
	pause := now.Sub(s.start) - time.Duration(s.lastTick.Load())
	if pause <= 2*tickEvery {
		pause = 0
	}
	return max(pause, time.Duration(s.stalled.Load()))
}
