package edge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// ServeStdio serves one client over a pair of streams, one message a line
// (transports, "stdio"). Requests run side by side and are answered as they
// finish. When in ends, running calls may go on for Config.Grace and their
// answers are still written; then ServeStdio returns nil. It returns an error
// when out can no longer be written.
//
// When ctx ends, running calls are cancelled and ServeStdio returns; a read of
// in that is blocked then goes on until in is closed, since nothing can
// interrupt it.
func (e *Edge) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &stdio{edge: e, out: out, cancel: cancel, peer: &exchange.Peer{Scope: rand.Text()}}

	// What belongs to no request is written beside the answers.
	var listening sync.WaitGroup
	listenCtx, stopListening := context.WithCancel(ctx)
	defer listening.Wait()
	defer stopListening()
	for _, era := range e.eras {
		if l, ok := era.(exchange.Listener); ok {
			listening.Go(func() { l.Listen(listenCtx, &exchange.Request{Peer: s.peer}, s) })
		}
	}

	lines := make(chan line) // unbuffered: a line is read when the last was taken
	go readLines(ctx, in, e.cfg.Limits.MaxBytes, lines)
	var running sync.WaitGroup
	for {
		select {
		case l, ok := <-lines:
			if ok && l.err == nil {
				s.accept(ctx, l, &running)
				continue
			}
			if l.err != nil {
				e.log.Warn("stdin ended with an error", "error", l.err)
			}
			s.drain(ctx, &running)
			return s.err()
		case <-ctx.Done():
			running.Wait()
			return s.err()
		}
	}
}

// stdio is one connection.
type stdio struct {
	edge   *Edge
	peer   *exchange.Peer
	cancel context.CancelCauseFunc

	mu       sync.Mutex // one message at a time on out
	out      io.Writer
	writeErr error
}

// accept starts serving one line. What settles how later lines are read runs
// before they are: the handshake, cancellations and other notifications.
func (s *stdio) accept(ctx context.Context, l line, running *sync.WaitGroup) {
	if len(bytes.TrimSpace(l.data)) == 0 {
		return
	}
	settled := s.peer.Handshake()
	if jsonrpc.IsBatch(l.data) {
		head := exchange.Request{Peer: s.peer, Handshake: settled}
		call := &stdioCall{stdio: s}
		running.Go(func() { call.answer(s.edge.serveBatch(ctx, head, l.data, call)) })
		return
	}
	// A line that was cut off is over the limit and gives the error for that.
	msg, err := jsonrpc.Decode(l.data, s.edge.cfg.Limits)
	if err != nil {
		if isNotification(&msg, err) {
			return
		}
		rev := mcp.Modern() // which has no handshake
		if settled != nil {
			rev = settled.Revision
		}
		// Who runs a client by hand sees here why it gets nothing else.
		s.edge.log.Warn("a line of stdin is no message", "error", err)
		(&stdioCall{stdio: s}).answer(exchange.Refused(rev, 0, err.ID, err))
		return
	}
	req := &exchange.Request{Message: msg, Peer: s.peer, Handshake: settled}
	call := &stdioCall{stdio: s}
	serve := func() { call.answer(s.edge.serve(ctx, req, call)) }
	if msg.Kind() != jsonrpc.Request || msg.Method == mcp.MethodInitialize {
		serve()
		return
	}
	running.Go(serve)
}

// ReadWaiter is an output that can wait for its reader. ServeStdio uses it when
// out is one.
type ReadWaiter interface {
	// WaitRead returns when all that was written has been read, or after the
	// time given.
	WaitRead(limit time.Duration)
}

// readWait is how long an answer waits for the progress before it to be read.
const readWait = time.Second

// stdioCall is the connection as one message sees it.
type stdioCall struct {
	*stdio
	// notified: a notification was written for this message. Of a batch, whose
	// messages run side by side, for any of them.
	notified atomic.Bool
}

// Send writes a notification.
func (c *stdioCall) Send(msg []byte) error {
	c.notified.Store(true)
	return c.stdio.Send(msg)
}

// answer writes an answer, if there is one. A failed write has ended the
// connection, which is all that can be done about it here.
//
// Clients exist that take the answer out of what they have read at once before
// the progress that stands in front of it, and then drop the progress. So an
// answer waits a moment until they have read what is there.
func (c *stdioCall) answer(a exchange.Answer) {
	if a.Body == nil || a.Withheld {
		return
	}
	if w, ok := c.out.(ReadWaiter); ok && c.notified.Load() {
		w.WaitRead(readWait)
	}
	_ = c.write(a.Body)
}

// drain lets running calls finish within the grace period, then cancels them.
func (s *stdio) drain(ctx context.Context, running *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	timer := time.NewTimer(s.edge.cfg.Grace)
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
	case <-ctx.Done():
	}
	s.cancel(errGrace)
	<-done
}

var (
	errGrace = errors.New("edge: the client closed its end and the grace period is over")
	errStdio = errors.New("edge: the client does not read any more")
)

// Open is always true: a line can be written at any time.
func (s *stdio) Open() bool { return true }

// Begin does nothing: the stream is there from the start.
func (s *stdio) Begin() error { return nil }

// Send writes a notification.
func (s *stdio) Send(msg []byte) error { return s.write(msg) }

// write writes one message as one line. After the first failure the connection
// is over: running calls are cancelled.
func (s *stdio) write(msg []byte) error {
	msg = oneLine(msg)
	buf := make([]byte, 0, len(msg)+1)
	buf = append(append(buf, msg...), '\n')
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writeErr != nil {
		return s.writeErr
	}
	if _, err := s.out.Write(buf); err != nil {
		s.writeErr = fmt.Errorf("%w: %w", errStdio, err)
		s.cancel(s.writeErr)
	}
	return s.writeErr
}

func (s *stdio) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writeErr
}

// line is one line of input, or the error that ended it. A line over the limit
// is cut off just above it.
type line struct {
	data []byte
	err  error
}

// readLines sends the lines of in until it ends; it closes the channel then.
// The last line counts even without a line end. Lines end at LF only: a JSON
// string may hold any other separator.
func readLines(ctx context.Context, in io.Reader, limit int, lines chan<- line) {
	defer close(lines)
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		var data []byte
		var err error
		for {
			var part []byte
			part, err = r.ReadSlice('\n')
			if room := limit + 2 - len(data); room > 0 {
				data = append(data, part[:min(len(part), room)]...)
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				break
			}
		}
		l := line{data: bytes.TrimRight(data, "\r\n")}
		if len(l.data) > 0 {
			select {
			case lines <- l:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				select {
				case lines <- line{err: err}:
				case <-ctx.Done():
				}
			}
			return
		}
	}
}
