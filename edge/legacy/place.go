package legacy

import (
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/proto/bus"
)

// streamName is the name of the stream of a call as clients see it. It holds the
// id of the request too: an edge that finds nothing any more can at least tell
// that request so. It is good only in the session it was made for.
type streamName struct {
	// stream is unique and unguessable.
	stream string
	// request is the id of the client's request, a JSON value; empty when it
	// is longer than maxRequestID.
	request string
	// mac binds the two to the session.
	mac string
}

const (
	// placeEnd marks the place of an answer, so that every edge knows without
	// looking that nothing follows it: some clients come back even then.
	placeEnd = "end"
	// maxRequestID bounds what a client's id adds to each event.
	maxRequestID = 64
	// maxPlace is longer than any place: nothing longer is looked into.
	maxPlace = 512
	// placePurpose separates these names from the other tokens of the ring.
	placePurpose = "place/1\x00"
)

func nameStream(ring *seal.Ring, scope, stream string, id []byte) streamName {
	n := streamName{stream: stream}
	if len(id) <= maxRequestID {
		n.request = string(id)
	}
	n.mac = ring.Seal(n.purpose(scope), nil)
	return n
}

func (n streamName) purpose(scope string) string {
	return placePurpose + scope + "\x00" + n.stream + "\x00" + n.request
}

// place is where a client is in the stream of a call: what it shows as
// Last-Event-ID.
type place struct {
	streamName
	// The event of the worker that the message was made of.
	bus.EventPoint
	// part counts the messages that were made of one event.
	part int
	// end: the answer was sent, nothing follows.
	end bool
}

// String writes the place as an event id: stream.request.mac.round.number, then
// the part unless it is the first one, then the mark of the end.
func (p place) String() string {
	b := make([]byte, 0, len(p.stream)+len(p.request)*4/3+len(p.mac)+32)
	b = append(b, p.stream...)
	b = append(b, '.')
	b = base64.RawURLEncoding.AppendEncode(b, []byte(p.request))
	b = append(b, '.')
	b = append(b, p.mac...)
	b = append(b, '.')
	b = strconv.AppendUint(b, uint64(p.Round), 10)
	b = append(b, '.')
	b = strconv.AppendUint(b, p.Number, 10)
	if p.part > 0 {
		b = append(b, '.')
		b = strconv.AppendInt(b, int64(p.part), 10)
	}
	if p.end {
		b = append(b, '.')
		b = append(b, placeEnd...)
	}
	return string(b)
}

// parsePlace reads what String wrote for a session; ok is false for anything
// else.
func (e *Era) parsePlace(scope, id string) (p place, ok bool) {
	if len(id) > maxPlace {
		return place{}, false
	}
	fields := strings.Split(id, ".")
	if n := len(fields) - 1; fields[n] == placeEnd {
		p.end, fields = true, fields[:n]
	}
	if len(fields) < 5 || len(fields) > 6 || !isStream(fields[0]) {
		return place{}, false
	}
	request, err := base64.RawURLEncoding.DecodeString(fields[1])
	if err != nil || len(request) > maxRequestID {
		return place{}, false
	}
	p.streamName = streamName{stream: fields[0], request: string(request), mac: fields[2]}
	if _, err := e.Routes.Open(p.purpose(scope), p.mac); err != nil {
		return place{}, false
	}
	round, err := strconv.ParseUint(fields[3], 10, 32)
	if err != nil {
		return place{}, false
	}
	number, err := strconv.ParseUint(fields[4], 10, 64)
	if err != nil {
		return place{}, false
	}
	p.EventPoint = bus.EventPoint{Round: uint32(round), Number: number}
	if len(fields) == 6 {
		part, err := strconv.ParseUint(fields[5], 10, 31)
		if err != nil {
			return place{}, false
		}
		p.part = int(part)
	}
	return p, p.String() == id
}

// looksLikePlace reports whether an event id has the form of a place, of
// whatever session.
func looksLikePlace(id string) bool {
	stream, _, ok := strings.Cut(id, ".")
	return ok && isStream(stream)
}

// isStream reports whether s has the form of a stream's name.
func isStream(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
