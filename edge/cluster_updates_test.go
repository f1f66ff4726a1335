package edge

import (
	"context"
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

// These tests are about moments in which an update of a resource could reach
// nobody: whoever has subscribed and has an open stream is told.

// heldStore does not answer readings while it is held, until their contexts end.
type heldStore struct {
	session.Store

	held  atomic.Bool
	asked atomic.Int32
}

func (s *heldStore) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for s.held.Load() {
		s.asked.Add(1)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
	return s.Store.Get(ctx, key)
}

// hold gives an edge such a store.
func (n *node) hold() *heldStore {
	s := &heldStore{Store: n.store}
	n.edge.sessions.Records = session.NewRecords(s, session.RecordsConfig{})
	return s
}

// another listens to a resource in a session of its own on an edge, and returns a
// function that updates the resource and waits until everybody who listens for it
// at that moment has been sent that.
func (c *cluster) another(n *node, uri string) (update func()) {
	c.t.Helper()
	session := c.session("2025-11-25", `{}`)
	stream := n.listen(session)
	want(c.t, "subscribe", n.request(session, mcp.MethodSubscribe, `{"uri":"`+uri+`"}`), `"result":{}`)
	return func() {
		c.t.Helper()
		c.worker.ResourceUpdated(uri)
		want(c.t, "another session", stream.soon(c.t, "the update"), uri)
	}
}

// TestNewsOutrunsTheStore: whoever told an edge that a session has changed has given
// up before the store has answered. The stream follows what it did before.
func TestNewsOutrunsTheStore(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{TellTimeout: usualTellTimeout})
	n := c.nodes[1]
	store := n.hold()
	session := c.session("2025-11-25", `{}`)
	stream := n.listen(session)
	want(t, "subscribe", n.request(session, mcp.MethodSubscribe, `{"uri":"memo://notes/one"}`), `"result":{}`)
	store.held.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	n.edge.sessions.Heard(ctx, &millracev1.Announcement{News: &millracev1.Announcement_SessionChanged{
		SessionChanged: &millracev1.SessionChanged{Scope: scopeOf(t, session)},
	}}, true)
	if store.asked.Load() == 0 {
		t.Error("the edge has not looked")
	}
	c.worker.ResourceUpdated("memo://notes/one")
	want(t, "the stream", stream.soon(t, "the update"), oneUpdated)
	store.held.Store(false)
}

// strangers know no other edges: they are heard all the same.
type strangers struct{ legacy.Peers }

func (p strangers) Tell(_ context.Context, a *millracev1.Announcement) error { return p.Announce(a) }

// TestSubscribedBeforeItIsFollowed: a client is answered before the edge that has
// its stream follows the resource. What it misses is made up for.
func TestSubscribedBeforeItIsFollowed(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"late", "unknown"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, Config{TellTimeout: usualTellTimeout})
			n, other := c.nodes[1], c.nodes[2]
			if how == "unknown" {
				other.edge.sessions.Peers = strangers{other.edge.sessions.Peers}
			}
			store := n.hold()
			update := c.another(other, "memo://notes/one")
			session := c.session("2025-11-25", `{}`)
			stream := n.listen(session)
			store.held.Store(true)
			want(t, "subscribe", other.request(session, mcp.MethodSubscribe, `{"uri":"memo://notes/one"}`), `"result":{}`)
			update()
			store.held.Store(false)
			want(t, "the stream", stream.soon(t, "the update"), oneUpdated)
		})
	}
}

// TestConfirmedTooLate: the edge follows the resource, and says so when nobody waits
// for that any more. It cannot know when the client was answered.
func TestConfirmedTooLate(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{TellTimeout: usualTellTimeout})
	n, other := c.nodes[1], c.nodes[2]
	session := c.session("2025-11-25", `{}`)
	stream := n.listen(session)
	want(t, "subscribe", n.request(session, mcp.MethodSubscribe, `{"uri":"memo://notes/one"}`), `"result":{}`)
	changed := &millracev1.Announcement{
		News: &millracev1.Announcement_SessionChanged{SessionChanged: &millracev1.SessionChanged{Scope: scopeOf(t, session), Subscribed: "memo://notes/one"}},
		Told: []string{c.nodes[0].edge.client.ID(), n.edge.client.ID()},
	}
	// Before the call that it says will come, and without one.
	for _, told := range [][]string{changed.GetTold(), changed.GetTold()[:1]} {
		changed.Told = told
		if err := other.edge.peers.Announce(changed); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "the stream", stream.soon(t, "the update"), oneUpdated)
	// What comes next is what is sent next, so it came once.
	c.addTool("news")
	want(t, "the stream", stream.soon(t, "news"), toolsChanged)
}

// syncs is a listener whose Sync can be made to fail, or to wait.
type syncs struct {
	*bus.Client

	deaf  atomic.Bool
	waits atomic.Pointer[chan struct{}] // closed by whoever has set it
	began chan struct{}                 // gets a value from whoever waits
}

func (s *syncs) Sync(ctx context.Context) error {
	if s.deaf.Load() {
		return context.DeadlineExceeded
	}
	if waits := s.waits.Load(); waits != nil {
		s.began <- struct{}{}
		<-*waits
	}
	return s.Client.Sync(ctx)
}

// TestSubscribeAgainWhileNATSIsSlow: what could not be promised is not promised
// the next time because it is followed already.
func TestSubscribeAgainWhileNATSIsSlow(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{TellTimeout: usualTellTimeout})
	n := c.nodes[0]
	listener := &syncs{Client: n.edge.client}
	n.edge.sessions.Changes = notify.NewHub(n.edge.catalog, listener)
	session := c.session("2025-11-25", `{}`)
	stream := n.listen(session)
	listener.deaf.Store(true)
	for range 2 {
		want(t, "the answer", n.request(session, mcp.MethodSubscribe, `{"uri":"memo://notes/one"}`), `"reason":"unavailable"`)
	}
	listener.deaf.Store(false)
	want(t, "the answer", n.request(session, mcp.MethodSubscribe, `{"uri":"memo://notes/one"}`), `"result":{}`)
	c.worker.ResourceUpdated("memo://notes/one")
	want(t, "the stream", stream.soon(t, "the update"), oneUpdated)
}

// TestUpdateDuringATakeover: the older stream goes on until the newer one hears what
// it does.
func TestUpdateDuringATakeover(t *testing.T) {
	t.Parallel()
	for _, same := range []bool{true, false} {
		t.Run(map[bool]string{true: "same edge", false: "another edge"}[same], func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, Config{TellTimeout: usualTellTimeout})
			n := c.nodes[1]
			listener := &syncs{Client: n.edge.client, began: make(chan struct{})}
			n.edge.sessions.Changes = notify.NewHub(n.edge.catalog, listener)
			session := c.session("2025-11-25", `{}`)
			want(t, "subscribe", n.request(session, mcp.MethodSubscribe, `{"uri":"memo://notes/one"}`), `"result":{}`)
			at := c.nodes[0]
			if same {
				at = n
			}
			older := at.listen(session)
			waits := make(chan struct{})
			listener.waits.Store(&waits)
			opened := make(chan *callStream)
			go func() { opened <- n.listen(session) }()
			<-listener.began
			c.worker.ResourceUpdated("memo://notes/one")
			want(t, "the older stream", older.soon(t, "the update"), oneUpdated)
			listener.waits.Store(nil)
			close(waits)
			newer := <-opened
			if got := older.soon(t, "the end of the older stream"); got != "end" {
				t.Errorf("the older stream got %s", got)
			}
			c.worker.ResourceUpdated("memo://notes/one")
			want(t, "the newer stream", newer.soon(t, "the update"), oneUpdated)
		})
	}
}

// TestForgottenWhileTheStoreIsAway: an edge that remembers nothing of a session and
// cannot read what it subscribes to goes on with what it follows.
func TestForgottenWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{TellTimeout: usualTellTimeout})
	n := c.nodes[1]
	store := &flakyStore{Store: n.store}
	n.edge.sessions.Records = session.NewRecords(store, session.RecordsConfig{MaxCached: 2})
	session := c.session("2025-11-25", `{}`)
	stream := n.listen(session)
	want(t, "subscribe", n.request(session, mcp.MethodSubscribe, `{"uri":"memo://notes/one"}`), `"result":{}`)
	for range 3 { // the memory is full of others
		other := c.session("2025-11-25", `{}`)
		want(t, "ping", n.request(other, "ping", `{}`), `"result"`)
	}
	store.down.Store(true)
	n.edge.sessions.Heard(context.Background(), &millracev1.Announcement{News: &millracev1.Announcement_SessionChanged{
		SessionChanged: &millracev1.SessionChanged{Scope: scopeOf(t, session)},
	}}, true)
	if store.asked.Load() == 0 {
		t.Error("the edge has not looked")
	}
	c.worker.ResourceUpdated("memo://notes/one")
	want(t, "the stream", stream.soon(t, "the update"), oneUpdated)
}

// TestUpdateWhileTheBusIsAway: an edge has no connection when a resource is updated,
// and when a session subscribes to another one.
func TestUpdateWhileTheBusIsAway(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{TellTimeout: usualTellTimeout})
	n, other := c.nodes[1], c.nodes[2]
	update := c.another(other, "memo://notes/one")
	id := c.session("2025-11-25", `{}`)
	stream := n.listen(id)
	want(t, "subscribe", n.request(id, mcp.MethodSubscribe, `{"uri":"memo://notes/one"}`), `"result":{}`)
	listen := modernMessage("7", "subscriptions/listen", `{"notifications":{"resourceSubscriptions":["memo://notes/one"]}}`)
	modernStream := readStream(n.post(context.Background(), listen, append(modernHeaders(listen), bothTypes)...))
	want(t, "the modern stream", modernStream.soon(t, "the acknowledgement"), "acknowledged")
	n.link.cut()
	eventually(t, "the edge to notice", func() bool { return !n.edge.conn.Connected() })
	want(t, "subscribe", other.request(id, mcp.MethodSubscribe, `{"uri":"term://known"}`), `"result":{}`)
	update()
	n.link.mend()
	wantMessages(t, "the stream", []string{stream.soon(t, "an update"), stream.soon(t, "an update")}, oneUpdated, updated("term://known"))
	want(t, "the modern stream", modernStream.soon(t, "the update"), "memo://notes/one")
}
