package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
)

// message is what is looked at in a message.
type message struct {
	Method string         `json:"method"`
	Params map[string]any `json:"params"`
	ID     any            `json:"id"`
}

// tap shows the messages in HTTP answers while the library reads them.
type tap struct {
	http.RoundTripper
	emit func(message)
}

// RoundTrip implements http.RoundTripper.
func (t tap) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if err == nil {
		resp.Body = &tapped{ReadCloser: resp.Body, lines: lines{emit: t.emit}}
	}
	return resp, err
}

// tapped is the body of an answer: one JSON message, or events with one each.
type tapped struct {
	io.ReadCloser
	lines lines
}

// Read implements io.Reader.
func (t *tapped) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	_, _ = t.lines.Write(p[:n]) // never fails
	if err != nil {
		_, _ = t.lines.Write([]byte("\n"))
	}
	return n, err
}

// lines finds messages in what is written to it: lines that hold JSON, after
// the name of an SSE field or the word by which LoggingTransport marks what it
// has read.
type lines struct {
	emit func(message)
	rest []byte
}

// Write implements io.Writer. It never fails.
func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.rest = rest
		for _, mark := range []string{"data:", "read:"} {
			line = bytes.TrimPrefix(line, []byte(mark))
		}
		var m message
		if json.Unmarshal(bytes.TrimSpace(line), &m) == nil {
			l.emit(m)
		}
	}
}
