package bus

import (
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

const (
	// followAsk and followAsks are the shortest and the longest time without an
	// event until a Follower asks what became of the call, doubling from one to
	// the other.
	followAsk, followAsks = time.Second, 15 * time.Second
	// forgottenTwice is how often an instance must say that it does not know what
	// it has run any more: between two answers the log is read.
	forgottenTwice = 2
)

// inquiry is what a Follower wants to know from instances. The goroutine of Next
// owns it.
type inquiry struct {
	pool string // of the instances that may run the call; "": unknown

	at    time.Time // of the next question; zero: it is not decided
	pause time.Duration
	// forgotten is how often the instance that has run the call did not know it.
	forgotten int

	// Of the gap: who may fill it was asked; and does not, or there is nobody.
	gapAsked, gapSettled bool
}

// reset begins anew: there was an event.
func (q *inquiry) reset() {
	q.at, q.forgotten = time.Time{}, 0
}

// due is when to ask.
func (q *inquiry) due() time.Time {
	if q.at.IsZero() {
		q.pause = followAsk
		q.at = time.Now().Add(q.pause)
	}
	return q.at
}

// asked notes that it was asked.
func (q *inquiry) asked() {
	q.pause = min(2*q.pause, followAsks)
	q.at = time.Now().Add(q.pause)
}

// question is one that instances were asked. The lock of the Follower guards it.
type question struct {
	sub     *nats.Subscription
	from    place
	gap     place // of the frame before which something is missing; zero: it is about the end
	asked   int   // instances
	nothing int   // of them have nothing to add
	answers []*busv1.EventsResponse
}

// Pool says whose instances run the call: when nothing comes, and nothing says
// which one it is, all of them are asked. Without it, only the instance that has
// sent the last event is. It must be called before Next, by its goroutine.
func (f *Follower) Pool(pool string) { f.inquiry.pool = pool }

// ask asks who may have sent what is missing: before a frame, or after all that
// came if that is nil. It reports whether there is somebody to ask.
func (f *Follower) ask(before *followed) bool {
	f.mu.Lock()
	var whom []string
	add := func(instance string) {
		if instance != "" && !slices.Contains(whom, instance) {
			whom = append(whom, instance)
		}
	}
	q := &question{from: f.nextLocked()}
	if f.runnerRound >= q.from.round {
		add(f.runner)
	}
	if before != nil {
		q.gap = before.place
		add(f.c.instanceOf(string(before.frame.ctl)))
	}
	f.mu.Unlock()
	if len(whom) == 0 && f.inquiry.pool != "" && f.c.cfg.Members != nil {
		for _, m := range f.c.cfg.Members.Members() {
			if m.Pool == f.inquiry.pool {
				whom = append(whom, m.Instance)
			}
		}
	}
	if q.asked = len(whom); q.asked == 0 {
		return false
	}
	session, stream := f.session()
	b, err := proto.Marshal(&busv1.EventsRequest{
		Session: session, Stream: stream, Round: q.from.round, Number: q.from.number, UntilRound: q.gap.round, Until: q.gap.number,
	})
	if err != nil {
		return false // tokens are valid text: not reached
	}
	nc := f.c.conn.nc
	inbox := nc.NewInbox()
	sub, err := nc.Subscribe(inbox, func(m *nats.Msg) { f.onAnswer(q, m) })
	if err != nil {
		return true // without a connection; asked again
	}
	q.sub = sub
	if !f.drop(q) {
		return true // closed
	}
	for _, instance := range whom {
		_ = nc.PublishRequest(f.c.ctlPre+instance+"."+tokenAsk, inbox, b) // lost: asked again
	}
	return true
}

// drop forgets the last question for the next one, unless the Follower is closed.
func (f *Follower) drop(next *question) bool {
	f.mu.Lock()
	closed := f.closed
	last := f.question
	if f.question = next; closed {
		f.question = nil
	}
	f.mu.Unlock()
	if last != nil {
		unsubscribe(last.sub)
	}
	if closed && next != nil {
		unsubscribe(next.sub)
	}
	return !closed
}

// onAnswer takes the answer of an instance. It runs on the goroutine of the
// question's subscription.
func (f *Follower) onAnswer(q *question, m *nats.Msg) {
	resp := &busv1.EventsResponse{}
	gone := noResponders(m)
	if !gone && proto.Unmarshal(m.Data, resp) != nil {
		return
	}
	f.mu.Lock()
	if f.question == q {
		q.nothing++
		for _, r := range resp.GetRounds() {
			if r.GetRepeated() > 0 {
				q.nothing-- // it is on its way here
				break
			}
		}
		if !gone {
			q.answers = append(q.answers, resp)
		} else if q.asked == 1 {
			// What follows, others may run.
			f.runner, f.ctl, f.runnerRound = "", "", 0
		}
	}
	f.mu.Unlock()
	notify(f.wake)
}

// hear draws the conclusions from what instances have answered. The event is the
// end of a round whose own end is lost.
func (f *Follower) hear() (event Event, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.question
	if q == nil || f.closed {
		return Event{}, false
	}
	if q.gap != (place{}) {
		if q.gap == f.gap && q.nothing >= q.asked {
			f.inquiry.gapSettled = true
		}
		return Event{}, false
	}
	answers := q.answers
	q.answers = nil
	if f.nextLocked() != q.from || len(f.frames) > 0 {
		return Event{}, false // something has come meanwhile
	}
	for _, resp := range answers {
		switch f.heardLocked(resp) {
		case heardKnown:
			f.inquiry.forgotten = 0
		case heardForgotten:
			if f.inquiry.forgotten++; f.inquiry.forgotten >= forgottenTwice {
				return f.loseLocked(), true
			}
			f.missed = true // it may be in the log
		case heardNothing:
		}
	}
	return Event{}, false
}

// heard is what an answer says.
type heard int

const (
	heardNothing   heard = iota // the instance has not run the round, as far as is known
	heardKnown                  // it runs, or its end is on the way here
	heardForgotten              // the instance has run it, and has nothing more to say
)

func (f *Follower) heardLocked(resp *busv1.EventsResponse) heard {
	said := heardNothing
	for _, r := range resp.GetRounds() {
		if r.GetEnded() && r.GetRepeated() == 0 {
			continue
		}
		said = heardKnown
		if r.GetRound() > f.runnerRound && validToken(resp.GetInstance()) {
			f.runner, f.ctl, f.runnerRound = resp.GetInstance(), "", r.GetRound()
		}
	}
	if said == heardNothing && f.runnerRound >= f.nextLocked().round && f.runner == resp.GetInstance() {
		return heardForgotten
	}
	return said
}

// nextLocked is the first place of which nothing has come.
func (f *Follower) nextLocked() place {
	if f.ended {
		return place{f.at.Round + 1, 0}
	}
	return place{f.at.Round, f.at.Number + 1}
}

// loseLocked ends the round that has lost its end.
func (f *Follower) loseLocked() Event {
	if f.runnerRound != f.at.Round {
		f.at = EventPoint{Round: f.runnerRound}
	}
	f.at.Number++
	f.ended, f.joining, f.part, f.lost = true, false, message{}, false
	f.inquiry.reset()
	return Event{EventPoint: f.at, End: true, Err: failure(codes.DataLoss, ReasonEventsLost,
		"the call has ended, and what it sent last was lost on the way: its result is unknown")}
}

// session and stream are those that are followed.
func (f *Follower) session() (session, stream string) {
	_, rest, _ := strings.Cut(f.subject, "."+tokenEvents)
	session, rest, _ = strings.Cut(rest, ".")
	stream, _, _ = strings.Cut(rest, ".")
	return session, stream
}

// instanceOf returns whose address a ctl is; "" if it is none.
func (c *Client) instanceOf(ctl string) string {
	if !c.validCtl(ctl) {
		return ""
	}
	instance, _, _ := strings.Cut(ctl[len(c.ctlPre):], ".")
	return instance
}
