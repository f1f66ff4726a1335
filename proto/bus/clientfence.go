package bus

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

const (
	// fenceRound is how long an instance may take to answer a FENCE before it is
	// asked again, and fenceRounds how often it is asked.
	fenceRound  = 300 * time.Millisecond
	fenceRounds = 8
	// silentRounds is how often those are asked that have been silent since before
	// the push: they may be parted from us for long.
	silentRounds = 2
	// fenceRetries is how often a call that certainly did not start is offered
	// again.
	fenceRetries = 2
	// maxFences is how many calls are asked about at the same time.
	maxFences = 256

	// runShift is where the number of a run of a client begins in the ids of its
	// calls: below it they count up.
	runShift = 32
	// runBits is the size of that number, which is random.
	runBits = 28
)

// Membership tells who may run the calls of a pool. *Watcher is one; a client
// that has it can find out whether a call without an answer has started.
type Membership interface {
	// Members returns the live instances of all pools. It must not block.
	Members() []Member
	// Roster returns who may have been given a call of the pool until now. It
	// may wait until ctx ends.
	Roster(ctx context.Context, pool string) (Roster, error)
}

// fence is the question what became of a push that nobody has answered. The lock
// of the call guards it.
type fence struct {
	answers map[string]busv1.Frame_Fence
	refused bool // BUSY came: whoever got the push has refused it
	gone    bool // somebody who was asked is not there any more
	// cancel ends the question: the call was accepted after all, or has ended.
	cancel context.CancelFunc
	// wake says that something has changed. Capacity 1 and never closed: a full
	// channel holds the news already.
	wake chan struct{}
}

// notAccepted: nobody has answered the push in time.
func (call *clientCall) notAccepted(push int) {
	c := call.c
	call.mu.Lock()
	if call.ended || call.accepted || call.lastPush.IsZero() || call.pushes != push || call.fence != nil {
		call.mu.Unlock()
		return
	}
	if c.cfg.Members == nil {
		call.mu.Unlock()
		call.fail(notAcceptedError("no instance accepted the call in time"))
		return
	}
	ctx, cancel := context.WithCancel(call.ctx)
	fence := &fence{answers: make(map[string]busv1.Frame_Fence), cancel: cancel, wake: make(chan struct{}, 1)}
	call.fence = fence
	pushed, target := call.lastPush, call.target
	call.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped { // the call ends at this moment
		cancel()
		return
	}
	c.wg.Go(func() {
		defer cancel()
		call.settle(ctx, fence, pushed, target)
	})
}

// notAcceptedError says that the call may have started.
func notAcceptedError(why string) error {
	return failure(codes.Unavailable, ReasonNotAccepted, why)
}

// settle finds out whether the push has started a call, on a goroutine of its
// own, and offers the call again if not.
func (call *clientCall) settle(ctx context.Context, fence *fence, pushed time.Time, target string) {
	c := call.c
	select {
	case c.fencing <- struct{}{}:
		defer func() { <-c.fencing }()
	case <-ctx.Done():
		return
	}
	never, why := call.askAll(ctx, fence, pushed, target)
	call.mu.Lock()
	if call.ended || call.accepted {
		call.mu.Unlock()
		return
	}
	never = never || fence.refused
	call.fence = nil
	call.lastPush = time.Time{}
	call.retries++
	again := call.retries <= fenceRetries
	// It waits anew, if it has to.
	call.target, call.firstPush = call.cc.instance, time.Now()
	queued := call.wait != nil
	call.mu.Unlock()
	if queued {
		call.cc.queue.anew(call)
	}
	switch {
	case !never:
		call.fail(notAcceptedError(why))
	case !again:
		call.fail(failure(codes.Unavailable, ReasonNotStarted, "no instance took the call, which was offered several times; it did not start"))
	case c.rename(call):
		// The instances refuse the old id from now on.
		call.repush()
	}
}

// askAll asks every instance that may have been given the push, and reports
// whether none of them has started the call or ever will.
func (call *clientCall) askAll(ctx context.Context, fence *fence, pushed time.Time, target string) (never bool, why string) {
	c := call.c
	read := make(chan struct{}, 1)
	for round := range fenceRounds {
		roster, err := c.cfg.Members.Roster(ctx, call.cc.pool)
		if err != nil {
			return false, "no instance accepted the call in time"
		}
		if !roster.Changed.Before(pushed) {
			// Whoever got the push may be gone with what it knew.
			return false, "no instance accepted the call in time, and one that may have run it is gone"
		}
		var open []string
		silent := 0
		there := target == ""
		call.mu.Lock()
		for _, m := range roster.Members {
			if target != "" && m.Instance != target {
				continue
			}
			there = true
			if fence.answers[m.Instance] == busv1.Frame_FENCE_UNSPECIFIED {
				open = append(open, m.Instance)
				if m.Silent {
					silent++
				}
			}
		}
		reply := call.reply
		call.mu.Unlock()
		if !there {
			return false, "the instance did not accept the call in time, and is gone"
		}
		if len(open) == 0 {
			return true, ""
		}
		if round >= silentRounds && silent == len(open) {
			return false, "no instance accepted the call in time, and one that may have run it does not answer"
		}
		for _, instance := range open {
			_ = c.send(c.ctlPre+instance+"."+tokenFence, reply, &frame{kind: kindFence}) // lost: asked again
		}
		// Until this is back, no answer could be here.
		c.whenRead(func() { notify(read) })
		select {
		case <-read:
		case <-ctx.Done():
			return false, "the caller has left"
		}
		if done, never, why := call.awaitAnswers(ctx, fence, open); done {
			return never, why
		}
	}
	return false, "no instance accepted the call in time, and one that may have run it does not say"
}

// awaitAnswers waits for one round. done says that the outcome is certain.
func (call *clientCall) awaitAnswers(ctx context.Context, fence *fence, open []string) (done, never bool, why string) {
	limit := time.NewTimer(fenceRound)
	defer limit.Stop()
	for {
		call.mu.Lock()
		missing := 0
		for _, instance := range open {
			switch fence.answers[instance] {
			case busv1.Frame_FENCE_NEVER:
			case busv1.Frame_FENCE_UNSPECIFIED:
				missing++
			case busv1.Frame_FENCE_RUNNING:
				done, why = true, "the call has started, but its acceptance was lost"
			case busv1.Frame_FENCE_DONE:
				done, why = true, "the call has run, but its answer was lost"
			default:
				done, why = true, "an instance does not know any more whether it has run the call"
			}
		}
		if fence.refused {
			done, never = true, true
		} else if fence.gone {
			done, why = true, "no instance accepted the call in time, and one that may have run it is gone"
		}
		call.mu.Unlock()
		if done || missing == 0 {
			return done, never, why // everybody has said never: is there anybody else?
		}
		select {
		case <-fence.wake:
		case <-limit.C:
			return false, false, ""
		case <-ctx.Done():
			return true, false, "the caller has left"
		}
	}
}

// onFenced takes the answer of an instance.
func (call *clientCall) onFenced(f *frame) {
	call.c.signs.of(f.instance).sign()
	call.mu.Lock()
	fence, ctl := call.fence, ""
	if fence != nil {
		fence.answers[string(f.instance)] = busv1.Frame_Fence(int32(f.fence))
		if f.fence == uint32(busv1.Frame_FENCE_RUNNING) && !call.accepted {
			// Its ACCEPT would have come before. What is not known cannot be
			// read on.
			ctl = string(f.ctl)
		}
	}
	call.mu.Unlock()
	if fence == nil {
		return
	}
	if call.c.validCtl(ctl) {
		call.c.cancelRemote(ctl, 0)
	}
	notify(fence.wake)
}

// rename gives a call that certainly did not start a new id, under which nobody
// has refused it, and reports false when it has ended. What still comes for the
// old id belongs to no call.
func (c *Client) rename(call *clientCall) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[call.id] != call {
		return false
	}
	delete(c.calls, call.id)
	call.mu.Lock()
	call.id = c.ids.Add(1)
	call.reply = callSubject(c.prefix, call.id)
	call.mu.Unlock()
	c.calls[call.id] = call
	return true
}
