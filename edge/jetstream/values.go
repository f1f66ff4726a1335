package jetstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/edge/session"
)

// Get implements session.Store.
func (s *Store) Get(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	if err := session.CheckKey(key); err != nil {
		return nil, 0, err
	}
	err = s.values.do(ctx, func(ctx context.Context) error {
		value, revision, err = s.values.value(ctx, key)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return value, revision, nil
}

// Put implements session.Store.
func (s *Store) Put(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	if err := session.CheckKey(key); err != nil {
		return 0, err
	}
	if len(value) > session.MaxValue {
		return 0, session.ErrTooLarge
	}
	var written uint64
	err := s.values.do(ctx, func(ctx context.Context) (err error) {
		written, err = s.values.setValue(ctx, key, value, revision, ttl)
		return err
	})
	if err != nil {
		return 0, err
	}
	return written, nil
}

// subject is that of a key, for streams that are buckets.
func (s *stream) subject(key string) string {
	pattern := s.cfg.Subjects[0]
	return pattern[:len(pattern)-1] + key
}

// value reads a key.
func (s *stream) value(ctx context.Context, key string) ([]byte, uint64, error) {
	msg, err := s.get(ctx, getQuery{Last: s.subject(key)})
	if err != nil {
		return nil, 0, err
	}
	if deleted(msg) {
		return nil, 0, session.ErrNotFound
	}
	return msg.Data, msg.Sequence, nil
}

// deleted reports whether a message says that somebody has deleted the key with
// the tools of NATS.
func deleted(msg *storedMessage) bool {
	return bytes.Contains(msg.Header, []byte("KV-Operation:"))
}

// setValue writes a key. A time to live is rounded up to the seconds in which
// JetStream counts.
func (s *stream) setValue(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	write := func(revision uint64) (uint64, error) {
		ttl := (ttl + time.Second - 1).Truncate(time.Second)
		return s.publish(ctx, &nats.Msg{Subject: s.subject(key), Data: value}, revision, ttl)
	}
	written, err := write(revision)
	if revision != 0 || !errors.Is(translate(err), session.ErrConflict) {
		return written, err
	}
	// To JetStream a deleted key has a last message.
	if msg, getErr := s.get(ctx, getQuery{Last: s.subject(key)}); getErr == nil && deleted(msg) {
		return write(msg.Sequence)
	}
	return written, err
}

// Key returns the secret of a name, which is the same for all edges for ever:
// create makes it if there is none, and of several edges that do so at once one
// wins. It needs no Run, and tries until ctx ends; then the error is
// session.ErrUnavailable, and ErrNoJetStream as well if that is the reason.
func (s *Store) Key(ctx context.Context, name string, create func() []byte) ([]byte, error) {
	if err := session.CheckKey(name); err != nil {
		return nil, err
	}
	pause := firstPause
	var reason error // of the last attempt that was not cut short
	for {
		key, err := s.key(ctx, name, create)
		if err == nil {
			return key, nil
		}
		if reason == nil || ctx.Err() == nil {
			reason = err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(2*pause, longestPause)
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("jetstream: key %q: %w", name, unavailable(reason))
		}
	}
}

// key is one attempt of Key.
func (s *Store) key(ctx context.Context, name string, create func() []byte) ([]byte, error) {
	if err := s.keys.ensure(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	key, _, err := s.keys.value(ctx, name)
	if !errors.Is(translate(err), session.ErrNotFound) {
		return key, err
	}
	key = create()
	if _, err := s.keys.setValue(ctx, name, key, 0, 0); err != nil {
		if !errors.Is(translate(err), session.ErrConflict) {
			return nil, err
		}
		key, _, err = s.keys.value(ctx, name)
		return key, err
	}
	return key, nil
}
