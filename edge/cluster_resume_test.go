package edge

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/edge/sse"
	"github.com/millrace/millrace/worker"
)

// These tests lose connections and edges while calls run. They go on elsewhere.

// eventStream is one connection with a stream, with the places of its events.
type eventStream struct {
	t      testing.TB
	resp   *http.Response
	cancel context.CancelFunc
	events chan sse.Event // closed at the end of the stream
	retry  atomic.Int64   // the last one that came, in nanoseconds
}

// open sends a request and reads its answer as a stream. The request may be cut.
func (s *system) open(method, text, session string, headers ...string) *eventStream {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.t.Cleanup(cancel)
	accept := "Accept: application/json, text/event-stream"
	if method == http.MethodGet {
		accept = "Accept: text/event-stream"
	}
	es := &eventStream{
		t: s.t, cancel: cancel, events: make(chan sse.Event, 1000), // more than any test has
		resp: s.do(ctx, method, text, append(headers, mcp.HeaderSessionID+": "+session, "Content-Type: application/json", accept)...),
	}
	go func() {
		defer close(es.events)
		defer es.resp.Body.Close()
		if es.resp.Header.Get("Content-Type") == "application/json" {
			if raw, err := io.ReadAll(es.resp.Body); err == nil {
				es.events <- sse.Event{Data: raw}
			}
			return
		}
		for reader := sse.NewReader(es.resp.Body, 64<<20); ; {
			ev, err := reader.Next()
			es.retry.Store(int64(reader.Retry()))
			if err != nil {
				return
			}
			es.events <- ev
		}
	}()
	return es
}

// steps calls the tool "steps".
func (s *system) steps(session, name string) *eventStream {
	s.t.Helper()
	return s.open(http.MethodPost, `{"jsonrpc":"2.0","id":"`+name+`","method":"tools/call","params":{"name":"steps","arguments":{"name":"`+name+`"},"_meta":{"progressToken":"`+name+`"}}}`, session)
}

// resume comes back for what follows an event.
func (s *system) resume(session, id string) *eventStream {
	s.t.Helper()
	return s.open(http.MethodGet, "", session, "Last-Event-ID: "+id)
}

// next returns the next event that is a message; its data is "end" at the end of
// the stream.
func (es *eventStream) next() sse.Event {
	es.t.Helper()
	for {
		ev := es.any()
		if len(ev.Data) > 0 {
			return ev
		}
	}
}

func (es *eventStream) any() sse.Event {
	es.t.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	select {
	case ev, ok := <-es.events:
		if !ok {
			return sse.Event{Data: []byte("end")}
		}
		return ev
	case <-limit.C:
		es.t.Fatal("still waiting for an event")
		return sse.Event{}
	}
}

// message fails the test unless the next message contains the parts, and returns
// its id.
func (es *eventStream) message(parts ...string) (id string) {
	es.t.Helper()
	ev := es.next()
	want(es.t, "the message", string(ev.Data), parts...)
	return ev.ID
}

// end fails the test unless the stream ends.
func (es *eventStream) end() {
	es.t.Helper()
	if ev := es.next(); string(ev.Data) != "end" {
		es.t.Errorf("after the answer: %s", ev.Data)
	}
}

func progress(n int) string { return fmt.Sprintf(`"progress":%d`, n) }

// stepper is the control of the tool "steps": each value makes it report
// progress, and the end of the channel ends it.
type stepper struct {
	mu    sync.Mutex
	calls map[string]chan string
	ran   map[string]int
	over  map[string]chan struct{}
}

// of is the control of the call with a name.
func (s *stepper) of(name string) chan string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[name] == nil {
		s.calls[name], s.over[name] = make(chan string, 1000), make(chan struct{})
	}
	return s.calls[name]
}

// step makes the call report progress n times.
func (s *stepper) step(name string, n int) {
	for range n {
		s.of(name) <- ""
	}
}

// finish ends the call.
func (s *stepper) finish(name string) { close(s.of(name)) }

// cancelled is closed when the context of the call has ended.
func (s *stepper) cancelled(name string) <-chan struct{} {
	s.of(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over[name]
}

func (s *stepper) runs(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ran[name]
}

// startStepping starts a cluster whose worker has the tools of these tests.
func startStepping(t testing.TB) (*cluster, *stepper) {
	t.Helper()
	c := startCluster(t, Config{})
	s := &stepper{calls: map[string]chan string{}, ran: map[string]int{}, over: map[string]chan struct{}{}}
	type in struct {
		Name string `json:"name"`
	}
	worker.AddTool(c.worker, worker.Tool{Name: "steps", Description: "Goes step by step."},
		func(ctx context.Context, call *worker.Call, in in) (string, error) {
			steps := s.of(in.Name)
			s.mu.Lock()
			s.ran[in.Name]++
			over := s.over[in.Name]
			s.mu.Unlock()
			for done := 1.0; ; done++ {
				select {
				case step, more := <-steps:
					switch {
					case !more:
						return "result of " + in.Name, nil
					case step == "close":
						call.CloseStream(10 * time.Millisecond)
					case step != "":
						return step, nil
					default:
						call.Progress(done, worker.UnknownTotal, "")
					}
				case <-ctx.Done():
					close(over)
					return "", context.Cause(ctx)
				}
			}
		})
	eventually(t, "the tool", func() bool {
		for _, n := range c.nodes {
			if _, ok := n.edge.Catalog().Snapshot().Tool("steps"); !ok {
				return false
			}
		}
		return true
	})
	return c, s
}

// TestBankB25ResumeOnAnotherEdge: each of two streams goes on where it was cut,
// with nothing of the other, and not in another session.
func TestBankB25ResumeOnAnotherEdge(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	session, other := c.session("2025-06-18", `{}`), c.session("2025-06-18", `{}`)
	ids := map[string]bool{}
	see := func(id string) string {
		if id == "" || ids[id] {
			t.Errorf("event id %q is empty or was used before", id)
		}
		ids[id] = true
		return id
	}
	s.step("a", 3)
	s.step("b", 2)
	a, b := c.nodes[0].steps(session, "a"), c.nodes[1].steps(session, "b")
	first := see(a.message(progress(1), `"progressToken":"a"`))
	second := see(a.message(progress(2)))
	see(a.message(progress(3)))
	see(b.message(progress(1), `"progressToken":"b"`))
	seenB := see(b.message(progress(2)))
	a.cancel()
	b.cancel()
	s.step("a", 1)

	resumed := c.nodes[2].resume(session, second)
	resumed.message(progress(3), `"progressToken":"a"`)
	see(resumed.message(progress(4)))
	s.step("a", 1)
	see(resumed.message(progress(5)))
	s.finish("a")
	last := see(resumed.message("result of a", `"id":"a"`))
	resumed.end()
	if again := c.nodes[1].resume(session, last); again.resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("resumed after the answer: HTTP %d, want 405", again.resp.StatusCode)
	}
	// The answer can be fetched again, from anywhere.
	for _, n := range c.nodes {
		again := n.resume(session, first)
		for i := 2; i <= 5; i++ {
			again.message(progress(i))
		}
		if id := again.message("result of a"); id != last {
			t.Errorf("the answer has the id %q, before it was %q", id, last)
		}
		again.end()
	}
	s.finish("b")
	again := c.nodes[0].resume(session, seenB)
	again.message("result of b", `"id":"b"`)
	again.end()
	for _, foreign := range []string{first, seenB} {
		if again := c.nodes[0].resume(other, foreign); again.resp.StatusCode != http.StatusBadRequest {
			t.Errorf("in another session: HTTP %d, %s", again.resp.StatusCode, again.next().Data)
		}
	}
	if s.runs("a") != 1 || s.runs("b") != 1 {
		t.Errorf("a ran %d times, b %d times", s.runs("a"), s.runs("b"))
	}
}

// TestBankB31CallSurvivesItsEdge: the edge that holds the stream dies; the call
// goes on, and its client gets the rest from another edge.
func TestBankB31CallSurvivesItsEdge(t *testing.T) {
	t.Parallel()
	for _, date := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		t.Run(date, func(t *testing.T) {
			t.Parallel()
			c, s := startStepping(t)
			session := c.session(date, `{}`)
			s.step("a", 2)
			call := c.nodes[0].steps(session, "a")
			call.message(progress(1))
			id := call.message(progress(2))
			c.nodes[0].kill()
			s.step("a", 2)
			resumed := c.nodes[1].resume(session, id)
			resumed.message(progress(3))
			resumed.message(progress(4))
			// That one is cut, too, and the next edge dies.
			s.step("a", 1)
			id = resumed.message(progress(5))
			c.nodes[1].kill()
			s.finish("a")
			resumed = c.nodes[2].resume(session, id)
			resumed.message("result of a", `"id":"a"`)
			resumed.end()
			if n := s.runs("a"); n != 1 {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}

// TestBankB24Priming: only the revision that has it begins streams with an event
// that tells a place and nothing else.
func TestBankB24Priming(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	for _, date := range []string{"2025-03-26", "2025-06-18", "2025-11-25"} {
		session := c.session(date, `{}`)
		s.step(date, 1)
		s.finish(date)
		call := c.steps(session, date)
		primed := date == "2025-11-25"
		ev := call.any()
		if primed != (len(ev.Data) == 0) || ev.ID == "" {
			t.Errorf("%s begins with the event %+v", date, ev)
		}
		for string(ev.Data) != "end" {
			if ev = call.any(); len(ev.Data) == 0 {
				t.Errorf("%s: an event without data: %+v", date, ev)
			}
		}
	}
	// A silent call gets its place when it takes long, and it is good for all.
	session := c.session("2025-11-25", `{}`)
	call := c.nodes[0].steps(session, "silent")
	id := call.any().ID
	c.nodes[0].kill()
	s.finish("silent")
	resumed := c.nodes[1].resume(session, id)
	resumed.message("result of silent")
	resumed.end()
}

// TestEarlyClose: a tool ends the connection, and the client polls.
func TestEarlyClose(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	session := c.session("2025-11-25", `{}`)
	s.of("a") <- "close"
	call := c.nodes[0].steps(session, "a")
	primed := call.any()
	call.end()
	if retry := time.Duration(call.retry.Load()); retry != 10*time.Millisecond || primed.ID == "" {
		t.Errorf("before the end: %+v, then retry %v", primed, retry)
	}
	s.step("a", 1)
	s.finish("a")
	polled := c.nodes[1].resume(session, primed.ID)
	polled.message(progress(2))
	polled.message("result of a")
	polled.end()

	// Other revisions have no such thing.
	session = c.session("2025-06-18", `{}`)
	s.of("b") <- "close"
	s.step("b", 1)
	s.finish("b")
	call = c.nodes[0].steps(session, "b")
	call.message(progress(2))
	call.message("result of b")
	call.end()
}

// TestDrainHandsOver: an edge that stops sends the clients of running calls to
// others, where their revision has that. It is pain 24, with what has no such
// client in TestBankB16SessionsSurviveTheirEdges.
func TestDrainHandsOver(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	session := c.session("2025-11-25", `{}`)
	s.step("a", 1)
	call := c.nodes[0].steps(session, "a")
	id := call.message(progress(1))
	c.nodes[0].edge.Drain()
	call.end()
	if call.retry.Load() == 0 {
		t.Error("no retry")
	}
	c.nodes[0].kill()
	s.step("a", 1)
	s.finish("a")
	resumed := c.nodes[2].resume(session, id)
	resumed.message(progress(2))
	resumed.message("result of a")
	resumed.end()
}

// TestBankB33AnswerAfterTheEdgeDied: what a tool has asked is answered when the
// edge that asked is gone; another one goes on with the call.
func TestBankB33AnswerAfterTheEdgeDied(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(map[bool]string{false: "answered from what was seen", true: "asked again"}[again], func(t *testing.T) {
			t.Parallel()
			c, _ := startStepping(t)
			session := c.session("2025-11-25", `{"elicitation":{},"roots":{}}`)
			call := c.nodes[0].open(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ask"}}`, session)
			ev := call.next()
			id, _ := request(t, string(ev.Data), "elicitation/create")
			c.nodes[0].kill()
			place := ev.ID
			if again {
				// The client has not seen the question.
				place = strings.Join(append(strings.Split(ev.ID, ".")[:3], "0", "0"), ".")
			}
			resumed := c.nodes[1].resume(session, place)
			if again {
				if second, _ := request(t, string(resumed.next().Data), "elicitation/create"); second != id {
					t.Errorf("the question has the id %q now, it was %q", second, id)
				}
			}
			answer := `{"jsonrpc":"2.0","id":"` + id + `","result":{"action":"accept","content":{"name":"Ala"}}}`
			c.nodes[2].respond(session, answer)
			c.nodes[2].respond(session, answer) // changes nothing
			roots, _ := request(t, string(resumed.next().Data), "roots/list")
			c.nodes[1].respond(session, `{"jsonrpc":"2.0","id":"`+roots+`","result":{"roots":[{"uri":"file:///a"}]}}`)
			resumed.message("Ala with 1 roots", `"id":7`)
			resumed.end()
			// Once in each round that has the answer.
			if n := c.ran.value(); n != 2 {
				t.Errorf("the step after the first answer ran %d times", n)
			}
		})
	}
}

// TestCancelAfterTheEdgeDied: a call whose edge is gone can be cancelled, and
// ends with its session.
func TestCancelAfterTheEdgeDied(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"cancelled", "deleted"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c, s := startStepping(t)
			session := c.session("2025-11-25", `{}`)
			s.step("a", 1)
			s.step("b", 1)
			call := c.nodes[0].steps(session, "a")
			bystander := c.nodes[0].steps(c.session("2025-11-25", `{}`), "b")
			id := call.message(progress(1))
			bystander.message(progress(1))
			c.nodes[0].kill()
			eventually(t, "the death to be seen", func() bool { return len(c.nodes[1].edge.Edges()) == 2 })
			resumed := c.nodes[2].resume(session, id)
			if how == "deleted" {
				if resp := c.nodes[1].do(context.Background(), http.MethodDelete, "", mcp.HeaderSessionID+": "+session); resp.StatusCode != http.StatusNoContent {
					t.Errorf("DELETE: HTTP %d", resp.StatusCode)
				}
				resumed.end()
			} else {
				c.nodes[1].in(session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}`)
				resumed.message("cancelled", `"id":"a"`)
				resumed.end()
			}
			select {
			case <-s.cancelled("a"):
			case <-time.After(20 * time.Second):
				t.Error("the worker still works")
			}
			select {
			case <-s.cancelled("b"):
				t.Error("the call of another session was cancelled")
			default:
			}
		})
	}
}

// TestResumeWhatIsNotKept: a client that comes back for something that is gone
// is told so at once, in a way that does not make it come back again.
func TestResumeWhatIsNotKept(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	session := c.session("2025-11-25", `{}`)
	s.step("big", 1)
	call := c.nodes[0].steps(session, "big")
	id := call.message(progress(1))
	s.of("big") <- strings.Repeat("x", 5<<20)
	if got := call.next(); len(got.Data) < 5<<20 {
		t.Errorf("the result came with %d bytes on its own stream", len(got.Data))
	}
	resumed := c.nodes[1].resume(session, id)
	end := resumed.message(`"id":"big"`, "-32603", "4 MiB")
	resumed.end()
	if again := c.nodes[2].resume(session, end); again.resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("after that answer: HTTP %d, want 405", again.resp.StatusCode)
	}
	c.purge("mr_main_calls", "mr.main.cont."+scopeOf(t, session)+"."+strings.Split(id, ".")[0], 1)
	resumed = c.nodes[2].resume(session, id)
	resumed.message(`"id":"big"`, "-32603", "not_kept")
	resumed.end()
	for _, bad := range []string{"UNKNOWN..x.1.1", id + ".1.1", id[:len(id)-1] + "x", "A.b.c.d"} {
		if again := c.nodes[1].resume(session, bad); again.resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: HTTP %d", bad, again.resp.StatusCode)
		}
	}
}

// scopeOf is the key of a session in the stores.
func scopeOf(t testing.TB, id string) string {
	t.Helper()
	ring, err := seal.NewRing(testKey())
	if err != nil {
		t.Fatal(err)
	}
	s, err := session.NewIssuer(ring, 0).Open(id, session.Owner{})
	if err != nil {
		t.Fatal(err)
	}
	return s.Scope
}

// TestNewestConnectionOfAStream: a client that comes back while its old
// connection still stands gets each message on one of them.
func TestNewestConnectionOfAStream(t *testing.T) {
	t.Parallel()
	c, s := startStepping(t)
	session := c.session("2025-06-18", `{}`)
	s.step("a", 1)
	old := c.nodes[0].steps(session, "a")
	id := old.message(progress(1))
	second := c.nodes[1].resume(session, id)
	old.end()
	s.step("a", 1)
	id = second.message(progress(2))
	third := c.nodes[1].resume(session, id)
	second.end()
	s.finish("a")
	third.message("result of a")
	third.end()
}
