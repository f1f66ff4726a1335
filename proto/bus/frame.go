package bus

import (
	"errors"
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

// Flags of a frame.
const (
	// FlagMore on OPEN and DATA: the message goes on in the next DATA frame.
	FlagMore uint32 = 1 << iota
	// FlagHalf on OPEN: the client sends nothing after this message.
	FlagHalf
	// FlagMessage on OPEN and END: the data field holds a message or the first
	// part of one. Without it there is none, as an empty message is legal too.
	FlagMessage
	// FlagAccepted on HEADERS, DATA and END: the frame is an ACCEPT as well and
	// carries its fields.
	FlagAccepted
	// FlagDetach on CANCEL: the caller cannot read the rest, and a resumable
	// call goes on without it. Any other call is cancelled.
	FlagDetach
	// FlagFirst on DATA and END among the events of a call: no message came
	// before this frame, so whoever misses earlier numbers misses nothing.
	FlagFirst
	// FlagRest on DATA among the events of a call: the frame goes on with a
	// message that began in an earlier one.
	FlagRest
	// FlagKeep on OPEN: DATA and END go to the events of the call from the
	// beginning.
	FlagKeep
	// FlagApart on END among the events of a call: a message of it had no room
	// there, and went to the caller alone.
	FlagApart
	// FlagAgain on frames among the events of a call: it was published before, and
	// is again for those who follow. The caller has read it.
	FlagAgain
)

// Kinds under short names.
const (
	kindOpen      = uint32(busv1.Frame_KIND_OPEN)
	kindAccept    = uint32(busv1.Frame_KIND_ACCEPT)
	kindBusy      = uint32(busv1.Frame_KIND_BUSY)
	kindHeaders   = uint32(busv1.Frame_KIND_HEADERS)
	kindData      = uint32(busv1.Frame_KIND_DATA)
	kindHalfClose = uint32(busv1.Frame_KIND_HALF_CLOSE)
	kindEnd       = uint32(busv1.Frame_KIND_END)
	kindCancel    = uint32(busv1.Frame_KIND_CANCEL)
	kindWindow    = uint32(busv1.Frame_KIND_WINDOW)
	kindFence     = uint32(busv1.Frame_KIND_FENCE)
	kindFenced    = uint32(busv1.Frame_KIND_FENCED)
	kindOffer     = uint32(busv1.Frame_KIND_OFFER)
)

// Field numbers of busv1.Frame. A test holds this codec against the generated
// one.
const (
	fieldKind     = 1
	fieldFlags    = 2
	fieldSeq      = 3
	fieldTimeout  = 4
	fieldWindow   = 5
	fieldMethod   = 6
	fieldCtl      = 7
	fieldStatus   = 8
	fieldHeader   = 9
	fieldTrailer  = 10
	fieldAttempt  = 11
	fieldLoad     = 12
	fieldOpenBy   = 13
	fieldInstance = 14
	fieldData     = 15
	fieldEpoch    = 16
	fieldEvents   = 17
	fieldTotal    = 18
	fieldFence    = 19
	fieldLimit    = 20
)

// frame is a decoded busv1.Frame whose byte slices alias the NATS message. It
// is written and read by hand because the generated code would copy the
// payload twice and allocate for each field on the path of every call.
type frame struct {
	kind, flags     uint32
	seq             uint64
	timeout, openBy uint64 // microseconds
	window          uint32
	attempt, load   uint32
	fence           uint32
	epoch           uint64
	total           uint64
	limit           []byte
	method          []byte
	ctl             []byte
	instance        []byte
	events          []byte
	status          []byte
	header, trailer []meta
	event           bool // it came to the events of a call; not of the wire
	data            []byte
}

// meta is one metadata pair of a frame.
type meta struct{ key, value []byte }

var errFrame = errors.New("bus: malformed frame")

// decode reads b into f, which must be zero. Unknown fields are skipped and of
// a repeated scalar the last one counts, as protobuf demands.
func (f *frame) decode(b []byte) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return errFrame
		}
		b = b[n:]
		switch typ {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return errFrame
			}
			b = b[n:]
			f.setVarint(num, v)
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return errFrame
			}
			b = b[n:]
			if err := f.setBytes(num, v); err != nil {
				return err
			}
		default:
			n := protowire.ConsumeFieldValue(num, typ, b)
			if n < 0 {
				return errFrame
			}
			b = b[n:]
		}
	}
	return nil
}

func (f *frame) setVarint(num protowire.Number, v uint64) {
	switch num {
	case fieldKind:
		f.kind = uint32(v)
	case fieldFlags:
		f.flags = uint32(v)
	case fieldSeq:
		f.seq = v
	case fieldTimeout:
		f.timeout = v
	case fieldWindow:
		f.window = uint32(v)
	case fieldAttempt:
		f.attempt = uint32(v)
	case fieldLoad:
		f.load = uint32(v)
	case fieldOpenBy:
		f.openBy = v
	case fieldEpoch:
		f.epoch = v
	case fieldTotal:
		f.total = v
	case fieldFence:
		f.fence = uint32(v)
	}
}

func (f *frame) setBytes(num protowire.Number, v []byte) error {
	text := func(dst *[]byte) error {
		if !utf8.Valid(v) {
			return errFrame
		}
		*dst = v
		return nil
	}
	switch num {
	case fieldMethod:
		return text(&f.method)
	case fieldCtl:
		return text(&f.ctl)
	case fieldInstance:
		return text(&f.instance)
	case fieldEvents:
		return text(&f.events)
	case fieldLimit:
		return text(&f.limit)
	case fieldStatus:
		f.status = v
	case fieldData:
		f.data = v
	case fieldHeader, fieldTrailer:
		m, err := decodeMeta(v)
		if err != nil {
			return err
		}
		if num == fieldHeader {
			f.header = append(f.header, m)
		} else {
			f.trailer = append(f.trailer, m)
		}
	}
	return nil
}

func decodeMeta(b []byte) (meta, error) {
	var m meta
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return m, errFrame
		}
		b = b[n:]
		if typ != protowire.BytesType || num > 2 {
			n := protowire.ConsumeFieldValue(num, typ, b)
			if n < 0 {
				return m, errFrame
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return m, errFrame
		}
		b = b[n:]
		if num == 1 {
			if !utf8.Valid(v) {
				return m, errFrame
			}
			m.key = v
		} else {
			m.value = v
		}
	}
	return m, nil
}

// appendTo writes f, the payload last.
func (f *frame) appendTo(b []byte) []byte {
	b = f.appendHead(b)
	if len(f.data) > 0 {
		b = appendDataTag(b, len(f.data))
		b = append(b, f.data...)
	}
	return b
}

// appendHead writes everything but the payload.
func (f *frame) appendHead(b []byte) []byte {
	b = appendVarint(b, fieldKind, uint64(f.kind))
	b = appendVarint(b, fieldFlags, uint64(f.flags))
	b = appendVarint(b, fieldSeq, f.seq)
	b = appendVarint(b, fieldTimeout, f.timeout)
	b = appendVarint(b, fieldWindow, uint64(f.window))
	b = appendVarint(b, fieldAttempt, uint64(f.attempt))
	b = appendVarint(b, fieldLoad, uint64(f.load))
	b = appendVarint(b, fieldOpenBy, f.openBy)
	b = appendVarint(b, fieldEpoch, f.epoch)
	b = appendVarint(b, fieldTotal, f.total)
	b = appendVarint(b, fieldFence, uint64(f.fence))
	b = appendBytes(b, fieldLimit, f.limit)
	b = appendBytes(b, fieldMethod, f.method)
	b = appendBytes(b, fieldCtl, f.ctl)
	b = appendBytes(b, fieldInstance, f.instance)
	b = appendBytes(b, fieldEvents, f.events)
	b = appendBytes(b, fieldStatus, f.status)
	for _, m := range f.header {
		b = appendMeta(b, fieldHeader, m.key, m.value)
	}
	for _, m := range f.trailer {
		b = appendMeta(b, fieldTrailer, m.key, m.value)
	}
	return b
}

func appendVarint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func appendBytes[T ~string | ~[]byte](b []byte, num protowire.Number, v T) []byte {
	if len(v) == 0 {
		return b
	}
	b = protowire.AppendTag(b, num, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(v)))
	return append(b, v...)
}

// appendDataTag writes the tag and length of the payload, which must follow.
func appendDataTag(b []byte, n int) []byte {
	b = protowire.AppendTag(b, fieldData, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n))
}

func appendMeta[T ~string | ~[]byte](b []byte, num protowire.Number, key, value T) []byte {
	size := 0
	if len(key) > 0 {
		size += 1 + protowire.SizeBytes(len(key))
	}
	if len(value) > 0 {
		size += 1 + protowire.SizeBytes(len(value))
	}
	b = protowire.AppendTag(b, num, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = appendBytes(b, 1, key)
	return appendBytes(b, 2, value)
}

// appendMD writes the pairs of md as headers or trailers.
func appendMD(b []byte, num protowire.Number, md metadata.MD) []byte {
	for k, values := range md {
		for _, v := range values {
			b = appendMeta(b, num, k, v)
		}
	}
	return b
}

// toMD converts the pairs of a frame; nil when there are none.
func toMD(pairs []meta) metadata.MD {
	if len(pairs) == 0 {
		return nil
	}
	md := make(metadata.MD, len(pairs))
	for _, p := range pairs {
		k := string(p.key)
		md[k] = append(md[k], string(p.value))
	}
	return md
}

// maxPooled keeps the rare large buffer out of the pool.
const maxPooled = defaultChunk + 4<<10

// buffer is an outgoing frame. It has one owner, who frees it after the
// publish, which copies.
type buffer struct{ b []byte }

// buffers hands out buffers. It is not a package variable: each Client and
// Server has its own.
type buffers struct{ pool sync.Pool }

func (p *buffers) get() *buffer {
	if b, ok := p.pool.Get().(*buffer); ok {
		b.b = b.b[:0]
		return b
	}
	return &buffer{b: make([]byte, 0, 1<<10)}
}

func (p *buffers) put(b *buffer) {
	if b != nil && cap(b.b) <= maxPooled {
		p.pool.Put(b)
	}
}
