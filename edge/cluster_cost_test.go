package edge

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/edge/mcp"
)

// storeTraffic watches what reaches JetStream: requests to it, and messages that
// its streams capture.
type storeTraffic struct {
	c    *cluster
	nc   *nats.Conn
	seen chan *nats.Msg
}

func (c *cluster) watchStore() *storeTraffic {
	c.t.Helper()
	s := &storeTraffic{c: c, nc: c.conn("watcher").NATS(), seen: make(chan *nats.Msg, 100_000)} // more than any test causes
	for _, subject := range []string{"$JS.>", "$KV.>", "mr.main.cont.>", "mr.main.e.*.ev.>"} {
		if _, err := s.nc.ChanSubscribe(subject, s.seen); err != nil {
			c.t.Fatal(err)
		}
	}
	s.flush(s.nc)
	return s
}

func (s *storeTraffic) flush(nc *nats.Conn) {
	s.c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := nc.FlushWithContext(ctx); err != nil {
		s.c.t.Fatal(err)
	}
}

// subjects returns where messages went since it was called last, those left out
// with which a store looks after its streams, whoever calls.
func (s *storeTraffic) subjects() (seen []string) {
	s.c.t.Helper()
	for _, n := range s.c.nodes {
		s.flush(n.edge.conn.NATS())
	}
	s.flush(s.c.workerConn.NATS())
	s.flush(s.nc)
	for {
		select {
		case m := <-s.seen:
			if !strings.HasPrefix(m.Subject, "$JS.API.STREAM.INFO.") {
				seen = append(seen, m.Subject)
			}
		default:
			return seen
		}
	}
}

// TestStoreIsForSessionsOnly: what has no session, in either era and over each
// door, never reaches JetStream.
func TestStoreIsForSessionsOnly(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	store := c.watchStore()
	const progress = `,"_meta":{"progressToken":"p"}`
	for i := range 3 * clusterSize {
		n := c.nodes[i%clusterSize]
		// The methods, where they are served without a session.
		for _, m := range []struct{ method, params string }{
			{"tools/call", `{"name":"echo","arguments":{"n":1}}`},
			{"tools/call", `{"name":"count","arguments":{"n":5}` + progress + `}`},
			{"tools/call", `{"name":"ask"}`},
			{"tools/call", `{"name":"fail"}`},
			{"tools/call", `{"name":"log"}`},
			{"tools/list", `{}`},
			{"resources/list", `{}`},
			{"resources/read", `{"uri":"memo://notes/one"}`},
			{"prompts/get", `{"name":"greeting","arguments":{"name":"Ala"}}`},
			{"completion/complete", `{"ref":{"type":"ref/prompt","name":"greeting"},"argument":{"name":"name","value":"A"}}`},
			{"no/such", `{}`},
		} {
			accept := "Accept: application/json, text/event-stream"
			text := `{"jsonrpc":"2.0","id":1,"method":"` + m.method + `","params":` + m.params + `}`
			if !strings.Contains(m.params, `"ask"`) { // its client would be waited for
				body(t, n.post(context.Background(), text, accept))
			}
			text = modernMessage("1", m.method, strings.Replace(m.params, progress, "", 1))
			body(t, n.post(context.Background(), text, append(modernHeaders(text), accept)...))
		}
		for _, date := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"} {
			n.session(date, `{"elicitation":{}}`) // is never used
		}
		// Calls that are cancelled and streams that end.
		for text, first := range map[string]string{
			strings.Replace(modernMessage("1", "tools/call", `{"name":"linger","arguments":{"name":"modern"}}`),
				`"_meta":{`, `"_meta":{"progressToken":1,`, 1): `"progress":1`,
			modernMessage("2", "subscriptions/listen",
				`{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["memo://notes/one"]}}`): "acknowledged",
		} {
			ctx, hangUp := context.WithCancel(t.Context())
			stream := readStream(n.post(ctx, text, append(modernHeaders(text), "Accept: application/json, text/event-stream")...))
			want(t, "the first message", stream.soon(t, "the first message"), first)
			hangUp()
			stream.soon(t, "the end")
		}
		soon(t, "the worker", c.ended)
		old := n.handshake("2024-11-05", `{}`)
		old.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"n":2}` + progress + `}}`)
		for got := ""; !strings.Contains(got, "counted"); {
			got = old.next()
		}
		old.hangUp()
	}
	if seen := store.subjects(); len(seen) > 0 {
		t.Errorf("%d messages went to JetStream, the first ones to %q", len(seen), seen[:min(len(seen), 5)])
	}

	// That they would have been seen.
	session := c.session("2025-11-25", `{}`)
	body(t, c.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"error"}}`, mcp.HeaderSessionID+": "+session))
	call := c.call(session, "2", `{"name":"count","arguments":{"n":2,"delay_ms":20}`+progress+`}`)
	for got := ""; !strings.Contains(got, "counted"); {
		got = call.soon(t, "the answer")
	}
	found := map[string]bool{}
	for _, subject := range store.subjects() {
		found[strings.Join(strings.Split(subject, ".")[:2], ".")] = true
		if strings.Contains(subject, ".cont.") {
			found["continuation"] = true
		}
	}
	for _, kind := range []string{"$JS.API", "$KV.mr_main_sessions", "continuation", "mr.main"} {
		if !found[kind] {
			t.Errorf("nothing of a session is seen at %q: %v", kind, found)
		}
	}
}

// TestAbandonedInitializesKeepNothing: 10,000 sessions that are begun and never
// used leave the heap as it was. It is pain 26.
//
//nolint:paralleltest // it looks at the memory of the whole process
func TestAbandonedInitializesKeepNothing(t *testing.T) {
	const sessions = 10_000
	// What one session keeps at the very least, if anything is kept: a key of 16
	// bytes in a map.
	const least = 64
	s := start(t, Config{})
	handler := s.edge.Handler()
	begin := func(n int) (ids []string) {
		for i := range n {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/mcp", strings.NewReader(
				`{"jsonrpc":"2.0","id":`+strconv.Itoa(i)+`,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"client","version":"1"}}}`))
			r.Header.Set("Content-Type", "application/json")
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, r)
			id := recorder.Header().Get(mcp.HeaderSessionID)
			if id == "" {
				t.Fatalf("no session: %d %s", recorder.Code, recorder.Body)
			}
			ids = append(ids, id)
		}
		return ids
	}
	begin(sessions / 10) // pools and caches fill
	before := heap()
	ids := begin(sessions)
	if grown := heap() - before; grown < sessions*least {
		t.Errorf("the heap grew by %d bytes, although %d ids are kept here: nothing can be seen", grown, sessions)
	}
	runtime.KeepAlive(ids) // and no longer
	if grown := heap() - before; grown > sessions*least {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

// heap is what is reachable now.
func heap() int64 {
	runtime.GC()
	runtime.GC() // the first one only moves what is pooled
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
