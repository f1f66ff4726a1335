// Package catalog is the edge's copy of what workers announce.
//
// It is soft state: built from the heartbeats of the instances that are there
// and the manifests they name, owned by one goroutine, published as immutable
// snapshots. Nothing is stored anywhere else, so a new edge knows everything
// after one round of heartbeats and a lost one leaves nothing behind.
package catalog

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/edge/peer"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

const (
	// defaultHold keeps the list from flapping when a pool restarts.
	defaultHold = 30 * time.Second
	// fetchTimeout bounds the wait for one manifest; the next attempt follows
	// after retryDelay.
	fetchTimeout = 2 * time.Second
	retryDelay   = 500 * time.Millisecond
	// waitPause is how often WaitPools looks though nothing has changed.
	waitPause = 100 * time.Millisecond
)

// Config configures a catalog; the zero value works.
type Config struct {
	// Hold is how long the items of a pool stay listed after its last instance
	// vanished without saying goodbye; 0 means 30 s.
	Hold time.Duration
	// Namespace: a tool or prompt whose name another pool keeps is offered as
	// POOL.NAME instead of not at all. All edges of a deployment should agree.
	Namespace bool
	// Logger reports items that cannot be offered; nil discards.
	Logger *slog.Logger
}

// Catalog follows a bus.Watcher. It is an actor: Run must be running.
type Catalog struct {
	watcher   *bus.Watcher
	hold      time.Duration
	namespace bool
	log       *slog.Logger

	snapshot atomic.Pointer[Snapshot]
	// instances is how many instances with a manifest take calls.
	instances atomic.Pointer[map[bus.Hash]int]
	// ready is closed by Run once the first round of heartbeats is in.
	ready chan struct{}

	mu sync.Mutex
	// changed is closed and replaced by Run with every new snapshot.
	changed chan struct{}
}

// New returns a catalog of the members a watcher sees. The watcher is run by
// the caller.
func New(watcher *bus.Watcher, cfg Config) *Catalog {
	c := &Catalog{
		watcher:   watcher,
		hold:      cmp.Or(cfg.Hold, defaultHold),
		namespace: cfg.Namespace,
		log:       cfg.Logger,
		ready:     make(chan struct{}),
		changed:   make(chan struct{}),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.snapshot.Store(newSnapshot(nil, c.namespace))
	c.instances.Store(&map[bus.Hash]int{})
	return c
}

// Snapshot returns the newest snapshot; it is never nil.
func (c *Catalog) Snapshot() *Snapshot { return c.snapshot.Load() }

// Ready is closed when the snapshot shows what is there, and not merely what
// was heard so far.
func (c *Catalog) Ready() <-chan struct{} { return c.ready }

// Changed returns a channel that is closed when a newer snapshot than the one
// of the same moment is there.
func (c *Catalog) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// WaitPools returns when each pool has an instance whose manifest is known, or
// with the context's error.
func (c *Catalog) WaitPools(ctx context.Context, pools ...string) error {
	for {
		changed := c.Changed()
		have := map[string]bool{}
		for _, m := range c.watcher.Members() {
			have[m.Pool] = true
		}
		known := c.Snapshot().pools
		missing := slices.DeleteFunc(slices.Clone(pools), func(p string) bool { return have[p] && known[p] })
		if len(missing) == 0 {
			return nil
		}
		// An instance of a pool that is known already makes no newer snapshot.
		again := time.NewTimer(waitPause)
		select {
		case <-changed:
			again.Stop()
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return fmt.Errorf("catalog: no instance of %q announced itself: %w", missing, context.Cause(ctx))
		}
	}
}

// state is what Run owns.
type state struct {
	manifests map[bus.Hash]*millracev1.Manifest
	pools     map[string]*poolState
}

// poolState is what is known of one pool.
type poolState struct {
	// versions are those of the instances that are there, the highest first.
	versions []version
	// listed is what its items are listed from, the zero value: nothing yet;
	// number is the version it belongs to.
	listed bus.Hash
	number string
	// polite: in the last round every instance was draining, so that the end
	// of the last one is no surprise.
	polite bool
	// gone is when the last instance vanished; zero while there is one.
	gone time.Time
}

// Run follows the watcher until the context ends.
func (c *Catalog) Run(ctx context.Context) error {
	st := &state{manifests: map[bus.Hash]*millracev1.Manifest{}, pools: map[string]*poolState{}}
	synced := c.watcher.Synced()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.watcher.Changes():
		case <-timer.C:
		case <-synced:
			synced = nil
		}
		again := c.refresh(ctx, st)
		timer.Stop()
		if again > 0 {
			timer.Reset(again)
		}
		if synced == nil {
			select {
			case <-c.ready:
			default:
				close(c.ready)
			}
		}
	}
}

// refresh brings the snapshot up to date and returns when to look again even
// if nothing changes; 0 means never.
func (c *Catalog) refresh(ctx context.Context, st *state) (again time.Duration) {
	now := time.Now()
	soon := func(d time.Duration) {
		if again == 0 || d < again {
			again = d
		}
	}
	present := map[string][]bus.Member{}
	for _, m := range c.watcher.Members() {
		// The edges are a pool as well, which offers nothing.
		if m.Pool != "" && m.Pool != peer.Pool && len(m.Manifests) > 0 {
			present[m.Pool] = append(present[m.Pool], m)
		}
	}
	if !c.fetch(ctx, st, present) {
		soon(retryDelay)
	}
	found := true
	select {
	case <-c.ready:
		found = false
	default:
	}
	instances := map[bus.Hash]int{}
	for name, members := range present {
		p := st.pools[name]
		if p == nil {
			p = &poolState{}
			st.pools[name] = p
		}
		p.gone = time.Time{}
		p.polite = !slices.ContainsFunc(members, func(m bus.Member) bool { return !m.Draining })
		p.versions = versionsOf(members, p.versions, now, found)
		known := slices.DeleteFunc(slices.Clone(p.versions), func(v version) bool { return st.manifests[v.hash] == nil })
		for _, v := range known {
			instances[v.hash] += v.ready
		}
		chosen, left := active(known, now)
		if left > 0 {
			soon(left)
		}
		if chosen == nil || chosen.hash == p.listed {
			continue
		}
		if p.listed != (bus.Hash{}) {
			c.log.Info("another version is listed", "pool", name, "version", chosen.number, "before", p.number)
		}
		p.listed, p.number = chosen.hash, chosen.number
	}
	c.instances.Store(&instances)
	for name, p := range st.pools {
		if _, here := present[name]; here {
			continue
		}
		if p.gone.IsZero() {
			p.gone, p.versions = now, nil
		}
		left := c.hold - now.Sub(p.gone)
		if p.polite || left <= 0 {
			delete(st.pools, name)
			continue
		}
		soon(left)
	}
	c.publish(st)
	return again
}

// fetch gets the manifests that members name and the state lacks, side by
// side, and forgets those nobody names. It reports whether all are there.
func (c *Catalog) fetch(ctx context.Context, st *state, present map[string][]bus.Member) bool {
	wanted := map[bus.Hash]bool{}
	for _, members := range present {
		for _, m := range members {
			for _, h := range m.Manifests {
				wanted[h] = true
			}
		}
	}
	type answer struct {
		hash     bus.Hash
		manifest *millracev1.Manifest
		err      error
	}
	var missing []bus.Hash
	for h := range wanted {
		if st.manifests[h] == nil {
			missing = append(missing, h)
		}
	}
	// Buffered for every sender, so that none can block.
	answers := make(chan answer, len(missing))
	for _, h := range missing {
		go func() {
			fetchCtx, cancel := context.WithTimeout(ctx, fetchTimeout)
			defer cancel()
			a := answer{hash: h}
			var raw []byte
			if raw, a.err = c.watcher.Fetch(fetchCtx, h); a.err == nil {
				a.manifest = &millracev1.Manifest{}
				a.err = proto.Unmarshal(raw, a.manifest)
			}
			answers <- a
		}()
	}
	complete := true
	for range missing {
		a := <-answers
		if a.err != nil {
			complete = false
			if ctx.Err() == nil {
				c.log.Warn("manifest not fetched, trying again", "hash", fmt.Sprintf("%x", a.hash), "error", a.err)
			}
			continue
		}
		st.manifests[a.hash] = a.manifest
	}
	held := map[bus.Hash]bool{}
	for _, p := range st.pools {
		held[p.listed] = true
	}
	maps.DeleteFunc(st.manifests, func(h bus.Hash, _ *millracev1.Manifest) bool { return !wanted[h] && !held[h] })
	return complete
}

// publish replaces the snapshot when it would differ from the last one.
func (c *Catalog) publish(st *state) {
	names := slices.Sorted(maps.Keys(st.pools))
	var signature strings.Builder
	pools := make([]poolManifests, 0, len(names))
	known := map[string]bool{}
	for _, name := range names {
		state := st.pools[name]
		if state.listed == (bus.Hash{}) {
			continue
		}
		p := poolManifests{name: name, listed: state.listed, manifests: []*millracev1.Manifest{st.manifests[state.listed]}}
		fmt.Fprintf(&signature, "%s\x00%s", name, state.listed)
		for _, v := range state.versions {
			if v.ready > 0 && v.hash != state.listed {
				m := st.manifests[v.hash] // nil: not known yet
				p.others = append(p.others, other{hash: v.hash, manifest: m})
				fmt.Fprintf(&signature, ",%s%v", v.hash, m != nil)
			}
		}
		known[name] = true
		pools = append(pools, p)
	}
	old := c.snapshot.Load()
	if old.signature == signature.String() {
		return
	}
	s := newSnapshot(pools, c.namespace)
	s.signature, s.pools = signature.String(), known
	c.report(old.Problems, s.Problems)
	c.snapshot.Store(s)
	c.mu.Lock()
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
}

// report logs what has become of problems, each once.
func (c *Catalog) report(before, after []Problem) {
	for _, p := range after {
		switch {
		case slices.Contains(before, p):
		case p.As != "":
			c.log.Warn("offered under another name", "pool", p.Pool, "item", p.Item, "as", p.As, "reason", p.Reason)
		default:
			c.log.Error("not offered", "pool", p.Pool, "item", p.Item, "reason", p.Reason)
		}
	}
	for _, p := range before {
		if !slices.ContainsFunc(after, func(q Problem) bool { return q.Pool == p.Pool && q.Item == p.Item }) {
			c.log.Info("no problem any more", "pool", p.Pool, "item", p.Item, "reason", p.Reason)
		}
	}
}
