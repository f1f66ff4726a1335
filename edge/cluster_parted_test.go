package edge

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/legacy"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// These tests are about edges that have no connection to NATS for a moment, while
// their clients have one to them, and about clients that go in the wrong moment.

// part takes an edge off NATS.
func (c *cluster) part(n *node) {
	c.t.Helper()
	n.link.cut()
	eventually(c.t, "the loss", func() bool { return !n.edge.conn.Connected() })
}

const askCall = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask"}}`

// TestAnswerWhileTheEdgeThatAskedIsParted: another edge takes the answer and goes on
// with the call. The client, whose connection stands, is sent there when its edge is
// back.
func TestAnswerWhileTheEdgeThatAskedIsParted(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	session := c.session("2025-11-25", `{"elicitation":{}}`)
	call := c.nodes[0].open(http.MethodPost, askCall, session)
	ev := call.next()
	place := ev.ID
	id, _ := request(t, string(ev.Data), "elicitation/create")
	want(t, "ping", c.nodes[1].request(session, "ping", `{}`), `"result":{}`)
	c.part(c.nodes[0])
	c.nodes[1].respond(session, answerTo(id, "Ala"))
	eventually(t, "another edge to go on", func() bool { return c.ran.value() == 1 })
	c.nodes[0].link.mend()
	eventually(t, "the connection", c.nodes[0].edge.conn.Connected)
	for ev = call.any(); string(ev.Data) != "end"; ev = call.any() {
		if len(ev.Data) > 0 {
			t.Errorf("the edge that has the call no more sends %s", ev.Data)
		}
	}
	resumed := c.nodes[0].resume(session, place)
	resumed.message(`"Ala"`, `"id":7`)
	if n := c.ran.value(); n != 1 {
		t.Errorf("the step after the answer ran %d times", n)
	}
}

// TestAnswerToAPartedEdge: the edge that takes an answer can neither store it nor
// pass it on at once. When it has stored it, the edge that asked finds it.
func TestAnswerToAPartedEdge(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	session := c.session("2025-11-25", `{"elicitation":{}}`)
	call := c.nodes[0].open(http.MethodPost, askCall, session)
	id, _ := request(t, string(call.next().Data), "elicitation/create")
	want(t, "ping", c.nodes[1].request(session, "ping", `{}`), `"result":{}`)
	c.part(c.nodes[1])
	c.nodes[1].respond(session, answerTo(id, "Ala")) // is 202
	if n := c.ran.value(); n != 0 {
		t.Fatalf("the answer went through: the step after it ran %d times", n)
	}
	c.nodes[1].link.mend()
	call.message(`"Ala"`, `"id":7`)
	if n := c.ran.value(); n != 1 {
		t.Errorf("the step after the answer ran %d times", n)
	}
}

// TestHTTPSSEPostToAPartedEdge: a connection that another edge holds is not gone when
// this one has no connection to NATS.
func TestHTTPSSEPostToAPartedEdge(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	sc := openSSE(t, c.nodes[0].client, "http://localhost/sse")
	sc.client = c.nodes[1].client
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	if status, body := sc.post(ping); status != http.StatusAccepted {
		t.Fatalf("before: HTTP %d %s", status, body)
	}
	c.part(c.nodes[1])
	if status, body := sc.post(ping); status != http.StatusServiceUnavailable {
		t.Errorf("without a connection to NATS: HTTP %d %s", status, body)
	}
	c.nodes[1].link.mend()
	eventually(t, "the connection", c.nodes[1].edge.conn.Connected)
	eventually(t, "the edge that holds it", func() bool {
		status, _ := sc.post(ping)
		return status == http.StatusAccepted
	})
}

// leavingStore writes, and its caller does not learn it before the client has gone.
type leavingStore struct {
	session.Store

	put func()
}

func (s *leavingStore) Put(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	written, err := s.Store.Put(context.WithoutCancel(ctx), key, value, revision, ttl)
	s.put()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return written, err
}

// TestDeleteOfAClientThatGoes: a session ends, with all it has, also when its client
// does not wait for the answer.
func TestDeleteOfAClientThatGoes(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	id := c.session("2025-11-25", `{}`)
	call := c.nodes[1].callStream(id, `{"name":"linger","arguments":{"name":"one"},"_meta":{"progressToken":1}}`)
	want(t, "progress", call.soon(t, "progress"), `"progress":1`)
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan struct{})
	store := &leavingStore{Store: c.nodes[2].store, put: func() { leave(); <-left }}
	c.nodes[2].edge.sessions.Records = session.NewRecords(store, session.RecordsConfig{})
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, "http://localhost/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(mcp.HeaderSessionID, id)
	if resp, err := c.nodes[2].client.Do(req); err == nil {
		resp.Body.Close()
		t.Errorf("HTTP %d before the client has gone", resp.StatusCode)
	}
	close(left)
	if name := soon(t, "the end of the call", c.ended); name != "one" {
		t.Errorf("%q has ended", name)
	}
}

// heldSync is a listener to news of resources that waits once.
type heldSync struct {
	*bus.Client

	armed       atomic.Bool
	began, goOn chan struct{}
}

func (s *heldSync) Sync(ctx context.Context) error {
	if s.armed.CompareAndSwap(true, false) {
		close(s.began)
		<-s.goOn
	}
	return s.Client.Sync(ctx)
}

// tellingPeers are peers between whose stream that is taken and the answer to that
// something happens.
type tellingPeers struct {
	legacy.Peers

	taken atomic.Pointer[func()]
}

func (p *tellingPeers) Tell(ctx context.Context, a *millracev1.Announcement) error {
	if taken := p.taken.Load(); taken != nil && a.GetStreamTaken() != nil {
		(*taken)()
	}
	return p.Peers.Tell(ctx, a)
}

// TestSubscriptionDuringATakeover: a resource that is subscribed to while a stream
// takes the place of another one, and updated before that one follows it, is told.
func TestSubscriptionDuringATakeover(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	n := c.nodes[1]
	c.worker.AddResource(worker.Resource{URI: "memo://notes/two", Name: "two", MIMEType: "text/plain"},
		func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
			return worker.TextContents("text/plain", "second note"), nil
		})
	eventually(t, "the resource", func() bool {
		for _, n := range c.nodes {
			if _, _, ok := n.edge.Catalog().Snapshot().Resource("memo://notes/two"); !ok {
				return false
			}
		}
		return true
	})
	update := c.another(n, "memo://notes/two")
	listener := &heldSync{Client: n.edge.client, began: make(chan struct{}), goOn: make(chan struct{})}
	peers := &tellingPeers{Peers: n.edge.sessions.Peers}
	n.edge.sessions.Peers = peers
	n.edge.sessions.Changes = notify.NewHub(n.edge.catalog, listener)
	id := c.session("2025-11-25", `{}`)
	want(t, "subscribe", n.request(id, mcp.MethodSubscribe, `{"uri":"memo://notes/one"}`), `"result":{}`)
	older := n.listen(id)
	listener.armed.Store(true)
	peers.taken.Store(&update)
	opened := make(chan *callStream)
	go func() { opened <- n.listen(id) }()
	<-listener.began
	want(t, "subscribe", n.request(id, mcp.MethodSubscribe, `{"uri":"memo://notes/two"}`), `"result":{}`)
	close(listener.goOn)
	newer := <-opened
	for ev := older.soon(t, "the older one"); ev != "end"; ev = older.soon(t, "the older one") {
		if ev == updated("memo://notes/two") {
			return
		}
	}
	for ev := newer.soon(t, "the update"); ev != updated("memo://notes/two"); ev = newer.soon(t, "the update") {
		want(t, "the newer stream", ev, "resources/updated")
	}
}

// TestCancellationWhileTheSessionIsRead: a call is found by its cancellation also
// before it has begun, since its session is still read.
func TestCancellationWhileTheSessionIsRead(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	n := c.nodes[0]
	store := n.hold()
	for range 10 {
		id := c.session("2025-11-25", `{}`)
		store.asked.Store(0)
		store.held.Store(true)
		called := make(chan *callStream, 1)
		go func() {
			called <- n.callStream(id, `{"name":"linger","arguments":{"name":"one"},"_meta":{"progressToken":1}}`)
		}()
		eventually(t, "the reading", func() bool { return store.asked.Load() > 0 })
		cancelled := make(chan struct{})
		go func() {
			defer close(cancelled)
			n.cancel(id, `{"requestId":1}`)
		}()
		store.held.Store(false)
		<-cancelled
		call := <-called
		for ev := call.soon(t, "the end"); ev != "end"; ev = call.soon(t, "the end") {
			want(t, "before the end", ev, `"progress":1`) // it had begun
		}
	}
}
