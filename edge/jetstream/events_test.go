package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/edge/jetstream"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/bus/bustest"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// stored reads the events of a subject.
func stored(t testing.TB, store *jetstream.Store, subject string) (events []string) {
	t.Helper()
	err := store.Stored(t.Context(), subject, func(subject string, data []byte) error {
		events = append(events, subject[strings.LastIndexByte(subject, '.')+1:]+":"+strings.TrimRight(string(data), "-"))
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return events
}

// send publishes events as a worker does: with a reply subject, and nobody
// answers to it.
func send(t testing.TB, conn *bus.Conn, subject string, data []byte) {
	t.Helper()
	client, _, _ := strings.Cut(subject, ".ev.")
	reply := client + ".call"
	if err := conn.NATS().PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: data}); err != nil {
		t.Fatal(err)
	}
}

func TestStoredEvents(t *testing.T) {
	t.Parallel()
	store, conn := single(t)
	const call = "mr.main.e.edge1.ev.s1.c1."
	if got := stored(t, store, call+"1"); got != nil {
		t.Errorf("nothing reads as %v", got)
	}
	acks, err := conn.NATS().SubscribeSync("mr.main.e.*.call")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	padding := strings.Repeat("-", 4000) // several pages by size, and by number
	for i := range 600 {
		round := 1 + i/300
		send(t, conn, call+strconv.Itoa(round), fmt.Appendf(nil, "%d%s", i, padding))
		send(t, conn, "mr.main.e.edge1.ev.s1.c2.1", []byte("other"))
		want = append(want, fmt.Sprintf("%d:%d", round, i))
	}
	// The second round runs on another edge now.
	send(t, conn, "mr.main.e.edge2.ev.s1.c1.2", []byte("last"))
	want = append(want, "2:last")
	eventually(t, func() bool { return len(stored(t, store, "mr.main.e.*.ev.s1.c1.*")) == len(want) })
	got := stored(t, store, "mr.main.e.*.ev.s1.c1.*")
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("event %d is %q, want %q", i, got[i], want[i])
		}
	}
	if got := stored(t, store, call+"1"); len(got) != 300 || got[0] != "1:0" || got[299] != "1:299" {
		t.Errorf("%d events of the first round: %.40q", len(got), got)
	}
	// The oldest go first.
	if got := stored(t, store, "mr.main.e.*.ev.s1.c2.*"); len(got) != 512 {
		t.Errorf("%d events are kept of a round, not 512", len(got))
	}
	if n, _, _ := acks.Pending(); n != 0 {
		t.Errorf("%d acknowledgements went to the call", n)
	}
}

func TestStoredStops(t *testing.T) {
	t.Parallel()
	store, conn := single(t)
	const subject = "mr.main.e.edge1.ev.s.c.1"
	for range 10 {
		send(t, conn, subject, []byte("x"))
	}
	eventually(t, func() bool { return len(stored(t, store, subject)) == 10 })
	enough, n := errors.New("enough"), 0
	err := store.Stored(t.Context(), subject, func(string, []byte) error {
		if n++; n == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || n != 3 {
		t.Errorf("%v after %d events", err, n)
	}
	for _, other := range []string{">", "$KV.>", "mr.main.e.x", "mr.other.e.x.ev.s.c.1"} {
		if err := store.Stored(t.Context(), other, nil); err == nil || errors.Is(err, session.ErrUnavailable) {
			t.Errorf("%q: %v", other, err)
		}
	}
	if !store.Available() {
		t.Error("it is unavailable now")
	}
}

// TestNoReadByPattern: to read by a pattern the server goes through all that is
// stored, and serves nothing else of the connection meanwhile.
func TestNoReadByPattern(t *testing.T) {
	t.Parallel()
	store, conn := single(t)
	asked := make(chan string, 1000) // more than are asked
	sub, err := conn.NATS().Subscribe("$JS.API.>", func(m *nats.Msg) { asked <- string(m.Data) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	const call = "mr.main.e.edge1.ev.s1.c1."
	for round := range 3 {
		send(t, conn, call+strconv.Itoa(round+1), []byte("x"))
		if _, err := store.PutCall(t.Context(), "s1", "c"+strconv.Itoa(round), &millracev1.Continuation{Round: 1}, 0); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return len(stored(t, store, "mr.main.e.*.ev.s1.c1.*")) == 3 })
	if calls, err := store.SessionCalls(t.Context(), "s1"); err != nil || len(calls) != 3 {
		t.Errorf("%d calls, %v", len(calls), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := conn.NATS().FlushWithContext(ctx); err != nil {
		t.Error(err)
	}
	eventually(t, func() bool { return len(asked) > 3 })
	for len(asked) > 0 {
		request := <-asked
		if strings.Contains(request, "_by_subj") && strings.ContainsAny(request, "*>") {
			t.Errorf("asked for %s", request)
		}
	}
}

func TestCalls(t *testing.T) {
	t.Parallel()
	store, _ := single(t)
	ctx := t.Context()
	if _, _, err := store.Call(ctx, "s", "c"); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("nothing reads as %v", err)
	}
	first := &millracev1.Continuation{Method: "tools/call", Round: 1, Edge: "a"}
	if _, err := store.PutCall(ctx, "s", "c", first, 0); err != nil {
		t.Fatal(err)
	}
	var revision uint64
	eventually(t, func() bool {
		c, at, err := store.Call(ctx, "s", "c")
		revision = at
		return err == nil && c.GetEdge() == "a" && c.GetMethod() == "tools/call"
	})
	taken, err := store.PutCall(ctx, "s", "c", &millracev1.Continuation{Round: 2, Edge: "b"}, revision)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.PutCall(ctx, "s", "c", &millracev1.Continuation{Round: 2, Edge: "c"}, revision); !errors.Is(err, session.ErrConflict) {
		t.Errorf("two edges take the same call: %v", err)
	}
	if c, at, err := store.Call(ctx, "s", "c"); err != nil || c.GetEdge() != "b" || at != taken {
		t.Errorf("Call = %v, %d, %v", c, at, err)
	}

	for _, stream := range []string{"d", "f"} {
		if _, err := store.PutCall(ctx, "s", stream, first, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.PutCall(ctx, "s2", "g", first, 0); err != nil {
		t.Fatal(err)
	}
	if err := store.EndCall("s", "f", &millracev1.Continuation{Round: 9}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		c, _, err := store.Call(ctx, "s", "f")
		return err == nil && c.GetRound() == 9
	})
	calls, err := store.SessionCalls(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, call := range calls {
		names = append(names, call.Session+"/"+call.Stream+"/"+call.Continuation.GetEdge())
	}
	if got := strings.Join(names, " "); got != "s/c/b s/d/a s/f/" {
		t.Errorf("calls of the session: %s", got)
	}
	for _, token := range []string{"", "a.b", "*", ">", "a b"} {
		if _, _, err := store.Call(ctx, token, "c"); err == nil || errors.Is(err, session.ErrNotFound) {
			t.Errorf("Call(%q) = %v", token, err)
		}
		if _, err := store.PutCall(ctx, "s", token, first, 0); err == nil {
			t.Errorf("PutCall(%q) works", token)
		}
	}
	huge := &millracev1.Continuation{Params: make([]byte, session.MaxValue)}
	if _, err := store.PutCall(ctx, "s", "h", huge, 0); !errors.Is(err, session.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

// The server that leads a stream dies. What was acknowledged is there
// afterwards, what comes meanwhile fails without waiting, and it recovers by
// itself. Edges that start while the servers elect make every stream once.
func TestLeaderDies(t *testing.T) {
	t.Parallel()
	cluster := bustest.StartCluster(t, 3, bustest.JetStream())
	urls := strings.Join([]string{cluster.URL(0), cluster.URL(1), cluster.URL(2)}, ",")
	stores, conns := make([]*jetstream.Store, 3), make([]*bus.Conn, 3)
	// One stream is there from an older edge and a smaller cluster.
	js, err := natsjs.New(connect(t, bus.ConnConfig{URL: urls}).NATS())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(bustest.Within(t), natsjs.StreamConfig{
		Name: "mr_main_calls", Subjects: []string{"mr.main.cont.>"}, Storage: natsjs.MemoryStorage, Replicas: 1,
	}); err != nil {
		t.Fatal(err)
	}
	keys := make(chan string, len(stores))
	for i := range stores {
		conns[i] = connect(t, bus.ConnConfig{URL: urls})
		stores[i] = open(t, conns[i], jetstream.Config{})
		go func() {
			key, err := stores[i].Key(bustest.Within(t), "k", func() []byte { return []byte(strconv.Itoa(i)) })
			if err != nil {
				t.Error(err)
			}
			keys <- string(key)
		}()
	}
	key := <-keys
	for range len(stores) - 1 {
		if other := <-keys; other != key {
			t.Errorf("two keys: %q and %q", key, other)
		}
	}
	for _, store := range stores {
		eventually(t, store.Available)
	}
	for _, name := range []string{"KV_mr_main_sessions", "KV_mr_main_keys", "mr_main_events", "mr_main_calls"} {
		stream, err := js.Stream(bustest.Within(t), name)
		if err != nil || stream.CachedInfo().Config.Replicas != 3 {
			t.Errorf("%s: %v, not on three servers", name, err)
		}
	}
	first := put(t, stores[0], "a", "one", 0, 0)
	if value, revision, err := stores[1].Get(t.Context(), "a"); string(value) != "one" || revision != first || err != nil {
		t.Errorf("another edge reads %q, %d, %v at once", value, revision, err)
	}
	const subject = "mr.main.e.x.ev.s.c.1"
	for range 50 {
		send(t, conns[0], subject, []byte("x"))
	}
	eventually(t, func() bool { return len(stored(t, stores[0], subject)) == 50 })

	killed := cluster.Leader("KV_mr_main_sessions")
	if killed < 0 {
		t.Fatal("nobody leads")
	}
	cluster.Kill(killed)
	for i, store := range stores {
		eventually(t, func() bool {
			value, revision, err := store.Get(t.Context(), "a")
			if err != nil && !errors.Is(err, session.ErrUnavailable) {
				t.Errorf("edge %d: %v", i, err)
			}
			return err == nil && string(value) == "one" && revision == first
		})
	}
	second := uint64(0)
	eventually(t, func() bool {
		var err error
		second, err = stores[1].Put(t.Context(), "a", []byte("two"), first, 0)
		if errors.Is(err, session.ErrConflict) {
			// A write before it was done without an answer.
			_, second, err = stores[1].Get(t.Context(), "a")
		}
		return err == nil
	})
	if value, revision, err := stores[2].Get(t.Context(), "a"); string(value) != "two" || revision != second || err != nil {
		t.Errorf("afterwards another edge reads %q, %d, %v", value, revision, err)
	}
	eventually(t, stores[0].Available)
	if got := stored(t, stores[0], subject); len(got) != 50 {
		t.Errorf("%d of 50 events are left", len(got))
	}
}

func BenchmarkStore(b *testing.B) {
	store, _ := single(b)
	ctx := b.Context()
	revision := put(b, store, "a", strings.Repeat("x", 120), 0, 0)
	b.Run("put", func(b *testing.B) {
		value := []byte(strings.Repeat("x", 120))
		for b.Loop() {
			var err error
			if revision, err = store.Put(ctx, "a", value, revision, 0); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("get", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := store.Get(ctx, "a"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("put call", func(b *testing.B) {
		c := &millracev1.Continuation{Method: "tools/call", Params: []byte(strings.Repeat("x", 300))}
		revision := uint64(0)
		if _, last, err := store.Call(ctx, "s", "c"); err == nil {
			revision = last // of a shorter run of this benchmark
		}
		for b.Loop() {
			var err error
			if revision, err = store.PutCall(ctx, "s", "c", c, revision); err != nil {
				b.Fatal(err)
			}
		}
	})
}
