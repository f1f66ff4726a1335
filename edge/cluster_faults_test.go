package edge

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/legacy"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// These tests are the moments in which something that two edges share is in
// between: an answer that is stored but not begun, a place that is given but not
// used, an edge that is slow and not dead.

// askMany adds a tool that asks three questions at once.
func askMany(t *testing.T, c *cluster) {
	t.Helper()
	type answer struct {
		Name string `json:"name"`
	}
	keys := []string{"a", "b", "c"}
	worker.AddTool(c.worker, worker.Tool{Name: "ask-many", Description: "Asks three questions at once."},
		func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
			questions := make([]worker.Question, len(keys))
			for i, key := range keys {
				questions[i] = worker.ElicitFor[answer](key, "Who is "+key+"?")
			}
			answers, err := call.Ask(questions...)
			if err != nil {
				return "", err
			}
			c.ran.add()
			var names []string
			for _, key := range keys {
				who, _, err := worker.Accepted[answer](answers, key)
				if err != nil {
					return "", err
				}
				names = append(names, who.Name)
			}
			return strings.Join(names, " and "), nil
		})
	eventually(t, "the tool", func() bool {
		for _, n := range c.nodes {
			if _, ok := n.edge.Catalog().Snapshot().Tool("ask-many"); !ok {
				return false
			}
		}
		return true
	})
}

// manyAsked reads the questions of that tool: their ids, and the place behind them.
func manyAsked(t *testing.T, call *eventStream) (ids []string, place string) {
	t.Helper()
	for range 3 {
		ev := call.next()
		id, _ := request(t, string(ev.Data), "elicitation/create")
		ids, place = append(ids, id), ev.ID
	}
	return ids, place
}

func answerTo(id, name string) string {
	return `{"jsonrpc":"2.0","id":"` + id + `","result":{"action":"accept","content":{"name":"` + name + `"}}}`
}

// TestAnswersOfOneRoundOnThreeEdges: of three questions one is answered while the
// edge that asked lives, the others when it is dead. None is asked again that the
// client has seen.
func TestAnswersOfOneRoundOnThreeEdges(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]int{"by the edge that dies": 0, "by another one": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, Config{})
			askMany(t, c)
			session := c.session("2025-11-25", `{"elicitation":{}}`)
			call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask-many"}}`, session)
			ids, place := manyAsked(t, call)
			c.nodes[first].respond(session, answerTo(ids[0], "A"))
			c.nodes[0].kill()
			c.nodes[1].respond(session, answerTo(ids[1], "B"))
			resumed := c.nodes[2].resume(session, place)
			// It has begun when something else says so: the last answer comes
			// after the resumed stream had the time to ask again.
			resumedAfter(t, c, session)
			c.nodes[2].respond(session, answerTo(ids[2], "C"))
			resumed.message("A and B and C", `"id":7`)
			resumed.end()
			if n := c.ran.value(); n != 1 {
				t.Errorf("the step after the answers ran %d times", n)
			}
		})
	}
}

// resumedAfter returns when an edge has served a request that came after the one
// before, and what that one has stored can be read.
func resumedAfter(t *testing.T, c *cluster, session string) {
	t.Helper()
	for _, n := range c.nodes {
		if !n.killed.Load() {
			want(t, "ping", n.request(session, "ping", `{}`), `"result":{}`)
		}
	}
	// The store is asked several times over before a question would be written.
	for range 20 {
		if _, err := c.nodes[2].store.SessionCalls(context.Background(), scopeOf(t, session)); err != nil {
			t.Error(err)
		}
	}
}

// TestSeenQuestionsAreNotAskedAgain: the client has seen all questions, the first
// of which is answered; what it gets after it has come back is the result only.
func TestSeenQuestionsAreNotAskedAgain(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	askMany(t, c)
	session := c.session("2025-11-25", `{"elicitation":{}}`)
	call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask-many"}}`, session)
	ids, places := make([]string, 3), make([]string, 3)
	for i := range ids {
		ev := call.next()
		ids[i], _ = request(t, string(ev.Data), "elicitation/create")
		places[i] = ev.ID
	}
	c.nodes[1].respond(session, answerTo(ids[0], "A"))
	// The client comes back having seen two of three: it is asked the third.
	resumed := c.nodes[1].resume(session, places[1])
	again := resumed.next()
	if id, _ := request(t, string(again.Data), "elicitation/create"); id != ids[2] || again.ID != places[2] {
		t.Errorf("asked again: the question %q at %q, want %q at %q", id, again.ID, ids[2], places[2])
	}
	c.nodes[2].respond(session, answerTo(ids[1], "B"))
	c.nodes[0].respond(session, answerTo(ids[2], "C"))
	resumed.message("A and B and C", `"id":7`)
	resumed.end()
}

// TestShortCallsWhileTheEdgeStops: a client that is sent away at once finds the
// answer elsewhere, also one that the worker gives within a moment.
func TestShortCallsWhileTheEdgeStops(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	session := c.session("2025-11-25", `{}`)
	running := make(chan *eventStream)
	go func() { running <- c.nodes[0].steps(session, "before") }() // returns when the answer begins
	eventually(t, "the call", func() bool { return s.runs("before") == 1 })
	c.nodes[0].edge.Drain()
	before := <-running
	place := ""
	for ev := before.any(); string(ev.Data) != "end"; ev = before.any() {
		place = ev.ID
	}
	s.finish("before") // less than half a second old
	collect(t, c, session, "before", c.nodes[1].resume(session, place), "result of before")
	for _, name := range []string{"after-1", "after-2", "after-3"} {
		s.finish(name)
		collect(t, c, session, name, c.nodes[0].steps(session, name), "result of "+name)
	}
	// So is what no worker ever saw.
	unknown := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":"unknown","method":"tools/call","params":{"name":"there is none"}}`, session)
	collect(t, c, session, "unknown", unknown, "there is none")
}

// collect reads the answer of a call, on another edge if need be, and checks that
// there is one.
func collect(t *testing.T, c *cluster, session, name string, es *eventStream, want string) {
	t.Helper()
	place := ""
	for range 3 {
		for {
			ev := es.any()
			if ev.ID != "" {
				place = ev.ID
			}
			if strings.Contains(string(ev.Data), `"id":"`+name+`"`) {
				if !strings.Contains(string(ev.Data), want) {
					t.Errorf("%s got %s", name, ev.Data)
				}
				return
			}
			if string(ev.Data) == "end" {
				break
			}
		}
		if place == "" {
			break
		}
		es = c.nodes[1].resume(session, place)
	}
	t.Errorf("%s got no answer", name)
}

// TestTwoComeBackAtOnce: of two connections for one stream that are opened on two
// edges at the same time one stays.
func TestTwoComeBackAtOnce(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	session := c.session("2025-06-18", `{}`)
	for i := range 10 {
		name := fmt.Sprintf("call-%d", i)
		s.step(name, 1)
		call := c.nodes[0].steps(session, name)
		id := call.message(progress(1))
		var both [2]*eventStream
		var opening sync.WaitGroup
		for j := range both {
			opening.Go(func() { both[j] = c.nodes[j+1].resume(session, id) })
		}
		opening.Wait()
		call.end()
		s.finish(name)
		answers := 0
		for _, es := range both {
			if ev := es.next(); strings.Contains(string(ev.Data), "result of "+name) {
				answers++
			}
		}
		// The other one may have had the answer too: it was sent before the
		// news of the newer connection came.
		if answers == 0 {
			t.Fatalf("round %d: both connections ended without the answer", i)
		}
	}
}

// heldCalls is a store of calls that waits at will.
type heldCalls struct {
	legacy.CallStore

	// before and after are called around each write; nil: nothing.
	before, after func(*millracev1.Continuation)
	// unsaid reports whether nobody learns that this was stored; nil: never.
	unsaid func(*millracev1.Continuation) bool
}

func (h *heldCalls) PutCall(ctx context.Context, scope, stream string, c *millracev1.Continuation, revision uint64) (uint64, error) {
	if h.before != nil {
		h.before(c)
	}
	written, err := h.CallStore.PutCall(ctx, scope, stream, c, revision)
	if h.after != nil {
		h.after(c)
	}
	if h.unsaid != nil && err == nil && h.unsaid(c) {
		return 0, session.ErrUnavailable
	}
	return written, err
}

// failingLog is a log that cannot be read some times.
type failingLog struct {
	bus.EventLog

	failures atomic.Int32 // how many times are left
}

func (l *failingLog) Stored(ctx context.Context, subject string, yield func(subject string, data []byte) error) error {
	if l.failures.Add(-1) >= 0 {
		return session.ErrUnavailable
	}
	return l.EventLog.Stored(ctx, subject, yield)
}

// lateWriter fails the test when it is used after the handler has returned.
type lateWriter struct {
	*httptest.ResponseRecorder

	t        *testing.T
	returned atomic.Bool
}

func (w *lateWriter) check(what string) {
	if w.returned.Load() {
		w.t.Errorf("%s after the handler has returned", what)
	}
}

func (w *lateWriter) Header() http.Header { w.check("Header"); return w.ResponseRecorder.Header() }
func (w *lateWriter) Write(p []byte) (int, error) {
	w.check("Write")
	return w.ResponseRecorder.Write(p)
}
func (w *lateWriter) WriteHeader(status int) {
	w.check("WriteHeader")
	w.ResponseRecorder.WriteHeader(status)
}
func (w *lateWriter) Flush() { w.check("Flush"); w.ResponseRecorder.Flush() }

// TestResponseIsLeftAlone: the connection of a call is taken away in the moment in
// which the call begins to write to it.
func TestResponseIsLeftAlone(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	n := c.nodes[0]
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	n.edge.sessions.Resumption.Calls = &heldCalls{
		CallStore: n.edge.sessions.Resumption.Calls,
		before:    func(*millracev1.Continuation) { once.Do(func() { close(held); <-release }) },
	}
	session := c.session("2025-06-18", `{}`)
	s.step("a", 1)
	req := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "http://localhost/mcp",
		strings.NewReader(`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"steps","arguments":{"name":"a"},"_meta":{"progressToken":"a"}}}`))
	for name, value := range map[string]string{mcp.HeaderSessionID: session, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"} {
		req.Header.Set(name, value)
	}
	w := &lateWriter{ResponseRecorder: httptest.NewRecorder(), t: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.edge.Handler().ServeHTTP(w, req)
		w.returned.Store(true)
	}()
	<-held
	// The session ends, so that the connection does.
	if resp := c.nodes[1].do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session); resp.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE: HTTP %d", resp.StatusCode)
	}
	select {
	case <-done:
	case <-time.After(100 * time.Millisecond): // it waits for who writes
	}
	close(release)
	<-done
	<-s.cancelled("a")
	n.edge.sessions.Wait()
}

// TestCancelledQuestionsStayUnanswered: an answer that comes after the
// cancellation of a call whose edge is gone does not make it go on.
func TestCancelledQuestionsStayUnanswered(t *testing.T) {
	t.Parallel()
	for name, failures := range map[string]int32{"at once": 0, "while the log cannot be read": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cancelQuestions(t, failures)
		})
	}
}

func cancelQuestions(t *testing.T, failures int32) {
	t.Helper()
	c, _ := startStepping(t)
	session := c.session("2025-11-25", `{"elicitation":{}}`)
	call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"ask"}}`, session)
	ev := call.next()
	id, _ := request(t, string(ev.Data), "elicitation/create")
	c.nodes[0].kill()
	c.settle()
	resumed := c.nodes[2].resume(session, ev.ID)
	log := &failingLog{EventLog: c.nodes[1].edge.sessions.Resumption.Log}
	log.failures.Store(failures)
	c.nodes[1].edge.sessions.Resumption.Log = log
	c.nodes[1].in(session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}`)
	resumed.message("cancelled", `"id":"a"`)
	resumed.end()
	c.nodes[1].respond(session, answerTo(id, "Ala"))
	c.nodes[2].respond(session, answerTo(id, "Ala"))
	c.nodes[1].edge.sessions.Wait() // whatever they have begun
	c.nodes[2].edge.sessions.Wait()
	if n := c.ran.value(); n != 0 {
		t.Errorf("the cancelled call went on %d times", n)
	}
}

// TestTakeOverThatIsStoredUnsaid: an edge takes a call over and does not learn that
// this was stored. To all others it has the call, so it goes on.
func TestTakeOverThatIsStoredUnsaid(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	askMany(t, c)
	var unsaid atomic.Int32
	for _, n := range c.nodes[1:] {
		n.edge.sessions.Resumption.Calls = &heldCalls{
			CallStore: n.edge.sessions.Resumption.Calls,
			unsaid:    func(kept *millracev1.Continuation) bool { return kept.GetClaim() != "" && unsaid.Add(1) == 1 },
		}
	}
	session := c.session("2025-11-25", `{"elicitation":{}}`)
	call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask-many"}}`, session)
	ids, place := manyAsked(t, call)
	c.nodes[0].kill()
	resumed := c.nodes[2].resume(session, place)
	for _, id := range ids {
		c.nodes[1].respond(session, answerTo(id, "A"))
	}
	resumed.message("A and A and A", `"id":7`)
	resumed.end()
	if unsaid.Load() == 0 {
		t.Error("no edge took the call over")
	}
	if n := c.ran.value(); n != 1 {
		t.Errorf("the step after the answers ran %d times", n)
	}
}

// TestFloodOfCancellations: cancellations of what nobody runs are looked up one
// at a time in a session, and a bounded number at a time in all.
func TestFloodOfCancellations(t *testing.T) {
	t.Parallel()
	c, _ := startStepping(t)
	n := c.nodes[0]
	lookUp := n.edge.sessions.Resumption.SessionCalls
	var now, most, all atomic.Int64
	release := make(chan struct{})
	n.edge.sessions.Resumption.SessionCalls = func(ctx context.Context, id string) (map[string]*millracev1.Continuation, error) {
		all.Add(1)
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		<-release
		return lookUp(ctx, id)
	}
	const sessions, each = 60, 20
	for range sessions {
		session := c.session("2025-11-25", `{}`)
		for i := range each {
			n.cancel(session, fmt.Sprintf(`{"requestId":%d}`, i))
		}
	}
	close(release)
	n.edge.sessions.Wait()
	if most.Load() > 32 || all.Load() > 2*sessions {
		t.Errorf("%d cancellations in %d sessions made %d queries, %d at a time", sessions*each, sessions, all.Load(), most.Load())
	}
}

// TestWorkerDiesAfterItsCallerLostIt: an edge loses its connection for a moment,
// and with it a call, which goes on; then its worker dies. The edge lives and says
// nothing about it.
func TestWorkerDiesAfterItsCallerLostIt(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	session := c.session("2025-11-25", `{}`)
	s.step("a", 1)
	call := c.nodes[0].steps(session, "a")
	id := call.message(progress(1))
	c.nodes[0].link.blink()
	call.end()
	resumed := c.nodes[1].resume(session, id)
	s.step("a", 1)
	resumed.message(progress(2))
	c.workerConn.Close()
	resumed.message(`"id":"a"`, "worker_lost")
	resumed.end()
}

// TestUnansweredAfterTheClientCameBack: the edge that asked gives up, and the
// client that came back to another one learns it.
func TestUnansweredAfterTheClientCameBack(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{AskTimeout: 2 * time.Second})
	session := c.session("2025-11-25", `{"elicitation":{}}`)
	call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"ask"}}`, session)
	ev := call.next()
	request(t, string(ev.Data), "elicitation/create")
	resumed := c.nodes[1].resume(session, ev.ID)
	call.end()
	resumed.message(`"id":"a"`, "no_input")
	resumed.end()
}

// slowPeers are peers whose answer to the last of three deliveries comes too late:
// they have acted on it.
type slowPeers struct {
	legacy.Peers

	n     int
	acted func()
}

func (p *slowPeers) Deliver(ctx context.Context, edge string, req *millracev1.DeliverRequest) (bool, error) {
	taken, err := p.Peers.Deliver(ctx, edge, req)
	if p.n++; p.n < 3 {
		return taken, err
	}
	p.acted()
	return false, context.DeadlineExceeded
}

// TestSlowEdgeIsNotOvertaken: an edge that has begun the round for which it got the
// answers does not say so in time to the one that passed the last of them on.
func TestSlowEdgeIsNotOvertaken(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	askMany(t, c)
	c.nodes[1].edge.sessions.Peers = &slowPeers{Peers: c.nodes[1].edge.sessions.Peers, acted: func() {
		eventually(t, "the next round", func() bool { return c.ran.value() > 0 })
	}}
	session := c.session("2025-11-25", `{"elicitation":{}}`)
	call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask-many"}}`, session)
	for range 3 {
		id, _ := request(t, string(call.next().Data), "elicitation/create")
		c.nodes[1].respond(session, answerTo(id, "Ala"))
	}
	call.message("Ala and Ala and Ala", `"id":7`)
	call.end()
	c.nodes[1].edge.sessions.Wait() // whatever it has begun
	if n := c.ran.value(); n != 1 {
		t.Errorf("the step after the answers ran %d times", n)
	}
}
