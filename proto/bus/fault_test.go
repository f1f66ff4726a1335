package bus

import (
	"bytes"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/proto/localnats"
)

// faults are what happens to the messages of connections on their way from and
// to the server. The zero value lets everything through.
type faults struct {
	ns *localnats.Server
	// fate decides about each message, by one goroutine at a time for each
	// direction of a connection: 0 lets it through, a positive time is how much
	// later it goes to the server, out of order as NATS itself would not do it,
	// and anything else loses it. Set before the first connection; nil lets all
	// through.
	fate func(toServer bool, subject, reply string, payload []byte) time.Duration

	mu   sync.Mutex
	held chan struct{} // closed when reading may go on; nil: nothing is held
}

// Dial connects in memory.
func (f *faults) Dial(string, string) (net.Conn, error) {
	conn, err := f.ns.InProcessConn()
	if err != nil {
		return nil, err
	}
	return &faultConn{Conn: conn, f: f}, nil
}

// hold keeps what the server sends from being read until release.
func (f *faults) hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = make(chan struct{})
}

func (f *faults) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held != nil {
		close(f.held)
		f.held = nil
	}
}

// connectFaulty is connect through faults.
func connectFaulty(t testing.TB, f *faults) *Conn {
	t.Helper()
	conn, err := Connect(within(t), ConnConfig{URL: "nats://127.0.0.1:1", Dialer: f, Name: t.Name(), Logger: newLog(t).logger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	t.Cleanup(f.release)
	return conn
}

// lose is the fate of a message that never arrives.
const lose time.Duration = -1

// faultConn takes the protocol of NATS apart. One goroutine reads and one writes.
type faultConn struct {
	net.Conn
	f       *faults
	out, in []byte // incomplete messages
	ready   []byte // what may be read
}

func (c *faultConn) Write(p []byte) (int, error) {
	c.out = append(c.out, p...)
	var pass []byte
	c.out = c.pass(c.out, true, &pass)
	if len(pass) > 0 {
		if _, err := c.Conn.Write(pass); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (c *faultConn) Read(p []byte) (int, error) {
	for len(c.ready) == 0 {
		var b [32 << 10]byte
		n, err := c.Conn.Read(b[:])
		c.f.mu.Lock()
		held := c.f.held
		c.f.mu.Unlock()
		if held != nil {
			<-held
		}
		c.in = append(c.in, b[:n]...)
		c.in = c.pass(c.in, false, &c.ready)
		if err != nil {
			return 0, err
		}
	}
	n := copy(p, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

// pass moves the complete messages of b that are not dropped to to, and returns
// the rest.
func (c *faultConn) pass(b []byte, toServer bool, to *[]byte) (rest []byte) {
	for {
		i := bytes.Index(b, []byte("\r\n"))
		if i < 0 {
			return b
		}
		end := i + 2
		fields := strings.Fields(string(b[:i]))
		var fate time.Duration
		if len(fields) > 2 && (fields[0] == "PUB" || fields[0] == "HPUB" || fields[0] == "MSG" || fields[0] == "HMSG") {
			size, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil {
				panic("faults: " + string(b[:i]))
			}
			if len(b) < end+size+2 {
				return b
			}
			payload := b[end : end+size]
			end += size + 2
			reply := ""
			numbers, names := 1, 2 // at the end, at the beginning
			if strings.HasPrefix(fields[0], "H") {
				numbers++
			}
			if !toServer {
				names++
			}
			if len(fields) == names+1+numbers {
				reply = fields[names]
			}
			if c.f.fate != nil {
				fate = c.f.fate(toServer, fields[1], reply, payload)
			}
		}
		switch {
		case fate == 0:
			*to = append(*to, b[:end]...)
		case fate > 0 && toServer:
			late := bytes.Clone(b[:end])
			time.AfterFunc(fate, func() { _, _ = c.Conn.Write(late) }) // the connection may be closed by then
		}
		b = b[end:]
	}
}
