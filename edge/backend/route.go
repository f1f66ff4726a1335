package backend

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

const (
	// mostMoves is how often a call is taken elsewhere because an instance was
	// ahead of the catalog or behind it, firstMove how long the catalog is given
	// to catch up before the second time; it doubles.
	mostMoves = 4
	firstMove = 250 * time.Millisecond
)

// conn is where a call goes: to any instance of the pool, unless only some of
// its versions can serve it.
func (b *Backend) conn(t target, o Options) grpc.ClientConnInterface {
	if o.Instance != "" {
		return b.pools.Instance(t.pool, o.Instance)
	}
	hash, ok := b.catalog.Choose(t.offers)
	if !ok && t.exact {
		hash = t.offers.Listed
	}
	if hash == (bus.Hash{}) {
		return b.pools.Pool(t.pool)
	}
	return b.pools.Offering(t.pool, hash)
}

func (b *Backend) client(t target, o Options) millracev1.WorkerServiceClient {
	return millracev1.NewWorkerServiceClient(fairConn{b.conn(t, o), t.fair()})
}

// hasMoved reports whether the call may be served elsewhere: it has come to an
// instance whose version is not the one of the catalog.
func (f *Failure) hasMoved(t target) bool {
	return f != nil && (f.moved || f.nobody && (t.exact || len(t.offers.Only) > 0))
}

// move finds out anew where a call goes; n is how often it did before. The
// instances that are addressed from now on are those that have been seen with
// what the caller asks for, and no others.
func (b *Backend) move(ctx context.Context, t *target, f *Failure, n int) bool {
	if n > 0 {
		if f.Kind != Unavailable {
			return false // two instances do not know it
		}
		timer := time.NewTimer(firstMove << (n - 1))
		defer timer.Stop()
		select {
		case <-b.catalog.Changed():
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
	}
	offers, ok := t.find()
	t.offers, t.exact = offers, true
	return ok
}
