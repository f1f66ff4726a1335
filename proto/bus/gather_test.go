package bus

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// countingConn counts writes, and waits with each for a permission.
type countingConn struct {
	net.Conn

	permit chan struct{} // nil: everything is permitted

	mu     sync.Mutex
	writes int
	fail   error
}

func (c *countingConn) Write(p []byte) (int, error) {
	if c.permit != nil {
		<-c.permit
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	if c.fail != nil {
		return 0, c.fail
	}
	return c.Conn.Write(p)
}

func (c *countingConn) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

// readAll collects what arrives at the other end; get returns it when that was
// closed.
func readAll(conn net.Conn) (get func() []byte) {
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(conn) // a closed pipe is the end
		got <- b
	}()
	return func() []byte { return <-got }
}

func TestWritesAreGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		got := readAll(far)
		raw := &countingConn{Conn: near, permit: make(chan struct{})}
		c := newGatherConn(raw)
		var want []byte
		write := func(n int) {
			t.Helper()
			p := randomBytes(n)
			want = append(want, p...)
			if k, err := c.Write(p); k != n || err != nil {
				t.Errorf("wrote %d, %v", k, err)
			}
		}
		write(10)
		synctest.Wait() // the first write stands at the socket
		for range 1000 {
			write(20)
		}
		write(gatherDirect) // not before the others
		raw.permit <- struct{}{}
		raw.permit <- struct{}{}
		synctest.Wait()
		if n := raw.count(); n != 2 {
			t.Errorf("%d writes", n)
		}
		close(raw.permit)
		write(2 * gatherDirect) // alone: as it is
		write(1)
		synctest.Wait()
		if n := raw.count(); n != 4 {
			t.Errorf("%d writes", n)
		}
		write(5)
		if err := c.Close(); err != nil { // and what waits is written
			t.Error(err)
		}
		if !bytes.Equal(got(), want) {
			t.Error("something else arrived")
		}
		if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a second Close: %v", err)
		}
	})
}

func TestAGatheringConnectionFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		broken := errors.New("broken")
		c := newGatherConn(&countingConn{Conn: near, fail: broken})
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		// The reader learns it, and the next to write.
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the reader goes on")
		}
		if _, err := c.Write([]byte("y")); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
		_ = c.Close()
	})
}

// A peer that reads nothing holds a bounded amount, and not for ever.
func TestAGatheringConnectionStalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		c := newGatherConn(near)
		began := time.Now()
		written := 0
		var err error
		for err == nil {
			_, err = c.Write(make([]byte, 10_000))
			written += 10_000
		}
		if written > 2*(gatherRoom+10_000) { // one group at the socket and one behind it
			t.Errorf("%d bytes were taken", written)
		}
		if took := time.Since(began); took != gatherStall {
			t.Errorf("gave up after %v", took)
		}
		_ = c.Close()

		near, far = net.Pipe()
		defer far.Close()
		c = newGatherConn(near)
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		began = time.Now()
		_ = c.Close()
		if took := time.Since(began); took != gatherLinger {
			t.Errorf("Close took %v", took)
		}
	})
}

// A large write has the deadline of its writer.
func TestADirectWriteHasADeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		c := newGatherConn(near)
		began := time.Now()
		if err := c.SetDeadline(began.Add(3 * time.Second)); err != nil {
			t.Error(err)
		}
		if _, err := c.Write(make([]byte, gatherDirect)); err == nil {
			t.Error("written to nobody")
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("took %v", took)
		}
		_ = c.Close()
	})
}
