package jsonrpc

import "slices"

// Object is a JSON object taken apart one level deep.
type Object struct {
	Raw     []byte   // the whole object, nil if absent
	Members []Member // in the order of the text, no name twice
}

// Member is one member of an object: its name, unescaped, and its raw value.
type Member struct {
	Key   string
	Value []byte
}

// Get returns the raw value of a member, or nil. A member that is null is not
// absent: its value is the token null.
func (o Object) Get(key string) []byte {
	for i := range o.Members {
		if o.Members[i].Key == key {
			return o.Members[i].Value
		}
	}
	return nil
}

// ParseArray splits a JSON array into its elements, raw, and checks it as
// [ParseObject] checks an object. The error is an [*Error].
func ParseArray(raw []byte) ([][]byte, error) {
	l := Limits{MaxBytes: maxInput}.filled()
	if len(raw) > l.MaxBytes {
		return nil, tooLarge(len(raw), l.MaxBytes)
	}
	s := scanner{data: raw, maxDepth: l.MaxDepth}
	s.space()
	if !s.at('[') {
		return nil, invalid("the value must be a JSON array")
	}
	elements, err := s.elements(len(raw))
	if err == nil {
		err = s.soft
	}
	if err != nil {
		return nil, err
	}
	return elements, nil
}

// ParseObject takes a JSON object apart, as strict as [Decode] is, to the
// default depth and up to 1 GiB. The error is an [*Error].
func ParseObject(raw []byte) (Object, error) {
	l := Limits{MaxBytes: maxInput}.filled()
	if len(raw) > l.MaxBytes {
		return Object{}, tooLarge(len(raw), l.MaxBytes)
	}
	s := scanner{data: raw, maxDepth: l.MaxDepth}
	s.space()
	isObject := s.at('{')
	var o Object
	var err *Error
	if isObject {
		err = s.object(&o, nil, nil)
	} else {
		err = s.value()
	}
	if err == nil {
		err = s.end()
	}
	if err == nil {
		err = s.soft
	}
	if err == nil && !isObject {
		err = invalid("the value must be a JSON object")
	}
	if err != nil {
		return Object{}, err
	}
	return o, nil
}

// object scans an object into o and, with meta set, the object in its member
// "_meta" into meta; badMeta tells that this member is no object.
func (s *scanner) object(o, meta *Object, badMeta *bool) *Error {
	*o = Object{} // a repeated name: the message is refused, but do not mix the two
	from := s.pos
	more := s.enterObject()
	var err *Error
	if more {
		o.Members = make([]Member, 0, 4)
	}
	for more && err == nil {
		var k []byte
		if k, err = s.key(); err != nil {
			break
		}
		start := s.pos
		var name string
		if s.soft == nil { // else nobody will look at the members
			name = keyString(k)
		}
		if meta != nil && name == "_meta" {
			if *badMeta = !s.at('{'); *badMeta {
				err = s.value()
			} else {
				err = s.object(meta, nil, nil)
			}
		} else {
			err = s.value()
		}
		if err != nil {
			break
		}
		if s.soft == nil {
			o.Members = append(o.Members, Member{Key: name, Value: s.since(start)})
		}
		more, err = s.nextMember()
	}
	o.Raw = s.since(from)
	return err
}

// keyString makes a string of a name. The compiler turns the switch into
// constants, so the names that occur in nearly every message cost nothing.
func keyString(k []byte) string {
	switch string(k) {
	case "name":
		return "name"
	case "arguments":
		return "arguments"
	case "_meta":
		return "_meta"
	case "uri":
		return "uri"
	case "cursor":
		return "cursor"
	case "progressToken":
		return "progressToken"
	case "io.modelcontextprotocol/protocolVersion":
		return "io.modelcontextprotocol/protocolVersion"
	case "io.modelcontextprotocol/clientInfo":
		return "io.modelcontextprotocol/clientInfo"
	case "io.modelcontextprotocol/clientCapabilities":
		return "io.modelcontextprotocol/clientCapabilities"
	}
	return string(k)
}

// AppendObject appends an object with the given members, in that order. A
// member whose Value is nil is left out. The caller sees to it that no name
// occurs twice and that the values are JSON; they are copied as they are.
func AppendObject(dst []byte, members ...Member) []byte {
	dst = append(dst, '{')
	first := true
	for _, m := range members {
		if m.Value == nil {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = AppendString(dst, m.Key)
		dst = append(dst, ':')
		dst = append(dst, m.Value...)
	}
	return append(dst, '}')
}

// Without returns the object raw without the members named. It returns raw
// itself if it has none of them. The other values are kept byte for byte. The
// error is that of [ParseObject].
func Without(raw []byte, keys ...string) ([]byte, error) {
	o, err := ParseObject(raw)
	if err != nil {
		return nil, err
	}
	drop := func(m Member) bool { return slices.Contains(keys, m.Key) }
	if !slices.ContainsFunc(o.Members, drop) {
		return raw, nil
	}
	return AppendObject(make([]byte, 0, len(raw)), slices.DeleteFunc(o.Members, drop)...), nil
}
