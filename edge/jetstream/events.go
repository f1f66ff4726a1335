package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/edge/session"
)

const (
	// pageCount and pageBytes bound what one request for events brings. No
	// round has more that is stored than the first.
	pageCount = 512
	pageBytes = 1 << 20
	// replicaPause is how long a replica that is behind gets to catch up.
	replicaPause = 20 * time.Millisecond
)

// eventsPrefix begins the subjects of clients of the bus, and so of the events
// of calls.
func eventsPrefix(tenant string) string { return "mr." + tenant + ".e." }

// Stored implements bus.EventLog: it yields what is stored for a subject, oldest
// first and up to what was stored when it got there. The subject may be a pattern:
// then those that match it are read one after another, in the order of the rounds
// that they end with. An error of yield ends it and is returned as it is. Errors:
// session.ErrUnavailable.
func (s *Store) Stored(ctx context.Context, subject string, yield func(subject string, data []byte) error) error {
	if !strings.HasPrefix(subject, eventsPrefix(s.tenant)) || !strings.Contains(subject, ".ev.") {
		return fmt.Errorf("jetstream: %q is no subject of events", subject)
	}
	if !strings.ContainsAny(subject, "*>") {
		return s.storedOf(ctx, subject, yield)
	}
	var found map[string]uint64
	err := s.events.do(ctx, func(ctx context.Context) (err error) {
		found, err = s.events.subjects(ctx, subject)
		return err
	})
	if err != nil {
		return err
	}
	for _, subject := range slices.SortedFunc(maps.Keys(found), func(a, b string) int {
		// Of a round the worker's come before what an edge says at the end.
		return cmp.Or(compareRounds(a, b), cmp.Compare(found[b], found[a]), cmp.Compare(a, b))
	}) {
		if err := s.storedOf(ctx, subject, yield); err != nil {
			return err
		}
	}
	return nil
}

// compareRounds compares the numbers with which two subjects end.
func compareRounds(a, b string) int {
	a, b = a[strings.LastIndexByte(a, '.')+1:], b[strings.LastIndexByte(b, '.')+1:]
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// storedOf is Stored for one subject.
func (s *Store) storedOf(ctx context.Context, subject string, yield func(subject string, data []byte) error) error {
	// The leader knows what is stored. Any replica may deliver it, and one that
	// is behind can be told from one that has everything.
	var last uint64
	err := s.events.do(ctx, func(ctx context.Context) error {
		msg, err := s.events.get(ctx, getQuery{Last: subject})
		if err != nil {
			return err
		}
		last = msg.Sequence
		return nil
	})
	if errors.Is(err, session.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for next := uint64(1); next <= last; {
		var page []storedMessage
		err := s.events.do(ctx, func(ctx context.Context) (err error) {
			page, err = s.pageUpTo(ctx, subject, next, last)
			return err
		})
		if errors.Is(err, session.ErrNotFound) {
			return nil // what was the last one has been dropped since
		}
		if err != nil {
			return err
		}
		for _, msg := range page {
			if msg.Sequence > last {
				return nil
			}
			if err := yield(msg.Subject, msg.Data); err != nil {
				return err
			}
			next = msg.Sequence + 1
		}
	}
	return nil
}

// pageUpTo reads some events, at least one, from a sequence number on. A replica
// that has none, although the leader has one up to last, is given time.
func (s *Store) pageUpTo(ctx context.Context, subject string, from, last uint64) ([]storedMessage, error) {
	for {
		page, err := s.page(ctx, subject, from)
		if err != nil || len(page) > 0 {
			return page, err
		}
		if err := s.behind(ctx, subject, last); err != nil {
			return nil, err
		}
	}
}

// behind waits a little for a replica that had nothing to deliver up to a
// message, or reports that the message is not there any more.
func (s *Store) behind(ctx context.Context, subject string, last uint64) error {
	timer := time.NewTimer(replicaPause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err := s.events.get(ctx, getQuery{Next: subject, Sequence: last})
	return err
}

// page reads some events of a subject from a sequence number on. It is empty
// when the replica that answers has none.
func (s *Store) page(ctx context.Context, subject string, from uint64) ([]storedMessage, error) {
	request, err := json.Marshal(getQuery{Next: subject, Sequence: from, Batch: pageCount, MaxBytes: pageBytes})
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	// The server sends no more than that, and then the end of the page.
	answers := make(chan *nats.Msg, pageCount+1)
	inbox := s.nc.NewInbox()
	sub, err := s.nc.ChanSubscribe(inbox, answers)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection has ended
	if err := s.nc.PublishRequest("$JS.API.DIRECT.GET."+s.events.cfg.Name, inbox, request); err != nil {
		return nil, err
	}
	var page []storedMessage
	for {
		select {
		case msg := <-answers:
			switch status := msg.Header.Get("Status"); status {
			case "":
			case "204", "404":
				return page, nil
			case "503":
				return nil, nats.ErrNoResponders
			default:
				return nil, fmt.Errorf("jetstream: %s %s", status, msg.Header.Get("Description"))
			}
			sequence, err := strconv.ParseUint(msg.Header.Get("Nats-Sequence"), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("jetstream: event without a sequence number: %w", err)
			}
			page = append(page, storedMessage{Subject: msg.Header.Get("Nats-Subject"), Sequence: sequence, Data: msg.Data})
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
