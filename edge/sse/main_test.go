package sse

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipes is a listener whose connections are net.Pipes: no buffers, so a client
// that does not read stalls the server at once.
type pipes struct {
	conns chan net.Conn // closed by nobody; done ends both sides
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// serve runs a test in a bubble of fake time with a real HTTP server. The
// handler is made inside, for the channels it shares with the test must be.
func serve(t *testing.T, in func(t *testing.T, s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &site{pipes: pipes{conns: make(chan net.Conn), done: make(chan struct{})}}
		s.server.Protocols = new(http.Protocols)
		s.server.Protocols.SetHTTP1(true)
		s.server.Protocols.SetUnencryptedHTTP2(true)
		s.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.handler(w, r) })
		ended := make(chan error, 1)
		go func() { ended <- s.server.Serve(&s.pipes) }()
		in(t, s)
		if err := s.server.Close(); err != nil {
			t.Error(err)
		}
		<-ended
		synctest.Wait()
	})
}

// site is a server in a bubble; set handler before the first request.
type site struct {
	pipes
	server  http.Server
	handler http.HandlerFunc
}

// get sends a request on a connection of its own and reads the answer's head.
func get(t *testing.T, p *site, version string) (net.Conn, *http.Response) {
	t.Helper()
	c, err := p.dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET / HTTP/"+version+"\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, r
}
