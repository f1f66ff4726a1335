package edge

import (
	"bytes"

	"github.com/millrace/millrace/edge/jsonrpc"
)

// separators are the line separators of Unicode. They are legal inside JSON
// strings and mean nothing to stdio or SSE, but readers that split text by
// Unicode's idea of a line break at them. JSON can say them in ASCII.
//
//nolint:gochecknoglobals // a table
var separators = []struct{ raw, escaped []byte }{
	{[]byte("\u0085"), []byte(`\u0085`)},
	{[]byte("\u2028"), []byte(`\u2028`)},
	{[]byte("\u2029"), []byte(`\u2029`)},
}

// oneLineEach is oneLine for a message in pieces.
func oneLineEach(msg jsonrpc.Pieces) jsonrpc.Pieces {
	lines := make(jsonrpc.Pieces, len(msg))
	for i, piece := range msg {
		lines[i] = oneLine(piece)
	}
	return lines
}

// oneLine returns a message that is one line to every reader. Raw line breaks
// occur only in JSON that an author laid out by hand.
func oneLine(msg []byte) []byte {
	if bytes.IndexByte(msg, '\n') >= 0 || bytes.IndexByte(msg, '\r') >= 0 {
		msg = jsonrpc.AppendOneLine(make([]byte, 0, len(msg)), msg)
	}
	for _, s := range separators {
		if bytes.Contains(msg, s.raw) {
			msg = bytes.ReplaceAll(msg, s.raw, s.escaped)
		}
	}
	return msg
}
