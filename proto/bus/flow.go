package bus

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

const (
	// defaultChunk and defaultWindow are the measured compromise between the
	// throughput of large messages and the latency of small ones beside them.
	defaultChunk  = 128 << 10
	defaultWindow = 256 << 10
	// frameCost is what a frame costs of a window besides its payload, so that
	// a flood of empty messages is bounded too.
	frameCost = 64
)

// sender is the window of one direction at its sender.
type sender struct{ avail int64 }

// open reports whether a frame may be sent. The last frame may overdraw the
// window, so a chunk never has to be smaller than a peer's window.
func (s *sender) open() bool     { return s.avail > 0 }
func (s *sender) spend(data int) { s.avail -= int64(data) + frameCost }

// refill adds n returned bytes. The sum is bounded, because a hostile peer may
// return more than it got.
func (s *sender) refill(n uint32) { s.avail = min(s.avail+int64(n), 1<<31) }

// message is a received message in one or more parts that alias the NATS
// messages they came in.
type message struct {
	first []byte
	rest  [][]byte
	size  int
	cost  int    // what reading it returns to the window
	seq   uint64 // number of its first frame
	// unkept: it came to the reply subject, so it is no event.
	unkept bool
}

// join returns the message in one piece.
func (m *message) join() []byte {
	if len(m.rest) == 0 {
		return m.first
	}
	b := make([]byte, 0, m.size)
	b = append(b, m.first...)
	for i, p := range m.rest {
		b = append(b, p...)
		m.rest[i] = nil // large: let the parts go as they are copied
	}
	return b
}

// inbox is the receiving end of one direction of a call: it checks numbers,
// joins chunks, queues messages and accounts for the window. The lock of the
// call guards it. Nothing in it blocks: what it holds is bounded by the window
// and, while somebody reads, by one message.
type inbox struct {
	seq    uint64 // number of the last frame
	window int    // what the sender was granted
	maxMsg int

	queue   []message // complete messages, oldest at head
	head    int
	first   [1]message // room for the only message of most calls
	part    message    // the message that is still incomplete
	total   uint64     // what its first frame said of its size; 0: nothing
	partial bool
	unkept  bool // what is pushed now is no event
	server  bool // it is that of an instance, for the words of errors

	// asks: somebody is asked for room for what does not fit into the window, and
	// granted is what was got for the message that is incomplete.
	asks    bool
	granted int

	reading bool // somebody waits for the head of the queue

	used int // received and not yet returned
	owed int // returned by the reader and not yet announced
}

// next checks the number of a frame.
func (in *inbox) next(seq uint64) error {
	if seq != in.seq+1 {
		return failure(codes.Unavailable, ReasonFrameLost, fmt.Sprintf("frame %d came after frame %d", seq, in.seq))
	}
	in.seq = seq
	return nil
}

// push takes the payload of a frame; total is what its first frame says of a
// message in several. The caller announces what owe returns afterwards.
func (in *inbox) push(data []byte, more bool, total uint64) error {
	if in.used >= in.window {
		return status.Error(codes.Internal, "the peer ignores the flow control window")
	}
	if !in.partial {
		in.total, in.granted = total, 0
	}
	size := uint64(in.part.size + len(data))
	if most := max(size, in.total); most > uint64(in.maxMsg) {
		return tooLarge(most, in.maxMsg, in.server)
	}
	if in.total > 0 && (more && size >= in.total || !more && size != in.total) {
		return status.Error(codes.Internal, "the parts of a message are not as long as its first frame said")
	}
	cost := len(data) + frameCost
	in.used += cost
	in.part.cost += cost
	in.part.size += len(data)
	if in.partial {
		in.part.rest = append(in.part.rest, data)
	} else {
		in.part.first, in.part.seq, in.part.unkept = data, in.seq, in.unkept
	}
	in.partial = more
	if !more {
		if in.queue == nil {
			in.queue = in.first[:0]
		}
		in.queue = append(in.queue, in.part)
		in.part = message{}
		return nil
	}
	in.creditPart()
	return nil
}

// creditPart returns the cost of an incomplete message at once while its
// reader waits: nobody can read half a message. Without a reader the chunks
// stay on the account, so a stalled reader holds a window and no more.
func (in *inbox) creditPart() {
	if in.reading && in.head == len(in.queue) && in.lacks() == 0 {
		in.credit(in.part.cost)
		in.part.cost = 0
	}
}

// roomStep is how much room is asked for at a time when a message does not say how
// large it is.
const roomStep = 1 << 20

// lacks is for how many bytes of the incomplete message room has to be found
// before more of it is received. One that fits into the window needs none.
func (in *inbox) lacks() int {
	if !in.asks || !in.partial {
		return 0
	}
	want := int(min(in.total, uint64(in.maxMsg)))
	if in.total == 0 {
		// It comes in steps that are always ahead of what is here.
		want = (in.part.size/roomStep + 1) * roomStep
		if in.part.size < in.window/2 {
			return 0
		}
	}
	if want <= in.window {
		return 0
	}
	return max(want-in.granted, 0)
}

// grant notes that room was found.
func (in *inbox) grant(size int) {
	in.granted += size
	in.creditPart()
}

// pop returns the oldest message. When there is none, the reader is noted as
// waiting.
func (in *inbox) pop() (m message, ok bool) {
	if in.head == len(in.queue) {
		in.reading = true
		in.creditPart()
		return message{}, false
	}
	m = in.queue[in.head]
	in.queue[in.head] = message{}
	in.head++
	if in.head == len(in.queue) {
		in.queue, in.head = in.queue[:0], 0
	}
	in.reading = false
	in.credit(m.cost)
	return m, true
}

func (in *inbox) credit(n int) {
	in.used -= n
	in.owed += n
}

// owe returns what is to be announced to the sender now: nothing until half of
// the window has come together.
func (in *inbox) owe() uint32 {
	if in.owed == 0 || in.owed*2 < in.window {
		return 0
	}
	n := in.owed
	in.owed = 0
	return uint32(n)
}

// drop lets go of everything that was not read.
func (in *inbox) drop() {
	in.queue, in.head, in.part, in.partial = nil, 0, message{}, false
}

// asProto returns the protobuf form of a message of a stub.
func asProto(m any) (proto.Message, error) {
	switch m := m.(type) {
	case proto.Message:
		return m, nil
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(m), nil
	}
	return nil, status.Errorf(codes.Internal, "message of type %T is not a protobuf message", m)
}

// appendPayload writes m, whose size was just computed.
func appendPayload(b []byte, m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "failed to marshal a message: %v", err)
	}
	return b, nil
}
