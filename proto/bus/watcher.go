package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

const (
	// lateAfter is the silence after which an instance is probed.
	lateAfter = 1250 * time.Millisecond
	// probeTimeout is how long a probe waits, probeTries how many may fail.
	probeTimeout = 300 * time.Millisecond
	probeTries   = 2

	// stoodStill is how late the watcher looks when its process did not run.
	stoodStill = 500 * time.Millisecond

	// syncRound is one round of hello, syncLimit the longest cold start.
	syncRound = 300 * time.Millisecond
	syncLimit = 1300 * time.Millisecond

	// beatQueue is how many heartbeats may wait for the watcher; further ones
	// are dropped, which looks like a lost heartbeat and ends with a probe.
	beatQueue = 4096
	// fetchTimeout is how long one part of a manifest may take.
	fetchTimeout = 2 * time.Second
	// maxManifest bounds a fetched manifest.
	maxManifest = 64 << 20
)

// Member is an instance as its heartbeats describe it.
type Member struct {
	Instance, Pool, Version string
	// Epoch changes when the instance lost its calls by itself.
	Epoch uint64
	// Draining says that the instance takes no new calls.
	Draining bool
	// Slots is how many calls the instance runs at a time, Used how many ran
	// at its last heartbeat.
	Slots, Used int
	// Manifests are the hashes of what it offers, see Watcher.Fetch.
	Manifests []Hash
}

// WatcherConfig is the configuration of a Watcher. The zero value works.
type WatcherConfig struct {
	// Logger receives the coming and going of instances; nil discards it.
	Logger *slog.Logger
	// OnLost is called when an instance vanished or said that it is gone, and
	// with the old state when it began a new epoch. The watcher's goroutine
	// calls it and waits. Client.Lost is the usual thing to do there.
	OnLost func(Member)
}

// Watcher keeps a list of the live instances of all pools, by their heartbeats
// and by asking those that are late. Its methods may be called concurrently.
type Watcher struct {
	conn    *Conn
	cfg     WatcherConfig
	logger  *slog.Logger
	changes chan struct{} // capacity 1, never closed: a full channel holds the news already
	synced  chan struct{} // closed by Run after the cold start
	members atomic.Pointer[[]Member]
}

// NewWatcher returns a watcher on conn. It does nothing before Run.
func NewWatcher(conn *Conn, cfg WatcherConfig) *Watcher {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Watcher{
		conn:    conn,
		cfg:     cfg,
		logger:  cfg.Logger,
		changes: make(chan struct{}, 1),
		synced:  make(chan struct{}),
	}
	w.members.Store(new([]Member))
	return w
}

// Members returns the live instances in order of pool and instance. The caller
// must not change the slice.
func (w *Watcher) Members() []Member { return *w.members.Load() }

// Changes returns a channel that holds a value when Members has changed since
// the last value was taken. It is meant for one reader and is never closed.
func (w *Watcher) Changes() <-chan struct{} { return w.changes }

// Synced returns a channel that is closed when every instance has had the time
// to answer after Run was started, at most 1.3 s later.
func (w *Watcher) Synced() <-chan struct{} { return w.synced }

// watched is a member and when it was heard.
type watched struct {
	Member
	seen    time.Time
	probing bool
	tries   int // probes in a row without an answer
}

// probeResult is the answer to a probe.
type probeResult struct {
	instance string
	epoch    uint64 // of the member that was asked
	got      uint64 // the epoch in the answer
	err      error
}

// watcherRun is the state of Run, owned by its goroutine.
type watcherRun struct {
	w       *Watcher
	ctx     context.Context
	members map[string]*watched
	wg      sync.WaitGroup
	stored  time.Time // when the list was last made visible
	due     time.Time // when to look who is late
	// probes carries answers to Run. Its senders give up when ctx is done; it
	// is never closed.
	probes chan probeResult
}

// Run watches until ctx is done or, with an error, the connection is closed for
// good. It may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	r := &watcherRun{w: w, ctx: ctx, members: make(map[string]*watched), probes: make(chan probeResult)}
	defer r.wg.Wait()
	defer cancel()

	nc := w.conn.nc
	beats := make(chan *nats.Msg, beatQueue) // the connection sends, dropping when full; never closed
	sub, err := nc.ChanSubscribe(w.conn.prefix+"hb.*", beats)
	if err != nil {
		return fmt.Errorf("bus: subscribe: %w", err)
	}
	defer unsubscribe(sub)
	up := make(chan struct{}, 1)
	remove := w.conn.listen(&connListener{down: func() {}, up: func() { notify(up) }})
	defer remove()
	if err := flush(ctx, nc); err != nil {
		return err
	}
	r.hello()

	var (
		began    = time.Now()
		round    = time.NewTimer(syncRound)
		lastView = r.view()
		rounds   = 0
		late     = time.NewTimer(lateAfter)
	)
	r.due = began.Add(lateAfter)
	defer round.Stop()
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.conn.dead:
			return w.conn.deadError()
		case m := <-beats:
			r.onBeat(m, time.Now())
		case p := <-r.probes:
			r.onProbe(p, time.Now())
		case <-late.C:
			now := time.Now()
			next := r.checkLate(now)
			r.due = now.Add(next)
			late.Reset(next)
		case <-round.C:
			view := r.view()
			rounds++
			if rounds >= 2 && slices.Equal(view, lastView) || time.Since(began)+syncRound > syncLimit {
				close(w.synced)
				continue
			}
			lastView = view
			r.hello()
			round.Reset(syncRound)
		case <-up:
			r.forgive(time.Now())
			r.hello()
		}
	}
}

// hello asks every instance for a heartbeat.
func (r *watcherRun) hello() { _ = r.w.conn.nc.Publish(r.w.conn.prefix+"hello", nil) }

// view is what two rounds of the cold start must agree about.
func (r *watcherRun) view() []string {
	ids := make([]string, 0, len(r.members))
	for _, m := range r.members {
		ids = append(ids, fmt.Sprint(m.Instance, m.Epoch, m.Draining, m.Manifests))
	}
	slices.Sort(ids)
	return ids
}

func (r *watcherRun) onBeat(msg *nats.Msg, now time.Time) {
	var hb busv1.Heartbeat
	id := msg.Subject[len(r.w.conn.prefix)+len("hb."):]
	// Permissions are granted by subject, so the subject is the truth.
	if err := proto.Unmarshal(msg.Data, &hb); err != nil || hb.GetInstance() != id || !validToken(id) {
		return
	}
	if !validToken(hb.GetPool()) {
		return // no worker
	}
	old := r.members[id]
	if hb.GetState() == busv1.Heartbeat_STATE_GONE {
		if old != nil {
			r.lose(old, "it left")
			r.publish()
		}
		return
	}
	next := Member{
		Instance: id,
		Pool:     hb.GetPool(),
		Version:  hb.GetVersion(),
		Epoch:    hb.GetEpoch(),
		Draining: hb.GetState() == busv1.Heartbeat_STATE_DRAINING,
		Slots:    int(hb.GetSlots()),
		Used:     int(hb.GetUsed()),
	}
	for _, h := range hb.GetManifests() {
		if len(h) == len(Hash{}) {
			next.Manifests = append(next.Manifests, Hash(h))
		}
	}
	if old == nil {
		r.w.logger.Info("instance joined", "pool", next.Pool, "instance", id, "version", next.Version)
		r.members[id] = &watched{Member: next, seen: now}
		r.publish()
		return
	}
	previous := old.Member
	old.Member, old.seen, old.tries = next, now, 0
	if previous.Epoch != next.Epoch {
		r.lost(previous, "a new epoch began")
	}
	switch {
	case !same(previous, next):
		r.publish()
	case previous.Used != next.Used && now.Sub(r.stored) >= heartbeatEvery:
		// Used changes all the time and is no news: a new list for each
		// heartbeat would cost more than the rest of the watcher.
		r.store()
	}
}

func same(a, b Member) bool {
	return a.Pool == b.Pool && a.Version == b.Version && a.Epoch == b.Epoch &&
		a.Draining == b.Draining && a.Slots == b.Slots && slices.Equal(a.Manifests, b.Manifests)
}

// forgive begins anew to wait for everybody: the silence was ours.
func (r *watcherRun) forgive(now time.Time) {
	for _, m := range r.members {
		m.seen, m.tries = now, 0
	}
}

// checkLate probes the instances that have been silent for too long and
// returns when to look again.
func (r *watcherRun) checkLate(now time.Time) time.Duration {
	next := lateAfter
	if now.Sub(r.due) > stoodStill {
		// What was sent meanwhile is still to be read, and if they are on this
		// machine they did not run either.
		r.forgive(now)
	}
	for _, m := range r.members {
		silent := now.Sub(m.seen)
		switch {
		case m.probing:
		case silent < lateAfter:
			next = min(next, lateAfter-silent)
		case r.w.conn.Connected():
			r.probe(m)
		default:
			next = min(next, probeTimeout) // the silence may be ours
		}
	}
	return next
}

// probe asks an instance whether it is there.
func (r *watcherRun) probe(m *watched) {
	m.probing = true
	p := probeResult{instance: m.Instance, epoch: m.Epoch}
	r.wg.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, probeTimeout)
		defer cancel()
		answer, err := r.w.conn.nc.RequestWithContext(ctx, r.w.conn.prefix+"i."+p.instance+"."+tokenPing, nil)
		if err == nil {
			var got busv1.ProbeResponse
			err = proto.Unmarshal(answer.Data, &got)
			p.got = got.GetEpoch()
		}
		p.err = err
		select {
		case r.probes <- p:
		case <-r.ctx.Done():
		}
	})
}

func (r *watcherRun) onProbe(p probeResult, now time.Time) {
	m := r.members[p.instance]
	if m == nil {
		return
	}
	m.probing = false
	switch {
	case m.Epoch != p.epoch || now.Sub(m.seen) < lateAfter:
		// It was heard meanwhile.
	case p.err == nil && p.got == m.Epoch:
		m.seen, m.tries = now, 0
	case p.err == nil:
		// Alive with a new epoch whose heartbeat is still on the way.
		previous := m.Member
		m.Epoch, m.seen, m.tries = p.got, now, 0
		r.lost(previous, "a new epoch began")
		r.publish()
	case errors.Is(p.err, nats.ErrNoResponders):
		r.lose(m, "nobody answers for it")
		r.publish()
	case !r.w.conn.Connected():
		// The silence may be ours; checkLate asks again.
	default:
		if m.tries++; m.tries < probeTries {
			r.probe(m)
			return
		}
		r.lose(m, "it does not answer")
		r.publish()
	}
}

// lose removes a member.
func (r *watcherRun) lose(m *watched, why string) {
	delete(r.members, m.Instance)
	r.lost(m.Member, why)
}

func (r *watcherRun) lost(m Member, why string) {
	r.w.logger.Info("instance lost", "pool", m.Pool, "instance", m.Instance, "epoch", m.Epoch, "reason", why)
	if r.w.cfg.OnLost != nil {
		r.w.cfg.OnLost(m)
	}
}

// publish makes the members visible and says that they changed.
func (r *watcherRun) publish() {
	r.store()
	notify(r.w.changes)
}

func (r *watcherRun) store() {
	r.stored = time.Now()
	list := make([]Member, 0, len(r.members))
	for _, m := range r.members {
		list = append(list, m.Member)
	}
	slices.SortFunc(list, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Instance, b.Instance))
	})
	r.w.members.Store(&list)
}

// Fetch returns the manifest with the hash from any instance that has it. What
// it returns is verified. The error is Unavailable when no instance has it and
// DataLoss when the answer is not what the hash promises.
func (w *Watcher) Fetch(ctx context.Context, hash Hash) ([]byte, error) {
	var data []byte
	for {
		req, err := proto.Marshal(&busv1.FetchRequest{Hash: hash[:], Offset: uint64(len(data))})
		if err != nil {
			return nil, status.Errorf(codes.Internal, "manifest %s: %v", hash, err)
		}
		part, cancel := context.WithTimeout(ctx, fetchTimeout)
		msg, err := w.conn.nc.RequestWithContext(part, w.conn.manifestSubject(hash), req)
		cancel()
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			return nil, failure(codes.Unavailable, ReasonNoResponders, "no instance has manifest "+hash.String())
		case err != nil && ctx.Err() != nil:
			return nil, contextError(ctx)
		case errors.Is(err, context.DeadlineExceeded):
			return nil, failure(codes.Unavailable, ReasonWorkerLost, "the instance that has manifest "+hash.String()+" does not answer")
		case err != nil:
			return nil, failure(codes.Unavailable, ReasonDisconnected, "no connection to the bus: "+err.Error())
		}
		var got busv1.FetchResponse
		if err := proto.Unmarshal(msg.Data, &got); err != nil {
			return nil, status.Errorf(codes.DataLoss, "manifest %s: malformed answer", hash)
		}
		if got.GetTotal() > maxManifest {
			return nil, status.Errorf(codes.ResourceExhausted, "manifest %s has %d bytes, the limit is %d", hash, got.GetTotal(), maxManifest)
		}
		if data == nil {
			data = make([]byte, 0, min(got.GetTotal(), defaultChunk))
		}
		data = append(data, got.GetData()...)
		switch n := uint64(len(data)); {
		case n > got.GetTotal(), n < got.GetTotal() && len(got.GetData()) == 0:
			return nil, status.Errorf(codes.DataLoss, "manifest %s: the parts do not add up", hash)
		case n == got.GetTotal():
			if sum := HashOf(data); sum != hash {
				return nil, status.Errorf(codes.DataLoss, "manifest %s: the content has hash %s", hash, sum)
			}
			return data, nil
		}
	}
}
