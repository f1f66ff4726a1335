package bus

import (
	"container/list"

	"google.golang.org/grpc"
)

// fairKey says on whose behalf a call is made.
type fairKey struct{ principal, session string }

// Fair says on whose behalf a call is made. When calls of a pool have to wait for
// a free slot, the principals take turns, whatever number of calls each has, and
// within a principal its sessions do. Calls without it have one principal in
// common. The texts may be anything; they stay in this process.
func Fair(principal, session string) grpc.CallOption {
	return fairOption{key: &fairKey{principal, session}}
}

// fairOption is the option of Fair. Other carriers ignore it.
type fairOption struct {
	grpc.EmptyCallOption

	key *fairKey
}

// turns is a queue whose principals take turns, and whose sessions within each
// do. Calls that come back go before all. It is not safe for concurrent use.
type turns struct {
	back       list.List // of *seat: calls that were out already, oldest first
	principals list.List // of *turn, whose turn it is at the front
	byName     map[string]*turn
	n          int
}

// turn is a principal with its sessions, or a session with its calls.
type turn struct {
	name   string
	at     *list.Element // in the list that it is part of
	within list.List     // of *turn or *seat
	byName map[string]*turn
}

// seat is where a call waits.
type seat struct {
	call               *clientCall
	at                 *list.Element
	principal, session *turn // nil: among those that came back
}

// add puts a call at the end of its session, or before everybody if it comes
// back.
func (t *turns) add(call *clientCall, key *fairKey, back bool) *seat {
	t.n++
	if key == nil {
		key = &fairKey{}
	}
	p := &seat{call: call}
	if back {
		p.at = t.back.PushBack(p)
		return p
	}
	p.principal = enter(&t.principals, &t.byName, key.principal)
	p.session = enter(&p.principal.within, &p.principal.byName, key.session)
	p.at = p.session.within.PushBack(p)
	return p
}

// enter returns the turn with a name; a new one is the last.
func enter(all *list.List, byName *map[string]*turn, name string) *turn {
	if found := (*byName)[name]; found != nil {
		return found
	}
	if *byName == nil {
		*byName = make(map[string]*turn)
	}
	t := &turn{name: name}
	t.at = all.PushBack(t)
	(*byName)[name] = t
	return t
}

// remove takes a call out wherever it waits.
func (t *turns) remove(p *seat) {
	t.n--
	if p.session == nil {
		t.back.Remove(p.at)
		return
	}
	p.session.within.Remove(p.at)
	if p.session.within.Len() > 0 {
		return
	}
	p.principal.within.Remove(p.session.at)
	delete(p.principal.byName, p.session.name)
	if p.principal.within.Len() > 0 {
		return
	}
	t.principals.Remove(p.principal.at)
	delete(t.byName, p.principal.name)
}

// next takes out the call whose turn it is; nil when there is none. newest says
// that the newest call of a session goes first, not the oldest.
func (t *turns) next(newest bool) *clientCall {
	if first := t.back.Front(); first != nil {
		p := first.Value.(*seat)
		t.remove(p)
		return p.call
	}
	first := t.principals.Front()
	if first == nil {
		return nil
	}
	principal := first.Value.(*turn)
	session := principal.within.Front().Value.(*turn)
	t.principals.MoveToBack(principal.at)
	principal.within.MoveToBack(session.at)
	at := session.within.Front()
	if newest {
		at = session.within.Back()
	}
	p := at.Value.(*seat)
	t.remove(p)
	return p.call
}
