package jsonrpc

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"unicode/utf8"
)

// scanner walks over JSON text once. It does not recurse over nested values,
// so depth costs one bit a level and cannot exhaust the stack.
//
// Two sorts of fault: a returned *Error means that the text cannot be read on.
// The field soft holds the first fault that leaves the text readable; scanning
// goes on so that an id behind it is still found, but duplicates are not looked
// for any more.
type scanner struct {
	data     []byte
	pos      int
	depth    int
	maxDepth int
	lax      bool // grammar only: neither duplicates nor depth are checked
	soft     *Error

	inObject bitStack // by depth: is that container an object?

	// Names seen so far in the open objects, innermost last.
	frames  []frame
	keys    []keyRef
	escaped []byte   // names that had escapes, unescaped
	spare   []uint32 // a small table to use again
	seed    maphash.Seed
	seeded  bool
}

// frame is an open object whose names are being compared.
type frame struct {
	depth   int
	keys    int      // its first entry in scanner.keys
	escaped int      // and its first byte in scanner.escaped
	table   []uint32 // open addressing, entry = 1 + index from keys; nil while small
}

// keyRef is a name: a range of data or, with the top bit of n set, of escaped.
// 12 bytes, since a hostile object of 16 MiB holds two million of them.
type keyRef struct {
	off, n uint32
	hash   uint32 // set once the object has a table
}

// firstFrames is what most messages need, in one allocation.
type firstFrames struct {
	frames [6]frame
	keys   [24]keyRef
}

const (
	fromEscaped = 1 << 31
	// Up to here comparing with every earlier name is cheaper than hashing.
	linearKeys = 16
	// A table up to this size is cleared and used again.
	spareSize = 1024
)

type bitStack struct {
	first uint64
	rest  []uint64
}

func (b *bitStack) set(i int, on bool) {
	word := &b.first
	if i >= 64 {
		for len(b.rest) < i/64 {
			b.rest = append(b.rest, 0)
		}
		word = &b.rest[i/64-1]
	}
	*word &^= 1 << (i % 64)
	if on {
		*word |= 1 << (i % 64)
	}
}

func (b *bitStack) get(i int) bool {
	if i < 64 {
		return b.first>>i&1 != 0
	}
	return b.rest[i/64-1]>>(i%64)&1 != 0
}

func (s *scanner) since(start int) []byte { return s.data[start:s.pos:s.pos] }

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\n', '\r', '\t':
			s.pos++
		default:
			return
		}
	}
}

// end demands that only white space follows.
func (s *scanner) end() *Error {
	if s.space(); s.pos < len(s.data) {
		return s.unexpected("the end of the text")
	}
	return nil
}

// value scans one value of any depth. It expects pos on its first byte.
func (s *scanner) value() *Error {
	outer := s.depth
	for {
		if s.pos >= len(s.data) {
			return s.unexpected("a value")
		}
		var err *Error
		more := false
		switch c := s.data[s.pos]; c {
		case '{':
			if more = s.enterObject(); more {
				_, err = s.key()
			}
		case '[':
			more = s.enterArray()
		case '"':
			_, err = s.str()
		case 't':
			err = s.literal("true")
		case 'f':
			err = s.literal("false")
		case 'n':
			err = s.literal("null")
		default:
			if c != '-' && (c < '0' || c > '9') {
				return s.unexpected("a value")
			}
			err = s.number()
		}
		for !more && err == nil && s.depth > outer {
			if !s.inObject.get(s.depth) {
				more, err = s.nextElement()
			} else if more, err = s.nextMember(); more && err == nil {
				_, err = s.key()
			}
		}
		if !more || err != nil {
			return err
		}
	}
}

func (s *scanner) push(object bool) {
	s.pos++
	s.depth++
	s.inObject.set(s.depth, object)
	if s.lax || s.soft != nil {
		return
	}
	if s.depth > s.maxDepth {
		s.soft = invalidf("nested deeper than the limit of %d levels: send a flatter message (limit max-depth: an operator raises it with --max-depth)", s.maxDepth)
		return
	}
	if object {
		if s.frames == nil {
			first := new(firstFrames)
			s.frames, s.keys = first.frames[:0], first.keys[:0]
		}
		s.frames = append(s.frames, frame{depth: s.depth, keys: len(s.keys), escaped: len(s.escaped)})
	}
}

func (s *scanner) pop() {
	s.pos++
	if n := len(s.frames) - 1; n >= 0 && s.frames[n].depth == s.depth {
		f := &s.frames[n]
		s.keys, s.escaped = s.keys[:f.keys], s.escaped[:f.escaped]
		if f.table != nil && len(f.table) <= spareSize {
			s.spare = f.table
		}
		f.table = nil
		s.frames = s.frames[:n]
	}
	s.depth--
}

// enterArray steps over "[" and reports whether there is an element, with pos
// on it. An empty array is left again. enterObject is alike.
func (s *scanner) enterArray() (more bool) {
	s.push(false)
	if s.space(); s.pos < len(s.data) && s.data[s.pos] == ']' {
		s.pop()
		return false
	}
	return true
}

func (s *scanner) nextElement() (more bool, err *Error) {
	if s.space(); s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ',':
			s.pos++
			s.space()
			return true, nil
		case ']':
			s.pop()
			return false, nil
		}
	}
	return false, s.unexpected(`"," or "]"`)
}

func (s *scanner) enterObject() (more bool) {
	s.push(true)
	if s.space(); s.pos < len(s.data) && s.data[s.pos] == '}' {
		s.pop()
		return false
	}
	return true
}

func (s *scanner) nextMember() (more bool, err *Error) {
	if s.space(); s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ',':
			s.pos++
			s.space()
			return true, nil
		case '}':
			s.pop()
			return false, nil
		}
	}
	return false, s.unexpected(`"," or "}"`)
}

// key scans a name and its colon, leaves pos on the value, and notes the fault
// if the object had the name before. The unescaped name it returns is good
// until the next call.
func (s *scanner) key() ([]byte, *Error) {
	if s.pos >= len(s.data) || s.data[s.pos] != '"' {
		return nil, s.unexpected("a quoted member name")
	}
	start := s.pos + 1
	hasEscape, err := s.str()
	if err != nil {
		return nil, err
	}
	name := s.data[start : s.pos-1]
	ref := keyRef{off: uint32(start), n: uint32(len(name))}
	if hasEscape {
		from := len(s.escaped)
		s.escaped = appendUnquoted(s.escaped, name)
		name = s.escaped[from:]
		ref = keyRef{off: uint32(from), n: uint32(len(name)) | fromEscaped}
	}
	if s.space(); s.pos >= len(s.data) || s.data[s.pos] != ':' {
		return nil, s.unexpected(`":"`)
	}
	s.pos++
	s.space()
	if s.soft != nil || s.lax {
		// Nothing refers to the unescaped names any more.
		if hasEscape {
			s.escaped = s.escaped[:int(ref.off)]
		}
		return name, nil
	}
	if s.seen(name, ref) {
		s.soft = invalidf("a member name occurs twice in one object, the second time before byte %d: send it once", s.pos)
	}
	return name, nil
}

func (s *scanner) name(k keyRef) []byte {
	if k.n&fromEscaped != 0 {
		return s.escaped[k.off:][:k.n&^fromEscaped]
	}
	return s.data[k.off:][:k.n]
}

// seen tells whether the innermost object has the name, and adds it if not.
// Many names are looked up in a table with a random seed, so that neither
// their number nor their choice makes it quadratic.
func (s *scanner) seen(name []byte, ref keyRef) bool {
	f := &s.frames[len(s.frames)-1]
	if f.table == nil {
		for _, k := range s.keys[f.keys:] {
			if k.n&^fromEscaped == uint32(len(name)) && string(s.name(k)) == string(name) {
				return true
			}
		}
		s.keys = append(s.keys, ref)
		if len(s.keys)-f.keys > linearKeys {
			s.index(f, 4*linearKeys)
		}
		return false
	}
	ref.hash = s.hash(name)
	mask := uint32(len(f.table) - 1)
	i := ref.hash & mask
	for ; f.table[i] != 0; i = (i + 1) & mask {
		k := s.keys[f.keys+int(f.table[i])-1]
		if k.hash == ref.hash && string(s.name(k)) == string(name) {
			return true
		}
	}
	s.keys = append(s.keys, ref)
	n := len(s.keys) - f.keys
	f.table[i] = uint32(n)
	if 2*n > len(f.table) {
		s.index(f, 4*len(f.table))
	}
	return false
}

// index builds the table of a frame anew. size is a power of two.
func (s *scanner) index(f *frame, size int) {
	first := f.table == nil
	if first && len(s.spare) >= size {
		f.table, s.spare = s.spare[:size], nil
		clear(f.table)
	} else {
		f.table = make([]uint32, size)
	}
	mask := uint32(size - 1)
	for n := range s.keys[f.keys:] {
		k := &s.keys[f.keys+n]
		if first {
			k.hash = s.hash(s.name(*k))
		}
		i := k.hash & mask
		for f.table[i] != 0 {
			i = (i + 1) & mask
		}
		f.table[i] = uint32(n + 1)
	}
}

func (s *scanner) hash(name []byte) uint32 {
	if !s.seeded {
		s.seed, s.seeded = maphash.MakeSeed(), true
	}
	return uint32(maphash.Bytes(s.seed, name))
}

// Eight bytes at a time: a byte lane of stops has its top bit set if the byte
// cannot be passed over. Borrows disturb only lanes above one that is set, so
// the lowest set lane is exact.
const (
	ones  = 0x0101010101010101
	highs = 0x80 * ones
)

func stops(w uint64) uint64 {
	control := w - 0x20*ones
	quote := (w ^ '"'*ones) - ones
	escape := (w ^ '\\'*ones) - ones
	return (w | control | quote | escape) & highs
}

// str scans a string from its opening quote and tells whether it has escapes.
func (s *scanner) str() (hasEscape bool, err *Error) {
	data, p := s.data, s.pos+1
	for {
		for p+8 <= len(data) {
			if m := stops(binary.LittleEndian.Uint64(data[p:])); m != 0 {
				p += bits.TrailingZeros64(m) / 8
				break
			}
			p += 8
		}
		if p >= len(data) {
			s.pos = len(data)
			return false, s.unexpected("a closing quote")
		}
		switch c := data[p]; {
		case c == '"':
			s.pos = p + 1
			return hasEscape, nil
		case c == '\\':
			hasEscape = true
			n := escapeLen(data[p:])
			if n == 0 {
				return false, s.broken(p, "a bad escape (or half a surrogate pair)")
			}
			p += n
		case c < 0x20:
			return false, s.broken(p, "a control character, which must be escaped,")
		case c < utf8.RuneSelf:
			p++
		default:
			for p < len(data) && data[p] >= utf8.RuneSelf {
				r, n := utf8.DecodeRune(data[p:])
				if r == utf8.RuneError && n == 1 {
					return false, s.broken(p, "invalid UTF-8")
				}
				p += n
			}
		}
	}
}

// escapeLen returns the length of the escape b begins with, a surrogate pair
// counting as one, or 0 if it is malformed.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		hi, ok := hex4(b[2:])
		switch {
		case !ok || hi >= 0xdc00 && hi < 0xe000:
			return 0
		case hi < 0xd800 || hi >= 0xe000:
			return 6
		}
		if len(b) < 12 || b[6] != '\\' || b[7] != 'u' {
			return 0
		}
		if lo, ok := hex4(b[8:]); ok && lo >= 0xdc00 && lo < 0xe000 {
			return 12
		}
	}
	return 0
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

func (s *scanner) literal(want string) *Error {
	for i := range len(want) {
		if s.pos >= len(s.data) || s.data[s.pos] != want[i] {
			return s.unexpected(want)
		}
		s.pos++
	}
	return nil
}

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > start
}

func (s *scanner) at(c byte) bool { return s.pos < len(s.data) && s.data[s.pos] == c }

func (s *scanner) number() *Error {
	if s.at('-') {
		s.pos++
	}
	// After a leading zero no digit may follow; the caller stumbles over it.
	if s.at('0') {
		s.pos++
	} else if !s.digits() {
		return s.unexpected("a digit")
	}
	if s.at('.') {
		s.pos++
		if !s.digits() {
			return s.unexpected("a digit")
		}
	}
	if s.at('e') || s.at('E') {
		s.pos++
		if s.at('+') || s.at('-') {
			s.pos++
		}
		if !s.digits() {
			return s.unexpected("a digit")
		}
	}
	return nil
}
