package edge

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/legacy"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// These tests are of faults that TestModel has found, each made to happen.

// silentPeers tell nobody, as an edge does that dies before it gets to that.
type silentPeers struct{ legacy.Peers }

func (silentPeers) Announce(*millracev1.Announcement) error              { return nil }
func (silentPeers) Tell(context.Context, *millracev1.Announcement) error { return nil }

// TestDeleteOnAnEdgeThatDies: the session has ended in the store, and no other edge
// was told. The client sends DELETE again, or the others find it out when the edge
// is gone.
func TestDeleteOnAnEdgeThatDies(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{true, false} {
		t.Run(map[bool]string{true: "sent again", false: "found out"}[again], func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, Config{})
			session := c.session("2025-11-25", `{}`)
			stream := c.nodes[1].listen(session)
			c.nodes[0].edge.sessions.Peers = silentPeers{c.nodes[0].edge.sessions.Peers}
			del := func(n *node, want int) {
				t.Helper()
				resp := n.do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session)
				if text := body(t, resp); resp.StatusCode != want {
					t.Errorf("DELETE: HTTP %d, want %d: %s", resp.StatusCode, want, text)
				}
			}
			del(c.nodes[0], http.StatusNoContent)
			if again {
				del(c.nodes[2], http.StatusNotFound)
			} else {
				c.nodes[0].kill()
			}
			if got := stream.soon(t, "the end of the stream"); got != "end" {
				t.Errorf("on the stream: %s", got)
			}
		})
	}
}

// TestCancelJustAfterTheEdgeDied: the other edges still believe that the one that
// has the call is there.
func TestCancelJustAfterTheEdgeDied(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"cancelled", "deleted"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c, s := startStepping(t)
			session := c.session("2025-11-25", `{}`)
			s.step("a", 1)
			c.nodes[0].steps(session, "a").message(progress(1))
			c.nodes[0].kill()
			if how == "deleted" {
				c.nodes[1].do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session)
			} else {
				c.nodes[1].in(session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}`)
			}
			select {
			case <-s.cancelled("a"):
			case <-time.After(20 * time.Second):
				t.Error("the worker still works")
			}
		})
	}
}

// deafListener cannot make sure that it hears anything.
type deafListener struct{ *bus.Client }

func (deafListener) Sync(context.Context) error { return context.DeadlineExceeded }

// TestSubscribeWhileNATSIsSlow: what cannot be promised now is refused as something
// to repeat.
func TestSubscribeWhileNATSIsSlow(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	n := c.nodes[0]
	n.edge.sessions.Changes = notify.NewHub(n.edge.catalog, deafListener{n.edge.client})
	session := c.session("2025-11-25", `{}`)
	stream := n.open(http.MethodGet, "", session)
	defer stream.cancel()
	want(t, "the answer", n.request(session, mcp.MethodSubscribe, `{"uri":"memo://notes/one"}`), `"reason":"unavailable"`)
}

// slowLog is a log whose readings take too long while it is down.
type slowLog struct {
	bus.EventLog

	down   atomic.Bool
	failed atomic.Int32
}

func (l *slowLog) Stored(ctx context.Context, subject string, yield func(string, []byte) error) error {
	if l.down.Load() {
		l.failed.Add(1)
		return fmt.Errorf("%w: %w", session.ErrUnavailable, context.DeadlineExceeded)
	}
	return l.EventLog.Stored(ctx, subject, yield)
}

// TestUnreadEventsAreNotSilence: edge and worker are gone, and the answer is in the
// log, which cannot be read for a while.
func TestUnreadEventsAreNotSilence(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	n := c.nodes[1]
	log := &slowLog{EventLog: n.edge.sessions.Resumption.Log}
	n.edge.sessions.Resumption.Log = log
	session := c.session("2025-11-25", `{}`)
	s.step("a", 2)
	call := c.nodes[0].steps(session, "a")
	id := call.message(progress(1))
	resumed := n.resume(session, id)
	resumed.message(progress(2))
	c.nodes[0].kill()
	log.down.Store(true)
	n.link.blink() // what is sent now, only the log has heard
	s.finish("a")
	eventually(t, "the answer to be stored", func() (found bool) {
		err := c.nodes[2].store.Stored(context.Background(), "mr.main.e.*.ev."+scopeOf(t, session)+".>", func(_ string, data []byte) error {
			found = found || bytes.Contains(data, []byte("result of a"))
			return nil
		})
		return found && err == nil
	})
	c.stopWorker()
	eventually(t, "the deaths to be seen", func() bool { return len(n.edge.Edges()) == 2 && len(n.edge.Members()) == 0 })
	before := log.failed.Load()
	eventually(t, "the log to be asked", func() bool { return log.failed.Load() > before+4 })
	log.down.Store(false)
	resumed.message("result of a", `"id":"a"`)
	resumed.end()
}

// flakyStore cannot be read while it is down.
type flakyStore struct {
	session.Store

	down  atomic.Bool
	asked atomic.Int32
}

func (s *flakyStore) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	if s.down.Load() {
		s.asked.Add(1)
		return nil, 0, session.ErrUnavailable
	}
	return s.Store.Get(ctx, key)
}

// TestNewsWhileTheStoreIsAway: an edge hears that a session has changed and cannot
// read how. It tries again soon.
func TestNewsWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	n := c.nodes[1]
	store := &flakyStore{Store: n.store}
	n.edge.sessions.Records = session.NewRecords(store, session.RecordsConfig{})
	session := c.session("2025-11-25", `{}`)
	stream := n.listen(session)
	store.down.Store(true)
	want(t, "subscribe", c.nodes[2].request(session, mcp.MethodSubscribe, `{"uri":"memo://notes/one"}`), `"result":{}`)
	eventually(t, "the store to be asked", func() bool { return store.asked.Load() > 0 })
	store.down.Store(false)
	eventually(t, "the stream to follow the resource", func() bool { return n.hub().Topics() == 1 })
	c.worker.ResourceUpdated("memo://notes/one")
	want(t, "the stream", stream.soon(t, "the update"), "memo://notes/one")
}

// awayCalls is a store of calls that is away when it is said.
type awayCalls struct {
	legacy.CallStore

	away  func(c *millracev1.Continuation) bool // nil: a reading
	asked atomic.Int32
}

func (s *awayCalls) PutCall(ctx context.Context, scope, stream string, c *millracev1.Continuation, revision uint64) (uint64, error) {
	if s.away(c) {
		s.asked.Add(1)
		return 0, session.ErrUnavailable
	}
	return s.CallStore.PutCall(ctx, scope, stream, c, revision)
}

func (s *awayCalls) Call(ctx context.Context, scope, stream string) (*millracev1.Continuation, uint64, error) {
	if s.away(nil) {
		s.asked.Add(1)
		return nil, 0, session.ErrUnavailable
	}
	return s.CallStore.Call(ctx, scope, stream)
}

// TestAnswerWhileTheStoreIsAway: an answer can be stored by nobody when it comes, and
// its edge is gone, or the question was not stored when it was asked.
func TestAnswerWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"the answer", "the question"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, Config{})
			askMany(t, c)
			var away atomic.Bool
			if what == "the question" {
				asking := c.nodes[0].edge.sessions.Resumption
				asking.Calls = &awayCalls{CallStore: asking.Calls, away: func(kept *millracev1.Continuation) bool { return kept.GetAsked() != nil }}
			}
			store := &awayCalls{CallStore: c.nodes[1].edge.sessions.Resumption.Calls, away: func(*millracev1.Continuation) bool { return away.Load() }}
			c.nodes[1].edge.sessions.Resumption.Calls = store
			session := c.session("2025-11-25", `{"elicitation":{}}`)
			call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask-many"}}`, session)
			place, ids := "", []string{}
			for range 3 {
				ev := call.next()
				id, _ := request(t, string(ev.Data), "elicitation/create")
				place, ids = ev.ID, append(ids, id)
			}
			c.nodes[0].kill()
			away.Store(what == "the answer")
			for _, id := range ids {
				c.nodes[1].respond(session, answerTo(id, "Ala"))
			}
			away.Store(false)
			resumed := c.nodes[2].resume(session, place)
			resumed.message("Ala and Ala and Ala", `"id":7`)
			resumed.end()
			if n := c.ran.value(); n != 1 {
				t.Errorf("the step after the answers ran %d times", n)
			}
		})
	}
}

// TestQuestionIsStoredBeforeItIsSentAgain: the edge that asked is gone and has not
// stored it, and the one that sends it instead cannot for a while.
func TestQuestionIsStoredBeforeItIsSentAgain(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	askMany(t, c)
	asking := c.nodes[0].edge.sessions.Resumption
	asking.Calls = &awayCalls{CallStore: asking.Calls, away: func(kept *millracev1.Continuation) bool { return kept.GetAsked() != nil }}
	var reads atomic.Int32
	resuming := c.nodes[2].edge.sessions.Resumption
	resuming.Calls = &awayCalls{CallStore: resuming.Calls, away: func(kept *millracev1.Continuation) bool {
		n := reads.Add(1) // the first one is of who comes back
		return kept == nil && 1 < n && n < 10
	}}
	session := c.session("2025-11-25", `{"elicitation":{}}`)
	call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask-many"}}`, session)
	ev := call.next()
	c.nodes[0].kill()
	parts := strings.Split(ev.ID, ".")
	resumed := c.nodes[2].resume(session, strings.Join(append(parts[:3], "0", "0"), "."))
	for range 3 {
		id, _ := request(t, string(resumed.next().Data), "elicitation/create")
		if kept, _, err := c.nodes[1].store.Call(context.Background(), scopeOf(t, session), parts[0]); err != nil || kept.GetAsked() == nil {
			t.Errorf("sent and not stored: %v", err)
		}
		c.nodes[1].respond(session, answerTo(id, "Ala"))
	}
	resumed.message("Ala and Ala and Ala", `"id":7`)
	resumed.end()
}

// TestAnswerSentAgainRunsNothingTwice: the edge that asked could not store that it
// goes on, has done so, and is gone; the client, which was not told that its answer
// was taken, sends it again.
func TestAnswerSentAgainRunsNothingTwice(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	asking := c.nodes[0].edge.sessions.Resumption
	asking.Calls = &awayCalls{CallStore: asking.Calls, away: func(kept *millracev1.Continuation) bool { return kept.GetClaimed() || kept.GetRound() > 1 }}
	session := c.session("2025-11-25", `{"elicitation":{},"roots":{}}`)
	call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask"}}`, session)
	ev := call.next()
	id, _ := request(t, string(ev.Data), "elicitation/create")
	c.nodes[1].respond(session, answerTo(id, "Ala"))
	roots, _ := request(t, string(call.next().Data), "roots/list")
	c.nodes[0].kill()
	c.nodes[1].respond(session, answerTo(id, "Ala"))
	c.nodes[1].edge.sessions.Wait() // whatever it has begun
	if n := c.ran.value(); n != 1 {
		t.Errorf("the step after the answer ran %d times", n)
	}
	resumed := c.nodes[2].resume(session, ev.ID)
	if again, _ := request(t, string(resumed.next().Data), "roots/list"); again != roots {
		t.Errorf("the question has the id %q now, it was %q", again, roots)
	}
	c.nodes[1].respond(session, `{"jsonrpc":"2.0","id":"`+roots+`","result":{"roots":[{"uri":"file:///a"}]}}`)
	resumed.message("Ala with 1 roots", `"id":7`)
	resumed.end()
}
