package edge

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/proto/bus"
)

// settleTime is how long after its first look around an edge goes on to believe
// that who was not heard yet is there all the same.
const settleTime = 2 * time.Second

// presence knows which instances are there. An edge that has just started has not
// heard of all of them: to take one for gone that lives would end its calls.
type presence struct {
	watcher *bus.Watcher
	settled atomic.Bool

	mu sync.Mutex
	// gone are those that were there and are not any more, until it is settled.
	gone map[string]struct{}
}

// run settles it, or returns when ctx ends.
func (p *presence) run(ctx context.Context) {
	select {
	case <-p.watcher.Synced():
	case <-ctx.Done():
		return
	}
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	select {
	case <-timer.C:
		p.settled.Store(true)
		p.mu.Lock()
		p.gone = nil
		p.mu.Unlock()
	case <-ctx.Done():
	}
}

// lost notes that an instance has gone, or began a new epoch.
func (p *presence) lost(id string) {
	if p.settled.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone == nil {
		p.gone = map[string]struct{}{}
	}
	p.gone[id] = struct{}{}
}

// alive reports whether an instance of a worker, or an edge, is there, or may be as
// far as is known yet.
func (p *presence) alive(id string) bool {
	settled := p.settled.Load() // before the members: they are complete then
	for _, m := range p.watcher.Members() {
		if m.Instance == id {
			return true
		}
	}
	if settled || id == "" {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, gone := p.gone[id]
	return !gone
}
