// Package jsonrpc is the strict JSON-RPC 2.0 codec of the edge.
//
// A message is scanned once, by hand, without reflection. Payloads are never
// decoded or re-encoded: ids, params, results and their members come back as
// slices of the input and are spliced into output byte for byte, so a number
// keeps every digit and an id is echoed as the client wrote it.
//
// # What is refused, and with which code
//
//   - -32700: text that is not RFC 8259 JSON, invalid UTF-8, an escape that is
//     half a surrogate pair, a byte order mark, anything after the message.
//   - -32600: valid JSON that is no JSON-RPC message; a member name that occurs
//     twice in one object, at any depth, compared after unescaping; nesting or
//     size beyond the [Limits]; an id that is neither a string nor a number
//     with an integer value (null, true, [1] and 1.5 are refused; 3100.0 and
//     1e3 are integers). An id member makes a message a request even when its
//     value is refused: such a message is never taken for a notification.
//   - -32602: params, or params._meta, present but no object. That includes
//     null and arrays, for every method.
//
// Where several apply, -32700 wins, then duplicates and depth (the first one
// found), then the shape of the message. Member names are compared exactly, so
// look-alikes ("Method", "method\u0000", "param\u017f") are unknown members
// and are ignored, like all unknown members.
//
// # Ownership
//
// Everything returned aliases the input, except Method, Member.Key and error
// text. The caller must not change the input while it uses the result.
package jsonrpc

// Kind tells the three sorts of message apart.
type Kind uint8

// The kinds of message.
const (
	Request      Kind = iota + 1 // has an id and waits for one response
	Notification                 // has a method and no id; is never answered
	Response                     // has a result or an error
)

// String returns the kind in lower case.
func (k Kind) String() string {
	switch k {
	case Request:
		return "request"
	case Notification:
		return "notification"
	case Response:
		return "response"
	}
	return "unknown"
}

// Message is one decoded JSON-RPC message.
type Message struct {
	ID     []byte // the raw token, nil if absent
	Method string // "" in a response
	Params Object // Raw is nil if absent
	Meta   Object // params._meta; Raw is nil if absent
	Result []byte // raw, nil if absent
	Error  []byte // raw JSON object, nil if absent
}

// Kind returns what the message is, judged by the fields that are set.
func (m *Message) Kind() Kind {
	switch {
	case m.Result != nil || m.Error != nil:
		return Response
	case m.ID != nil:
		return Request
	}
	return Notification
}

// Limits bounds what is accepted. The zero value means the defaults.
type Limits struct {
	MaxBytes int // bytes of one message or one batch; default 16 MiB, at most 1 GiB
	MaxDepth int // nested objects and arrays, the message itself being 1; default 512
	MaxBatch int // messages in a batch; default 1,000
}

// maxInput keeps every offset within 31 bits, see keyRef.
const maxInput = 1 << 30

func (l Limits) filled() Limits {
	if l.MaxBytes <= 0 {
		l.MaxBytes = 16 << 20
	}
	l.MaxBytes = min(l.MaxBytes, maxInput)
	if l.MaxDepth <= 0 {
		l.MaxDepth = 512
	}
	if l.MaxBatch <= 0 {
		l.MaxBatch = 1000
	}
	return l
}

// Decode reads one message and checks all of it, params included.
//
// The error, if any, carries a code, a text that says what to change, and the
// id when there is one to echo. Faults that leave the text readable (duplicate
// names, depth, shape) report an id wherever it stands. Broken text reports an
// id only if it was read before the fault, and so does text that is too long,
// of which only the first MaxBytes bytes are looked at: a reader that cut a
// message off may pass what it has kept. A message with two ids has none.
//
// With code -32602 the message is returned as well, without its params, so
// that the caller can leave a bad notification unanswered. With any other
// error the message is empty.
//
// A response needs an id, except that an error response may go without or have
// null, as JSON-RPC has it when the sender could not read the id.
func Decode(data []byte, l Limits) (Message, *Error) {
	l = l.filled()
	if len(data) > l.MaxBytes {
		e := tooLarge(len(data), l.MaxBytes)
		m, cut := Decode(data[:l.MaxBytes], l)
		if e.ID = m.ID; cut != nil {
			e.ID = cut.ID
		}
		return Message{}, e
	}
	d := decoder{scanner: scanner{data: data, maxDepth: l.MaxDepth}}
	m, err := d.message()
	if err != nil {
		err.ID = d.id
	}
	return m, err
}

// decoder collects the members of a message, right or wrong, so that all of
// the text is seen before one fault is chosen.
type decoder struct {
	scanner
	id []byte // the valid id to echo, if any

	hasID, hasMethod, badParams, badMeta bool
	rawID, version, method               []byte
	result, rpcError                     []byte
	params, meta                         Object
}

func (d *decoder) message() (Message, *Error) {
	d.space()
	if d.pos == len(d.data) {
		return Message{}, &Error{Code: CodeParse, Message: "empty message: send one JSON-RPC object"}
	}
	if d.data[d.pos] != '{' {
		return Message{}, d.noObject()
	}
	more := d.enterObject()
	var err *Error
	for more && err == nil {
		if err = d.member(); err == nil {
			more, err = d.nextMember()
		}
	}
	if err == nil {
		err = d.end()
	}
	if err == nil {
		err = d.soft
	}
	if err != nil {
		return Message{}, err
	}
	return d.shape()
}

func (d *decoder) noObject() *Error {
	first := d.data[d.pos]
	if err := d.value(); err != nil {
		return err
	}
	if err := d.end(); err != nil {
		return err
	}
	if first == '[' {
		return invalid("a batch (JSON array) is not accepted here: send one JSON-RPC object")
	}
	return invalid("a JSON-RPC message is a JSON object")
}

// member reads one member of the message. Repeated names were noted by key,
// only a repeated id needs care here: there is no telling which one to echo.
func (d *decoder) member() *Error {
	key, err := d.key()
	if err != nil {
		return err
	}
	var to *[]byte
	switch string(key) {
	case "jsonrpc":
		to = &d.version
	case "id":
		return d.readID()
	case "method":
		d.hasMethod = true
		to = &d.method
	case "result":
		to = &d.result
	case "error":
		to = &d.rpcError
	case "params":
		if d.pos < len(d.data) && d.data[d.pos] == '{' {
			return d.object(&d.params, &d.meta, &d.badMeta)
		}
		d.badParams = true
	}
	start := d.pos
	if err := d.value(); err != nil {
		return err
	}
	if to != nil {
		*to = d.since(start)
	}
	return nil
}

func (d *decoder) readID() *Error {
	twice := d.hasID
	d.hasID, d.id = true, nil
	start := d.pos
	if err := d.value(); err != nil {
		return err
	}
	d.rawID = d.since(start)
	// A number that ends with the input may have been cut off.
	if !twice && validID(d.rawID) && d.pos < len(d.data) {
		d.id = d.rawID
	}
	return nil
}

// shape checks a message whose text is sound.
func (d *decoder) shape() (Message, *Error) {
	isResponse := !d.hasMethod && (d.result != nil || d.rpcError != nil)
	nullID := isResponse && d.rpcError != nil && string(d.rawID) == "null"
	var why string
	switch {
	case d.hasID && d.id == nil && !nullID:
		why = `"id" must be a string or an integer`
	case d.version == nil:
		why = `"jsonrpc":"2.0" is missing`
	case !isText(d.version, "2.0"):
		why = `"jsonrpc" must be the string "2.0"`
	case d.hasMethod && d.method[0] != '"':
		why = `"method" must be a string`
	case d.hasMethod && (d.result != nil || d.rpcError != nil):
		why = `"method" excludes "result" and "error"`
	case d.result != nil && d.rpcError != nil:
		why = `a response has "result" or "error", not both`
	case !d.hasMethod && !isResponse:
		why = `"method" is missing (member names are case-sensitive)`
	case d.result != nil && !d.hasID:
		why = `a response needs the "id" of its request`
	case d.rpcError != nil && d.rpcError[0] != '{':
		why = `"error" must be an object`
	}
	if why != "" {
		return Message{}, invalid(why)
	}
	m := Message{ID: d.id, Result: d.result, Error: d.rpcError}
	if isResponse {
		return m, nil
	}
	m.Method = text(d.method)
	if d.badParams {
		return m, &Error{Code: CodeInvalidParams, Message: `"params" must be an object; leave it out when there are none`}
	}
	if d.badMeta {
		return m, &Error{Code: CodeInvalidParams, Message: `"params._meta" must be an object; leave it out when there is none`}
	}
	m.Params, m.Meta = d.params, d.meta
	return m, nil
}

// IsBatch tells whether data begins like a JSON array.
func IsBatch(data []byte) bool {
	s := scanner{data: data}
	s.space()
	return s.pos < len(data) && data[s.pos] == '['
}

// DecodeBatch splits a JSON array into its raw elements, each to be given to
// [Decode]. It checks the grammar, the size and the number of messages;
// duplicate names and depth are left to Decode, so that a fault of one message
// is answered under that message's id and the others are served. An empty
// batch is refused with -32600, as JSON-RPC demands.
func DecodeBatch(data []byte, l Limits) ([][]byte, *Error) {
	l = l.filled()
	if len(data) > l.MaxBytes {
		return nil, tooLarge(len(data), l.MaxBytes)
	}
	s := scanner{data: data, lax: true}
	s.space()
	if s.pos == len(data) || data[s.pos] != '[' {
		return nil, invalid("a batch is a JSON array")
	}
	elements, err := s.elements(l.MaxBatch + 1)
	switch {
	case err != nil:
		return nil, err
	case len(elements) == 0:
		return nil, invalid("an empty batch: send at least one message")
	case len(elements) > l.MaxBatch:
		return nil, invalidf("more than %d messages in a batch: send smaller batches", l.MaxBatch)
	}
	return elements, nil
}

// elements reads the rest of the text, which is an array, and returns at most
// the given number of its elements.
func (s *scanner) elements(most int) ([][]byte, *Error) {
	var elements [][]byte
	var err *Error
	for more := s.enterArray(); more && err == nil; {
		start := s.pos
		if err = s.value(); err == nil {
			if len(elements) < most {
				elements = append(elements, s.since(start))
			}
			more, err = s.nextElement()
		}
	}
	if err == nil {
		err = s.end()
	}
	return elements, err
}

// Validate checks that data is one JSON value as strict as a message must be:
// grammar, UTF-8, duplicate names, depth and size.
func Validate(data []byte, l Limits) *Error {
	l = l.filled()
	if len(data) > l.MaxBytes {
		return tooLarge(len(data), l.MaxBytes)
	}
	s := scanner{data: data, maxDepth: l.MaxDepth}
	s.space()
	if err := s.value(); err != nil {
		return err
	}
	if err := s.end(); err != nil {
		return err
	}
	return s.soft
}
