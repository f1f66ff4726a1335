package edge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"github.com/millrace/millrace/edge/jsonrpc"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/edge/exchange"
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
	s := &stdio{out: out, cancel: cancel}
	s.connection = connection{edge: e, peer: &exchange.Peer{Scope: rand.Text()}, write: s.writeLine}
	if w, ok := out.(ReadWaiter); ok {
		s.awaitRead = func(time.Time) { w.WaitRead(readWait) }
	}
	stopListening := s.listen(ctx, nil)
	defer stopListening()

	lines := make(chan line) // unbuffered: a line is read when the last was taken
	go readLines(ctx, in, e.cfg.Limits.MaxBytes, lines)
	for {
		select {
		case l, ok := <-lines:
			if ok && l.err == nil {
				s.acceptLine(ctx, l)
				continue
			}
			if l.err != nil {
				e.log.Warn("stdin ended with an error", "error", l.err)
			}
			s.drain(ctx)
			return s.err()
		case <-ctx.Done():
			s.running.Wait()
			return s.err()
		}
	}
}

// stdio is one connection.
type stdio struct {
	connection

	cancel context.CancelCauseFunc

	mu       sync.Mutex // one message at a time on out
	out      io.Writer
	writeErr error
}

// acceptLine starts serving one line. A line that was cut off is over the limit
// and gives the error for that.
func (s *stdio) acceptLine(ctx context.Context, l line) {
	if len(bytes.TrimSpace(l.data)) == 0 {
		return
	}
	p := s.edge.decode(l.data, nil)
	if p.err != nil && !isNotification(&p.msg, p.err) {
		// Who runs a client by hand sees here why it gets nothing else.
		s.edge.log.Warn("a line of stdin is no message", "error", p.err)
	}
	s.accept(ctx, p)
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

// drain lets running calls finish within the grace period, then cancels them.
func (s *stdio) drain(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		s.running.Wait()
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

// writeLine writes one message as one line. After the first failure the
// connection is over: running calls are cancelled.
func (s *stdio) writeLine(msg jsonrpc.Pieces) error {
	line := oneLineEach(msg)
	if line.Len() < jsonrpc.LargeBytes {
		line = jsonrpc.Whole(line.Join())
	}
	last := &line[len(line)-1] // small, or the only one
	*last = append(slices.Clip(*last), '\n')
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, piece := range line {
		if s.writeErr != nil {
			break
		}
		if _, err := s.out.Write(piece); err != nil {
			s.writeErr = fmt.Errorf("%w: %w", errStdio, err)
			s.cancel(s.writeErr)
		}
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
