package stateless

import (
	"context"
	"time"

	"github.com/millrace/millrace/edge/backend"
)

// Some tools want the answers of a round to count once (basic/patterns/mrtr,
// "Server Requirements": who needs a state to be consumed at most once "MUST
// enforce that invariant server-side"). Their states carry a nonce, which is
// used up as a ticket when the state comes back: whoever is first goes on, every
// other one is refused, and so is everybody while that cannot be found out.

// Tickets are rights that can be used once, whichever edge they come to.
type Tickets interface {
	// Take uses a ticket up; taken is false when it was used before. After an
	// error nobody knows. ttl is how long the ticket may still come.
	Take(ctx context.Context, name string, ttl time.Duration) (taken bool, err error)
	// GiveBack makes a ticket good again, if it can.
	GiveBack(ctx context.Context, name string, ttl time.Duration)
}

// ticket is the right to go on with a request once.
type ticket struct {
	name   string
	expiry time.Time
}

// ttl is how long the state can come again: later it is refused for its age.
// The extra second is for clocks that differ by less than that.
func (t *ticket) ttl() time.Duration { return max(time.Until(t.expiry), 0) + time.Second }

// giveBack makes a ticket good again after a failure by which it is certain
// that nothing ran: the client is told to try again, and has no other state.
func (e *Era) giveBack(ctx context.Context, t *ticket, f *backend.Failure) {
	if f.Kind == backend.Unavailable || f.Kind == backend.Overloaded {
		e.Tickets.GiveBack(ctx, t.name, t.ttl())
	}
}
