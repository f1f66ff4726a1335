package bus

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// anyManifest stands in a subject for whatever manifest the instances of a pool
// have.
const anyManifest = "_"

// poolSubject is where calls of a pool go, without the method: to any of its
// instances, or to those that have the manifest with that hash.
func (c *Conn) poolSubject(pool, manifest string) string {
	return c.prefix + "rpc." + pool + "." + manifest
}

// offerSubject is where free slots of a pool are offered to those who need an
// instance with the manifest, and wantSubject where they say that they wait.
func (c *Conn) offerSubject(pool, manifest string) string {
	return c.prefix + "cap." + pool + "." + manifest
}

func (c *Conn) wantSubject(pool, manifest string) string {
	return c.prefix + "want." + pool + "." + manifest
}

// openToken is the last part of the subject of an OPEN to one instance, which
// refuses it when it has not the manifest.
func openToken(manifest string) string {
	if manifest == anyManifest {
		return tokenOpen
	}
	return tokenOpenFor + manifest
}

// subscribePool takes calls of the pool that are meant for a manifest. Each subscription
// has a goroutine of its own, and so an account of how long messages have waited
// for it.
func (s *Server) subscribePool(d *demand) (*nats.Subscription, error) {
	stale := &staleness{}
	stale.init(time.Now())
	sub, err := s.conn.nc.QueueSubscribe(s.conn.poolSubject(s.cfg.Pool, d.manifest)+".*", "w", func(m *nats.Msg) {
		s.onPool(m, d, stale)
	})
	if err == nil {
		err = sub.SetPendingLimits(-1, s.conn.pending)
	}
	if err != nil {
		return nil, fmt.Errorf("bus: subscribe: %w", err)
	}
	return sub, nil
}

// onPool takes an OPEN from the queue group.
func (s *Server) onPool(m *nats.Msg, d *demand, stale *staleness) {
	now := time.Now()
	age := stale.begin(now)
	s.onOpen(m, now, age, d, false)
	// The message that is being handled counts as pending; after the end of the
	// subscription there is an error and -1.
	pending, _, _ := m.Sub.Pending()
	stale.end(time.Now, max(pending-1, 0))
}

// callSubs are the subscriptions to calls that are meant for one manifest.
func (s *Server) callSubs() []*nats.Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	subs := make([]*nats.Subscription, 0, len(s.manifests)+1)
	for i := range s.manifests {
		if calls := s.manifests[i].calls; calls != nil {
			subs = append(subs, calls)
		}
	}
	return subs
}

// takesCalls reports whether the subscription is one of callSubs.
func (s *Server) takesCalls(sub *nats.Subscription) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.manifests {
		if s.manifests[i].calls == sub {
			return true
		}
	}
	return false
}
