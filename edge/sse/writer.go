package sse

import (
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

// Config is how a Writer treats its client. The zero value means the defaults.
type Config struct {
	// WriteTimeout is how long a client may take to accept one write before it
	// is given up. Default 30 s; negative = no limit.
	WriteTimeout time.Duration
	// Keepalive is how long a stream may be silent before a comment is sent.
	// Default 15 s; negative = none.
	Keepalive time.Duration
	// OnError, if set, is called once, with the error of the first failed
	// write, from the goroutine that wrote: the caller of Start, Event or
	// Comment, or the keepalive timer's. A [context.CancelCauseFunc] fits: it
	// ends an owner that waits elsewhere. It may call the Writer, and it may
	// still be running when Close returns.
	OnError func(error)
}

const (
	keepalive = ": keepalive\n\n"
	// Room for what surrounds the values of an event of one line.
	fieldNames = 64
	// piece is what a client has to take within the write timeout.
	piece = 64 << 10
	// A larger buffer is not kept between writes: most streams are idle.
	keptBuffer = 4 << 10
)

// Writer writes a stream of events as the body of one HTTP response.
//
// It may be used by several goroutines, and sends keepalive comments by itself:
// each write sets a timer, and when that fires the timer's goroutine writes. So
// the owner may block anywhere, for instance in receiving the next event. It
// must call Close before its handler returns (defer it), for nobody may write
// to a response after that.
//
// Each call is one write and one flush under a deadline. After a failed write
// the stream is broken: every later call returns the error of the first.
//
// The [http.ResponseWriter] may be wrapped as [http.ResponseController] allows.
// One that cannot set write deadlines (a test recorder) is written to without;
// one that cannot flush is an error.
type Writer struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	cfg Config

	started atomic.Bool
	err     atomic.Pointer[error]

	// lock guards the response and all below. Who puts a value in holds it; a
	// full channel makes the next one wait. It is no mutex because a goroutine
	// that waits here for a stalled client is idle to a synctest bubble.
	lock   chan struct{}
	buf    []byte
	timer  *time.Timer // nil until started and where there is no keepalive
	closed bool
}

// NewWriter returns a Writer for a response nothing has been written to. It
// writes nothing itself.
func NewWriter(w http.ResponseWriter, cfg Config) *Writer {
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = 30 * time.Second
	}
	if cfg.Keepalive == 0 {
		cfg.Keepalive = 15 * time.Second
	}
	return &Writer{w: w, rc: http.NewResponseController(w), cfg: cfg, lock: make(chan struct{}, 1)}
}

// Start sends the status and the headers at once. Calling it is needed only to
// open the stream before there is an event, or with another status than 200:
// the first event starts the stream by itself, in one write with the headers.
// On a stream that has started it does nothing.
func (w *Writer) Start(status int) error {
	return w.do(func() error {
		if w.started.Load() {
			return nil
		}
		w.header(status)
		return w.send(nil)
	})
}

// Event writes events, all in one write and one flush, so that events that are
// ready together cost as much as one. Data is not kept. If a field is refused
// with [ErrField], nothing is written.
func (w *Writer) Event(events ...Event) error {
	return w.do(func() error {
		size := 0
		for _, e := range events {
			size += len(e.Data) + len(e.ID) + len(e.Name) + fieldNames
		}
		buf := slices.Grow(w.buf[:0], size)
		var err error
		for _, e := range events {
			if buf, err = appendEvent(buf, e); err != nil {
				return err
			}
		}
		if len(buf) == 0 {
			return nil
		}
		if cap(buf) <= keptBuffer {
			w.buf = buf
		}
		return w.send(buf)
	})
}

// Comment writes a comment, which clients ignore. The keepalive does so when
// the stream has been silent; there is rarely a reason to call it.
func (w *Writer) Comment() error {
	return w.do(func() error { return w.send([]byte(keepalive)) })
}

// Started tells whether the response has begun, that is, whether it is too
// late for another kind of answer.
func (w *Writer) Started() bool { return w.started.Load() }

// Err returns the error of the first failed write, or nil. It never waits.
func (w *Writer) Err() error {
	if p := w.err.Load(); p != nil {
		return *p
	}
	return nil
}

// Close ends the keepalive and waits for a write that is under way. It returns
// the error of the stream, if it failed. The end of the response is sent by
// the server when the handler returns, and has WriteTimeout to get out.
func (w *Writer) Close() error {
	w.lock <- struct{}{}
	defer func() { <-w.lock }()
	if !w.closed {
		w.closed = true
		w.buf = nil
		if w.timer != nil {
			w.timer.Stop()
		}
		if w.started.Load() && w.Err() == nil {
			// No error to report here: the server meets it when it ends the response.
			_ = w.deadline(w.cfg.WriteTimeout)
		}
	}
	return w.Err()
}

// do runs write with the lock held, on a stream that is open and sound.
func (w *Writer) do(write func() error) error {
	w.lock <- struct{}{}
	return w.doLocked(write)
}

func (w *Writer) doLocked(write func() error) error {
	broke := false
	err := func() error {
		defer func() { <-w.lock }()
		if err := w.Err(); err != nil {
			return err
		}
		if w.closed {
			return ErrClosed
		}
		err := write()
		broke = w.Err() != nil
		return err
	}()
	// The lock is free by now, so that the callback may use the Writer.
	if broke && w.cfg.OnError != nil {
		w.cfg.OnError(err)
	}
	return err
}

// idle is called when the stream has been silent. If the lock is taken, then
// by a write, which will set the timer anew.
func (w *Writer) idle() {
	select {
	case w.lock <- struct{}{}:
		// The error stays in the Writer and goes to OnError.
		_ = w.doLocked(func() error { return w.send([]byte(keepalive)) })
	default:
	}
}

func (w *Writer) header(status int) {
	h := w.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no") // nginx would collect the events otherwise
	h.Del("Content-Length")
	w.started.Store(true)
	w.w.WriteHeader(status)
}

// send writes and flushes under the deadline. The deadline is taken back
// afterwards: on HTTP/2 it would end an idle stream when it passes.
func (w *Writer) send(b []byte) error {
	if !w.started.Load() {
		w.header(http.StatusOK)
	}
	err := w.deadline(w.cfg.WriteTimeout)
	if err == nil && len(b) > 0 {
		err = w.write(b)
	}
	if err == nil {
		err = w.rc.Flush()
	}
	if err == nil {
		err = w.deadline(-1)
	}
	if err != nil {
		w.err.Store(&err)
		if w.timer != nil {
			w.timer.Stop()
		}
		return err
	}
	if w.timer != nil {
		w.timer.Reset(w.cfg.Keepalive)
	} else if w.cfg.Keepalive > 0 {
		w.timer = time.AfterFunc(w.cfg.Keepalive, w.idle)
	}
	return nil
}

// write writes b in pieces, each with the time that a client has to take something:
// one that reads slowly, but reads, is not given up.
func (w *Writer) write(b []byte) error {
	for len(b) > piece {
		if _, err := w.w.Write(b[:piece]); err != nil {
			return err
		}
		b = b[piece:]
		if err := w.deadline(w.cfg.WriteTimeout); err != nil {
			return err
		}
	}
	_, err := w.w.Write(b)
	return err
}

// WriteSlowly writes a body that is no stream, and gives up a client that takes
// nothing for the timeout (0: 30 s; negative: never). The rest of the response
// has the same time to get out.
func WriteSlowly(to http.ResponseWriter, body []byte, timeout time.Duration) error {
	if len(body) <= piece {
		_, err := to.Write(body) // buffers take it
		return err
	}
	w := NewWriter(to, Config{WriteTimeout: timeout})
	if err := w.deadline(w.cfg.WriteTimeout); err != nil {
		return err
	}
	return w.write(body)
}

// deadline sets when writing must be done; a negative d means never.
func (w *Writer) deadline(d time.Duration) error {
	if w.cfg.WriteTimeout < 0 {
		return nil
	}
	var at time.Time
	if d >= 0 {
		at = time.Now().Add(d)
	}
	if err := w.rc.SetWriteDeadline(at); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
