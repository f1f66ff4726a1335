package edge

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/auth"
	"github.com/millrace/millrace/edge/legacy"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// These tests lose an edge, or the store, at a step that is not seen from outside.

// TestEdgeDiesAroundTheNextRound: the edge that has all answers dies after it said
// that it goes on, before it has, or directly after that.
func TestEdgeDiesAroundTheNextRound(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		t.Run(map[bool]string{false: "before the round", true: "when it runs"}[begun], func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, Config{})
			dying := c.nodes[0]
			claimed := make(chan struct{})
			calls := &heldCalls{CallStore: dying.edge.sessions.Resumption.Calls}
			calls.after = func(kept *millracev1.Continuation) {
				if kept.GetClaimed() {
					close(claimed)
					if !begun {
						<-dying.edge.stopping.Done()
					}
				}
			}
			dying.edge.sessions.Resumption.Calls = calls
			session := c.session("2025-11-25", `{"elicitation":{},"roots":{}}`)
			call := dying.open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask"}}`, session)
			ev := call.next()
			id, _ := request(t, string(ev.Data), "elicitation/create")
			c.nodes[1].respond(session, answerTo(id, "Ala"))
			<-claimed
			if begun {
				eventually(t, "the next round", func() bool { return c.ran.value() == 1 })
			}
			dying.kill()
			resumed := c.nodes[2].resume(session, ev.ID)
			roots, _ := request(t, string(resumed.next().Data), "roots/list")
			c.nodes[1].respond(session, `{"jsonrpc":"2.0","id":"`+roots+`","result":{"roots":[{"uri":"file:///a"}]}}`)
			resumed.message("Ala with 1 roots", `"id":7`)
			resumed.end()
			if n := c.ran.value(); n != 2 { // once in each round that has the answer
				t.Errorf("the step after the first answer ran %d times", n)
			}
		})
	}
}

// TestFrozenEdgeComesBack: an edge stands still before it says that it goes on with
// the answers, so long that another one does. It must not do so as well.
func TestFrozenEdgeComesBack(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	askMany(t, c)
	frozen := c.nodes[0]
	release, waits := make(chan struct{}), make(chan struct{})
	var once sync.Once
	frozen.edge.sessions.Resumption.Calls = &heldCalls{
		CallStore: frozen.edge.sessions.Resumption.Calls,
		before: func(kept *millracev1.Continuation) {
			if kept.GetClaimed() {
				once.Do(func() { close(waits); <-release })
			}
		},
	}
	// To the others it is gone.
	for _, n := range c.nodes[1:] {
		alive := n.edge.sessions.Resumption.Alive
		n.edge.sessions.Resumption.Alive = func(id string) bool { return id != frozen.edge.client.ID() && alive(id) }
	}
	session := c.session("2025-11-25", `{"elicitation":{}}`)
	call := frozen.open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask-many"}}`, session)
	place := ""
	for range 3 {
		ev := call.next()
		id, _ := request(t, string(ev.Data), "elicitation/create")
		place = ev.ID
		c.nodes[1].respond(session, answerTo(id, "Ala"))
	}
	<-waits
	resumed := c.nodes[2].resume(session, place)
	resumed.message("Ala and Ala and Ala", `"id":7`)
	resumed.end()
	close(release)
	call.end()
	frozen.edge.sessions.Wait()
	if n := c.ran.value(); n != 1 {
		t.Errorf("the step after the answers ran %d times", n)
	}
}

// TestDeleteWhileAQuestionWaits: a session ends whose call waits for an answer, on
// an edge that lives or is gone. Nothing goes on.
func TestDeleteWhileAQuestionWaits(t *testing.T) {
	t.Parallel()
	for _, dead := range []bool{false, true} {
		t.Run(map[bool]string{false: "edge lives", true: "edge is gone"}[dead], func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, Config{})
			session := c.session("2025-11-25", `{"elicitation":{}}`)
			call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask"}}`, session)
			ev := call.next()
			id, _ := request(t, string(ev.Data), "elicitation/create")
			resumed := c.nodes[2].resume(session, ev.ID)
			call.end()
			if dead {
				c.nodes[0].kill()
				c.settle()
			}
			if resp := c.nodes[1].do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session); resp.StatusCode != http.StatusNoContent {
				t.Errorf("DELETE: HTTP %d", resp.StatusCode)
			}
			resumed.end()
			for _, n := range c.nodes[1:] {
				if status, _ := n.in(session, answerTo(id, "Ala")); status != http.StatusNotFound {
					t.Errorf("an answer after the end: HTTP %d", status)
				}
			}
			for _, n := range c.nodes {
				n.edge.sessions.Wait()
				if left := n.edge.sessions.Pending.Len() + n.edge.calls.Len(); left != 0 {
					t.Errorf("%d questions or calls are left", left)
				}
			}
			if n := c.ran.value(); n != 0 {
				t.Errorf("the tool went on %d times", n)
			}
		})
	}
}

// brokenStreams are the store of calls and their log, which fail at will.
type brokenStreams struct {
	legacy.CallStore

	log  bus.EventLog
	down atomic.Bool
}

func (b *brokenStreams) PutCall(ctx context.Context, id, stream string, c *millracev1.Continuation, revision uint64) (uint64, error) {
	if b.down.Load() {
		return 0, session.ErrUnavailable
	}
	return b.CallStore.PutCall(ctx, id, stream, c, revision)
}

func (b *brokenStreams) Call(ctx context.Context, id, stream string) (*millracev1.Continuation, uint64, error) {
	if b.down.Load() {
		return nil, 0, session.ErrUnavailable
	}
	return b.CallStore.Call(ctx, id, stream)
}

func (b *brokenStreams) EndCall(id, stream string, c *millracev1.Continuation) error {
	if b.down.Load() {
		return session.ErrUnavailable
	}
	return b.CallStore.EndCall(id, stream, c)
}

func (b *brokenStreams) Stored(ctx context.Context, subject string, yield func(subject string, data []byte) error) error {
	if b.down.Load() {
		return session.ErrUnavailable
	}
	return b.log.Stored(ctx, subject, yield)
}

// breakable puts such a store in front of that of each edge.
func breakable(c *cluster) (set func(down bool)) {
	var all []*brokenStreams
	for _, n := range c.nodes {
		r := n.edge.sessions.Resumption
		b := &brokenStreams{CallStore: r.Calls, log: r.Log}
		available := r.Available
		r.Calls, r.Log = b, b
		r.Available = func() bool { return !b.down.Load() && available() }
		all = append(all, b)
	}
	return func(down bool) {
		for _, b := range all {
			b.down.Store(down)
		}
	}
}

// TestStoreGoesInEveryPhase: the store goes and comes back while calls begin, ask,
// are answered and are followed.
func TestStoreGoesInEveryPhase(t *testing.T) {
	t.Parallel()
	const call = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask"}}`
	t.Run("before the call", func(t *testing.T) {
		t.Parallel()
		c, s := startStepping(t)
		down := breakable(c)
		session := c.session("2025-11-25", `{}`)
		down(true)
		s.step("a", 1)
		es := c.nodes[0].steps(session, "a")
		if id := es.message(progress(1)); id != "" {
			t.Errorf("the event has the id %q, and nobody can come back to it", id)
		}
		down(false)
		s.finish("a")
		es.message("result of a")
		es.end()
	})
	t.Run("before the question", func(t *testing.T) {
		t.Parallel()
		c := startCluster(t, Config{})
		down := breakable(c)
		session := c.session("2025-11-25", `{"elicitation":{},"roots":{}}`)
		es := c.nodes[0].open(http.MethodPost, call, session)
		first, _ := request(t, string(es.next().Data), "elicitation/create")
		down(true) // the first question is stored; its answer and the second are not
		c.nodes[1].respond(session, answerTo(first, "Ala"))
		second, _ := request(t, string(es.next().Data), "roots/list")
		down(false)
		c.nodes[2].respond(session, `{"jsonrpc":"2.0","id":"`+second+`","result":{"roots":[]}}`)
		es.message("Ala with 0 roots")
		es.end()
	})
	t.Run("before the client comes back", func(t *testing.T) {
		t.Parallel()
		c, s := startStepping(t)
		down := breakable(c)
		session := c.session("2025-06-18", `{}`)
		s.step("a", 1)
		es := c.nodes[0].steps(session, "a")
		id := es.message(progress(1))
		down(true)
		es.cancel()
		resumed := c.nodes[1].resume(session, id) // it has begun, and waits
		s.step("a", 1)
		s.finish("a")
		down(false)
		resumed.message(progress(2))
		resumed.message("result of a")
		resumed.end()
	})
	t.Run("while it follows", func(t *testing.T) {
		t.Parallel()
		c, s := startStepping(t)
		down := breakable(c)
		session := c.session("2025-06-18", `{}`)
		s.step("a", 1)
		es := c.nodes[0].steps(session, "a")
		id := es.message(progress(1))
		resumed := c.nodes[1].resume(session, id)
		s.step("a", 1)
		resumed.message(progress(2))
		down(true)
		// The edge that follows misses something, and cannot look it up.
		c.nodes[1].link.blink()
		eventually(t, "the loss", func() bool { return !c.nodes[1].edge.conn.Connected() })
		s.step("a", 1)
		eventually(t, "the connection", c.nodes[1].edge.conn.Connected)
		s.step("a", 1)
		down(false)
		s.finish("a")
		resumed.message(progress(3))
		resumed.message(progress(4))
		resumed.message("result of a")
		resumed.end()
	})
}

// TestWhoComesBack: a stream belongs to its user: with another token of the same
// one it goes on, with that of somebody else there is no such session. What is done
// for it afterwards is done with the scopes of the token that came back.
func TestWhoComesBack(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(file, []byte(tokenFile), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := auth.OpenTokens(auth.TokensConfig{File: file})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "tokens", tokens.Run)
	for name, test := range map[string]struct{ token, says string }{
		"with the same scopes": {alaToken2, `"text":"opened"`},
		"with fewer":           {alaToken, "unknown tool"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, Config{Authenticator: tokens})
			worker.AddTool(c.worker, worker.Tool{Name: "open", Description: "Opens the vault.", Scopes: []string{"vault"}},
				func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
					_, err := call.Ask(worker.ListRoots("where"))
					return "opened", err
				})
			eventually(t, "the tool", func() bool {
				for _, n := range c.nodes {
					if _, ok := n.edge.Catalog().Snapshot().Tool("open"); !ok {
						return false
					}
				}
				return true
			})
			bearer := func(token string) string { return "Authorization: Bearer " + token }
			id := c.nodes[0].as(alaToken2, "2025-11-25", `{"roots":{}}`).session
			call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"open"}}`, id, bearer(alaToken2))
			ev := call.next()
			question, _ := request(t, string(ev.Data), "roots/list")
			c.nodes[0].kill()
			c.settle()
			if foreign := c.nodes[1].open(http.MethodGet, "", id, "Last-Event-ID: "+ev.ID, bearer(olaToken)); foreign.resp.StatusCode != http.StatusNotFound {
				t.Errorf("somebody else comes back: HTTP %d", foreign.resp.StatusCode)
			}
			resumed := c.nodes[2].open(http.MethodGet, "", id, "Last-Event-ID: "+ev.ID, bearer(test.token))
			body(t, c.nodes[1].post(context.Background(), `{"jsonrpc":"2.0","id":"`+question+`","result":{"roots":[]}}`, bearer(test.token), mcp.HeaderSessionID+": "+id))
			resumed.message(test.says, `"id":7`)
			resumed.end()
		})
	}
}

// TestNothingIsLeft: calls are cut and resumed at random; when all have ended,
// nothing of them is left on any edge.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	session := c.session("2025-11-25", `{}`)
	// What the first ones make stays.
	s.step("warm", 1)
	s.finish("warm")
	es := c.nodes[0].steps(session, "warm")
	id := es.message(progress(1))
	es.message("result of warm")
	c.nodes[1].resume(session, id).message("result of warm")
	subscriptions := func() (n int) {
		for _, node := range c.nodes {
			n += node.edge.conn.NATS().NumSubscriptions()
		}
		return n
	}
	before := subscriptions()
	const calls, atOnce = 200, 16
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range calls {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			dice := rand.New(rand.NewPCG(seed, uint64(i)))
			name := fmt.Sprintf("call-%d", i)
			s.step(name, 1)
			stream, place := c.nodes[dice.IntN(3)].steps(session, name), ""
			// until reads as far as the end or what is wanted. On a busy machine an
			// edge may lose a call, and its client comes back as it would.
			until := func(wanted string) (found bool) {
				for range 20 {
					for ev := stream.any(); string(ev.Data) != "end"; ev = stream.any() {
						place = cmp.Or(ev.ID, place)
						if strings.Contains(string(ev.Data), wanted) {
							return true
						}
						if strings.Contains(string(ev.Data), `"id":"`+name+`"`) {
							return false
						}
					}
					if place == "" {
						return false
					}
					stream = c.nodes[dice.IntN(3)].resume(session, place)
				}
				return false
			}
			seen := until(progress(1))
			for range dice.IntN(3) {
				if place == "" {
					break // the store was too slow
				}
				if dice.IntN(2) == 0 {
					stream.cancel()
				}
				stream = c.nodes[dice.IntN(3)].resume(session, place)
			}
			how := dice.IntN(4)
			switch {
			case !seen || how == 0: // its client never comes back
				stream.cancel()
				s.finish(name)
			case how == 1:
				c.nodes[dice.IntN(3)].cancel(session, `{"requestId":"`+name+`"}`)
				<-s.cancelled(name)
				if until("result of") {
					t.Errorf("%s was cancelled and got its result", name)
				}
			default:
				s.finish(name)
				if !until("result of "+name) && place != "" {
					t.Errorf("%s has no result", name)
				}
			}
		})
	}
	all.Wait()
	for i, n := range c.nodes {
		n.edge.sessions.Wait()
		if left := n.edge.calls.Len() + n.edge.sessions.Pending.Len(); left != 0 {
			t.Errorf("edge %d has %d calls or questions", i, left)
		}
	}
	eventually(t, "the subscriptions to end", func() bool { return subscriptions() <= before })
}
