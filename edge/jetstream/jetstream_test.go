package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/edge/jetstream"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/bus/bustest"
	"github.com/millrace/millrace/proto/localnats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What is promised to others.
var (
	_ session.Store = (*jetstream.Store)(nil)
	_ bus.EventLog  = (*jetstream.Store)(nil)
)

// serve starts a server.
func serve(t testing.TB, cfg localnats.Config) *localnats.Server {
	t.Helper()
	server, err := localnats.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	return server
}

func connect(t testing.TB, cfg bus.ConnConfig) *bus.Conn {
	t.Helper()
	conn, err := bus.Connect(bustest.Within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// open makes a store of a connection and runs it until the test ends.
func open(t testing.TB, conn *bus.Conn, cfg jetstream.Config) *jetstream.Store {
	t.Helper()
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	store, err := jetstream.New(conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return store
}

// single is a store on a server of its own.
func single(t testing.TB) (*jetstream.Store, *bus.Conn) {
	t.Helper()
	conn := connect(t, bus.ConnConfig{InProcess: serve(t, localnats.Config{JetStream: true})})
	store := open(t, conn, jetstream.Config{Memory: true})
	eventually(t, store.Available)
	return store, conn
}

// eventually waits for a condition that something else brings about.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	limit := time.After(60 * time.Second)
	for !ok() {
		select {
		case <-limit:
			t.Fatal("it never happened")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func put(t testing.TB, store *jetstream.Store, key, value string, revision uint64, ttl time.Duration) uint64 {
	t.Helper()
	written, err := store.Put(t.Context(), key, []byte(value), revision, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return written
}

func TestValues(t *testing.T) {
	t.Parallel()
	store, conn := single(t)
	ctx := t.Context()
	if _, _, err := store.Get(ctx, "a.b"); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("nothing reads as %v", err)
	}
	one := put(t, store, "a.b", "one", 0, 0)
	if _, err := store.Put(ctx, "a.b", nil, 0, 0); !errors.Is(err, session.ErrConflict) {
		t.Errorf("made twice: %v", err)
	}
	two := put(t, store, "a.b", "two", one, 0)
	if _, err := store.Put(ctx, "a.b", nil, one, 0); !errors.Is(err, session.ErrConflict) {
		t.Errorf("an old revision: %v", err)
	}
	if value, revision, err := store.Get(ctx, "a.b"); string(value) != "two" || revision != two || err != nil {
		t.Errorf("Get = %q, %d, %v", value, revision, err)
	}
	for _, key := range []string{"", "a..b", "*", "a.>", "a b"} {
		if _, _, err := store.Get(ctx, key); err == nil || errors.Is(err, session.ErrNotFound) {
			t.Errorf("Get(%q) = %v", key, err)
		}
		if _, err := store.Put(ctx, key, nil, 0, 0); err == nil {
			t.Errorf("Put(%q) works", key)
		}
	}
	large := strings.Repeat("x", session.MaxValue)
	put(t, store, "large", large, 0, 0)
	if value, _, err := store.Get(ctx, "large"); string(value) != large || err != nil {
		t.Errorf("the largest value comes back with %d bytes, %v", len(value), err)
	}
	if _, err := store.Put(ctx, "large", []byte(large+"x"), 0, 0); !errors.Is(err, session.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}

	// An operator may delete a key with the tools of NATS.
	js, err := natsjs.New(conn.NATS())
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := js.KeyValue(ctx, "mr_main_sessions")
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Delete(ctx, "a.b"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := store.Get(ctx, "a.b"); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("what was deleted reads as %v", err)
	}
	put(t, store, "a.b", "three", 0, 0)
	if !store.Available() {
		t.Error("errors of callers have made it unavailable")
	}
}

// The time to live of a message is not that of the one before it: written in
// another way, the second value would stay for ever.
func TestTimeToLiveSurvivesUpdates(t *testing.T) {
	t.Parallel()
	store, _ := single(t)
	revision := put(t, store, "short", "one", 0, time.Second)
	revision = put(t, store, "short", "two", revision, 1500*time.Millisecond)
	put(t, store, "long", "three", 0, time.Hour)
	eventually(t, func() bool {
		_, _, err := store.Get(t.Context(), "short")
		return errors.Is(err, session.ErrNotFound)
	})
	if _, err := store.Put(t.Context(), "short", nil, revision, 0); !errors.Is(err, session.ErrConflict) {
		t.Errorf("what is gone still has its revision: %v", err)
	}
	put(t, store, "short", "four", 0, 0)
	if _, _, err := store.Get(t.Context(), "long"); err != nil {
		t.Error(err)
	}
}

func TestKeyIsMadeOnce(t *testing.T) {
	t.Parallel()
	server := serve(t, localnats.Config{JetStream: true})
	var group sync.WaitGroup
	var made atomic.Int64
	keys := make([]string, 10)
	for i := range keys {
		conn := connect(t, bus.ConnConfig{InProcess: server})
		store, err := jetstream.New(conn, jetstream.Config{})
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			key, err := store.Key(bustest.Within(t), "session-key", func() []byte {
				made.Add(1)
				return fmt.Appendf(nil, "key of edge %d", i)
			})
			if err != nil {
				t.Error(err)
			}
			keys[i] = string(key)
		})
	}
	group.Wait()
	for _, key := range keys {
		if key != keys[0] || key == "" {
			t.Errorf("two keys: %q and %q", keys[0], key)
		}
	}
	if made.Load() == 0 {
		t.Error("nobody has made it")
	}
}

func TestManyEdgesStartAtOnce(t *testing.T) {
	t.Parallel()
	server := serve(t, localnats.Config{JetStream: true})
	stores := make([]*jetstream.Store, 8)
	for i := range stores {
		// One of them is configured otherwise: whoever is first decides.
		stores[i] = open(t, connect(t, bus.ConnConfig{InProcess: server}), jetstream.Config{Memory: i == 3})
	}
	for _, store := range stores {
		eventually(t, store.Available)
	}
	put(t, stores[0], "a", "one", 0, 0)
	if value, _, err := stores[7].Get(t.Context(), "a"); string(value) != "one" || err != nil {
		t.Errorf("another edge reads %q, %v", value, err)
	}
}

func TestWithoutJetStream(t *testing.T) {
	t.Parallel()
	conn := connect(t, bus.ConnConfig{InProcess: serve(t, localnats.Config{})})
	store := open(t, conn, jetstream.Config{})
	if store.Available() {
		t.Error("it is available")
	}
	if _, _, err := store.Get(t.Context(), "a"); !errors.Is(err, session.ErrUnavailable) {
		t.Errorf("Get: %v", err)
	}
	if _, err := store.Put(t.Context(), "a", nil, 0, 0); !errors.Is(err, session.ErrUnavailable) {
		t.Errorf("Put: %v", err)
	}
	if err := store.Stored(t.Context(), "mr.main.e.x.ev.s.c.1", nil); !errors.Is(err, session.ErrUnavailable) {
		t.Errorf("Stored: %v", err)
	}
	if _, err := store.PutCall(t.Context(), "s", "c", nil, 0); !errors.Is(err, session.ErrUnavailable) {
		t.Errorf("PutCall: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := store.Key(ctx, "k", func() []byte { return []byte("x") })
	if !errors.Is(err, session.ErrUnavailable) || !errors.Is(err, jetstream.ErrNoJetStream) {
		t.Errorf("Key: %v", err)
	}
}

// A server with little room gets smaller streams.
func TestLittleRoom(t *testing.T) {
	t.Parallel()
	server := serve(t, localnats.Config{JetStream: true})
	conn := connect(t, bus.ConnConfig{InProcess: server})
	js, err := natsjs.New(conn.NATS())
	if err != nil {
		t.Fatal(err)
	}
	// Somebody else has reserved nearly all of its memory.
	_, err = js.CreateStream(bustest.Within(t), natsjs.StreamConfig{
		Name: "other", Subjects: []string{"other"}, Storage: natsjs.MemoryStorage, MaxBytes: 1<<30 - 100<<20,
	})
	if err != nil {
		t.Fatal(err)
	}
	store := open(t, conn, jetstream.Config{})
	eventually(t, store.Available)
}

// frozen is a dialer whose connections stop delivering on command, as with a
// server that hangs. It counts what is sent to JetStream meanwhile.
type frozen struct {
	mu       sync.Mutex
	thaw     chan struct{} // closed: it flows
	requests atomic.Int64
}

func newFrozen() *frozen {
	f := &frozen{thaw: make(chan struct{})}
	close(f.thaw)
	return f
}

func (f *frozen) freeze() (thaw func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	flow := make(chan struct{})
	f.thaw = flow
	return func() { close(flow) }
}

func (f *frozen) flowing() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.thaw
}

// Dial implements nats.CustomDialer.
func (f *frozen) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &frozenConn{Conn: conn, of: f}, nil
}

type frozenConn struct {
	net.Conn

	of *frozen
}

func (c *frozenConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	<-c.of.flowing()
	return n, err
}

func (c *frozenConn) Write(b []byte) (int, error) {
	c.of.requests.Add(int64(strings.Count(string(b), "PUB $JS.API.STREAM.MSG.GET") + strings.Count(string(b), "PUB $KV.")))
	return c.Conn.Write(b)
}

func TestJetStreamHangs(t *testing.T) {
	t.Parallel()
	server := serve(t, localnats.Config{JetStream: true, Listen: "127.0.0.1:0"})
	net := newFrozen()
	store := open(t, connect(t, bus.ConnConfig{URL: server.ClientURL(), Dialer: net}), jetstream.Config{Memory: true})
	eventually(t, store.Available)
	records := session.NewRecords(store, session.RecordsConfig{CacheAge: time.Nanosecond})
	s := &session.Session{Scope: "known", Issued: time.Now()}
	setLevel := func(level string) error {
		_, err := records.Update(t.Context(), s, func(r *session.Record) error { r.Level = level; return nil })
		return err
	}
	if err := setLevel("debug"); err != nil {
		t.Fatal(err)
	}

	thaw := net.freeze()
	asked := net.requests.Load()
	for i := range 2000 {
		for scope, want := range map[string]string{"known": "debug", fmt.Sprintf("s%d", i): ""} {
			if record, err := records.Get(t.Context(), scope); err != nil || record.Level != want {
				t.Errorf("level %q (%v), want %q", record.Level, err, want)
			}
		}
		if err := setLevel("info"); !errors.Is(err, session.ErrUnavailable) {
			t.Errorf("a change that nobody has confirmed: %v", err)
		}
	}
	// One request found out; that it takes a second or two until the next one
	// is a matter of the machine.
	if n := net.requests.Load() - asked; n < 1 || n > 10 {
		t.Errorf("%d requests to a JetStream that hangs", n)
	}
	thaw()
	eventually(t, func() bool { return setLevel("error") == nil })
	if record, err := records.Get(t.Context(), "known"); err != nil || record.Level != "error" {
		t.Errorf("afterwards: %q, %v", record.Level, err)
	}
}

// A caller that leaves says nothing about JetStream.
func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	store, _ := single(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := store.Get(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if !store.Available() {
		t.Error("it is unavailable now")
	}
}

// A server that was started again has its files; what was in its memory is made
// anew.
func TestServerStartsAgain(t *testing.T) {
	t.Parallel()
	for name, memory := range map[string]bool{"files": false, "memory": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := localnats.Config{Listen: "127.0.0.1:0", DataDir: t.TempDir()}
			server := serve(t, cfg)
			url := server.ClientURL()
			conn := connect(t, bus.ConnConfig{URL: url})
			store := open(t, conn, jetstream.Config{Memory: memory})
			eventually(t, store.Available)
			first := put(t, store, "a", "one", 0, 0)
			key := func(fallback string) string {
				key, err := store.Key(bustest.Within(t), "k", func() []byte { return []byte(fallback) })
				if err != nil {
					t.Error(err)
				}
				return string(key)
			}
			if got := key("old"); got != "old" {
				t.Errorf("key %q", got)
			}
			server.Shutdown()
			eventually(t, func() bool {
				_, _, err := store.Get(t.Context(), "a")
				return errors.Is(err, session.ErrUnavailable)
			})
			cfg.Listen = strings.TrimPrefix(url, "nats://")
			serve(t, cfg)
			want, wantKey := "one", "old"
			if memory {
				want, wantKey = "two", "new"
				eventually(t, func() bool {
					_, err := store.Put(t.Context(), "a", []byte("two"), 0, 0)
					return err == nil
				})
			}
			eventually(t, store.Available)
			value, revision, err := store.Get(t.Context(), "a")
			if string(value) != want || err != nil || !memory && revision != first {
				t.Errorf("Get = %q, %d, %v", value, revision, err)
			}
			if got := key("new"); got != wantKey {
				t.Errorf("key %q, want %q", got, wantKey)
			}
		})
	}
}

// Streams that are removed under the running edge come back.
func TestStreamIsRemoved(t *testing.T) {
	t.Parallel()
	store, conn := single(t)
	js, err := natsjs.New(conn.NATS())
	if err != nil {
		t.Fatal(err)
	}
	put(t, store, "a", "one", 0, 0)
	if err := js.DeleteStream(t.Context(), "KV_mr_main_sessions"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		_, err := store.Put(t.Context(), "a", []byte("two"), 0, 0)
		return err == nil
	})
}

func TestManySessionsComeAndGo(t *testing.T) {
	t.Parallel()
	store, conn := single(t)
	records := session.NewRecords(store, session.RecordsConfig{MaxCached: 100})
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range 10_000 / 8 {
				// Their age is nearly over, so that their records are too.
				s := &session.Session{Scope: fmt.Sprintf("s%d-%d", worker, i), Issued: time.Now().Add(time.Second - 24*time.Hour - time.Minute)}
				for _, change := range []func(*session.Record) error{
					func(r *session.Record) error { r.Level = "debug"; return nil },
					func(r *session.Record) error { r.Ended = true; return nil },
				} {
					if _, err := records.Update(t.Context(), s, change); err != nil {
						t.Error(err)
						return
					}
				}
				if _, err := records.Get(t.Context(), s.Scope); !errors.Is(err, session.ErrExpired) {
					t.Errorf("an ended session reads as %v", err)
				}
			}
		})
	}
	group.Wait()
	js, err := natsjs.New(conn.NATS())
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "KV_mr_main_sessions")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	})
}
