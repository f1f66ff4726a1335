package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// usedEvery is how often the use of a session is written back at most, and
	// so how much later than it could a session is found idle. For short idle
	// times it is a part of them.
	usedEvery  = 5 * time.Minute
	usedEvenly = 6
	// askAgain is how long a store that was down is left alone.
	askAgain = time.Second
	// maxTries bounds the writes of one update: so many conflicts in a row are
	// no accident.
	maxTries = 16
)

// ErrExpired is returned for a session that its client has ended, or that
// nobody has used for too long. To the client it is an unknown one, and so it
// is to errors.Is.
var ErrExpired = fmt.Errorf("%w: it has ended", ErrUnknown)

// Record is what a session has changed since its id was made. A session that
// has changed nothing has none, which reads as the zero value.
type Record struct {
	// Level is the least severe log level the client wants; "": it never said.
	Level string `json:"level,omitempty"`
	// URIs are the resources the client has subscribed to, sorted. A record
	// that Records returned shares them: they must not be changed in place.
	URIs []string `json:"uris,omitempty"`
	// Ended: the client has deleted the session.
	Ended bool `json:"ended,omitzero"`
	// Used is when the session was last used; it may be 5 min behind.
	Used time.Time `json:"used,omitzero"`
	// Expires is when the session reaches its absolute age. Update sets it.
	Expires time.Time `json:"expires,omitzero"`
	// Unread: the store could not be asked. The record is what is remembered, or
	// nothing.
	Unread bool `json:"-"`
}

// clone returns a copy that shares nothing.
func (r Record) clone() Record {
	r.URIs = slices.Clone(r.URIs)
	return r
}

// same reports whether two records say the same to a client.
func (r Record) same(other Record) bool {
	return r.Level == other.Level && r.Ended == other.Ended && slices.Equal(r.URIs, other.URIs)
}

// RecordsConfig configures Records; the zero value works.
type RecordsConfig struct {
	// Idle is how long a session that has a record may go unused; 0 means
	// 30 min. Since its use is not written down each time, it ends up to 5 min
	// later.
	Idle time.Duration
	// MaxAge is the absolute age of a session, as of the Issuer; 0 means 24 h.
	MaxAge time.Duration
	// CacheAge is how long a record that was read is believed; 0 means 10 s.
	CacheAge time.Duration
	// MaxCached bounds how many records are remembered, absent ones included; 0
	// means 100,000.
	MaxCached int
	// Logger is told when the store goes and comes back; nil discards.
	Logger *slog.Logger
}

// Records are the records of all sessions, as one edge sees them: what the
// store says, remembered for some seconds. It is safe for concurrent use.
type Records struct {
	store     Store
	cfg       RecordsConfig
	usedEvery time.Duration

	mu sync.Mutex
	// young and old are what is remembered; what is used moves to young. When
	// young has half of what the bound allows, it becomes old and the old one
	// is dropped.
	young, old map[string]*entry
	// down: the store did not answer; it is asked again at askAt.
	down  bool
	askAt time.Time
}

// entry is what is remembered of a session.
type entry struct {
	record   Record
	revision uint64 // 0: there is no record
	// believed is until when the record is not read again.
	believed time.Time
	// used is the last use on this edge.
	used time.Time
	// writtenBack is when writing down the use was last tried.
	writtenBack time.Time
	// reading and updating are closed when the read or the update that runs now
	// has ended; nil: none does.
	reading, updating chan struct{}
	// overtaken: what the read that runs now brings may be old already.
	overtaken bool
	// reads counts those that have brought something.
	reads uint64
}

// NewRecords returns the records that a store keeps.
func NewRecords(store Store, cfg RecordsConfig) *Records {
	cfg.Idle = cmp.Or(cfg.Idle, 30*time.Minute)
	cfg.MaxAge = cmp.Or(cfg.MaxAge, 24*time.Hour)
	cfg.CacheAge = cmp.Or(cfg.CacheAge, 10*time.Second)
	cfg.MaxCached = cmp.Or(cfg.MaxCached, 100_000)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Records{
		store: store, cfg: cfg, usedEvery: min(usedEvery, cfg.Idle/usedEvenly),
		young: map[string]*entry{},
	}
}

// recordKey is where the record of a session is stored.
func recordKey(scope string) string { return "record." + scope }

// Get returns the record of the session with a scope, which counts as a use of
// it. What was read in the last seconds is not read again. While the store is
// down it returns what it remembers, or else the zero value, as unread. Errors: ErrExpired,
// and the cause of ctx when that ends before the store has answered.
func (r *Records) Get(ctx context.Context, scope string) (Record, error) {
	now := time.Now()
	r.mu.Lock()
	e := r.entryLocked(scope)
	fresh := now.Before(e.believed)
	for !fresh && r.mayAskLocked(now) {
		var err error
		if fresh, err = r.refreshLocked(ctx, scope, e); err != nil {
			r.mu.Unlock()
			return Record{}, err
		}
		now = time.Now()
	}
	if r.expired(e, now) {
		r.mu.Unlock()
		return Record{}, ErrExpired
	}
	e.used = now
	writeBack := e.revision != 0 && now.Sub(e.record.Used) >= r.usedEvery &&
		now.Sub(e.writtenBack) >= askAgain && r.mayAskLocked(now)
	if writeBack {
		e.writtenBack = now
	}
	record, revision := e.record, e.revision
	r.mu.Unlock()
	if writeBack {
		r.writeBack(ctx, scope, e, record, revision)
	}
	record.Unread = !fresh
	return record, nil
}

// expired reports whether a session has ended or was idle for too long. Without
// a record there is nothing to expire but the id itself.
func (r *Records) expired(e *entry, now time.Time) bool {
	if e.revision == 0 {
		return false
	}
	// What is stored may be older than the last use on another edge, by as much
	// as that edge may wait with writing it down.
	used := e.record.Used.Add(r.usedEvery)
	if e.used.After(used) {
		used = e.used
	}
	return e.record.Ended || now.Sub(used) > r.cfg.Idle
}

// entryLocked finds or makes the entry of a scope.
func (r *Records) entryLocked(scope string) *entry {
	if e := r.young[scope]; e != nil {
		return e
	}
	if len(r.young) >= max(r.cfg.MaxCached/2, 1) {
		r.young, r.old = map[string]*entry{}, r.young
	}
	e := r.old[scope]
	if e == nil {
		e = &entry{}
	}
	r.young[scope] = e
	return e
}

// mayAskLocked reports whether the store may be asked. While it is down, one
// caller a second may.
func (r *Records) mayAskLocked(now time.Time) bool { return !r.down || !now.Before(r.askAt) }

// refreshLocked reads a record into its entry, or waits for whoever does so
// already, and reports whether that has worked. It unlocks while it waits. It
// returns an error only when ctx ended.
func (r *Records) refreshLocked(ctx context.Context, scope string, e *entry) (fresh bool, err error) {
	if e.reading != nil {
		before := e.reads
		err := r.waitLocked(ctx, e.reading)
		return e.reads != before, err
	}
	if r.down {
		// Whoever comes meanwhile need not wait to learn that it still is.
		r.askAt = time.Now().Add(askAgain)
	}
	done := make(chan struct{})
	e.reading, e.overtaken = done, false
	r.mu.Unlock()
	record, revision, err := r.read(ctx, scope)
	r.mu.Lock()
	e.reading = nil
	close(done)
	if err != nil {
		return false, callerGone(ctx) // a store that is down is no error here
	}
	if e.overtaken {
		return false, nil
	}
	e.record, e.revision = record, revision
	e.believed = time.Now().Add(r.cfg.CacheAge)
	e.reads++
	return true, nil
}

// waitLocked waits unlocked until a channel is closed.
func (r *Records) waitLocked(ctx context.Context, done <-chan struct{}) error {
	r.mu.Unlock()
	defer r.mu.Lock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// read asks the store for a record; one that does not exist is the zero value
// with revision 0.
func (r *Records) read(ctx context.Context, scope string) (Record, uint64, error) {
	value, revision, err := r.store.Get(ctx, recordKey(scope))
	r.note(ctx, err)
	if errors.Is(err, ErrNotFound) {
		return Record{}, 0, nil
	}
	if err != nil {
		return Record{}, 0, err
	}
	var record Record
	if err := json.Unmarshal(value, &record); err != nil {
		// The session goes on with defaults, and its next change writes a
		// record that can be read.
		r.cfg.Logger.Error("stored session record cannot be read", "error", err)
		return Record{Used: time.Now()}, revision, nil
	}
	return record, revision, nil
}

// note learns from the result of a request whether the store is there.
func (r *Records) note(ctx context.Context, err error) {
	if err != nil && ctx.Err() != nil {
		return // that says nothing about the store
	}
	down := err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrTooLarge)
	r.mu.Lock()
	changed := r.down != down
	r.down = down
	if down {
		r.askAt = time.Now().Add(askAgain)
	}
	r.mu.Unlock()
	switch {
	case changed && down:
		r.cfg.Logger.Warn("the store of sessions is gone: what sessions have changed is remembered at best", "error", err)
	case changed:
		r.cfg.Logger.Info("the store of sessions is back")
	}
}

// writeBack writes down that a session was used. That it fails is no matter:
// whoever uses the session next tries again.
func (r *Records) writeBack(ctx context.Context, scope string, e *entry, record Record, revision uint64) {
	now := time.Now()
	record.Used = now
	written, err := r.write(ctx, scope, record, revision, record.Expires.Sub(now))
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil && e.revision == revision:
		e.record, e.revision, e.overtaken = record, written, true
	case errors.Is(err, ErrConflict):
		e.believed, e.overtaken = time.Time{}, true // another edge has changed it
	}
}

func (r *Records) write(ctx context.Context, scope string, record Record, revision uint64, ttl time.Duration) (uint64, error) {
	value, err := json.Marshal(record)
	if err != nil {
		return 0, fmt.Errorf("session: record: %w", err)
	}
	if len(value) > MaxValue {
		return 0, ErrTooLarge
	}
	// A time to live of nothing would be for ever.
	written, err := r.store.Put(ctx, recordKey(scope), value, revision, max(ttl, time.Second))
	r.note(ctx, err)
	return written, err
}

// Update changes the record of a session, which counts as a use of it, and
// returns what it says then. change gets a copy, which it may change as it
// likes; it runs again when another edge was faster, and its error ends the
// update and is returned as it is. Nothing is written when nothing changes. Other
// edges see the change when what they remember is too old, or when they are told
// to Forget it. Errors: ErrExpired, ErrUnavailable, ErrTooLarge, and the cause of
// ctx.
func (r *Records) Update(ctx context.Context, s *Session, change func(*Record) error) (Record, error) {
	e, release, err := r.claim(ctx, s.Scope)
	if err != nil {
		return Record{}, err
	}
	defer release()
	for range maxTries {
		record, revision, remembered, err := r.current(ctx, s.Scope, e)
		if err != nil {
			return Record{}, err
		}
		next := record.clone()
		if err := change(&next); err != nil {
			return record, err
		}
		slices.Sort(next.URIs)
		next.URIs = slices.Compact(next.URIs)
		if next.Ended {
			next.Level, next.URIs = "", nil
		}
		if next.same(record) {
			if !remembered {
				return record, nil
			}
			// Nothing is written, so nothing would tell that another edge has
			// changed the record meanwhile.
			r.Forget(s.Scope)
			continue
		}
		now := time.Now()
		next.Used, next.Expires = now, s.Issued.Add(r.cfg.MaxAge+skew)
		written, err := r.write(ctx, s.Scope, next, revision, next.Expires.Sub(now))
		r.mu.Lock()
		if err == nil {
			e.record, e.revision = next, written
			e.believed, e.used = now.Add(r.cfg.CacheAge), now
		} else {
			e.believed = time.Time{} // it may have been written all the same
		}
		e.overtaken = true
		r.mu.Unlock()
		if errors.Is(err, ErrConflict) {
			continue
		}
		return next, updateError(ctx, err)
	}
	return Record{}, fmt.Errorf("%w: %d edges were faster", ErrUnavailable, maxTries)
}

// callerGone is why ctx ended, or nil while it has not.
func callerGone(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// updateError prefers the reason of the caller.
func updateError(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// claim waits until no other update of the session runs on this edge: only edges
// compete in the store. The caller releases it.
func (r *Records) claim(ctx context.Context, scope string) (e *entry, release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e = r.entryLocked(scope)
	for e.updating != nil {
		if err := r.waitLocked(ctx, e.updating); err != nil {
			return nil, nil, err
		}
	}
	done := make(chan struct{})
	e.updating = done
	return e, func() {
		r.mu.Lock()
		e.updating = nil
		r.mu.Unlock()
		close(done)
	}, nil
}

// current returns the record of a session, from the store unless it is remembered
// from a while ago. Unlike Get it does not do without the store.
func (r *Records) current(ctx context.Context, scope string, e *entry) (record Record, revision uint64, remembered bool, err error) {
	r.mu.Lock()
	if time.Now().Before(e.believed) {
		defer r.mu.Unlock()
		if r.expired(e, time.Now()) {
			return Record{}, 0, true, ErrExpired
		}
		return e.record, e.revision, true, nil
	}
	r.mu.Unlock()
	record, revision, err = r.read(ctx, scope)
	if err != nil {
		return Record{}, 0, false, updateError(ctx, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// What a Get has read meanwhile may be newer, and is believed.
	if remembered = time.Now().Before(e.believed); !remembered {
		e.record, e.revision = record, revision
	}
	if r.expired(e, time.Now()) {
		return Record{}, 0, remembered, ErrExpired
	}
	return e.record, e.revision, remembered, nil
}

// Forget makes the next Get of a session read its record: another edge has
// changed it.
func (r *Records) Forget(scope string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, entries := range []map[string]*entry{r.young, r.old} {
		if e := entries[scope]; e != nil {
			e.believed, e.overtaken = time.Time{}, true
		}
	}
}

// End remembers that another edge has ended a session, also while the store is
// down.
func (r *Records) End(scope string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entryLocked(scope)
	e.record, e.revision = Record{Ended: true, Used: time.Now()}, max(e.revision, 1)
	e.believed, e.overtaken = time.Now().Add(r.cfg.CacheAge), true
}

// Available reports whether the store answered the last time it was asked. Until
// it does again, Get returns what is remembered or nothing.
func (r *Records) Available() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.down
}
