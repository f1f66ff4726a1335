package legacy

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/notify"
	"github.com/millrace/millrace/edge/session"
)

var (
	// errReplaced ends a stream whose session has opened another one.
	errReplaced = errors.New("legacy: the session has a newer stream")
	// errNotRead: what a session subscribes to cannot be read now.
	errNotRead = errors.New("legacy: what the session subscribes to cannot be read now")
	// errEnded ends the streams of a session that is over.
	errEnded = fmt.Errorf("legacy: %w", session.ErrExpired)
)

// stream is the open stream of a session, or of a connection, for messages that
// belong to no request.
type stream struct {
	scope string
	// holder names this connection among those of the session on all edges; of
	// two, the one that sorts higher is the newer one.
	holder  string
	state   state
	changes *notify.Subscription
	out     exchange.Stream
	// ctx is done when the stream is to end, end does that.
	ctx context.Context
	end context.CancelCauseFunc
	// following is held by whoever changes what the stream follows: who puts a
	// value in holds it, and who ends the stream keeps it. No mutex, since what
	// happens meanwhile waits for the bus.
	following chan struct{}
	// late are resources whose subscriber may rely already on being told: what
	// was missed until they are followed is made up for.
	lateMu sync.Mutex
	late   []string
	// checks look now and then what the session subscribes to.
	checks checks

	// sending guards what follows and the order of messages; it is like
	// following.
	sending chan struct{}
	// places: the messages have ids, made of lists and name and count.
	places bool
	lists  listPlace
	name   string
	count  uint64
}

// follow makes the stream follow what its session subscribes to, and returns when
// updates will be heard. late: who subscribed may rely on that already, so that
// what is new is reported as updated. After an error other than of the end of the
// stream some subscriptions are not followed; what was followed before is, as long
// as the session is not known to have unsubscribed.
func (s *stream) follow(ctx context.Context, late bool) error {
	select {
	case s.following <- struct{}{}:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.following }()
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	// Those that are noted from now on may not be in what is read.
	missed := s.takeLate()
	rec, err := s.state.get(ctx)
	if errors.Is(err, session.ErrUnknown) {
		s.end(errEnded)
		return errEnded
	}
	if err == nil {
		err = s.changes.Set(rec.URIs, rec.Unread)
	}
	if err == nil {
		err = s.changes.Sync(ctx, late)
	}
	if err == nil && rec.Unread {
		err = errNotRead
	}
	if err != nil {
		s.miss(missed...)
		return err
	}
	s.changes.Touch(missed...)
	return nil
}

// miss notes resources that are to be reported as updated once they are followed.
func (s *stream) miss(uris ...string) {
	s.lateMu.Lock()
	defer s.lateMu.Unlock()
	for _, uri := range uris {
		if !slices.Contains(s.late, uri) {
			s.late = append(s.late, uri)
		}
	}
}

func (s *stream) takeLate() []string {
	s.lateMu.Lock()
	defer s.lateMu.Unlock()
	late := s.late
	s.late = nil
	return late
}

// close ends the stream and waits for whoever changes what it follows.
func (s *stream) close() {
	s.end(nil)
	s.following <- struct{}{}
}

// send sends a message, under an id where the revision has them.
func (s *stream) send(msg []byte) error {
	s.sending <- struct{}{}
	defer func() { <-s.sending }()
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx) // a newer stream has what is to be said
	}
	if events, ok := s.out.(exchange.EventStream); ok && s.places {
		return events.SendEvents(exchange.Event{ID: s.nextLocked(), Data: msg})
	}
	return s.out.Send(msg)
}

// begin starts the stream. prime: with an event that only tells its place.
func (s *stream) begin(prime bool) error {
	s.sending <- struct{}{}
	defer func() { <-s.sending }()
	if events, ok := s.out.(exchange.EventStream); ok && s.places && prime {
		return events.SendEvents(exchange.Event{ID: s.nextLocked()})
	}
	return s.out.Begin()
}

// nextLocked is the id of the next message.
func (s *stream) nextLocked() string {
	s.count++
	return s.lists.String() + "-" + s.name + "-" + strconv.FormatUint(s.count, 10)
}

// know sets the lists that the client knows from now on.
func (s *stream) know(lists listPlace) {
	s.sending <- struct{}{}
	defer func() { <-s.sending }()
	s.lists = lists
}

// listPlace is where a client is in a stream for messages that belong to no
// request: which lists it knows, by the beginnings of their digests. Its events
// need no store: what they say is that something is to be read again, and a
// client that comes back learns that of all it may have missed.
type listPlace [len(listKinds)][listDigest]byte

// listKinds are the lists whose changes are told.
var listKinds = [...]notify.Kind{notify.ToolsChanged, notify.PromptsChanged, notify.ResourcesChanged} //nolint:gochecknoglobals // a table

const (
	listDigest = 6
	// placePrefix tells these ids from those of the streams of calls, which
	// begin with a capital letter or a digit.
	placePrefix = "g-"
)

// placeOf is the place of a client that knows what a subscription has told.
func placeOf(changes *notify.Subscription) (p listPlace) {
	for i, kind := range listKinds {
		digest := changes.Known(kind)
		copy(p[i][:], digest[:])
	}
	return p
}

// String writes the beginning of an event id.
func (p listPlace) String() string {
	raw := make([]byte, 0, len(p)*listDigest)
	for _, digest := range p {
		raw = append(raw, digest[:]...)
	}
	return placePrefix + base64.RawURLEncoding.EncodeToString(raw)
}

// parseListPlace reads the place in an event id; ok is false for other ids.
func parseListPlace(id string) (p listPlace, ok bool) {
	text, ok := strings.CutPrefix(id, placePrefix)
	size := base64.RawURLEncoding.EncodedLen(len(p) * listDigest)
	if !ok || len(text) < size+1 || text[size] != '-' {
		return p, false
	}
	raw, err := base64.RawURLEncoding.DecodeString(text[:size])
	if err != nil {
		return p, false
	}
	for i := range p {
		copy(p[i][:], raw[i*listDigest:])
	}
	return p, true
}

// streams are the open streams of this edge, by the scope of their session. The
// zero value is ready; it is safe for concurrent use.
type streams struct {
	mu      sync.Mutex
	byScope map[string]*stream
	// last is the highest number of a holder that was given or heard of.
	last uint64
}

// clockDigits is the length of the number that a holder begins with.
const clockDigits = 16

// open names s and makes it the stream of its scope. The one before it is ended:
// of two, one is half open, and must not swallow what the other would deliver.
//
// The name is higher than any that this edge has given or heard of. So whatever
// the order in which edges hear of each other's streams, they agree on which one
// stays. The time of day is only where the numbers begin: an edge that has just
// started has heard of none.
func (s *streams) open(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.holder = s.holderLocked()
	if old := s.byScope[st.scope]; old != nil {
		old.end(errReplaced)
	}
	if s.byScope == nil {
		s.byScope = map[string]*stream{}
	}
	s.byScope[st.scope] = st
}

func (s *streams) holderLocked() string {
	s.last = max(s.last+1, uint64(time.Now().UnixNano()))
	return fmt.Sprintf("%0*x%s", clockDigits, s.last, rand.Text()[:8])
}

// holder is such a name for a connection that follows a call.
func (s *streams) holder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holderLocked()
}

// taken ends the stream of a scope when another edge has a newer one.
func (s *streams) taken(scope, holder string) {
	if !s.heard(holder) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.byScope[scope]; st != nil && st.holder < holder {
		st.end(errReplaced)
	}
}

// heard makes the names that are given from now on higher than one of another
// edge, and reports whether that is one.
func (s *streams) heard(holder string) bool {
	if len(holder) <= clockDigits {
		return false
	}
	clock, err := strconv.ParseUint(holder[:clockDigits], 16, 63)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last, clock)
	return true
}

// of returns the stream of a scope; nil when there is none here.
func (s *streams) of(scope string) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byScope[scope]
}

// all returns the open streams.
func (s *streams) all() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.byScope))
}

// closed forgets a stream that has ended.
func (s *streams) closed(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byScope[st.scope] == st {
		delete(s.byScope, st.scope)
	}
}
