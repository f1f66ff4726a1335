package legacy

import (
	"context"
	"time"

	"github.com/millrace/millrace/proto/bus"
)

const (
	// endLook is when it is first looked whether the end of a round is stored, and
	// endLooks how often, each time twice as long after the one before: half a
	// minute in all, in which a stream of JetStream finds a leader.
	endLook, endLooks = time.Second, 5
	// endWait bounds one look.
	endWait = 5 * time.Second
	// maxEnds is how many ends are looked for at a time.
	maxEnds = 1000
)

// endEvents tells whoever follows a call how this edge has ended a round of it, and
// sees to it that those who come later learn it too: what is published while its
// stream has no leader is not stored. Without a connection nobody follows.
func (e *Era) endEvents(key bus.EventsKey, status error) {
	_ = e.Resumption.Bus.EndEvents(key, status)
	if e.ends.Add(1) > maxEnds {
		e.ends.Add(-1)
		return
	}
	e.running.Go(func() {
		defer e.ends.Add(-1)
		e.storeEnd(key, status)
	})
}

// storeEnd publishes an end again until it is found in the log, or this edge
// stops.
func (e *Era) storeEnd(key bus.EventsKey, status error) {
	for i := range endLooks {
		timer := time.NewTimer(endLook << i)
		select {
		case <-timer.C:
		case <-e.Draining.Done():
			timer.Stop()
			return
		case <-e.Stopping.Done():
			timer.Stop()
			return
		}
		ctx, cancel := context.WithTimeout(e.Stopping, endWait)
		ended, err := e.Resumption.Bus.EventsEnded(ctx, e.Resumption.Log, key)
		cancel()
		switch {
		case ended:
			return
		case err == nil:
			_ = e.Resumption.Bus.EndEvents(key, status) // lost: it is looked for again
		}
	}
}
