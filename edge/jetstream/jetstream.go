// Package jetstream keeps in NATS JetStream what the edges of a deployment
// share about legacy sessions: what a session has changed, the events of
// running calls so that a client can come back for them, what another edge
// needs to go on with such a call, and the keys that sign.
//
// Requests of clients never wait for a JetStream that is gone: a request to it
// has half a second, and after one that failed everybody is refused at once
// with session.ErrUnavailable until Store.Run has found the stream well again,
// a second later at the earliest. Each stream is judged by itself, since in a
// cluster each has a leader of its own to lose.
//
// Reads go to the leader of a stream, so that an edge sees what another one has
// written before it was told about it. Only the bulk of the events comes from
// any replica.
package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/proto/bus"
)

// requestTimeout is the default of Config.RequestTimeout.
const requestTimeout = 500 * time.Millisecond

// ErrNoJetStream says why a store is unavailable: no server that can be reached
// has JetStream. While the servers of a cluster are electing a leader there is
// another error.
var ErrNoJetStream = errors.New("jetstream: no server offers JetStream")

// Config configures a Store; the zero value works.
type Config struct {
	// Tenant is that of the connection, see bus.ConnConfig; "" means "main".
	Tenant string
	// Replicas is how many servers of a cluster keep each value; 0: as many as
	// there are, at most 3. Streams that exist already are never reduced.
	Replicas int
	// Memory keeps everything in the memory of the servers, for servers whose
	// files do not outlive them.
	Memory bool
	// RequestTimeout bounds one request that a client may wait for; 0 means
	// 500 ms.
	RequestTimeout time.Duration
	// Logger is told when JetStream goes and comes back; nil discards.
	Logger *slog.Logger
}

// Store is what the edges share. It implements session.Store, and bus.EventLog
// for the events of calls. Run must be running while it is used, except for
// Key. It is safe for concurrent use.
type Store struct {
	nc     *nats.Conn
	js     natsjs.JetStream
	tenant string

	values, keys, events, calls *stream
}

// New returns a store on a connection, which stays the caller's. It does nothing
// before Run.
func New(conn *bus.Conn, cfg Config) (*Store, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Tenant == "" {
		cfg.Tenant = "main"
	}
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, requestTimeout)
	nc := conn.NATS()
	js, err := natsjs.New(nc)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	s := &Store{nc: nc, js: js, tenant: cfg.Tenant}
	for _, kept := range []struct {
		at  **stream
		cfg natsjs.StreamConfig
	}{
		{&s.values, valuesConfig(cfg.Tenant)},
		{&s.keys, keysConfig(cfg.Tenant)},
		{&s.events, eventsConfig(cfg.Tenant)},
		{&s.calls, callsConfig(cfg.Tenant)},
	} {
		if cfg.Memory {
			kept.cfg.Storage = natsjs.MemoryStorage
		}
		*kept.at = newStream(nc, js, kept.cfg, cfg)
	}
	s.events.quiet, s.calls.quiet = true, true
	return s, nil
}

// Run creates what is missing and keeps looking after it: with growing pauses
// while JetStream is not there, every half minute while it is, and whenever a
// request has failed. It returns nil when ctx ends.
func (s *Store) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, kept := range []*stream{s.values, s.events, s.calls} {
		g.Go(func() error { return kept.keep(ctx) })
	}
	return g.Wait()
}

// Available reports whether everything can be used now. It may be wrong the
// next moment.
func (s *Store) Available() bool {
	return s.values.available() && s.events.available() && s.calls.available()
}

// unavailable is an error of JetStream as the callers of a store know it.
func unavailable(err error) error { return fmt.Errorf("%w: %w", session.ErrUnavailable, err) }
