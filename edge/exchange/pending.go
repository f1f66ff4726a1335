package exchange

import "sync"

// Reply is a client's answer to a request of ours.
type Reply struct {
	// Result and Error are raw JSON objects; one of them is set.
	Result, Error []byte
}

// Pending knows the requests that this edge has sent to clients and that are
// not answered yet. An id is good once, and only in the scope it was sent to.
// The zero value is ready; it is safe for concurrent use.
type Pending struct {
	mu      sync.Mutex
	waiting map[pendingKey]chan Reply
}

type pendingKey struct{ scope, id string }

// Open begins to wait for the reply to a request and returns the channel on
// which it arrives. The id must be unguessable and not be in use. forget must be
// called when the reply is not waited for any more.
func (p *Pending) Open(scope, id string) (reply <-chan Reply, forget func()) {
	key := pendingKey{scope, id}
	// Room for the one reply, so that Deliver never blocks.
	ch := make(chan Reply, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.waiting = map[pendingKey]chan Reply{}
	}
	p.waiting[key] = ch
	return ch, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.waiting[key] == ch {
			delete(p.waiting, key)
		}
	}
}

// Deliver passes a reply on to whoever waits for it, and reports whether anybody
// did. A second reply to one request, or one from another scope, reaches nobody.
// The reply is kept: its bytes must be the receiver's.
func (p *Pending) Deliver(scope, id string, r Reply) bool {
	key := pendingKey{scope, id}
	p.mu.Lock()
	ch, ok := p.waiting[key]
	delete(p.waiting, key)
	p.mu.Unlock()
	if ok {
		ch <- r
	}
	return ok
}

// Len returns how many requests wait for their reply.
func (p *Pending) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}
