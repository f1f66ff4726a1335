package jsonrpc

import "bytes"

// LargeBytes is the size from which a value is worth a piece of its own.
const LargeBytes = 64 << 10

// Pieces is one JSON text in pieces, to be written one behind the other. A large
// value stays where it is: in one buffer with the message around it, it would
// be there twice. Nil is no text.
type Pieces [][]byte

// Whole is a text in one piece.
func Whole(text []byte) Pieces { return Pieces{text} }

// Len is the length of the text in bytes.
func (p Pieces) Len() int {
	n := 0
	for _, piece := range p {
		n += len(piece)
	}
	return n
}

// Join returns the text in one piece, which is a copy unless there is only one.
func (p Pieces) Join() []byte {
	if len(p) == 1 {
		return p[0]
	}
	return bytes.Join(p, nil)
}

// ResultPieces is [AppendResult] for a result in pieces, which are not copied. A
// result in one piece that is not large becomes a response in one piece, and nil
// becomes {}.
func ResultPieces(id []byte, result Pieces) Pieces {
	const frame = len(`{"jsonrpc":"2.0","id":null,"result":{}}`)
	if len(result) <= 1 && result.Len() < LargeBytes {
		var whole []byte // nil: there is none
		if len(result) == 1 {
			whole = result[0]
		}
		// Growing would copy the result.
		return Whole(AppendResult(make([]byte, 0, frame+len(id)+len(whole)), id, whole))
	}
	response := make(Pieces, 0, len(result)+2)
	response = append(response, append(appendHead(make([]byte, 0, frame+len(id)), id), `,"result":`...))
	return append(append(response, result...), []byte{'}'})
}
