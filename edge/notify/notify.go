// Package notify watches for changes on behalf of clients that asked to be
// told: a list of the catalog is another one, a resource was updated. Both eras
// use it; how a change is written and on which stream is theirs.
package notify

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/edge/catalog"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// listInterval is the shortest time between two notices about lists: a rolling
// update must not make every client fetch every list over and over.
const listInterval = time.Second

// What may have been missed is not reported to all clients at once, since they
// read again what they are told of.
const (
	missedPace   = time.Millisecond
	missedWithin = 5 * time.Second
)

// Kind is a kind of change.
type Kind int

// The kinds of change.
const (
	ToolsChanged Kind = iota
	PromptsChanged
	ResourcesChanged
	ResourceUpdated
	// ElicitationComplete is no change that is followed: see Subscription.Tell.
	ElicitationComplete
)

// maxTold bounds what waits for a client that reads slowly.
const maxTold = 100

// Event is one change.
type Event struct {
	Kind Kind
	// URI is the resource that was updated, byte for byte as it was subscribed.
	URI string
	// Elicitation is the id of one that is complete.
	Elicitation string
}

// Listener hears the broadcasts of workers; *bus.Client is one.
type Listener interface {
	Listen(topic bus.Topic, key string, heard func()) (stop func(), err error)
	Sync(ctx context.Context) error
}

// Hub shares one subscription on the bus among all clients that follow the same
// resource. It is safe for concurrent use.
type Hub struct {
	catalog  *catalog.Catalog
	listener Listener

	mu     sync.Mutex
	topics map[string]*topic
}

// topic is one followed resource.
type topic struct {
	stop      func()
	followers map[*Subscription]struct{}
}

// NewHub returns a hub over the catalog and the bus.
func NewHub(c *catalog.Catalog, l Listener) *Hub {
	return &Hub{catalog: c, listener: l, topics: map[string]*topic{}}
}

// Topics returns how many resources are followed.
func (h *Hub) Topics() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics)
}

// Missed says that updates may have been missed: all that is followed is reported
// as updated, to a thousand clients a second and to all within 5 s.
func (h *Hub) Missed() {
	h.mu.Lock()
	all := map[*Subscription]struct{}{}
	for _, t := range h.topics {
		maps.Copy(all, t.followers)
	}
	h.mu.Unlock()
	within := min(time.Duration(len(all))*missedPace, missedWithin)
	for s := range all {
		time.AfterFunc(rand.N(within), s.TouchAll) //nolint:gosec // nobody gains from guessing it
	}
}

// Open begins to follow the given lists for a caller (nil: of an edge that
// authenticates nobody); resources are added with Follow. What changes from now
// on and is the caller's to see is reported by Run. Close must be called.
func (h *Hub) Open(caller *millracev1.Principal, lists ...Kind) *Subscription {
	s := &Subscription{hub: h, caller: caller, wake: make(chan struct{}, 1)}
	snapshot := h.catalog.Snapshot().For(caller)
	for _, kind := range lists {
		s.lists[kind], s.followed[kind] = digest(snapshot, kind), true
	}
	return s
}

func digest(s *catalog.Snapshot, kind Kind) [32]byte {
	switch kind {
	case ToolsChanged:
		return s.ToolsDigest
	case PromptsChanged:
		return s.PromptsDigest
	default:
		return s.ResourcesDigest
	}
}

// Subscription is what one client follows. Follow, Unfollow, Set, Touch and Close
// may be called while Run runs.
type Subscription struct {
	hub    *Hub
	caller *millracev1.Principal
	// lists are the digests of the lists as the client knows them, by their
	// kinds; Run owns them. followed are those that it wants to hear of.
	lists    [ResourcesChanged + 1][32]byte
	followed [ResourcesChanged + 1]bool

	mu sync.Mutex
	// Both are nil while there is nothing in them: most streams only wait.
	uris    map[string]struct{}
	updated map[string]struct{}
	// unheard are those of uris of which it is not known yet that the bus will
	// bring their updates; nil while there are none. True: a client may rely on
	// it all the same.
	unheard map[string]bool
	// told are elicitations that are complete, oldest first.
	told []string
	// wake has room for one signal; a further one says nothing new.
	wake chan struct{}
}

// Follow adds a resource; one that is followed already stays. Sync must follow.
func (s *Subscription) Follow(uri string) error {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[uri]
	if t == nil {
		t = &topic{followers: map[*Subscription]struct{}{}}
		stop, err := h.listener.Listen(bus.TopicResourceUpdated, uri, func() { h.heard(uri) })
		if err != nil {
			return err
		}
		t.stop = stop
		h.topics[uri] = t
	}
	t.followers[s] = struct{}{}
	s.mu.Lock()
	if _, followed := s.uris[uri]; !followed {
		add(&s.uris, uri)
		if s.unheard == nil {
			s.unheard = map[string]bool{}
		}
		s.unheard[uri] = false
	}
	s.mu.Unlock()
	return nil
}

// add adds to a set that is nil while there is nothing in it.
func add(set *map[string]struct{}, uri string) {
	if *set == nil {
		*set = map[string]struct{}{}
	}
	(*set)[uri] = struct{}{}
}

// syncTimeout is how long to wait for the bus to know of a subscription.
const syncTimeout = time.Second

// Sync returns when updates of all resources that were followed so far will be
// heard: a client that is told so may rely on it. late: the client may rely on it
// already, so that what was not heard until now is reported as updated. After an
// error the next Sync is late for all that this one was for. It must not be called
// while Set runs.
func (s *Subscription) Sync(ctx context.Context, late bool) error {
	s.mu.Lock()
	unheard := slices.Collect(maps.Keys(s.unheard))
	s.mu.Unlock()
	if len(unheard) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	err := s.hub.listener.Sync(ctx)
	s.mu.Lock()
	var missed []string
	for _, uri := range unheard {
		switch wasLate, still := s.unheard[uri]; {
		case !still: // unfollowed
		case err != nil:
			s.unheard[uri] = true
		default:
			delete(s.unheard, uri)
			if late || wasLate {
				missed = append(missed, uri)
			}
		}
	}
	if len(s.unheard) == 0 {
		s.unheard = nil
	}
	s.mu.Unlock()
	s.Touch(missed...)
	return err
}

// Unfollow removes a resource; one that is not followed is no error.
func (s *Subscription) Unfollow(uri string) {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[uri]
	if t == nil {
		return
	}
	delete(t.followers, s)
	s.mu.Lock()
	delete(s.uris, uri)
	delete(s.unheard, uri)
	s.mu.Unlock()
	if len(t.followers) == 0 {
		delete(h.topics, uri)
		t.stop()
	}
}

// Set makes the resources that are followed those of uris; with more it only
// adds to them. After an error some of them are not followed. Sync must follow. It
// must not be called twice at a time.
func (s *Subscription) Set(uris []string, more bool) (err error) {
	wanted := make(map[string]struct{}, len(uris))
	for _, uri := range uris {
		wanted[uri] = struct{}{}
	}
	s.mu.Lock()
	var dropped []string
	for uri := range s.uris {
		if _, ok := wanted[uri]; ok {
			delete(wanted, uri)
		} else if !more {
			dropped = append(dropped, uri)
		}
	}
	s.mu.Unlock()
	for _, uri := range dropped {
		s.Unfollow(uri)
	}
	for uri := range wanted {
		if followErr := s.Follow(uri); followErr != nil {
			err = followErr
		}
	}
	return err
}

// Known returns the digest of a followed list as the client knows it; that of a
// list it is still to be told of is no digest of any. It must be called before
// Run, or from the function that Run sends with.
func (s *Subscription) Known(kind Kind) [32]byte { return s.lists[kind] }

// Since says that the client knows a followed list by the beginning of its
// digest; Run then reports at once that it is another one now, if it is. It must
// be called before Run.
func (s *Subscription) Since(kind Kind, digest []byte) {
	if now := s.lists[kind]; !bytes.HasPrefix(now[:], digest) {
		s.lists[kind] = [32]byte{}
	}
}

// Touch reports resources as updated, as far as they are followed: they may have
// been while nobody listened.
func (s *Subscription) Touch(uris ...string) {
	if len(uris) == 0 {
		return
	}
	s.mu.Lock()
	for _, uri := range uris {
		if _, followed := s.uris[uri]; followed {
			add(&s.updated, uri)
		}
	}
	s.mu.Unlock()
	s.signal()
}

// TouchAll is Touch for all that are followed.
func (s *Subscription) TouchAll() {
	s.mu.Lock()
	for uri := range s.uris {
		add(&s.updated, uri)
	}
	s.mu.Unlock()
	s.signal()
}

// Tell reports that an elicitation is complete. Of many that wait the oldest are
// dropped: clients must not depend on them. It may be called while Run runs.
func (s *Subscription) Tell(elicitation string) {
	s.mu.Lock()
	s.told = append(s.told, elicitation)
	if len(s.told) > maxTold {
		s.told = s.told[1:]
	}
	s.mu.Unlock()
	s.signal()
}

// signal makes Run look what there is to report.
func (s *Subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.mu.Lock()
	uris := slices.Collect(maps.Keys(s.uris))
	s.mu.Unlock()
	for _, uri := range uris {
		s.Unfollow(uri)
	}
}

// heard passes a broadcast on to the followers of the resource.
func (h *Hub) heard(uri string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[uri]
	if t == nil {
		return
	}
	for s := range t.followers {
		s.mu.Lock()
		// Several updates that wait together are one: it says "read again".
		add(&s.updated, uri)
		s.mu.Unlock()
		s.signal()
	}
}

// Run reports changes until the context ends or send fails; then it returns
// send's error.
func (s *Subscription) Run(ctx context.Context, send func(Event) error) error {
	var (
		told  time.Time
		later <-chan time.Time // there while a notice has to wait
	)
	for {
		changed := s.hub.catalog.Changed()
		if wait := listInterval - time.Since(told); wait > 0 {
			later = time.After(wait)
		} else {
			later = nil
			sent, err := s.sendLists(send)
			if err != nil {
				return err
			}
			if sent {
				told = time.Now()
			}
		}
		if err := s.sendUpdates(send); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-s.wake:
		case <-later:
		}
	}
}

// sendLists reports the lists that differ from what the client knows.
func (s *Subscription) sendLists(send func(Event) error) (sent bool, err error) {
	snapshot := s.hub.catalog.Snapshot().For(s.caller)
	for kind := ToolsChanged; kind <= ResourcesChanged; kind++ {
		if now := digest(snapshot, kind); s.followed[kind] && now != s.lists[kind] {
			s.lists[kind] = now
			sent = true
			if err := send(Event{Kind: kind}); err != nil {
				return sent, err
			}
		}
	}
	return sent, nil
}

func (s *Subscription) sendUpdates(send func(Event) error) error {
	s.mu.Lock()
	updated, complete := s.updated, s.told
	s.updated, s.told = nil, nil
	s.mu.Unlock()
	for _, id := range complete {
		if err := send(Event{Kind: ElicitationComplete, Elicitation: id}); err != nil {
			return err
		}
	}
	for uri := range updated {
		if s.hidden(uri) {
			continue
		}
		if err := send(Event{Kind: ResourceUpdated, URI: uri}); err != nil {
			return err
		}
	}
	return nil
}

// hidden reports whether a resource is not the caller's to see: its scopes may
// be others than when it was followed, and so may the caller's, since a session
// goes on with another token.
func (s *Subscription) hidden(uri string) bool {
	if s.caller == nil {
		return false
	}
	_, _, ok := s.hub.catalog.Snapshot().For(s.caller).Resource(uri)
	return !ok
}
