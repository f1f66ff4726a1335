package session

import (
	"context"
	"errors"
	"time"
)

// Tickets are rights that can be used once, by whichever edge they come to. A
// ticket is known by its name, which is a token of keys, unguessable and never
// given twice; nothing is stored before it is used. Safe for concurrent use.
type Tickets struct {
	store Store
}

// NewTickets returns the tickets of a store.
func NewTickets(store Store) *Tickets { return &Tickets{store} }

// The marks of tickets.
const (
	ticketUsed = "used"
	ticketFree = "free" // it was given back
)

// giveBackTimeout bounds how long a client that is refused anyway waits.
const giveBackTimeout = time.Second

func ticketKey(name string) string { return "once." + name }

// Take uses a ticket up; taken is false when it was used before. ttl is how long
// anybody can still come with it. After an error nobody knows whether it was
// used, and who asked must not go on.
func (t *Tickets) Take(ctx context.Context, name string, ttl time.Duration) (taken bool, err error) {
	_, err = t.store.Put(ctx, ticketKey(name), []byte(ticketUsed), 0, ttl)
	if !errors.Is(err, ErrConflict) {
		return err == nil, err
	}
	mark, revision, err := t.store.Get(ctx, ticketKey(name))
	switch {
	case errors.Is(err, ErrNotFound): // the mark's time is over, and so is the ticket's
		return false, nil
	case err != nil:
		return false, err
	case string(mark) != ticketFree:
		return false, nil
	}
	return t.put(ctx, name, ticketUsed, revision, ttl)
}

// GiveBack makes a ticket good again that was taken for nothing. When the store
// does not take that, the ticket stays used. It waits at most a second, even
// when the context has ended.
func (t *Tickets) GiveBack(ctx context.Context, name string, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	if _, revision, err := t.store.Get(ctx, ticketKey(name)); err == nil {
		_, _ = t.put(ctx, name, ticketFree, revision, ttl)
	}
}

// put writes a mark if nobody has written another one meanwhile.
func (t *Tickets) put(ctx context.Context, name, mark string, revision uint64, ttl time.Duration) (written bool, err error) {
	_, err = t.store.Put(ctx, ticketKey(name), []byte(mark), revision, ttl)
	if errors.Is(err, ErrConflict) {
		return false, nil
	}
	return err == nil, err
}
