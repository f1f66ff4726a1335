package bus

import (
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// gatherRoom bounds what waits for the socket; a writer waits beyond it.
	gatherRoom = 256 << 10
	// gatherDirect is the size from which bytes are written where they are: to
	// copy them would cost more than the system call that it saves.
	gatherDirect = 32 << 10
	// gatherStall is how long a writer waits for room before the connection
	// counts as broken.
	gatherStall = time.Minute
	// gatherLinger is how long Close tries to get rid of what waits.
	gatherLinger = 500 * time.Millisecond
)

// gatherConn writes in groups. The client library flushes as soon as something
// was published, which under load is a system call for each message, made while
// all publishers wait. Here a flush is a copy, and one goroutine writes whatever
// has come together: it lets everybody go on who is ready to run before it
// writes, and what comes during a write goes with the next.
//
// An error of a write is reported by the next one, and closes the connection, so
// that the reader notices at once.
type gatherConn struct {
	net.Conn

	// wake says that there is something to write. Capacity 1 and never closed:
	// a full channel holds the news already.
	wake chan struct{}
	quit chan struct{} // closed by Close
	done chan struct{} // closed by the goroutine when it has ended

	mu       sync.Mutex
	changed  sync.Cond // something was written, or nothing will be any more
	buf      []byte
	spare    []byte // the other of two buffers
	writing  bool   // somebody uses the socket without the lock
	deadline time.Time
	err      error
	closed   bool
}

func newGatherConn(conn net.Conn) *gatherConn {
	c := &gatherConn{
		Conn: conn,
		wake: make(chan struct{}, 1),
		quit: make(chan struct{}),
		done: make(chan struct{}),
	}
	c.changed.L = &c.mu
	go c.run()
	return c
}

// Write takes p; it waits only when too much is there already.
func (c *gatherConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(p) >= gatherDirect && len(c.buf) == 0 && !c.writing && c.err == nil && !c.closed {
		return c.directLocked(p)
	}
	if len(c.buf) >= gatherRoom {
		c.waitLocked()
	}
	if c.err != nil {
		return 0, c.err
	}
	if c.closed {
		return 0, net.ErrClosed
	}
	c.buf = append(c.buf, p...)
	if !c.writing {
		notify(c.wake)
	}
	return len(p), nil
}

// directLocked writes p from the caller's memory.
func (c *gatherConn) directLocked(p []byte) (int, error) {
	c.writing = true
	deadline := c.deadline
	c.mu.Unlock()
	_ = c.Conn.SetWriteDeadline(deadline) // an error comes again with the write
	n, err := c.Conn.Write(p)
	_ = c.Conn.SetWriteDeadline(time.Time{})
	c.mu.Lock()
	c.writtenLocked(err)
	if len(c.buf) > 0 {
		notify(c.wake)
	}
	return n, err
}

// waitLocked waits for room, and gives the connection up when there is none for
// too long.
func (c *gatherConn) waitLocked() {
	limit := time.AfterFunc(gatherStall, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.failLocked(os.ErrDeadlineExceeded)
	})
	defer limit.Stop()
	for len(c.buf) >= gatherRoom && c.err == nil && !c.closed {
		c.changed.Wait()
	}
}

func (c *gatherConn) writtenLocked(err error) {
	c.writing = false
	if err != nil {
		c.failLocked(err)
	}
	c.changed.Broadcast()
}

func (c *gatherConn) failLocked(err error) {
	if c.err == nil {
		c.err = err
		c.buf = nil
		_ = c.Conn.Close() // the first error is the one to report
	}
	c.changed.Broadcast()
}

// run writes until the connection is closed.
func (c *gatherConn) run() {
	defer close(c.done)
	for {
		select {
		case <-c.wake:
		case <-c.quit:
			return
		}
		// Whoever is about to publish does it now.
		runtime.Gosched()
		c.mu.Lock()
		for len(c.buf) > 0 && !c.writing {
			b := c.buf
			c.buf, c.spare = c.spare[:0], nil
			c.writing = true
			c.mu.Unlock()
			_, err := c.Conn.Write(b)
			c.mu.Lock()
			if cap(b) <= gatherRoom {
				c.spare = b
			}
			c.writtenLocked(err)
		}
		c.mu.Unlock()
	}
}

// Close writes what waits, if that is possible soon, and closes the connection.
func (c *gatherConn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.done
		return net.ErrClosed
	}
	c.closed = true
	if c.err == nil && (len(c.buf) > 0 || c.writing) {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(gatherLinger)) // without one the write fails by itself
		for c.err == nil && (len(c.buf) > 0 || c.writing) {
			c.changed.Wait()
		}
	}
	c.changed.Broadcast()
	c.mu.Unlock()
	close(c.quit)
	err := c.Conn.Close()
	<-c.done
	return err
}

// SetWriteDeadline is the deadline of those writes that happen at once; the
// others have limits of their own.
func (c *gatherConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return nil
}

// SetDeadline sets both deadlines.
func (c *gatherConn) SetDeadline(t time.Time) error {
	if err := c.SetWriteDeadline(t); err != nil {
		return err
	}
	return c.SetReadDeadline(t)
}

// latestConn is the connection that was made last. The client library forgets
// one without closing it when its beginning fails after the first time: a
// certificate or a password is refused, again and again. Then it makes another.
type latestConn struct {
	mu     sync.Mutex
	conn   *gatherConn // nil: none
	closed bool
}

// gather makes a connection gather, and closes the one before.
func (l *latestConn) gather(conn net.Conn) net.Conn {
	c := newGatherConn(conn)
	l.mu.Lock()
	before := l.conn
	l.conn = c
	closed := l.closed
	l.mu.Unlock()
	if before != nil {
		_ = before.Close() // most have been closed already
	}
	if closed {
		_ = c.Close()
	}
	return c
}

// close closes the connection that there is, and those that are still made.
func (l *latestConn) close() {
	l.mu.Lock()
	l.closed = true
	last := l.conn
	l.mu.Unlock()
	if last != nil {
		_ = last.Close() // as above
	}
}

// gatherDialer makes the connections of another dialer gather.
type gatherDialer struct {
	nats.CustomDialer

	latest *latestConn
}

// Dial connects.
func (d gatherDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.CustomDialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return d.latest.gather(conn), nil
}

// gatherInProcess does the same within the process.
type gatherInProcess struct {
	nats.InProcessConnProvider

	latest *latestConn
}

// InProcessConn connects.
func (p gatherInProcess) InProcessConn() (net.Conn, error) {
	conn, err := p.InProcessConnProvider.InProcessConn()
	if err != nil {
		return nil, err
	}
	return p.latest.gather(conn), nil
}
