package bus

import (
	"context"

	"google.golang.org/grpc"
)

// SendNow makes what a handler sends from now on leave at once: the first message
// of a stream waits up to a millisecond for the end of the call, which is of no use
// to one that is not the outcome. ctx is the handler's; in a call of another
// carrier it does nothing.
func SendNow(ctx context.Context) {
	t, ok := grpc.ServerTransportStreamFromContext(ctx).(*transportStream)
	if !ok {
		return
	}
	t.sendMu.Lock()
	defer t.sendMu.Unlock()
	t.prompt = true
}

// SendReady reports whether a message that a handler sends on its stream now leaves
// without waiting for the caller to read; the rest of one that takes more than one
// frame (128 KiB, or less if NATS allows less) may wait all the same. It holds
// until somebody sends, does not wait and allocates nothing. ctx is the handler's;
// in a call of another carrier it is always true.
func SendReady(ctx context.Context) bool {
	t, ok := grpc.ServerTransportStreamFromContext(ctx).(*transportStream)
	if !ok {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return (*serverCall)(t).openLocked()
}

// OnSendReady has f called once, on a goroutine of its own, when [SendReady] is
// true: soon, if it is now. The last f counts. None begins after the end of the
// call, but one that has begun may still run when the call ends. ctx is the
// handler's; in a call of another carrier, in which SendReady is always true, it
// does nothing.
func OnSendReady(ctx context.Context, f func()) {
	t, ok := grpc.ServerTransportStreamFromContext(ctx).(*transportStream)
	if !ok {
		return
	}
	c := (*serverCall)(t)
	c.mu.Lock()
	c.ready = f
	ready := c.readyLocked()
	c.mu.Unlock()
	c.apart(ready)
}

// readyLocked takes what is to be called since a frame may be sent; nil: nothing,
// or none may. mu is held.
func (c *serverCall) readyLocked() func() {
	if c.ready == nil || !c.openLocked() {
		return nil
	}
	ready := c.ready
	c.ready = nil
	return ready
}

// giveBack undoes what was spent on a message of size bytes of which nothing was
// sent: n bytes and a frame of the window, and its room among the events.
func (c *serverCall) giveBack(n, size int) {
	if c.events != nil {
		c.sendMu.Lock()
		if !c.events.live {
			c.events.left += size
		}
		c.sendMu.Unlock()
	}
	c.mu.Lock()
	c.out.refill(uint32(n + frameCost))
	wake, ready := c.sendWake, c.readyLocked()
	c.mu.Unlock()
	notify(wake)
	c.apart(ready)
}
