package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
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
	// standstill is how late the watcher's own timer may be before the silence
	// of others may be its own.
	standstill = 100 * time.Millisecond

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
	// Stalled is how many of Used should have ended at the last heartbeat: see
	// ServerStats.
	Stalled int
	// Manifests are the hashes of what it offers, see Watcher.Fetch.
	Manifests []Hash
	// Silent, of a Roster: it did not answer, and is asked again and again.
	Silent bool
}

// WatcherConfig is the configuration of a Watcher. The zero value works.
type WatcherConfig struct {
	// Logger receives the coming and going of instances; nil discards it.
	Logger *slog.Logger
	// OnLost is called when an instance vanished or said that it is gone, and
	// with the old state when it began a new epoch. The watcher's goroutine
	// calls it and waits. Client.Lost is the usual thing to do there.
	OnLost func(Member)
	// Heard returns how many frames an instance has sent to this process so
	// far: one that sends is alive, whatever became of its heartbeats.
	// Client.Heard is that. It must not block. Nil: only heartbeats and answers
	// to probes count.
	Heard func(instance string) uint64
}

// Roster is who may have been given a call of a pool.
type Roster struct {
	// Members are the live instances, and those that have fallen silent without
	// proof that they are gone: they may come back with what they were sent.
	Members []Member
	// Changed is when an instance of the pool was last lost, fell silent or
	// began a new epoch, or when this process may have missed that; zero when
	// it never happened.
	Changed time.Time
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
	// asks carries questions for a roster to Run, which answers into the channel
	// within. Whoever asks gives up with its context or when done is closed, as
	// Run does at its end. It is never closed.
	asks chan rosterAsk
	done chan struct{}
}

// rosterAsk is a question for the roster of a pool. The answer has capacity 1.
type rosterAsk struct {
	pool   string
	answer chan Roster
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
		asks:    make(chan rosterAsk),
		done:    make(chan struct{}),
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

// Roster returns who may have been given a call of the pool so far. It takes
// account of every heartbeat that the connection has delivered before. The error
// is that of the context, or says that Run has ended.
func (w *Watcher) Roster(ctx context.Context, pool string) (Roster, error) {
	ask := rosterAsk{pool: pool, answer: make(chan Roster, 1)}
	select {
	case w.asks <- ask:
	case <-w.done:
		return Roster{}, errors.New("bus: the watcher has stopped")
	case <-ctx.Done():
		return Roster{}, contextError(ctx)
	}
	select {
	case roster := <-ask.answer:
		return roster, nil
	case <-ctx.Done():
		return Roster{}, contextError(ctx)
	}
}

// watched is a member and when it was heard.
type watched struct {
	Member
	seen time.Time
	// silent: it was given up because it did not answer. It is no member for
	// others, but may come back, and until it does or is proved gone it is asked
	// again.
	silent  bool
	probing bool
	echo    uint64    // the echo that was sent with the probe
	waiting time.Time // since when the probe waits; zero until the echo is back
	heard   uint64    // frames it had sent when it was probed
	tries   int       // probes in a row without an answer
}

// watcherRun is the state of Run, owned by its goroutine.
type watcherRun struct {
	w       *Watcher
	members map[string]*watched
	stored  time.Time // when the list was last made visible
	changed map[string]time.Time
	blind   time.Time // until when something may have been missed about any pool
	// beats and pongs are filled by the connection, which drops what does not
	// fit: that looks like silence and ends with another probe. Never closed.
	beats, pongs chan *nats.Msg
	inbox        string
	echo         uint64 // the last one that was sent
}

// Run watches until ctx is done or, with an error, the connection is closed for
// good. It may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	defer close(w.done)
	r := &watcherRun{
		w: w, members: make(map[string]*watched), changed: make(map[string]time.Time),
		beats: make(chan *nats.Msg, beatQueue), pongs: make(chan *nats.Msg, beatQueue),
	}
	nc := w.conn.nc
	r.inbox = nc.NewInbox()
	pongs, err := nc.ChanSubscribe(r.inbox+".*", r.pongs)
	if err != nil {
		return fmt.Errorf("bus: subscribe: %w", err)
	}
	defer unsubscribe(pongs)
	sub, err := nc.ChanSubscribe(w.conn.prefix+"hb.*", r.beats)
	if err != nil {
		return fmt.Errorf("bus: subscribe: %w", err)
	}
	defer unsubscribe(sub)
	// Capacity 1 and never closed: a full channel holds the news already.
	up, missed := make(chan struct{}, 1), make(chan struct{}, 1)
	remove := w.conn.listen(&connListener{
		down: func() { notify(missed) },
		up:   func() { notify(up) },
		slow: func(s *nats.Subscription) {
			if s == sub {
				notify(missed)
			}
		},
	})
	defer remove()
	if err := flush(ctx, nc); err != nil {
		return err
	}
	r.miss(time.Now())
	r.hello()

	var (
		began    = time.Now()
		round    = time.NewTimer(syncRound)
		lastView = r.view()
		rounds   = 0
		late     = time.NewTimer(lateAfter)
		due      = began.Add(lateAfter)
	)
	defer round.Stop()
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.conn.dead:
			return w.conn.deadError()
		case m := <-r.beats:
			r.onBeat(m, time.Now())
		case m := <-r.pongs:
			r.onPong(m, time.Now())
		case ask := <-w.asks:
			r.drain()
			select {
			case <-missed:
				r.miss(time.Now())
			default:
			}
			ask.answer <- r.roster(ask.pool)
		case <-late.C:
			r.drain()
			now := time.Now()
			next := r.checkLate(now, now.Sub(due) > standstill)
			due = now.Add(next)
			late.Reset(next)
		case <-missed:
			r.miss(time.Now())
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
			// The silence was ours.
			now := time.Now()
			r.miss(now)
			for _, m := range r.members {
				m.seen, m.tries, m.probing = now, 0, false
			}
			r.hello()
		}
	}
}

// miss notes that instances may have come and gone unseen. Whoever is there has
// said so after the longest cold start.
func (r *watcherRun) miss(now time.Time) { r.blind = now.Add(syncLimit) }

// hello asks every instance for a heartbeat.
func (r *watcherRun) hello() { _ = r.w.conn.nc.Publish(r.w.conn.prefix+"hello", nil) }

// view is what two rounds of the cold start must agree about.
func (r *watcherRun) view() []string {
	ids := make([]string, 0, len(r.members))
	for _, m := range r.members {
		if m.silent {
			continue
		}
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
			r.lose(old, "it left", now)
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
		Stalled:  int(hb.GetStalled()),
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
	back := old.silent
	old.Member, old.seen, old.tries, old.probing, old.silent = next, now, 0, false, false
	switch {
	case previous.Epoch == next.Epoch:
	case back:
		r.changed[next.Pool] = now // its calls were given up when it fell silent
	default:
		r.lost(previous, "a new epoch began", now)
	}
	switch {
	case back:
		r.w.logger.Info("instance is back", "pool", next.Pool, "instance", id)
		r.publish()
	case !same(previous, next):
		r.publish()
	case (previous.Used != next.Used || previous.Stalled != next.Stalled) && now.Sub(r.stored) >= heartbeatEvery:
		// Used changes all the time and is no news: a new list for each
		// heartbeat would cost more than the rest of the watcher.
		r.store()
	}
}

func same(a, b Member) bool {
	return a.Pool == b.Pool && a.Version == b.Version && a.Epoch == b.Epoch &&
		a.Draining == b.Draining && a.Slots == b.Slots && slices.Equal(a.Manifests, b.Manifests)
}

// drain takes what has arrived: it may answer what a timer asks.
func (r *watcherRun) drain() {
	for {
		select {
		case m := <-r.beats:
			r.onBeat(m, time.Now())
		case m := <-r.pongs:
			r.onPong(m, time.Now())
		default:
			return
		}
	}
}

// checkLate probes the instances that have been silent for too long, gives up
// those that have not answered, and returns when to look again. still says that
// this process stood still: the silence may have been its own.
func (r *watcherRun) checkLate(now time.Time, still bool) time.Duration {
	next := lateAfter
	if !r.w.conn.Connected() {
		// The silence is ours. When the connection is back, all begin anew.
		return probeTimeout
	}
	for _, m := range r.members {
		switch silent := now.Sub(m.seen); {
		case !m.probing && silent < lateAfter:
			next = min(next, lateAfter-silent)
		case !m.probing, still:
			r.probe(m)
			next = min(next, probeTimeout)
		case m.waiting.IsZero():
			// Not even our own message is back.
			next = min(next, probeTimeout)
		case now.Sub(m.waiting) < probeTimeout:
			next = min(next, probeTimeout-now.Sub(m.waiting))
		default:
			next = min(next, r.unanswered(m, now))
		}
	}
	return next
}

// probe asks an instance whether it is there. Behind the question it sends a
// message to itself: until that is back, an answer could not be here either,
// and what is slow is the connection or this process.
func (r *watcherRun) probe(m *watched) {
	if !m.probing {
		m.heard = r.heard(m)
	}
	r.echo++
	m.probing, m.waiting, m.echo = true, time.Time{}, r.echo
	nc := r.w.conn.nc
	_ = nc.PublishRequest(r.w.conn.prefix+"i."+m.Instance+"."+tokenPing, r.inbox+"."+m.Instance, nil) // lost: like silence
	_ = nc.Publish(r.inbox+"."+tokenEcho, strconv.AppendUint(nil, r.echo, 10))
}

// tokenEcho ends the subject of what a watcher sends to itself. It is no id of an
// instance, as it holds what a token may not.
const tokenEcho = "~"

func (r *watcherRun) heard(m *watched) uint64 {
	if r.w.cfg.Heard == nil {
		return 0
	}
	return r.w.cfg.Heard(m.Instance)
}

// unanswered decides about an instance whose probe has waited long enough, and
// returns when to look at it again.
func (r *watcherRun) unanswered(m *watched, now time.Time) time.Duration {
	if r.heard(m) != m.heard {
		m.probing, m.seen, m.tries = false, now, 0
		return lateAfter
	}
	if m.tries++; m.tries < probeTries {
		r.probe(m)
		return probeTimeout
	}
	m.probing, m.seen, m.tries = false, now, 0
	if !m.silent {
		m.silent = true
		r.lost(m.Member, "it does not answer", now)
		r.publish()
	}
	return lateAfter
}

// onPong takes the answer to a probe, our own echo, or the news that nobody is
// there.
func (r *watcherRun) onPong(msg *nats.Msg, now time.Time) {
	id := msg.Subject[len(r.inbox)+1:]
	if id == tokenEcho {
		n, err := strconv.ParseUint(string(msg.Data), 10, 64)
		for _, m := range r.members {
			if err == nil && m.probing && m.waiting.IsZero() && m.echo <= n {
				m.waiting = now
			}
		}
		return
	}
	m := r.members[id]
	if m == nil {
		return
	}
	if noResponders(msg) {
		if m.probing {
			r.lose(m, "nobody answers for it", now)
		}
		return
	}
	var got busv1.ProbeResponse
	if err := proto.Unmarshal(msg.Data, &got); err != nil {
		return
	}
	asked := m.probing
	m.probing, m.seen, m.tries = false, now, 0
	if asked && got.GetEpoch() != m.Epoch {
		// Alive with a new epoch whose heartbeat is still on the way. Without a
		// question open, that heartbeat is here and the answer is an old one.
		previous := m.Member
		m.Epoch = got.GetEpoch()
		if !m.silent {
			r.lost(previous, "a new epoch began", now)
		}
	} else if !m.silent {
		return
	}
	if m.silent {
		r.w.logger.Info("instance is back", "pool", m.Pool, "instance", id)
		m.silent = false
	}
	r.changed[m.Pool] = now
	r.publish()
}

// lose removes an instance that is gone.
func (r *watcherRun) lose(m *watched, why string, now time.Time) {
	delete(r.members, m.Instance)
	if m.silent {
		r.changed[m.Pool] = now
		return // it was given up before
	}
	r.lost(m.Member, why, now)
	r.publish()
}

func (r *watcherRun) lost(m Member, why string, now time.Time) {
	r.changed[m.Pool] = now
	r.w.logger.Info("instance lost", "pool", m.Pool, "instance", m.Instance, "epoch", m.Epoch, "reason", why)
	if r.w.cfg.OnLost != nil {
		r.w.cfg.OnLost(m)
	}
}

// roster is who may have been given a call of the pool.
func (r *watcherRun) roster(pool string) Roster {
	roster := Roster{Changed: r.changed[pool]}
	if r.blind.After(roster.Changed) {
		roster.Changed = r.blind
	}
	for _, m := range r.members {
		if m.Pool == pool {
			member := m.Member
			member.Silent = m.silent
			roster.Members = append(roster.Members, member)
		}
	}
	return roster
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
		if !m.silent {
			list = append(list, m.Member)
		}
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
