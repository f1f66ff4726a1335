package bus

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

// drain ends the instance.
func (r *serverRun) drain() error {
	s := r.s
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.closing.Store(true)
	r.beat(busv1.Heartbeat_STATE_DRAINING)

	notice := time.NewTimer(min(drainNotice, s.cfg.Grace))
	defer notice.Stop()
	<-notice.C // a loss of the connection meanwhile is read below
	// Drain delivers what has arrived already, so everything gets its BUSY.
	s.conn.drain(append(s.callSubs(), r.pool)...)
	s.mu.Lock()
	s.closed = true // no Add after Wait
	s.mu.Unlock()
	ended := make(chan struct{}) // closed by the goroutine below
	go func() {
		s.wg.Wait()
		close(ended)
	}()
	return r.awaitCalls(ended)
}

// awaitCalls waits until all calls have ended and their callers have been told, or
// the time for that is over. ended is closed when all calls have ended.
func (r *serverRun) awaitCalls(ended <-chan struct{}) error {
	s := r.s
	limit := time.NewTimer(s.cfg.Grace)
	defer limit.Stop()
	beat := time.NewTicker(heartbeatEvery)
	defer beat.Stop()
	idle, dead, over := false, s.conn.dead, false
	for {
		select {
		case <-ended:
			idle, ended = true, nil
			if s.conn.Connected() {
				r.sendUnsent() // those that came behind the news of the connection
			}
		case <-r.down:
			r.lose()
		case <-r.up:
			r.restored()
			r.beat(busv1.Heartbeat_STATE_DRAINING)
		case <-dead:
			r.lose()
			s.takeUnsent() // nobody can be told any more
			dead = nil
		case <-beat.C:
			r.beat(busv1.Heartbeat_STATE_DRAINING)
		case <-r.hello:
			r.beat(busv1.Heartbeat_STATE_DRAINING)
		case <-limit.C:
			if idle { // and nobody who is owed an END can be told
				r.sayGone()
				return nil
			}
			if over {
				left := len(s.snapshot())
				r.sayGone()
				return fmt.Errorf("bus: %d handlers of pool %s ignore the end of their context", left, s.cfg.Pool)
			}
			over = true
			for _, call := range s.snapshot() {
				call.abort(failure(codes.Unavailable, ReasonDraining, "the instance stops"))
			}
			limit.Reset(stuckWait)
		}
		if idle && (over || dead == nil || !s.owesEnds()) {
			r.sayGone()
			return nil
		}
	}
}

// owesEnds reports whether callers wait for an END that found no connection.
func (s *Server) owesEnds() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unsent) > 0
}

func (r *serverRun) sayGone() {
	r.beat(busv1.Heartbeat_STATE_GONE)
	ctx, cancel := context.WithTimeout(context.Background(), stuckWait)
	defer cancel()
	_ = r.s.conn.nc.FlushWithContext(ctx) // best effort: the watchers would find out
}
