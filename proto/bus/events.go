package bus

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// eventsAfter is how old a call is when its frames go to its events even
	// if it has sent no message yet. An answer before costs nothing more than
	// that of any other call.
	eventsAfter = 500 * time.Millisecond
	// defaultEventBytes is how much of a call is sent to its events.
	defaultEventBytes = 4 << 20
	// windowPatience is how long a resumable call waits for the window of its
	// caller before it asks whether there is one.
	windowPatience = time.Second
)

// tokenEvents begins the part of a subject that names events.
const tokenEvents = "ev."

// EventsKey names the events of one round of a call: one call of the bus. Session
// and Stream are subject tokens (1 to 64 of A-Z a-z 0-9 _ -). The same key must
// not be used for two calls: whoever tries again takes another Round, a later
// one.
type EventsKey struct {
	Session, Stream string
	Round           uint32
}

// token is the end of the subject, behind the prefix of the client.
func (k EventsKey) token() (string, error) {
	if !validToken(k.Session) || !validToken(k.Stream) {
		return "", status.Errorf(codes.InvalidArgument, "session %q and stream %q of events are not subject tokens", k.Session, k.Stream)
	}
	return tokenEvents + k.Session + "." + k.Stream + "." + strconv.FormatUint(uint64(k.Round), 36), nil
}

// allEvents is the subject of the events of all rounds of a call, whichever clients
// make them.
func (c *Client) allEvents(session, stream string) (string, error) {
	if !validToken(session) || !validToken(stream) {
		return "", fmt.Errorf("session %q and stream %q are not subject tokens", session, stream)
	}
	return c.conn.prefix + "e.*." + tokenEvents + session + "." + stream + ".*", nil
}

// eventsOf reads the client and the round from the subject of events.
func (c *Client) eventsOf(subject string) (client string, round uint32, ok bool) {
	client, rest, _ := strings.Cut(strings.TrimPrefix(subject, c.conn.prefix+"e."), ".")
	number, err := strconv.ParseUint(rest[strings.LastIndexByte(rest, '.')+1:], 36, 32)
	return client, uint32(number), err == nil
}

// Resumable makes a call resumable. What its instance sends from its first
// message on, unless that is the answer of a short call (less than 500 ms) and
// the only message, goes to a subject from which it may be stored, see
// [Client.Follow]; and the instance goes on when its caller is gone, until the
// deadline of the call. For the caller nothing else changes, but that the call
// is not cancelled when the client stops or loses its connection: the caller
// gets Unavailable then, and everybody can follow the rest. A context that ends
// cancels the call as always.
//
// *number is set by each RecvMsg that returns a message, on its goroutine, to the
// number of that message: the Number of its [EventPoint]. number may be nil.
func Resumable(key EventsKey, number *uint64) grpc.CallOption {
	return resumableOption{key: key, number: number}
}

// Kept makes everything that a resumable call sends an event, even the answer of
// a short call, and that it was accepted: for a call whose events somebody may
// follow already. On any other call it does nothing.
func Kept() grpc.CallOption { return keptOption{} }

// keptOption is the option of Kept. Other carriers ignore it.
type keptOption struct{ grpc.EmptyCallOption }

// Unkept tells the caller of a resumable call what is no event. *unkept is set by
// each RecvMsg that returns a message, on its goroutine: true when whoever follows
// the events does not see that message, because it is the answer of a short call
// or too large. On any other call it does nothing.
func Unkept(unkept *bool) grpc.CallOption { return unkeptOption{unkept: unkept} }

// unkeptOption is the option of Unkept. Other carriers ignore it.
type unkeptOption struct {
	grpc.EmptyCallOption

	unkept *bool
}

// KeepEvents makes the rest of what a handler sends events, for an answer that
// somebody else may have to go on with. ctx is the handler's; in a call that is
// not resumable, or of another carrier, it does nothing.
func KeepEvents(ctx context.Context) {
	t, ok := grpc.ServerTransportStreamFromContext(ctx).(*transportStream)
	if !ok || t.events == nil {
		return
	}
	t.sendMu.Lock()
	defer t.sendMu.Unlock()
	t.events.on = true
}

// resumableOption carries a key to the call. Other carriers ignore it.
type resumableOption struct {
	grpc.EmptyCallOption

	key    EventsKey
	number *uint64
}

// EndEvents publishes that the caller has ended the round by itself, by a
// timeout, a cancel, a lost worker, with the status of err; nil is success.
// Whoever follows the events learns it. Nothing else of the round is an event
// after that, even if the instance still runs; only when its success comes in the
// same moment, that counts. An error means that nothing was published.
func (c *Client) EndEvents(key EventsKey, err error) error {
	token, kerr := key.token()
	if kerr != nil {
		return fmt.Errorf("bus: %w", kerr)
	}
	if perr := c.send(c.prefix+token, "", &frame{kind: kindEnd, status: encodeStatus(handlerStatus(err))}); perr != nil {
		return fmt.Errorf("bus: end of events: %w", perr)
	}
	return nil
}

// EventsEnded reports whether the log has what EndEvents has published for the
// round: a log that is away for a moment takes nothing in, and nobody is told.
// It reads all that this client's calls have sent in the round.
func (c *Client) EventsEnded(ctx context.Context, log EventLog, key EventsKey) (bool, error) {
	token, err := key.token()
	if err != nil {
		return false, fmt.Errorf("bus: %w", err)
	}
	ended := false
	err = log.Stored(ctx, c.prefix+token, func(_ string, data []byte) error {
		var f frame
		ended = ended || f.decode(data) == nil && f.kind == kindEnd && f.seq == 0
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("bus: end of events: %w", err)
	}
	return ended, nil
}

// EventsState is how far the events of a call have come.
type EventsState struct {
	Round uint32 // the newest round that has events; 0: none has
	Ended bool   // it has ended
	Ctl   string // for CancelEvents; empty where that is not known, and at an end
}

// add takes a frame of a round that is not older.
func (s *EventsState) add(round uint32, f *frame) {
	if round > s.Round {
		*s = EventsState{Round: round}
	}
	switch {
	case f.kind == kindEnd:
		s.Ended, s.Ctl = true, ""
	case len(f.ctl) > 0 && !s.Ended:
		s.Ctl = string(f.ctl)
	}
}

// EventsState reads how far the events of a call have come from the log, which has
// them a moment after they were sent.
func (c *Client) EventsState(ctx context.Context, log EventLog, session, stream string) (EventsState, error) {
	subject, err := c.allEvents(session, stream)
	if err != nil {
		return EventsState{}, fmt.Errorf("bus: state of events: %w", err)
	}
	var state EventsState
	err = log.Stored(ctx, subject, func(subject string, data []byte) error {
		var f frame
		// What is no frame of events is passed over.
		if _, round, ok := c.eventsOf(subject); ok && round >= state.Round && f.decode(data) == nil {
			state.add(round, &f)
		}
		return nil
	})
	if err != nil {
		return EventsState{}, fmt.Errorf("bus: state of events: %w", err)
	}
	return state, nil
}

// CancelEvents cancels the call that wrote an event with this Ctl, whoever made
// it. It does not wait; a call that has ended, and what is not the address of a
// call, are ignored. Without a connection nothing is sent.
func (c *Client) CancelEvents(ctl string) {
	if c.validCtl(ctl) {
		_ = c.send(ctl, "", &frame{kind: kindCancel})
	}
}

// resumeOptions is what makes a call resumable.
type resumeOptions struct {
	token  string  // of its events
	number *uint64 // where the number of each message goes, or nil
}

// tell tells the caller the number of a message, and whether it is an event.
func (o *callOptions) tell(m message) {
	if o.resume == nil {
		return
	}
	if o.resume.number != nil {
		*o.resume.number = m.seq
	}
	if o.unkept != nil {
		*o.unkept = m.unkept
	}
}

func (call *clientCall) resumable() bool { return call.opts.resume != nil }

// isLeft reports whether the call has ended here and goes on at its instance: it
// must not be cancelled when it is heard of again.
func (call *clientCall) isLeft() bool {
	if !call.resumable() {
		return false
	}
	call.mu.Lock()
	defer call.mu.Unlock()
	return call.left
}

// isLeft reports whether the token is one of a call that goes on without us.
func (c *Client) isLeft(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.left[token]
	return ok
}

// forget lets go of the calls that have ended where they run, at their deadline
// and the moment that a handler may take to notice.
func (c *Client) forget(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for token, deadline := range c.left {
		if now.Sub(deadline) > stuckWait {
			delete(c.left, token)
		}
	}
}

// serverEvents is what an instance knows of the events of a resumable call; the
// sendMu of the call guards it.
type serverEvents struct {
	subject string
	on      bool // DATA and END go to the subject
	begun   bool // a DATA was written, to wherever
	live    bool // the message that is being sent is too large to be kept
	apart   bool // there was one that is
	left    int  // payload that may still be sent there
	// kept is what the instance remembers of the round; nil before the first
	// event, and when the round has no number.
	kept       *keptRound
	unkeepable bool
}

// validEvents reports whether an OPEN from the caller at reply may name events
// as the place for frames: one of the caller's own.
func (s *Server) validEvents(events, reply string) bool {
	rest := reply[len(s.replyP):] // was checked
	client, _, _ := strings.Cut(rest, ".")
	rest, ok := strings.CutPrefix(events, s.replyP+client+"."+tokenEvents)
	if !ok {
		return false
	}
	for range 2 {
		var token string
		if token, rest, ok = strings.Cut(rest, "."); !ok || !validToken(token) {
			return false
		}
	}
	return validToken(rest)
}

// mayHoldLocked reports whether a message of this size, the next of the call,
// may wait for the end of the call. sendMu is held.
func (c *serverCall) mayHoldLocked(size int) bool {
	if c.events == nil {
		return !c.accepted && size <= maxHeld
	}
	// To copy a chunk is cheap beside keeping it for minutes, and an answer that
	// comes with the END of a short call is not kept.
	return !c.events.on && !c.events.begun && !c.events.live && !c.eventsDue()
}

// eventsDue reports whether the END goes to the events even without a message
// before it: there is somebody who may follow, or nobody else any more.
func (c *serverCall) eventsDue() bool {
	return c.detached.Load() || time.Since(c.began) >= eventsAfter
}

// beginMessage decides about all parts of a message at once: who follows has no
// use for half of one. The message that waits goes first, as it was decided
// about before.
func (c *serverCall) beginMessage(size int) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.held != nil && !c.ended {
		if err := c.flushLocked(); err != nil {
			return lostError(err)
		}
	}
	c.events.live = size > c.events.left
	if !c.events.live {
		c.events.left -= size
	}
	return nil
}

// routeLocked returns the subject of a numbered frame of a resumable call, "" if
// nobody needs it, and adds to the frame what those who follow need. sendMu is
// held.
func (c *serverCall) routeLocked(f *frame) string {
	e := c.events
	if f.kind == kindData || f.kind == kindEnd && c.eventsDue() {
		e.on = true
	}
	first := !e.begun
	e.begun = e.begun || f.kind == kindData
	event := f.kind == kindData || f.kind == kindEnd || f.kind == kindAccept
	e.apart = e.apart || f.kind == kindData && e.live
	if f.kind == kindEnd && e.apart {
		f.flags |= FlagApart
	}
	switch {
	case !event || !e.on, f.kind == kindData && e.live:
		// A caller that came back does not know the call any more, and would
		// cancel it.
		if c.detached.Load() {
			return ""
		}
		return c.reply
	case first:
		f.flags |= FlagFirst
	}
	if f.kind == kindData {
		f.ctl = []byte(c.ctl) // for whoever follows and wants to cancel
	}
	return e.subject
}

// callerGone: nobody is there to read. A resumable call goes on without its
// caller, if it has the whole request; any other call is cancelled.
func (c *serverCall) callerGone() {
	c.mu.Lock()
	keep := c.events != nil && c.half && !c.in.partial
	if keep {
		c.detached.Store(true)
	}
	wake, ready := c.sendWake, c.readyLocked()
	c.mu.Unlock()
	if !keep {
		c.leave()
		return
	}
	notify(wake)
	c.apart(ready)
}

// askCaller sends a frame without meaning to the caller: when it is gone, the
// NATS server says so to the call.
func (c *serverCall) askCaller() {
	if !c.detached.Load() {
		_ = c.s.publish(c.reply, c.ctl, &frame{kind: kindWindow})
	}
}
