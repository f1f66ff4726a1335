package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/edge/jetstream"
	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/proto/bus"
)

const (
	// storeTimeout is how long an edge waits for JetStream when it starts and
	// needs the key of the deployment.
	storeTimeout = 2 * time.Second
	// electionTimeout is how long it waits when there is JetStream, but its
	// servers have not agreed on a leader: a key of its own would part it from
	// the other edges for as long as it runs.
	electionTimeout = 30 * time.Second
)

// storage says that the edges of this process share what sessions change with
// those of other processes, through JetStream.
type storage struct {
	// memory: nothing of it is to outlive the servers.
	memory bool
	// opened is the store, and absent says that no server has JetStream.
	opened *jetstream.Store
	absent bool
}

// await returns when the store can be used, or has had its time: an edge that is
// ready before would refuse what its first sessions change.
func (s *storage) await(ctx context.Context) {
	if s == nil || s.opened == nil || s.absent {
		return
	}
	limit := time.NewTimer(storeTimeout)
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond) // the store tells nobody
	defer tick.Stop()
	for !s.opened.Available() {
		select {
		case <-tick.C:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// open builds the store of an edge and completes the edge's configuration.
func (s *storage) open(ctx context.Context, conn *bus.Conn, cfg *edge.Config, log *slog.Logger) (*jetstream.Store, error) {
	store, err := jetstream.New(conn, jetstream.Config{Memory: s.memory, Logger: log})
	if err != nil {
		return nil, err
	}
	cfg.Store, cfg.Streams, s.opened = store, store, store
	if len(cfg.Keys) > 0 {
		return store, nil
	}
	secret, err := deploymentKey(ctx, store, log)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		s.absent = errors.Is(err, jetstream.ErrNoJetStream)
		log.Warn("no key for sessions can be shared: other edges will not accept the sessions of this one, nor this one theirs; give all the same --session-key-file, or a NATS with JetStream", "error", err)
	default:
		cfg.Keys = sessionKeys(secret)
	}
	return store, nil
}

// deploymentKey is the key that all edges without a key file share. The first
// one makes it.
func deploymentKey(ctx context.Context, store *jetstream.Store, log *slog.Logger) ([]byte, error) {
	get := func(limit time.Duration) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return store.Key(ctx, "session-key", newKey)
	}
	secret, err := get(storeTimeout)
	if err != nil && ctx.Err() == nil && !errors.Is(err, jetstream.ErrNoJetStream) {
		log.Info("waiting for the servers of JetStream to agree on a leader", "error", err)
		secret, err = get(electionTimeout)
	}
	return secret, err
}

func newKey() []byte {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails, see crypto/rand
	return secret
}

// readKeys reads the files of session keys: the first one signs, all are
// accepted.
func readKeys(files []string) ([]seal.Key, error) {
	secrets := make([][]byte, 0, len(files))
	for _, file := range files {
		secret, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("session key: %w", err)
		}
		secrets = append(secrets, secret)
	}
	return sessionKeys(secrets...), nil
}

// sessionKeys names keys after what they contain, so that edges that were given
// them in another order, as happens while a new one is brought in, understand
// each other.
func sessionKeys(secrets ...[]byte) []seal.Key {
	keys := make([]seal.Key, 0, len(secrets))
	for _, secret := range secrets {
		sum := sha256.Sum256(append([]byte("millrace/session-key/"), secret...))
		keys = append(keys, seal.Key{ID: sum[0], Secret: secret})
	}
	return keys
}

// runEdge runs an edge and, as long as it runs, its store.
func runEdge(ctx context.Context, e *edge.Edge, store *jetstream.Store) error {
	if store == nil {
		return e.Run(ctx)
	}
	kept, stop := context.WithCancel(context.WithoutCancel(ctx))
	stored := make(chan error, 1) // one result, never blocks
	go func() { stored <- store.Run(kept) }()
	err := e.Run(ctx)
	stop()
	return errors.Join(err, <-stored)
}
