package load

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/millrace/millrace/proto/localnats"
)

// link is how long a byte takes from one end of a connection to the other.
const link = 200 * time.Microsecond

// delayed dials a server in this process over connections with a delay.
type delayed struct{ ns *localnats.Server }

// Dial connects in memory.
func (d delayed) Dial(string, string) (net.Conn, error) {
	conn, err := d.ns.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &delayConn{Conn: conn, out: make(chan chunk, 1<<16), in: make(chan chunk, 1<<16), quit: make(chan struct{})}
	go c.write()
	go c.read()
	return c, nil
}

// chunk is what was sent in one piece, and when it arrives.
type chunk struct {
	at   time.Time
	data []byte
	err  error
}

// delayConn delays both directions. Its channels are larger than any test fills
// them; the sender of each waits otherwise, as a socket would. They are never
// closed.
type delayConn struct {
	net.Conn
	out, in chan chunk
	quit    chan struct{} // closed by Close
	once    sync.Once
	rest    chunk
}

func (c *delayConn) Write(p []byte) (int, error) {
	select {
	case c.out <- chunk{at: time.Now().Add(link), data: append([]byte(nil), p...)}:
		return len(p), nil
	case <-c.quit:
		return 0, net.ErrClosed
	}
}

func (c *delayConn) write() {
	for {
		select {
		case k := <-c.out:
			<-time.After(time.Until(k.at))
			if _, err := c.Conn.Write(k.data); err != nil {
				return
			}
		case <-c.quit:
			return
		}
	}
}

func (c *delayConn) read() {
	for {
		b := make([]byte, 32<<10)
		n, err := c.Conn.Read(b)
		select {
		case c.in <- chunk{at: time.Now().Add(link), data: b[:n], err: err}:
		case <-c.quit:
			return
		}
		if err != nil {
			return
		}
	}
}

func (c *delayConn) Read(p []byte) (int, error) {
	for len(c.rest.data) == 0 {
		if c.rest.err != nil {
			return 0, c.rest.err
		}
		select {
		case c.rest = <-c.in:
			<-time.After(time.Until(c.rest.at))
		case <-c.quit:
			return 0, io.EOF
		}
	}
	n := copy(p, c.rest.data)
	c.rest.data = c.rest.data[n:]
	return n, nil
}

func (c *delayConn) Close() error {
	c.once.Do(func() { close(c.quit) })
	return c.Conn.Close()
}

// Deadlines are not kept: nothing here waits without an end.

func (c *delayConn) SetDeadline(time.Time) error      { return nil }
func (c *delayConn) SetReadDeadline(time.Time) error  { return nil }
func (c *delayConn) SetWriteDeadline(time.Time) error { return nil }
