package sse

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
)

const (
	defaultMaxEvent = 16 << 20
	// A line may be longer than the limit of an event by its field name.
	nameAllowance = 32
)

// Reader reads a stream of events as a browser does, except that bytes are not
// checked to be UTF-8. It is for one goroutine.
type Reader struct {
	src   io.Reader
	limit int

	buf        []byte // buf[from:to] has been read and not yet used
	from, to   int
	line       []byte // the beginning of a line that did not fit in buf
	skipLF     bool   // the last line ended in CR: an LF now belongs to it
	pastFirst  bool
	begun      bool // a field was read since the last empty line
	event      Event
	hasData    bool
	idWasGiven bool

	lastID string
	retry  time.Duration
	err    error
}

// NewReader returns a Reader of src. An event with more than maxEvent bytes of
// data, or with any line about that long, is an error; 0 means 16 MiB.
func NewReader(src io.Reader, maxEvent int) *Reader {
	if maxEvent <= 0 {
		maxEvent = defaultMaxEvent
	}
	return &Reader{src: src, limit: maxEvent, buf: make([]byte, 4<<10)}
}

// Next waits for the next event with data, and returns it as soon as its last
// line end is there, even if that is a CR that an LF may follow. Event.ID,
// Name and Retry are the fields of this very event; see LastID for the id a
// browser would report. Data belongs to the caller.
//
// At the end it returns [io.EOF], or [io.ErrUnexpectedEOF] if the stream
// stopped inside an event, which is dropped. [ErrTooLarge] and errors of the
// source end the stream as well; every later call returns the same error.
func (r *Reader) Next() (Event, error) {
	for r.err == nil {
		var line []byte
		if line, r.err = r.readLine(); r.err != nil {
			break
		}
		if len(line) > 0 {
			r.err = r.field(line)
			continue
		}
		e, dispatch := r.event, r.hasData
		if r.idWasGiven {
			r.lastID = e.ID
		}
		r.event, r.hasData, r.idWasGiven, r.begun = Event{}, false, false, false
		if dispatch {
			return e, nil
		}
	}
	return Event{}, r.err
}

// LastID returns what a client sends as Last-Event-ID to resume: the last id
// of a complete event, with or without data.
func (r *Reader) LastID() string { return r.lastID }

// Retry returns the last reconnection time the server asked for, or 0.
func (r *Reader) Retry() time.Duration { return r.retry }

// readLine returns the next line without its end, valid until the next call.
func (r *Reader) readLine() ([]byte, error) {
	r.line = r.line[:0]
	if cap(r.line) > 64<<10 {
		r.line = nil
	}
	for {
		if r.skipLF && r.from < r.to {
			r.skipLF = false
			if r.buf[r.from] == '\n' {
				r.from++
			}
		}
		part := r.buf[r.from:r.to]
		n := 0
		for n < len(part) && part[n] != '\n' && part[n] != '\r' {
			n++
		}
		if len(r.line)+n > r.limit+nameAllowance {
			return nil, ErrTooLarge
		}
		if n < len(part) {
			r.from += n + 1
			r.skipLF = part[n] == '\r'
			if len(r.line) == 0 {
				return r.withoutMark(part[:n]), nil
			}
			r.line = append(r.line, part[:n]...)
			return r.withoutMark(r.line), nil
		}
		r.line = append(r.line, part...)
		if err := r.fill(); err != nil {
			if errors.Is(err, io.EOF) && (r.begun || len(r.line) > 0) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

func (r *Reader) fill() error {
	r.from, r.to = 0, 0
	for range 100 {
		n, err := r.src.Read(r.buf)
		if n > 0 {
			r.to = n
			return nil // an error will come again
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// withoutMark drops a byte order mark at the very beginning of the stream.
func (r *Reader) withoutMark(line []byte) []byte {
	if !r.pastFirst {
		r.pastFirst = true
		return bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	return line
}

func (r *Reader) field(line []byte) error {
	name, value, _ := bytes.Cut(line, []byte{':'})
	if len(name) == 0 {
		return nil // a comment
	}
	value = bytes.TrimPrefix(value, []byte{' '})
	r.begun = true
	switch string(name) {
	case "data":
		// Lines are joined by LF.
		if r.hasData {
			r.event.Data = append(r.event.Data, '\n')
		}
		r.hasData = true
		r.event.Data = append(r.event.Data, value...)
		if len(r.event.Data) > r.limit {
			return ErrTooLarge
		}
	case "event":
		r.event.Name = string(value)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			r.event.ID, r.idWasGiven = string(value), true
		}
	case "retry":
		for _, c := range value {
			if c < '0' || c > '9' {
				return nil
			}
		}
		const most = int64(1<<63-1) / int64(time.Millisecond)
		if ms, err := strconv.ParseInt(string(value), 10, 64); err == nil && ms <= most {
			r.retry = time.Duration(ms) * time.Millisecond
			r.event.Retry = r.retry
		}
	}
	return nil
}
