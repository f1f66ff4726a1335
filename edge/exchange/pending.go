package exchange

import (
	"bytes"
	"crypto/rand"
	"sync"

	"github.com/millrace/millrace/edge/jsonrpc"
)

// Reply is a client's answer to a request of ours.
type Reply struct {
	// Result and Error are raw JSON objects; one of them is set.
	Result, Error []byte
}

// Pending knows the requests that were sent to clients and not answered yet.
// Their ids are ours: unguessable, used once, and good only in the scope they
// were sent to. The zero value is ready; it is safe for concurrent use.
type Pending struct {
	mu      sync.Mutex
	waiting map[string]waiter
}

type waiter struct {
	scope string
	// reply has room for the one reply, so that Deliver never blocks.
	reply chan Reply
}

// Open makes the id of a new request, as raw JSON, and returns the channel on
// which its reply arrives. forget must be called when the reply is not waited
// for any more.
func (p *Pending) Open(scope string) (id []byte, reply <-chan Reply, forget func()) {
	name := "millrace-" + rand.Text()
	w := waiter{scope: scope, reply: make(chan Reply, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == nil {
		p.waiting = map[string]waiter{}
	}
	p.waiting[name] = w
	return jsonrpc.Quote(name), w.reply, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, name)
	}
}

// Deliver passes a response of a client on to whoever waits for it, and
// reports whether anybody did. A second response to one request, or one from
// another scope, reaches nobody.
func (p *Pending) Deliver(scope string, m *jsonrpc.Message) bool {
	name, ok := jsonrpc.String(m.ID)
	if !ok {
		return false
	}
	p.mu.Lock()
	w, ok := p.waiting[name]
	if ok && w.scope == scope {
		delete(p.waiting, name)
	} else {
		ok = false
	}
	p.mu.Unlock()
	if ok {
		// The message's bytes go back to their pool before this is read.
		w.reply <- Reply{Result: bytes.Clone(m.Result), Error: bytes.Clone(m.Error)}
	}
	return ok
}

// Len returns how many requests wait for their reply.
func (p *Pending) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}
