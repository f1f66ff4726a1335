package edge

import (
	"context"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"
)

// purge removes what a stream of JetStream has of a subject, once that is at least
// so many messages.
func (c *cluster) purge(stream, subject string, least uint64) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	js, err := natsjs.New(c.conn("forgetful").NATS())
	if err != nil {
		c.t.Fatal(err)
	}
	stored, err := js.Stream(ctx, stream)
	if err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "the messages of "+subject, func() bool {
		info, err := stored.Info(ctx, natsjs.WithSubjectFilter(subject))
		if err != nil {
			return false
		}
		n := uint64(0)
		for _, of := range info.State.Subjects {
			n += of
		}
		return n >= least
	})
	if err := stored.Purge(ctx, natsjs.WithPurgeSubject(subject)); err != nil {
		c.t.Fatal(err)
	}
}

// TestEventsThatNobodyStored: what a call sends while the events have no leader is
// not stored. A client that comes back gets it from the worker, and the next one
// that comes from the log again.
func TestEventsThatNobodyStored(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	session := c.session("2025-11-25", `{}`)
	s.step("a", 1)
	call := c.nodes[0].steps(session, "a")
	id := call.message(progress(1))
	c.nodes[0].kill()
	s.step("a", 2)
	s.finish("a")
	// Three of progress, the result and the end.
	c.purge("mr_main_events", "mr.main.e.*.ev.>", 5)
	for _, n := range c.nodes[1:] {
		resumed := n.resume(session, id)
		resumed.message(progress(2))
		resumed.message(progress(3))
		resumed.message("result of a", `"id":"a"`)
		resumed.end()
	}
	if n := s.runs("a"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}
