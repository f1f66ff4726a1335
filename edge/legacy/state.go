package legacy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/session"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// defaultLevel is the log level of a client that never set one, or whose choice
// cannot be read now. The specification leaves it to the server.
const defaultLevel = "info"

// maxFollowed is the most resources one session may subscribe to.
const maxFollowed = 1000

// errTooMany refuses a subscription beyond maxFollowed.
var errTooMany = errors.New("legacy: too many subscriptions")

// state is what a session or a connection has changed since it began.
type state interface {
	// get returns it. session.ErrExpired: the session is over.
	get(ctx context.Context) (session.Record, error)
	// update changes it. The change may be made several times, and must not
	// change what slices of the record point to; its error is returned as it
	// is. session.ErrUnavailable: nothing can be stored now.
	update(ctx context.Context, change func(*session.Record) error) error
}

// stored is the state of a session: every edge sees it.
type stored struct {
	records *session.Records
	session *session.Session
}

func (s stored) get(ctx context.Context) (session.Record, error) {
	return s.records.Get(ctx, s.session.Scope)
}

func (s stored) update(ctx context.Context, change func(*session.Record) error) error {
	_, err := s.records.Update(ctx, s.session, func(rec *session.Record) error {
		if rec.Ended {
			return session.ErrExpired
		}
		return change(rec)
	})
	return err
}

// attached is the state of a connection: it lives as long as that.
type attached struct{ peer *exchange.Peer }

func (a attached) get(context.Context) (rec session.Record, _ error) {
	a.peer.Keep(func(kept any) any {
		rec, _ = kept.(session.Record) // nothing is kept before the first change
		return kept
	})
	return rec, nil
}

func (a attached) update(_ context.Context, change func(*session.Record) error) (err error) {
	a.peer.Keep(func(kept any) any {
		rec, _ := kept.(session.Record) // as above
		if err = change(&rec); err != nil {
			return kept
		}
		return rec
	})
	return err
}

// levelOf is the log level that a record stands for.
func levelOf(rec session.Record) string {
	if rec.Level == "" {
		return defaultLevel
	}
	return rec.Level
}

// followed adds a resource to a record.
func followed(rec *session.Record, uri string) error {
	at, found := slices.BinarySearch(rec.URIs, uri)
	switch {
	case found:
		return nil
	case len(rec.URIs) >= maxFollowed:
		return errTooMany
	}
	rec.URIs = slices.Insert(slices.Clone(rec.URIs), at, uri)
	return nil
}

// unfollowed takes a resource out of a record.
func unfollowed(rec *session.Record, uri string) error {
	if at, found := slices.BinarySearch(rec.URIs, uri); found {
		rec.URIs = slices.Delete(slices.Clone(rec.URIs), at, at+1)
	}
	return nil
}

// setLevel keeps the log level of a session or connection (server/utilities/
// logging, "Setting Log Level").
func (e *Era) setLevel(ctx context.Context, c *caller, m *jsonrpc.Message) exchange.Answer {
	level, err := mcp.LogLevel(m.Params.Get("level"), "params.level")
	if err != nil {
		return exchange.Failed(m.ID, err)
	}
	if c.state == nil {
		return exchange.Failed(m.ID, needsSession("a log level"))
	}
	changeErr := c.state.update(ctx, func(rec *session.Record) error { rec.Level = level; return nil })
	return e.changed(ctx, c, m, "", changeErr)
}

// changed answers a request that changes the state of its session; subscribed is
// the resource it is about. The other edges know of the change before the client
// does: its next request may reach any of them.
func (e *Era) changed(ctx context.Context, c *caller, m *jsonrpc.Message, subscribed string, err error) exchange.Answer {
	if err == nil && c.peer == nil {
		err = e.tell(ctx, &millracev1.Announcement{News: &millracev1.Announcement_SessionChanged{
			SessionChanged: &millracev1.SessionChanged{Scope: c.Scope, Subscribed: subscribed},
		}})
		if err != nil {
			err = fmt.Errorf("%w: %w", session.ErrUnavailable, err) // it is stored; to repeat it does no harm
		}
	}
	if err != nil {
		if errors.Is(err, session.ErrUnknown) {
			return unknownSession(c.Revision, m.ID)
		}
		refusal, after := e.notStored(c, m, err)
		answer := exchange.Failed(m.ID, refusal)
		answer.RetryAfter = after
		return answer
	}
	return exchange.Succeeded(m.ID, jsonrpc.Whole([]byte("{}")))
}

// notStored says why a change of a session could not be made, and when to try
// again.
func (e *Era) notStored(c *caller, m *jsonrpc.Message, err error) (refusal *jsonrpc.Error, after time.Duration) {
	failure := &backend.Failure{Kind: backend.Internal}
	if errors.Is(err, session.ErrUnavailable) {
		failure = &backend.Failure{
			Kind: backend.Unavailable, Message: "what a session changes cannot be stored at the moment: try again shortly",
		}
	}
	return e.Methods.Failed(c.Client, m, failure).Error, failure.RetryAfter()
}
