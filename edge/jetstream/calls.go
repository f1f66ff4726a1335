package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/edge/session"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// callsPrefix begins the subjects of continuations.
func callsPrefix(tenant string) string { return "mr." + tenant + ".cont." }

// StoredCall is a continuation and where it is stored.
type StoredCall struct {
	// Session and Stream name the call; both are tokens of subjects.
	Session, Stream string
	Continuation    *millracev1.Continuation
	// Revision is what PutCall compares.
	Revision uint64
}

// PutCall stores what is needed to go on with a call, for 65 minutes, if what is
// stored has the revision (0: nothing is), and returns the new one. It returns
// when it is stored: a client that is told of it may lose its edge the next
// moment. Errors: session.ErrConflict, ErrUnavailable, ErrTooLarge.
func (s *Store) PutCall(ctx context.Context, sessionID, stream string, c *millracev1.Continuation, revision uint64) (uint64, error) {
	msg, err := s.callMessage(sessionID, stream, c)
	if err != nil {
		return 0, err
	}
	var written uint64
	err = s.calls.do(ctx, func(ctx context.Context) (err error) {
		written, err = s.calls.publish(ctx, msg, revision, 0)
		return err
	})
	if err != nil {
		return 0, err
	}
	return written, nil
}

// EndCall stores what is known of a call that has ended, for as long as its
// events are kept: 5 minutes. It does not wait, and overwrites whatever is
// there. Errors as of PutCall, but no conflict.
func (s *Store) EndCall(sessionID, stream string, c *millracev1.Continuation) error {
	msg, err := s.callMessage(sessionID, stream, c)
	if err != nil {
		return err
	}
	msg.Header = nats.Header{natsjs.MsgTTLHeader: {eventAge.String()}}
	if !s.calls.available() {
		return session.ErrUnavailable
	}
	if err := s.nc.PublishMsg(msg); err != nil {
		return translate(err)
	}
	return nil
}

func (s *Store) callMessage(sessionID, stream string, c *millracev1.Continuation) (*nats.Msg, error) {
	subject, err := s.callSubject(sessionID, stream)
	if err != nil {
		return nil, err
	}
	msg := &nats.Msg{Subject: subject}
	if msg.Data, err = proto.Marshal(c); err != nil {
		return nil, fmt.Errorf("jetstream: continuation: %w", err)
	}
	if len(msg.Data) > session.MaxValue {
		return nil, session.ErrTooLarge
	}
	return msg, nil
}

// callSubject is where a call is stored.
func (s *Store) callSubject(tokens ...string) (string, error) {
	for _, token := range tokens {
		if err := session.CheckKey(token); err != nil || strings.Contains(token, ".") {
			return "", fmt.Errorf("jetstream: %q is no token of a subject", token)
		}
	}
	return callsPrefix(s.tenant) + strings.Join(tokens, "."), nil
}

// Call returns what is stored of a call. What was written without waiting is
// there a moment later. Errors: session.ErrNotFound, ErrUnavailable.
func (s *Store) Call(ctx context.Context, sessionID, stream string) (*millracev1.Continuation, uint64, error) {
	subject, err := s.callSubject(sessionID, stream)
	if err != nil {
		return nil, 0, err
	}
	var msg *storedMessage
	err = s.calls.do(ctx, func(ctx context.Context) (err error) {
		msg, err = s.calls.get(ctx, getQuery{Last: subject})
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	c := &millracev1.Continuation{}
	if err := proto.Unmarshal(msg.Data, c); err != nil {
		return nil, 0, fmt.Errorf("jetstream: stored call that cannot be read: %w", err)
	}
	return c, msg.Sequence, nil
}

// SessionCalls returns all calls of a session that are stored, those that were
// written longest ago first. Errors: session.ErrUnavailable.
func (s *Store) SessionCalls(ctx context.Context, sessionID string) ([]StoredCall, error) {
	prefix, err := s.callSubject(sessionID)
	if err != nil {
		return nil, err
	}
	prefix += "."
	var subjects map[string]uint64
	err = s.calls.do(ctx, func(ctx context.Context) (err error) {
		subjects, err = s.calls.subjects(ctx, prefix+"*")
		return err
	})
	if err != nil {
		return nil, err
	}
	calls := make([]StoredCall, 0, len(subjects))
	for subject := range subjects {
		stream := strings.TrimPrefix(subject, prefix)
		c, revision, err := s.Call(ctx, sessionID, stream)
		switch {
		case errors.Is(err, session.ErrNotFound): // it has just expired
		case err != nil:
			return nil, err
		default:
			calls = append(calls, StoredCall{Session: sessionID, Stream: stream, Continuation: c, Revision: revision})
		}
	}
	slices.SortFunc(calls, func(a, b StoredCall) int { return cmp.Compare(a.Revision, b.Revision) })
	return calls, nil
}
