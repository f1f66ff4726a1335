package edge

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/edge/backend"
	"github.com/millrace/millrace/proto/bus"
)

// resultWait is how long a large result waits at its worker until there is room
// for it here. A client that reads nothing gives its room back in less.
const resultWait = 30 * time.Second

// results bounds the large results that are on their way through this edge, from
// the first byte that comes from a worker to the last one that is written to the
// client. It is safe for concurrent use.
type results struct {
	limit int64
	wait  time.Duration
	room  *semaphore.Weighted
	// freed is how many bytes of results have become garbage since it was
	// collected on their account, and collecting that it is collected now.
	freed      atomic.Int64
	collecting atomic.Bool
}

// collectAfter is how many bytes of large results become garbage before it is
// collected. The collector of Go lets as much garbage lie as there is memory in
// use, so that one result after another would take twice the memory of one.
const collectAfter = 32 << 20

// free gives room back that a result does not need any more. Where its garbage
// is collected first, the next result waits for that at its worker.
func (r *results) free(n int64) {
	if r.freed.Add(n) < collectAfter || !r.collecting.CompareAndSwap(false, true) {
		r.room.Release(n)
		return
	}
	r.freed.Store(0)
	go func() { // takes milliseconds, and this client has its answer
		runtime.GC()
		r.collecting.Store(false)
		r.room.Release(n)
	}()
}

func newResults(limit int64) *results {
	return &results{limit: limit, wait: resultWait, room: semaphore.NewWeighted(limit)}
}

// lease is the room that the results of one request have. The zero value is
// ready; release must be called when the answer was written.
type lease struct {
	mu       sync.Mutex
	from     *results
	held     int64
	released bool
}

// leaseKey is the key of the lease of a request.
type leaseKey struct{}

// with is the context of a request whose results are counted on l.
func (l *lease) with(ctx context.Context) context.Context {
	return context.WithValue(ctx, leaseKey{}, l)
}

// hold notes room that was taken; false: the request has its answer, and what is
// received now is for nobody who waits here.
func (l *lease) hold(r *results, size int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released {
		return false
	}
	l.from, l.held = r, l.held+size
	return true
}

// release gives the room back.
func (l *lease) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released = true
	if l.held > 0 {
		l.from.free(l.held)
		l.held = 0
	}
}

// take is bus.ClientConfig.Room.
func (r *results) take(ctx context.Context, size int) error {
	n := int64(size)
	if n > r.limit {
		return r.refused(size, "it has "+strconv.Itoa(size)+" bytes")
	}
	if !r.room.TryAcquire(n) {
		wait, cancel := context.WithTimeout(ctx, r.wait)
		defer cancel()
		if err := r.room.Acquire(wait, n); err != nil {
			if ctx.Err() != nil {
				return err //nolint:wrapcheck // the bus looks at the context
			}
			return r.refused(size, "there was no room for its "+strconv.Itoa(size)+" bytes within "+r.wait.String())
		}
	}
	if l, ok := ctx.Value(leaseKey{}).(*lease); ok && l.hold(r, n) {
		return nil
	}
	// Nobody writes it: the room is needed as long as the call is.
	context.AfterFunc(ctx, func() { r.free(n) })
	return nil
}

// refused is the end of a call whose result cannot be taken.
func (r *results) refused(size int, why string) error {
	limit := backend.LimitResults
	st := status.New(codes.ResourceExhausted,
		"the call was executed and its result is lost: "+why+", and all results on their way through this edge may have "+
			strconv.FormatInt(r.limit, 10)+" bytes together"+limit.Raise())
	detailed, err := st.WithDetails(&errdetails.ErrorInfo{
		Reason: bus.ReasonTooLarge, Domain: "millrace",
		Metadata: map[string]string{"limit": string(limit), "max": strconv.FormatInt(r.limit, 10), "size": strconv.Itoa(size)},
	})
	if err != nil {
		return st.Err()
	}
	return detailed.Err()
}
