package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// followRoom bounds what a Follower holds besides the message that it joins.
	// What comes beyond it is read from the log when there is room.
	followRoom = 4 << 20
	// followCost is what a frame costs of it besides its payload.
	followCost = 256
	// followGap is how long a Follower waits for a frame that is missing, as the
	// log has a message a moment after it was delivered.
	followGap = 2 * time.Second
	// followPause and followPauses are the shortest and the longest pause between
	// two readings of the log while a frame is missing, doubling from one to the
	// other.
	followPause, followPauses = 5 * time.Millisecond, followGap / 2
	// followFirst and followQuiet are the shortest and the longest time until
	// the log is read though nothing seems to be missing, doubling from one to
	// the other: in a cluster the news of a subscription takes a moment, and
	// what is published elsewhere meanwhile is in the log only.
	followFirst = 50 * time.Millisecond
	followQuiet = 15 * time.Second
)

// ErrFollowerClosed is the error of Next after Close.
var ErrFollowerClosed = errors.New("bus: the follower is closed")

// errEnough ends a reading of the log for which there is no room.
var errEnough = errors.New("bus: enough")

// EventLog keeps what was published to the events of calls for a while. Its
// methods may be called concurrently.
type EventLog interface {
	// Stored calls yield for each stored message whose subject matches, which
	// may have wildcards, round by round and those of a subject oldest first, up
	// to the one that is the newest when it gets there; data belongs to yield. When yield returns an error it stops
	// and returns an error that wraps it.
	Stored(ctx context.Context, subject string, yield func(subject string, data []byte) error) error
}

// EventPoint is a place in the events of a call of several rounds. Number counts
// the frames of a round from 1, a message being where its first frame is; 0 is
// before all of them.
type EventPoint struct {
	Round  uint32
	Number uint64
}

// Event is one message of a call, the end of one of its rounds, or both.
type Event struct {
	EventPoint

	Client  string // the id of the client that made the call of the round
	Message []byte // the response message in protobuf's form; nil: none
	Started bool   // the round has been accepted; only of calls with Kept
	End     bool   // the round has ended, by itself or by EndEvents
	Err     error  // the status of the end; nil is success
	Ctl     string // for CancelEvents; empty at an end
	// Gap: the messages directly before the end are missing. The end follows as
	// the next event.
	Gap bool
	// Large says that messages of the round were too large to be kept. Only with
	// Gap, which without it means that they were lost.
	Large bool
}

// Follower reads the events of a call. Next is for one goroutine at a time;
// Close may be called from any.
type Follower struct {
	c       *Client
	log     EventLog
	subject string
	sub     *nats.Subscription
	remove  func()
	// wake tells Next that something has changed. Capacity 1 and never closed: a
	// full channel holds the news already.
	wake chan struct{}

	// Of the goroutine of Next.
	flushed  bool // the server knows of the subscription
	lastRead time.Time
	quiet    time.Duration // from lastRead until the log is read anyway
	gap      place         // of the frame before which something is missing
	gapSince time.Time     // zero: nothing is
	gapRead  time.Time     // when the log is read again for it
	gapPause time.Duration // and how long after that
	gapStays bool          // the log has not had it for long enough
	queued   *Event        // comes next
	inquiry  inquiry

	mu      sync.Mutex
	closed  bool
	missed  bool // messages were lost on the way here: the log has them
	frames  []*followed
	size    int
	cut     *place     // what follows from here on had no room
	at      EventPoint // the last frame that was taken
	ended   bool       // and its round has ended
	resumed bool       // only the rest of a message that was read before was taken
	joining bool
	part    message // that is being joined
	lost    bool    // something is missing since the last whole message
	// runner is the instance that runs the round runnerRound, the last one of
	// which that is known; ctl says so.
	runner, ctl string
	runnerRound uint32
	question    *question // the last one that instances were asked
}

// place is the place of a frame among all.
type place struct {
	round  uint32
	number uint64
}

// ownEnd is the number of an END of a caller: it is behind all that was sent
// before.
const ownEnd = math.MaxUint64

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.round, q.round), cmp.Compare(p.number, q.number))
}

// followed is a frame of the events.
type followed struct {
	place

	client string
	frame  frame
	// stored: it was seen in the log, and so was what the same instance wrote
	// before, or it never will be.
	stored bool
}

func (n *followed) cost() int { return len(n.frame.data) + followCost }

// Follow reads the events of all rounds of a call from the point after on: what
// the log has and then what is sent, each once and in the order of rounds and
// numbers, whichever clients and instances it comes from. The events of a round
// begin with its first message and end with its end; a round that was a short
// call has none. What the log did not keep is left out. Follow needs no Run; the
// Follower has to be closed.
func (c *Client) Follow(log EventLog, session, stream string, after EventPoint) (*Follower, error) {
	if log == nil {
		return nil, errors.New("bus: follow: no log")
	}
	subject, err := c.allEvents(session, stream)
	if err != nil {
		return nil, fmt.Errorf("bus: follow: %w", err)
	}
	f := &Follower{
		c: c, log: log, at: after, resumed: true, missed: true, quiet: followFirst,
		subject: subject, wake: make(chan struct{}, 1),
	}
	// The subscription first: what comes while the log is read is not missed.
	sub, err := c.conn.nc.Subscribe(f.subject, f.onMsg)
	if err != nil {
		return nil, fmt.Errorf("bus: follow: %w", err)
	}
	if err := sub.SetPendingLimits(-1, followRoom); err != nil {
		unsubscribe(sub)
		return nil, fmt.Errorf("bus: follow: %w", err)
	}
	f.sub = sub
	f.remove = c.conn.listen(&connListener{
		up: f.miss,
		slow: func(s *nats.Subscription) {
			if s == sub {
				f.miss()
			}
		},
	})
	return f, nil
}

// Close ends the Follower, and a Next that waits. It may be called more than
// once.
func (f *Follower) Close() {
	f.mu.Lock()
	done := f.closed
	f.closed = true
	f.frames, f.size, f.part = nil, 0, message{}
	f.mu.Unlock()
	if done {
		return
	}
	f.remove()
	unsubscribe(f.sub)
	f.drop(nil)
	notify(f.wake)
}

// Next returns the next event and waits for it until ctx is done. After an error
// of the log or the connection it may be called again, and nothing was lost;
// after Close it returns ErrFollowerClosed.
func (f *Follower) Next(ctx context.Context) (Event, error) {
	if q := f.queued; q != nil {
		f.queued = nil
		return *q, nil
	}
	if !f.flushed {
		if err := flush(ctx, f.c.conn.nc); err != nil {
			return Event{}, err
		}
		f.flushed = true
	}
	for {
		if event, ok := f.hear(); ok {
			return event, nil
		}
		event, state := f.take()
		switch state {
		case followTaken:
			f.took()
			return event, nil
		case followClosed:
			return Event{}, ErrFollowerClosed
		case followMissed:
			if err := f.read(ctx); err != nil {
				return Event{}, err
			}
		case followMissing:
			if err := f.mind(ctx); err != nil {
				return Event{}, err
			}
		case followNothing:
			f.gapSince = time.Time{}
			if err := f.wait(ctx); err != nil {
				return Event{}, err
			}
		}
	}
}

// Ready is Next for an event that is here already; without one it returns false
// at once. It is for the goroutine of Next, which can so tell whether more follows
// before it passes on what it has.
func (f *Follower) Ready() (Event, bool) {
	if q := f.queued; q != nil {
		f.queued = nil
		return *q, true
	}
	event, state := f.take()
	if state != followTaken {
		return Event{}, false
	}
	f.took()
	return event, true
}

// took notes that there was an event.
func (f *Follower) took() {
	f.gapSince = time.Time{}
	f.inquiry.reset()
}

// followState is what Next has to do.
type followState int

const (
	followTaken   followState = iota // return the event
	followNothing                    // wait
	followMissed                     // read the log
	followMissing                    // something before the first frame is missing
	followClosed
)

// take takes frames until they make an event.
func (f *Follower) take() (Event, followState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		switch {
		case f.closed:
			return Event{}, followClosed
		case f.missed, f.cut != nil && len(f.frames) == 0:
			return Event{}, followMissed
		case len(f.frames) == 0:
			return Event{}, followNothing
		}
		n := f.frames[0]
		over := n.round == f.at.Round && f.ended // and it came before the end did
		next := over || f.isNextLocked(n)
		if !next && !f.maySkipLocked(n) {
			return Event{}, followMissing
		}
		f.frames[0] = nil
		f.frames = f.frames[1:]
		f.size -= n.cost()
		if over {
			continue
		}
		if event, ok := f.takeLocked(n, !next); ok {
			return event, followTaken
		}
	}
}

// isNextLocked reports whether nothing is missing before a frame.
func (f *Follower) isNextLocked(n *followed) bool {
	begin := n.round == f.at.Round || f.ended || f.at.Number == 0
	switch {
	case n.number == ownEnd:
		// Others wrote what comes before it, so it may have overtaken that on
		// its way here, while the log is read from its beginning.
		return begin && n.stored
	case n.frame.flags&FlagFirst != 0:
		return begin
	default:
		return n.round == f.at.Round && n.number == f.at.Number+1
	}
}

// maySkipLocked reports whether what is missing before a frame will never come.
func (f *Follower) maySkipLocked(n *followed) bool {
	if f.gapSince.IsZero() || f.gap != n.place {
		return false // who has sent it was not asked yet
	}
	if n.stored && f.inquiry.gapSettled && (n.round == f.at.Round || f.ended || f.at.Number == 0) {
		return true
	}
	return f.gapStays
}

// takeLocked takes the first frame; skipped says that something is missing
// before it.
func (f *Follower) takeLocked(n *followed, skipped bool) (event Event, ok bool) {
	if n.round != f.at.Round {
		f.at, f.ended = EventPoint{Round: n.round}, false
		f.joining, f.part, f.lost, f.resumed = false, message{}, false, false
	}
	if n.number == ownEnd {
		n.number = f.at.Number + 1
	} else if skipped && n.frame.flags&FlagFirst == 0 {
		f.lost = true
	}
	if skipped && f.joining {
		f.joining, f.part, f.lost = false, message{}, true
	}
	f.at.Number = n.number
	event = Event{EventPoint: f.at, Client: n.client}
	if len(n.frame.ctl) > 0 {
		if string(n.frame.ctl) != f.ctl {
			f.ctl = string(n.frame.ctl)
			f.runner = f.c.instanceOf(f.ctl)
		}
		f.runnerRound = n.round
	}
	if n.frame.kind == kindEnd {
		return f.endLocked(n, event), true
	}
	if n.frame.kind == kindAccept {
		event.Started, event.Ctl = true, string(n.frame.ctl)
		return event, true
	}
	switch {
	case n.frame.flags&FlagRest == 0:
		f.joining, f.part, f.resumed = true, message{seq: n.number, first: n.frame.data}, false
	case f.joining:
		f.part.rest = append(f.part.rest, n.frame.data)
	default:
		f.lost = f.lost || !f.resumed
		return Event{}, false
	}
	f.part.size += len(n.frame.data)
	switch {
	case f.part.size > f.c.cfg.MaxRecvMsgSize:
		f.joining, f.part, f.lost = false, message{}, true
		return Event{}, false
	case n.frame.flags&FlagMore != 0:
		return Event{}, false
	}
	event.Number = f.part.seq
	event.Message = messageBytes(f.part.join())
	event.Ctl = string(n.frame.ctl)
	f.joining, f.part, f.lost = false, message{}, false
	return event, true
}

// endLocked takes an END. The event that says what is missing comes before it.
func (f *Follower) endLocked(n *followed, event Event) Event {
	f.ended = true
	reason := n.frame.status
	if len(reason) > 0 && len(f.frames) > 0 && f.frames[0].place == (place{n.round, ownEnd}) {
		// The error of the instance is likely to be the consequence.
		reason = f.frames[0].frame.status
	}
	event.End, event.Err = true, decodeStatus(reason)
	missing := f.lost || f.joining
	f.joining, f.part, f.lost = false, message{}, false
	if n.frame.flags&FlagMessage != 0 {
		event.Message = messageBytes(n.frame.data)
		return event
	}
	if !missing {
		return event
	}
	f.queued = &event
	return Event{EventPoint: EventPoint{Round: event.Round, Number: event.Number - 1}, Client: event.Client, Gap: true, Large: n.frame.flags&FlagApart != 0}
}

// messageBytes makes an empty message differ from none.
func messageBytes(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// mind does something about a missing frame: it reads the log, at once and then
// after growing pauses, and asks the instance that has sent it. When that does not
// have it any more, or not for long enough, and the log could be read and does not
// have it, take goes on without it.
func (f *Follower) mind(ctx context.Context) error {
	f.mu.Lock()
	var first *followed
	var stored bool
	if len(f.frames) > 0 {
		first = f.frames[0]
		stored = first.stored
	}
	f.mu.Unlock()
	if first == nil {
		return nil // it was closed
	}
	if f.gapSince.IsZero() || f.gap != first.place {
		now := time.Now()
		f.gap, f.gapSince, f.gapPause, f.gapStays = first.place, now, followPause, false
		f.gapRead = now.Add(f.gapPause)
		f.inquiry.gapAsked, f.inquiry.gapSettled = false, false
		if !stored {
			return f.read(ctx)
		}
	}
	if !f.inquiry.gapAsked {
		f.inquiry.gapAsked = true
		if f.inquiry.gapSettled = !f.ask(first); f.inquiry.gapSettled && stored {
			return nil
		}
	}
	timer := time.NewTimer(time.Until(f.gapRead))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	waited := time.Since(f.gapSince)
	f.gapPause = min(2*f.gapPause, followPauses)
	if err := f.read(ctx); err != nil {
		f.gapRead = time.Now().Add(f.gapPause)
		return err
	}
	f.gapRead = time.Now().Add(f.gapPause)
	f.gapStays = waited >= followGap
	return nil
}

// wait waits for something new, but now and then has a look at the log, and asks
// the instance that runs the call.
func (f *Follower) wait(ctx context.Context) error {
	look := f.lastRead.Add(f.quiet)
	ask := f.inquiry.due()
	next := look
	if ask.Before(next) {
		next = ask
	}
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	select {
	case <-f.wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	if next.Equal(ask) {
		f.inquiry.asked()
		f.ask(nil)
	}
	if !next.Equal(look) {
		return nil
	}
	f.quiet = min(2*f.quiet, followQuiet)
	// When the log cannot be read now, nothing says that something is missing.
	if err := f.read(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	f.lastRead = time.Now()
	return nil
}

// read reads the log as far as there is room.
func (f *Follower) read(ctx context.Context) error {
	f.mu.Lock()
	missed, cut := f.missed, f.cut
	f.missed, f.cut = false, nil
	f.mu.Unlock()
	err := f.log.Stored(ctx, f.subject, func(subject string, data []byte) error {
		// Of a round, what was published again is behind what comes later.
		if n, room := f.add(subject, data, true); !room && f.isCut(n) {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		if missed || cut != nil {
			f.miss()
		}
		return fmt.Errorf("bus: follow: %w", err)
	}
	f.lastRead = time.Now()
	if missed { // the subscription is new, at least for the server
		f.quiet = followFirst
	}
	return nil
}

// Refresh makes the next Next read the log before it waits: what that does not return
// was not sent, as far as the log knows. It may be called from any goroutine.
func (f *Follower) Refresh() { f.miss() }

// miss makes Next read the log.
func (f *Follower) miss() {
	f.mu.Lock()
	f.missed = true
	f.mu.Unlock()
	notify(f.wake)
}

// onMsg takes a message as it is sent. It runs on the goroutine of the
// subscription and waits for nobody.
func (f *Follower) onMsg(m *nats.Msg) {
	f.add(m.Subject, m.Data, false)
	notify(f.wake)
}

// isCut reports whether a round is later than that of the first frame that had
// no room.
func (f *Follower) isCut(round uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cut != nil && round > f.cut.round
}

// add sorts a message in, and reports whether there was room. What is no frame
// of events is passed over.
func (f *Follower) add(subject string, data []byte, stored bool) (round uint32, room bool) {
	client, round, ok := f.c.eventsOf(subject)
	if !ok {
		return 0, true
	}
	n := &followed{client: client, stored: stored}
	if err := n.frame.decode(data); err != nil {
		return round, true
	}
	n.place = place{round, n.frame.seq}
	switch {
	case n.frame.kind == kindEnd && n.number == 0:
		n.number = ownEnd
	case n.frame.kind == kindEnd, n.frame.kind == kindData, n.frame.kind == kindAccept:
	default:
		return round, true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return round, f.addLocked(n)
}

func (f *Follower) addLocked(n *followed) (room bool) {
	switch {
	case f.closed, n.round < f.at.Round:
		return true
	case n.round == f.at.Round && f.ended:
		return true
	case n.round == f.at.Round && n.number <= f.at.Number:
		// It was read before the point. If it was the end, nothing follows.
		f.ended = n.frame.kind == kindEnd
		return true
	case f.cut != nil && n.compare(*f.cut) >= 0:
		return false
	}
	i, have := slices.BinarySearchFunc(f.frames, n.place, func(a *followed, p place) int { return a.compare(p) })
	if have {
		f.frames[i].stored = f.frames[i].stored || n.stored
		return true
	}
	f.frames = slices.Insert(f.frames, i, n)
	f.size += n.cost()
	room = true
	for f.size > followRoom && len(f.frames) > 1 {
		i := len(f.frames) - 1
		last := f.frames[i]
		room = room && last != n
		f.cut = &last.place
		f.size -= last.cost()
		f.frames[i] = nil
		f.frames = f.frames[:i]
	}
	return room
}
