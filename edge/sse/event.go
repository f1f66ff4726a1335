// Package sse writes and reads server-sent events (WHATWG HTML, section 9.2).
// It is the only place where their bytes are made or parsed.
package sse

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"time"
)

// The errors of this package. Those of the connection come wrapped or as they
// are.
var (
	// ErrField says that an event was not written because its ID or Name holds
	// CR, LF or NUL, or its Retry is negative. The stream is not affected.
	ErrField = errors.New("sse: CR, LF or NUL in an event's id or name, or a negative retry")
	// ErrClosed is returned by a Writer that was closed before it failed.
	ErrClosed = errors.New("sse: writer is closed")
	// ErrTooLarge says that an event exceeds the limit of a Reader.
	ErrTooLarge = errors.New("sse: event exceeds the limit")
)

// Event is one event. Line ends in Data (CRLF, CR, LF) are not told apart by
// the format: a reader sees each as LF. All other bytes are kept.
type Event struct {
	ID    string        // "" = no id field
	Name  string        // "" = no event field, which means "message"
	Retry time.Duration // 0 = no retry field; sent in whole milliseconds
	Data  []byte
}

// appendEvent appends the lines of an event and the empty line that ends it.
// There is a data line even when Data is empty, so that a client sees the
// event; only an event with nothing but Retry goes without.
func appendEvent(dst []byte, e Event) ([]byte, error) {
	if strings.ContainsAny(e.ID, "\r\n\x00") || strings.ContainsAny(e.Name, "\r\n\x00") || e.Retry < 0 {
		return dst, ErrField
	}
	if e.Name != "" {
		dst = append(dst, "event: "...)
		dst = append(dst, e.Name...)
		dst = append(dst, '\n')
	}
	if e.ID != "" {
		dst = append(dst, "id: "...)
		dst = append(dst, e.ID...)
		dst = append(dst, '\n')
	}
	if e.Retry > 0 {
		dst = append(dst, "retry: "...)
		dst = strconv.AppendInt(dst, e.Retry.Milliseconds(), 10)
		dst = append(dst, '\n')
		if e.Name == "" && e.ID == "" && len(e.Data) == 0 {
			return append(dst, '\n'), nil
		}
	}
	return append(appendData(dst, e.Data), '\n'), nil
}

// appendData appends a data line for each line of data. The space after the
// colon is not optional: without it a space that data begins with is lost.
func appendData(dst, data []byte) []byte {
	for {
		part, rest, more := bytes.Cut(data, []byte{'\n'})
		if more {
			part = bytes.TrimSuffix(part, []byte{'\r'})
		}
		for {
			line, after, again := bytes.Cut(part, []byte{'\r'})
			dst = append(dst, "data: "...)
			dst = append(dst, line...)
			dst = append(dst, '\n')
			if !again {
				break
			}
			part = after
		}
		if !more {
			return dst
		}
		data = rest
	}
}
