package bus

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

// lostLog records what a watcher lost.
type lostLog struct {
	mu   sync.Mutex
	lost []Member
}

func (l *lostLog) add(m Member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = append(l.lost, m)
}

func (l *lostLog) take() []Member {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := l.lost
	l.lost = nil
	return lost
}

func startWatcher(t testing.TB, conn *Conn, cfg WatcherConfig) *Watcher {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = newLog(t).logger()
	}
	w := NewWatcher(conn, cfg)
	actor(t, w.Synced(), w.Run)
	return w
}

// silentWorker is an instance whose process is under the test's control: it
// says a heartbeat when told, and answers probes when allowed.
type silentWorker struct {
	t    *testing.T
	conn *Conn
	id   string
	ping *nats.Subscription
}

func newSilentWorker(t *testing.T, conn *Conn, answer func(*nats.Msg)) *silentWorker {
	t.Helper()
	w := &silentWorker{t: t, conn: conn, id: newID()}
	var err error
	if w.ping, err = conn.nc.Subscribe(conn.prefix+"i."+w.id+".ping", answer); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *silentWorker) beat(hb *busv1.Heartbeat) {
	w.t.Helper()
	if hb.Instance == "" {
		hb.Instance = w.id
	}
	if hb.Pool == "" {
		hb.Pool = "test"
	}
	b, err := proto.Marshal(hb)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.conn.nc.Publish(w.conn.prefix+"hb."+w.id, b); err != nil {
		w.t.Fatal(err)
	}
}

func TestWatcherSeesInstancesComeAndGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		var lost lostLog
		w := startWatcher(t, connect(t, ns), WatcherConfig{OnLost: lost.add})
		if got := w.Members(); len(got) != 0 {
			t.Fatalf("members of an empty bus: %v", got)
		}

		a, stopA := startServer(t, connect(t, ns), ServerConfig{Pool: "b", Version: "v1", Slots: 3, Grace: time.Second}, testService{})
		synctest.Wait()
		<-w.Changes()
		members := w.Members()
		if len(members) != 1 || members[0].Instance != a.Instance() || members[0].Pool != "b" ||
			members[0].Version != "v1" || members[0].Slots != 3 || members[0].Draining {
			t.Fatalf("members %+v", members)
		}
		b, _ := startServer(t, connect(t, ns), ServerConfig{Pool: "a"}, testService{})
		synctest.Wait()
		<-w.Changes()
		if got := w.Members(); len(got) != 2 || got[0].Instance != b.Instance() {
			t.Fatalf("members are not sorted by pool: %+v", got)
		}

		a.SetManifest([]byte("what it does"))
		synctest.Wait()
		<-w.Changes()
		if got := w.Members()[1].Manifests; len(got) != 1 || got[0] != HashOf([]byte("what it does")) {
			t.Fatalf("manifests %v", got)
		}

		// A long quiet time: heartbeats keep both.
		time.Sleep(time.Minute)
		if got := w.Members(); len(got) != 2 || len(lost.take()) != 0 {
			t.Fatalf("members %+v", got)
		}

		done := make(chan struct{})
		go func() { defer close(done); stopA() }()
		synctest.Wait()
		if got := w.Members(); len(got) != 2 || !got[1].Draining {
			t.Fatalf("draining is not announced: %+v", got)
		}
		<-done
		synctest.Wait()
		if got := lost.take(); len(got) != 1 || got[0].Instance != a.Instance() {
			t.Fatalf("lost %+v", got)
		}
		if got := w.Members(); len(got) != 1 {
			t.Fatalf("members %+v", got)
		}
	})
}

func TestWatcherColdStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		for range 3 {
			startServer(t, connect(t, ns), ServerConfig{}, testService{})
		}
		// Not at a moment when all have just said something by themselves.
		time.Sleep(10*time.Second + 400*time.Millisecond)
		began := time.Now()
		w := startWatcher(t, connect(t, ns), WatcherConfig{})
		if got := w.Members(); len(got) != 3 {
			t.Errorf("%d members after the cold start", len(got))
		}
		if took := time.Since(began); took > syncLimit {
			t.Errorf("the cold start took %v", took)
		}
	})
}

func TestWatcherLosesAKilledInstance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		var lost lostLog
		w := startWatcher(t, connect(t, ns), WatcherConfig{OnLost: lost.add})
		conn := connect(t, ns)
		worker := newSilentWorker(t, conn, func(*nats.Msg) {})
		worker.beat(&busv1.Heartbeat{Epoch: 7})
		synctest.Wait()
		<-w.Changes()
		conn.Close()
		time.Sleep(1300 * time.Millisecond)
		synctest.Wait()
		if got := lost.take(); len(got) != 1 || got[0].Epoch != 7 || len(w.Members()) != 0 {
			t.Errorf("lost %+v, members %+v", got, w.Members())
		}
	})
}

func TestWatcherLosesAFrozenInstance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		var lost lostLog
		w := startWatcher(t, connect(t, ns), WatcherConfig{OnLost: lost.add})
		worker := newSilentWorker(t, connect(t, ns), func(*nats.Msg) {}) // is there and says nothing
		worker.beat(&busv1.Heartbeat{Epoch: 7})
		synctest.Wait()
		<-w.Changes()
		time.Sleep(lateAfter + probeTimeout + 50*time.Millisecond)
		if got := lost.take(); len(got) != 0 {
			t.Errorf("lost after one probe: %+v", got)
		}
		time.Sleep(probeTimeout)
		synctest.Wait()
		if got := lost.take(); len(got) != 1 || len(w.Members()) != 0 {
			t.Errorf("lost %+v, members %+v", got, w.Members())
		}
	})
}

func TestWatcherKeepsAnInstanceThatAnswersProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		var lost lostLog
		w := startWatcher(t, connect(t, ns), WatcherConfig{OnLost: lost.add})
		var epoch atomic.Uint64
		epoch.Store(7)
		worker := newSilentWorker(t, connect(t, ns), func(m *nats.Msg) {
			b, err := proto.Marshal(&busv1.ProbeResponse{Epoch: epoch.Load()})
			if err == nil {
				err = m.Respond(b)
			}
			if err != nil {
				t.Error(err)
			}
		})
		worker.beat(&busv1.Heartbeat{Epoch: 7})
		synctest.Wait()
		<-w.Changes()
		time.Sleep(10 * time.Second)
		if got := lost.take(); len(got) != 0 || len(w.Members()) != 1 {
			t.Fatalf("lost %+v", got)
		}
		// It answers with a new epoch: the old one is lost, the instance is not.
		epoch.Store(8)
		time.Sleep(10 * time.Second)
		if got := lost.take(); len(got) != 1 || got[0].Epoch != 7 {
			t.Errorf("lost %+v", got)
		}
		if got := w.Members(); len(got) != 1 || got[0].Epoch != 8 {
			t.Errorf("members %+v", got)
		}
		// And by heartbeat.
		worker.beat(&busv1.Heartbeat{Epoch: 9})
		synctest.Wait()
		if got := lost.take(); len(got) != 1 || got[0].Epoch != 8 {
			t.Errorf("lost %+v", got)
		}
		worker.beat(&busv1.Heartbeat{Epoch: 9, State: busv1.Heartbeat_STATE_GONE})
		synctest.Wait()
		if got := lost.take(); len(got) != 1 || got[0].Epoch != 9 || len(w.Members()) != 0 {
			t.Errorf("lost %+v", got)
		}
	})
}

func TestWatcherIgnoresHostileHeartbeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		w := startWatcher(t, connect(t, ns), WatcherConfig{})
		worker := newSilentWorker(t, connect(t, ns), func(*nats.Msg) {})
		worker.beat(&busv1.Heartbeat{Instance: "somebodyelse"})
		worker.beat(&busv1.Heartbeat{Pool: "a.b"})
		if err := worker.conn.nc.Publish(worker.conn.prefix+"hb."+worker.id, []byte{0xff}); err != nil {
			t.Fatal(err)
		}
		worker.beat(&busv1.Heartbeat{Epoch: 1, Manifests: [][]byte{{1, 2, 3}}})
		synctest.Wait()
		if got := w.Members(); len(got) != 1 || got[0].Pool != "test" || len(got[0].Manifests) != 0 {
			t.Errorf("members %+v", got)
		}
	})
}

func TestFetch(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	conn := connect(t, ns)
	s, _ := startServer(t, conn, ServerConfig{Chunk: 1000}, testService{})
	manifest := bytes.Repeat([]byte("manifest "), 1000)
	hash := HashOf(manifest)
	s.SetManifest(manifest)
	w := startWatcher(t, connect(t, ns), WatcherConfig{})
	serves := func(want Hash) func() bool {
		return func() bool {
			m := w.Members()
			return len(m) == 1 && slices.Equal(m[0].Manifests, []Hash{want})
		}
	}
	eventually(t, serves(hash))
	got, err := w.Fetch(within(t), hash)
	if err != nil || !bytes.Equal(got, manifest) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}

	// The one before stays for those who are fetching it, older ones go.
	for _, m := range []string{"second", "third"} {
		s.SetManifest([]byte(m))
		eventually(t, serves(HashOf([]byte(m))))
	}
	if _, err := w.Fetch(within(t), HashOf([]byte("second"))); err != nil {
		t.Errorf("the manifest before: %v", err)
	}
	_, err = w.Fetch(within(t), hash)
	wantCode(t, err, codes.Unavailable)
	if Reason(err) != ReasonNoResponders {
		t.Errorf("reason %q", Reason(err))
	}

	ctx, cancel := context.WithCancel(within(t))
	cancel()
	_, err = w.Fetch(ctx, hash)
	wantCode(t, err, codes.Canceled)
}

func TestFetchRefusesLies(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	conn := connect(t, ns)
	w := NewWatcher(connect(t, ns), WatcherConfig{})
	for name, tc := range map[string]struct {
		answer *busv1.FetchResponse
		want   codes.Code
	}{
		"other content":   {&busv1.FetchResponse{Total: 3, Data: []byte("lie")}, codes.DataLoss},
		"no content":      {&busv1.FetchResponse{Total: 3}, codes.DataLoss},
		"more than total": {&busv1.FetchResponse{Total: 2, Data: []byte("lie")}, codes.DataLoss},
		"too large":       {&busv1.FetchResponse{Total: 1 << 40, Data: []byte("lie")}, codes.ResourceExhausted},
	} {
		hash := HashOf([]byte(name))
		b, err := proto.Marshal(tc.answer)
		if err != nil {
			t.Fatal(err)
		}
		sub, err := conn.nc.Subscribe(conn.manifestSubject(hash), func(m *nats.Msg) {
			if err := m.Respond(b); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer unsubscribe(sub)
		if err := flush(within(t), conn.nc); err != nil {
			t.Fatal(err)
		}
		_, err = w.Fetch(within(t), hash)
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		wantCode(t, err, tc.want)
	}
}
