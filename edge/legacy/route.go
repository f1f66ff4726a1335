package legacy

import (
	"encoding/binary"

	"github.com/millrace/millrace/edge/seal"
)

// route is the id of a request to a client: it says where the answer belongs, so
// that whichever edge receives the answer finds the call without asking anybody.
// It is made anew from its parts, always the same, so that another edge can
// write the same question again.
type route struct {
	// edge holds the call, stream is the call.
	edge, stream string
	// round is the round that asked, index the question in it.
	round uint32
	index int
	// kept: the question is stored, or should be, so that another edge can take
	// its answer.
	kept bool
}

// routePurpose separates these ids from the other tokens of the ring. The scope
// is authenticated with it: an id is good only in the session it was sent to.
const routePurpose = "request/1\x00"

// id writes the route as a token, which cannot be guessed or made elsewhere.
func (r route) id(ring *seal.Ring, scope string) string {
	p := make([]byte, 0, len(r.edge)+len(r.stream)+8)
	p = append(append(p, byte(len(r.edge))), r.edge...)
	p = append(append(p, byte(len(r.stream))), r.stream...)
	p = binary.AppendUvarint(p, uint64(r.round))
	last := uint64(r.index) << 1
	if r.kept {
		last |= 1
	}
	p = binary.AppendUvarint(p, last)
	return ring.Seal(routePurpose+scope, p)
}

// parseRoute reads what id wrote for the same scope; ok is false for anything
// else.
func parseRoute(ring *seal.Ring, scope, id string) (r route, ok bool) {
	p, err := ring.Open(routePurpose+scope, id)
	if err != nil {
		return route{}, false
	}
	for _, to := range []*string{&r.edge, &r.stream} {
		if len(p) == 0 || len(p) < 1+int(p[0]) {
			return route{}, false
		}
		*to, p = string(p[1:1+int(p[0])]), p[1+int(p[0]):]
	}
	round, n := binary.Uvarint(p)
	if n <= 0 || round > 1<<32-1 {
		return route{}, false
	}
	last, m := binary.Uvarint(p[n:])
	if m <= 0 || last > 1<<32-1 || n+m != len(p) {
		return route{}, false
	}
	r.round, r.index, r.kept = uint32(round), int(last>>1), last&1 == 1
	return r, true
}
