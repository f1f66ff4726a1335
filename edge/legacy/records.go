package legacy

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/edge/notify"
)

// defaultLevel is the log level of a client that never set one. The
// specification leaves it to the server.
const defaultLevel = "info"

const (
	// maxRecords bounds the memory of clients that change something and leave.
	maxRecords = 100_000
	// recordAge is how long a record is kept: the longest a session lives.
	recordAge = 24 * time.Hour
	// maxFollowed is the most resources one session may subscribe to.
	maxFollowed = 1000
)

// record is what a session has changed since its id was made. A session that
// has changed nothing has none.
type record struct {
	since time.Time
	// level is the log level; empty: the default.
	level string
	// ended: the client has deleted the session.
	ended bool
	// uris are the resources the client has subscribed to.
	uris map[string]struct{}
	// stream is the open stream for messages that belong to no request.
	stream *stream
}

// stream is an open stream of a session.
type stream struct {
	changes *notify.Subscription
	// replaced ends the stream because another one takes its place.
	replaced func()
}

// records are those of this edge, by the scope of the session. The zero value
// is ready; it is safe for concurrent use.
type records struct {
	mu      sync.Mutex
	byScope map[string]*record
}

// update changes the record of a scope, making one if there is none.
func (r *records) update(scope string, change func(*record)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.byScope[scope]
	if rec == nil {
		if r.byScope == nil {
			r.byScope = map[string]*record{}
		}
		r.makeRoomLocked()
		rec = &record{since: time.Now()}
		r.byScope[scope] = rec
	}
	change(rec)
}

// makeRoomLocked drops records that no session can need any more and, when all
// are young, any one without a stream.
func (r *records) makeRoomLocked() {
	if len(r.byScope) < maxRecords {
		return
	}
	now := time.Now()
	maps.DeleteFunc(r.byScope, func(_ string, rec *record) bool { return now.Sub(rec.since) > recordAge })
	for scope, rec := range r.byScope {
		if len(r.byScope) < maxRecords {
			return
		}
		if rec.stream == nil {
			delete(r.byScope, scope)
		}
	}
}

// level returns the log level of a scope.
func (r *records) level(scope string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.byScope[scope]; rec != nil && rec.level != "" {
		return rec.level
	}
	return defaultLevel
}

// ended reports whether the client has deleted the session.
func (r *records) ended(scope string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.byScope[scope]
	return rec != nil && rec.ended
}

// subscribe adds a resource; ok is false when there are too many. changes is
// what follows it now; nil without a stream.
func (r *records) subscribe(scope, uri string) (ok bool, changes *notify.Subscription, err error) {
	r.update(scope, func(rec *record) {
		if rec.uris == nil {
			rec.uris = map[string]struct{}{}
		}
		if _, known := rec.uris[uri]; !known && len(rec.uris) >= maxFollowed {
			return
		}
		rec.uris[uri] = struct{}{}
		ok = true
		if rec.stream != nil {
			changes = rec.stream.changes
			err = changes.Follow(uri)
		}
	})
	return ok, changes, err
}

// unsubscribe removes a resource.
func (r *records) unsubscribe(scope, uri string) {
	r.update(scope, func(rec *record) {
		delete(rec.uris, uri)
		if rec.stream != nil {
			rec.stream.changes.Unfollow(uri)
		}
	})
}

// open makes s the stream of the scope; the one before it is ended: of two, one
// is half open, and must not swallow what the other one would deliver.
// followed reports whether it follows any resource.
func (r *records) open(scope string, s *stream) (followed bool, err error) {
	r.update(scope, func(rec *record) {
		if rec.stream != nil {
			rec.stream.replaced()
		}
		rec.stream = s
		for _, uri := range slices.Sorted(maps.Keys(rec.uris)) {
			followed = true
			if followErr := s.changes.Follow(uri); followErr != nil {
				err = followErr
			}
		}
	})
	return followed, err
}

// closed forgets a stream that has ended.
func (r *records) closed(scope string, s *stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.byScope[scope]
	if rec == nil || rec.stream != s {
		return
	}
	rec.stream = nil
	if rec.level == "" && !rec.ended && len(rec.uris) == 0 {
		delete(r.byScope, scope)
	}
}
