package edge

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/sse"
	"github.com/millrace/millrace/proto/bus"
)

// These tests are about the streams for messages that belong to no request, over
// three edges.

// updated is the notification that a resource was updated.
func updated(uri string) string { return strings.Replace(oneUpdated, "memo://notes/one", uri, 1) }

// listenFrom opens the GET stream of a session at an event, and returns its
// events.
func (s *system) listenFrom(session, event string) <-chan sse.Event {
	s.t.Helper()
	headers := []string{mcp.HeaderSessionID + ": " + session, "Accept: text/event-stream"}
	if event != "" {
		headers = append(headers, "Last-Event-ID: "+event)
	}
	resp := s.do(context.Background(), http.MethodGet, "", headers...)
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("GET: %d %s", resp.StatusCode, body(s.t, resp))
	}
	events := make(chan sse.Event, 100) // more than any test has
	go func() {
		defer close(events)
		defer resp.Body.Close()
		for r := sse.NewReader(resp.Body, 1<<20); ; {
			ev, err := r.Next()
			if err != nil {
				return
			}
			events <- ev
		}
	}()
	return events
}

func TestStreamsOnSeveralEdges(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	session := c.session("2025-06-18", `{}`)
	want(t, "subscribe", c.nodes[2].request(session, "resources/subscribe", `{"uri":"memo://notes/one"}`), `"result":{}`)
	var open *callStream
	// Each edge in turn, also the same one twice.
	for i, at := range []int{0, 1, 1, 2, 0} {
		older := open
		open = c.nodes[at].listen(session)
		if older != nil {
			if got := older.soon(t, "the end of the older stream"); got != "end" {
				t.Errorf("stream %d: the older one got %s", i, got)
			}
		}
		// A message of each kind is on the newest stream, once.
		c.worker.ResourceUpdated("memo://notes/one")
		if got := open.soon(t, "an update"); got != oneUpdated {
			t.Errorf("stream %d got %s", i, got)
		}
	}
	c.addTool("news")
	c.settle()
	if got := open.soon(t, "news"); got != toolsChanged {
		t.Errorf("the stream got %s", got)
	}
	// What comes next is what is sent next, so nothing came twice.
	want(t, "subscribe", c.nodes[1].request(session, "resources/subscribe", `{"uri":"term://known"}`), `"result":{}`)
	c.worker.ResourceUpdated("term://known")
	if got := open.soon(t, "the other update"); got != updated("term://known") {
		t.Errorf("the stream got %s", got)
	}
	want(t, "unsubscribe", c.nodes[2].request(session, "resources/unsubscribe", `{"uri":"memo://notes/one"}`), `"result":{}`)
	c.worker.ResourceUpdated("memo://notes/one")
	c.worker.ResourceUpdated("term://known")
	if got := open.soon(t, "the other update"); got != updated("term://known") {
		t.Errorf("after unsubscribing the stream got %s", got)
	}
}

// TestHalfOpenStream is about a client that has another stream, while the edge
// still believes in the one before: its reader is gone, and nothing says so.
func TestHalfOpenStream(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	session := c.session("2025-11-25", `{}`)
	resp := c.nodes[0].do(context.Background(), http.MethodGet, "", mcp.HeaderSessionID+": "+session, "Accept: text/event-stream")
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET: %d", resp.StatusCode)
	}
	stream := c.nodes[1].listen(session) // nobody reads the first one any more
	want(t, "subscribe", c.nodes[0].request(session, "resources/subscribe", `{"uri":"memo://notes/one"}`), `"result":{}`)
	eventually(t, "the half open stream to end", func() bool { return c.nodes[0].hub().Topics() == 0 })
	c.addTool("news")
	c.worker.ResourceUpdated("memo://notes/one")
	got := []string{stream.soon(t, "a change"), stream.soon(t, "a change")}
	wantMessages(t, "the stream that is read", got, toolsChanged, oneUpdated)
}

// TestStreamsOpenedAtOnce: whatever the order in which edges hear of each other,
// one stream stays.
func TestStreamsOpenedAtOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	for range 20 {
		session := c.session("2025-11-25", `{}`)
		var opening sync.WaitGroup
		streams := make([]*callStream, clusterSize)
		for i, n := range c.nodes {
			opening.Go(func() { streams[i] = n.listen(session) })
		}
		opening.Wait()
		want(t, "subscribe", c.request(session, "resources/subscribe", `{"uri":"memo://notes/one"}`), `"result":{}`)
		eventually(t, "one stream to be left", func() bool {
			following := 0
			for _, n := range c.nodes {
				following += n.hub().Topics()
			}
			return following == 1
		})
		c.do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session).Body.Close()
		for _, s := range streams {
			if got := s.soon(t, "the end"); got != "end" {
				t.Errorf("a stream got %s", got)
			}
		}
	}
}

func TestStreamsComeBack(t *testing.T) {
	t.Parallel()
	for date, prime := range map[string]bool{"2024-11-05": false, "2025-03-26": false, "2025-06-18": false, "2025-11-25": true} {
		t.Run(date, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, Config{})
			session := c.session(date, `{}`)
			want(t, "subscribe", c.request(session, "resources/subscribe", `{"uri":"memo://notes/one"}`), `"result":{}`)
			next := func(events <-chan sse.Event) sse.Event {
				t.Helper()
				ev, ok := <-events
				if !ok {
					t.Fatal("the stream has ended")
				}
				return ev
			}
			seen := map[string]bool{}
			events := c.nodes[0].listenFrom(session, "")
			if prime {
				if first := next(events); len(first.Data) > 0 || first.ID == "" {
					t.Errorf("the first event is %+v", first)
				}
			}
			c.addTool("first")
			last := next(events)
			if string(last.Data) != toolsChanged || (last.ID != "") != (date != "2024-11-05") {
				t.Errorf("the event of a change is %+v", last)
			}
			seen[last.ID] = true
			if last.ID == "" {
				return
			}
			c.settle()

			// Nothing has changed: all that may have been missed is updates.
			events = c.nodes[1].listenFrom(session, last.ID)
			if prime {
				next(events)
			}
			again := next(events)
			if string(again.Data) != oneUpdated || seen[again.ID] {
				t.Errorf("after coming back: %+v", again)
			}
			// Lists change while nobody listens.
			c.worker.RemoveResource("memo://notes/one")
			c.addTool("second")
			eventually(t, "the change", func() bool {
				_, ok := c.nodes[2].edge.Catalog().Snapshot().Tool("second")
				_, _, known := c.nodes[2].edge.Catalog().Snapshot().Resource("memo://notes/one")
				return ok && !known
			})
			events = c.nodes[2].listenFrom(session, again.ID)
			if prime {
				next(events)
			}
			var got []string
			for range 3 {
				ev := next(events)
				if ev.ID == "" || seen[ev.ID] {
					t.Errorf("the id of %+v", ev)
				}
				seen[ev.ID] = true
				got = append(got, string(ev.Data))
			}
			wantMessages(t, "what was missed", got, toolsChanged, strings.Replace(toolsChanged, "tools", "resources", 1), oneUpdated)
		})
	}
}

// TestSubscribersCostOnePublish follows one resource ten thousand times on each
// edge.
func TestSubscribersCostOnePublish(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	const subscribers = 10_000
	var all [][]*notify.Subscription
	for _, n := range c.nodes {
		subscriptions := make([]*notify.Subscription, subscribers)
		for i := range subscriptions {
			subscriptions[i] = n.hub().Open(nil)
			if err := subscriptions[i].Set([]string{"memo://notes/one"}, false); err != nil {
				t.Fatal(err)
			}
			defer subscriptions[i].Close()
		}
		if err := subscriptions[0].Sync(context.Background(), false); err != nil {
			t.Fatal(err)
		}
		all = append(all, subscriptions)
		if topics := n.hub().Topics(); topics != 1 {
			t.Errorf("%d subscribers listen %d times", subscribers, topics)
		}
	}
	var published atomic.Int32
	spy := bus.NewClient(c.conn("spy"), bus.ClientConfig{})
	stop, err := spy.Listen(bus.TopicResourceUpdated, "memo://notes/one", func() { published.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := spy.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	c.worker.ResourceUpdated("memo://notes/one")
	for _, subscriptions := range all {
		for i, s := range subscriptions {
			ctx, cancel := context.WithCancel(context.Background())
			updates := 0
			// It ends with its context, which is no error.
			_ = s.Run(ctx, func(notify.Event) error {
				updates++
				cancel()
				return nil
			})
			cancel()
			if updates != 1 {
				t.Fatalf("subscriber %d was told %d times", i, updates)
			}
		}
	}
	if n := published.Load(); n != 1 {
		t.Errorf("the update was published %d times", n)
	}
}
