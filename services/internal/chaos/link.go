package main

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link passes TCP connections on to one address, and can delay what they carry
// and reset them. The kernel of a test machine need not have netem for it.
type link struct {
	ln     net.Listener
	target string
	delay  atomic.Int64 // nanoseconds, for each direction

	mu    sync.Mutex
	conns map[*net.TCPConn]struct{}
}

func newLink(ln net.Listener, target string) *link {
	return &link{ln: ln, target: target, conns: map[*net.TCPConn]struct{}{}}
}

// run takes connections until ctx ends.
func (l *link) run(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = l.ln.Close() })()
	var open sync.WaitGroup
	defer open.Wait()
	defer l.reset()
	for {
		conn, err := l.ln.Accept()
		if err != nil {
			return
		}
		open.Go(func() { l.serve(ctx, conn.(*net.TCPConn)) })
	}
}

// reset ends all connections in both directions at once, and what is on the way
// is lost.
func (l *link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.conns {
		_ = conn.SetLinger(0) // an RST instead of a FIN
		_ = conn.Close()
	}
}

func (l *link) serve(ctx context.Context, in *net.TCPConn) {
	defer l.hold(in)()
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", l.target)
	if err != nil {
		_ = in.SetLinger(0) // nobody is there
		return
	}
	out := conn.(*net.TCPConn)
	defer l.hold(out)()
	var both sync.WaitGroup
	both.Go(func() { l.carry(out, in) })
	both.Go(func() { l.carry(in, out) })
	both.Wait()
}

// hold makes a connection one that reset ends, until the returned function is
// called, which closes it.
func (l *link) hold(conn *net.TCPConn) (drop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn] = struct{}{}
	return func() {
		_ = conn.Close() // it may have been reset
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.conns, conn)
	}
}

// parcel is some bytes on the way, and when they arrive.
type parcel struct {
	data []byte
	due  time.Time
}

// carry carries one direction. Its end ends the other one: the protocols here
// do not use half-closed connections.
func (l *link) carry(to, from *net.TCPConn) {
	parcels := make(chan parcel, 256) // closed by the reader; full: it waits, as TCP does
	var writing sync.WaitGroup
	writing.Go(func() {
		for p := range parcels {
			pause(context.Background(), time.Until(p.due)) // a delay is short
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close()    // wakes the reader
				for range parcels { // until the reader has noticed
				}
				return
			}
		}
		_ = to.Close() // as above
	})
	defer writing.Wait()
	defer close(parcels)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			parcels <- parcel{append([]byte(nil), buf[:n]...), time.Now().Add(time.Duration(l.delay.Load()))}
		}
		if err != nil {
			if err != io.EOF {
				_ = to.SetLinger(0) // a reset travels on
			}
			return
		}
	}
}
