package bus

import (
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// openRoom is kept free in front of an OPEN for the fields that differ from
// one push to the next, so that what does not differ is marshalled once.
const openRoom = 64

// sendOpen marshals the OPEN with the first message (nil: none) and pushes it.
// rest is what of the message did not fit.
func (call *clientCall) sendOpen(msg any, half bool) (rest []byte, err error) {
	buf := call.c.bufs.get()
	var room [openRoom]byte
	b := append(buf.b, room[:]...) //nolint:gocritic // buf.b is set below, when b is complete
	b = appendBytes(b, fieldMethod, call.method)
	if call.resumable() {
		b = appendBytes(b, fieldEvents, call.c.prefix+call.opts.resume.token)
	}
	if md, ok := metadata.FromOutgoingContext(call.ctx); ok {
		b = appendMD(b, fieldHeader, md)
	}
	var flags uint32
	first, size := 0, 0
	if msg != nil {
		pm, err := asProto(msg)
		if err != nil {
			call.c.bufs.put(buf)
			return nil, err
		}
		size = proto.Size(pm)
		if limit := call.opts.maxSend; limit > 0 && size > limit {
			call.c.bufs.put(buf)
			return nil, status.Errorf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", size, limit)
		}
		flags |= FlagMessage
		first = min(size, call.c.chunk())
		if first < size {
			b = appendVarint(b, fieldTotal, uint64(size))
		}
		b = appendDataTag(b, first)
		if first == size {
			b, err = appendPayload(b, pm)
		} else {
			flags |= FlagMore
			var body []byte
			body, err = appendPayload(make([]byte, 0, size), pm)
			if err == nil {
				b, rest = append(b, body[:first]...), body[first:]
			}
		}
		if err != nil {
			call.c.bufs.put(buf)
			return nil, err
		}
	}
	if half && rest == nil {
		flags |= FlagHalf
	}
	if call.opts.kept {
		flags |= FlagKeep
	}
	buf.b = b

	call.mu.Lock()
	if call.ended {
		err := call.err
		call.mu.Unlock()
		call.c.bufs.put(buf)
		return nil, err
	}
	call.open, call.openFlags, call.openCost = buf, flags, 0
	if msg != nil {
		call.openCost = first + frameCost
	}
	call.seq = 1
	wait := call.cc.queue != nil && call.cc.queue.waiting.Load() > 0 && call.c.cfg.WaitBudget > 0
	call.pushing = !wait
	call.mu.Unlock()
	if wait {
		call.cc.queue.join(call, "", false)
	} else {
		err = call.push()
	}
	if err == nil && call.stats != nil {
		md, _ := metadata.FromOutgoingContext(call.ctx)
		call.stats.outHeader(call.method, md, Addr(call.c.cfg.ID))
		if msg != nil {
			call.stats.outPayload(msg, size)
		}
	}
	return rest, err
}

// push publishes the OPEN once. The caller has set pushing.
func (call *clientCall) push() error {
	now := time.Now()
	call.mu.Lock()
	if call.open == nil {
		err := call.err
		call.pushing = false
		call.mu.Unlock()
		return err
	}
	if call.pushes == 0 {
		call.firstPush = now
	}
	attempt := call.pushes
	call.pushes++
	call.lastPush, call.pushStill = now, call.c.still.Load()
	subject, reply := call.subject, call.reply
	if call.target != "" {
		subject = call.c.ctlPre + call.target + "." + call.cc.open
	}
	call.again = false
	buf := call.open
	call.mu.Unlock()

	f := frame{
		kind:    kindOpen,
		flags:   call.openFlags,
		seq:     1,
		timeout: uint64(max(call.deadline.Sub(now), time.Microsecond).Microseconds()),
		openBy:  uint64(call.c.cfg.AcceptBudget.Microseconds()),
		window:  uint32(call.in.window),
		attempt: uint32(attempt),
	}
	var room [openRoom]byte
	head := f.appendHead(room[:0])
	from := openRoom - len(head)
	copy(buf.b[from:], head)
	err := call.c.conn.publish(subject, reply, buf.b[from:])

	call.mu.Lock()
	if call.again && call.open != nil && err == nil {
		call.mu.Unlock()
		return call.push()
	}
	call.pushing = false
	gone := call.open == nil
	call.mu.Unlock()
	if gone {
		call.c.bufs.put(buf)
	}
	if err != nil {
		err = openError(err)
		call.fail(err)
	}
	return err
}

// repush is a push after a pause or an answer that allows one.
func (call *clientCall) repush() {
	call.mu.Lock()
	if call.accepted || call.ended || call.pushing {
		call.again = true // counts only while somebody pushes
		call.mu.Unlock()
		return
	}
	call.pushing = true
	call.mu.Unlock()
	_ = call.push() // an error has ended the call
}

// openError is the status of an OPEN that was not sent.
func openError(err error) error {
	if isMaxPayload(err) {
		return status.Error(codes.ResourceExhausted, "metadata of the call does not fit into one message of the bus")
	}
	return failure(codes.Unavailable, ReasonDisconnected, "no connection to the bus: "+err.Error())
}

// lostError is the status of a later frame that was not sent: the call had
// started.
func lostError(err error) error {
	if isMaxPayload(err) {
		return status.Error(codes.ResourceExhausted, "a frame of the call does not fit into one message of the bus")
	}
	return failure(codes.Unavailable, ReasonFrameLost, "no connection to the bus: "+err.Error())
}

// onBusy repeats the OPEN: at once at first, then when a slot is offered.
func (call *clientCall) onBusy(f *frame) {
	now := time.Now()
	call.mu.Lock()
	if call.accepted || call.ended || call.lastPush.IsZero() {
		call.mu.Unlock()
		return
	}
	if fence := call.fence; fence != nil {
		// Late, but an answer. The call has to be offered under another id: some
		// may have promised already never to take it under this one.
		fence.refused = true
		call.mu.Unlock()
		notify(fence.wake)
		return
	}
	call.lastPush = time.Time{}
	target, queued, pushes, q := call.target, call.wait != nil, call.pushes, call.cc.queue
	if q == nil || call.c.cfg.WaitBudget < 0 {
		call.pauseLocked(now)
		return
	}
	call.mu.Unlock()
	if !queued && pushes <= pushesAtOnce && q.waiting.Load() == 0 {
		call.repush()
		return
	}
	limit := string(f.limit)
	q.join(call, limit, queued && q.wasIn(call, limit))
	if limit != "" && target != "" {
		q.offered(target, "") // the slot is still there, for another sort of call
	}
}

// pauseLocked repeats the OPEN of a call that does not wait with others: it is
// for one instance, or waiting is not wanted. It gives back the lock.
func (call *clientCall) pauseLocked(now time.Time) {
	if call.pushes <= pushesAtOnce {
		call.mu.Unlock()
		call.repush()
		return
	}
	budget := min(call.c.cfg.WaitBudget, call.deadline.Sub(call.firstPush)/4)
	left := budget - now.Sub(call.firstPush)
	if left <= 0 {
		call.mu.Unlock()
		call.fail(overloaded(call.cc.pool, 0, call.c.cfg.WaitBudget))
		return
	}
	pause := backoff(call.pushes - pushesAtOnce - 1)
	call.timer = time.AfterFunc(min(pause, left), call.repush)
	call.mu.Unlock()
}

// onNoResponders: nobody listens to the last thing that was sent.
func (call *clientCall) onNoResponders() {
	now := time.Now()
	call.mu.Lock()
	if call.ended {
		call.mu.Unlock()
		return
	}
	if call.accepted {
		call.mu.Unlock()
		call.fail(failure(codes.Unavailable, ReasonWorkerLost, "the instance that ran the call is gone"))
		return
	}
	if fence := call.fence; fence != nil {
		fence.gone = true // news of the push itself would have come before
		call.mu.Unlock()
		notify(fence.wake)
		return
	}
	if call.lastPush.IsZero() {
		// Nothing is on the way: it is late news of a FENCE. Whoever ended the
		// question pushes the call again.
		call.mu.Unlock()
		return
	}
	call.lastPush = time.Time{}
	pushes, since := call.pushes, now.Sub(call.firstPush)
	offered := call.wait != nil && call.target != ""
	call.mu.Unlock()
	if offered {
		// Only the instance that offered is gone.
		call.cc.queue.join(call, "", true)
		return
	}

	pause := backoff(pushes - 1)
	if !call.opts.waitForReady {
		pause = min(pause, noResponderRetry-since)
		if call.cc.direct || !call.c.known(call.cc.pool) {
			pause = 0
		}
	}
	if pause <= 0 {
		call.fail(failure(codes.Unavailable, ReasonNoResponders, "no instance of pool "+call.cc.pool+" is there"))
		return
	}
	call.mu.Lock()
	if !call.ended {
		call.timer = time.AfterFunc(pause, call.repush)
	}
	call.mu.Unlock()
}

// backoff is the n-th pause, from 2 ms doubling to 64 ms, of which up to a half
// is taken off at random.
func backoff(n int) time.Duration {
	d := min(minBackoff<<min(max(n, 0), 10), maxBackoff)
	return d - rand.N(d/2+1)
}

// unansweredFor is how long the last push has been without an answer, without
// the time for which this process stood still, and the number of that push.
func (call *clientCall) unansweredFor(now time.Time) (waited time.Duration, push int) {
	call.mu.Lock()
	defer call.mu.Unlock()
	if call.accepted || call.lastPush.IsZero() || call.fence != nil {
		return 0, 0
	}
	return now.Sub(call.lastPush) - time.Duration(call.c.still.Load()-call.pushStill), call.pushes
}
