package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// edge is a backend of a test.
type edge struct {
	*httptest.Server
	unready     atomic.Bool
	connections atomic.Int64 // that brought a request other than a probe
	served      atomic.Int64
	handler     http.HandlerFunc
}

func startEdge(t *testing.T, handler http.HandlerFunc) *edge {
	t.Helper()
	e := &edge{handler: handler}
	type connKey struct{}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			if e.unready.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			return
		}
		if first, ok := r.Context().Value(connKey{}).(*atomic.Bool); ok && !first.Swap(true) {
			e.connections.Add(1)
		}
		e.served.Add(1)
		e.handler(w, r)
	}))
	e.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, &atomic.Bool{})
	}
	e.Start()
	t.Cleanup(e.Close)
	return e
}

// startProxy puts a proxy in front of backends and returns it, its URL and a
// client; it waits until n of them are ready.
func startProxy(t *testing.T, n int, backends ...Backend) (*Proxy, string, *http.Client) {
	t.Helper()
	p, err := New(Config{Backends: backends, Interval: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	front := httptest.NewServer(p)
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		front.Close()
		cancel()
		<-done
	})
	awaitReady(t, p, n)
	return p, front.URL, &http.Client{Transport: transport}
}

// awaitReady waits until exactly n backends are ready.
func awaitReady(t *testing.T, p *Proxy, n int) {
	t.Helper()
	patience := time.After(20 * time.Second)
	for {
		p.mu.Lock()
		changed, ready := p.changed, 0
		for _, b := range p.backends {
			if b.ready {
				ready++
			}
		}
		p.mu.Unlock()
		if ready == n {
			return
		}
		select {
		case <-changed:
		case <-patience:
			t.Fatalf("%d backends are ready, want %d", ready, n)
		}
	}
}

// send makes a request and returns the status, who served it and the body.
func send(t *testing.T, client *http.Client, method, url, body string) (status int, by, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get(HeaderServedBy), string(all)
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = io.WriteString(w, r.Method+" "+r.URL.RequestURI()+" "+r.Host+" "+string(body))
}

// TestRoundRobin: each in its turn, however the client reuses its connection,
// each request on a connection of its own, the request as it came.
func TestRoundRobin(t *testing.T) {
	t.Parallel()
	var backends []Backend
	var edges []*edge
	for _, name := range []string{"a", "b", "c"} {
		e := startEdge(t, echo)
		edges = append(edges, e)
		backends = append(backends, Backend{name, e.URL})
	}
	p, url, client := startProxy(t, 3, backends...)
	var order strings.Builder
	for range 9 {
		status, by, answer := send(t, client, http.MethodPost, url+"/mcp?x=1", "body")
		if want := "POST /mcp?x=1 " + strings.TrimPrefix(url, "http://") + " body"; status != http.StatusOK || answer != want {
			t.Fatalf("status %d, answer %q, want %q", status, answer, want)
		}
		order.WriteString(by)
	}
	if got, round := order.String(), strings.Repeat("abc", 4); !strings.Contains(round, got) {
		t.Errorf("served by %s, want each in its turn", got)
	}
	for i, e := range edges {
		if e.connections.Load() != 3 || e.served.Load() != 3 {
			t.Errorf("backend %d: %d requests on %d connections, want 3 on 3", i, e.served.Load(), e.connections.Load())
		}
	}

	// One that is not ready is left out, and comes back.
	edges[1].unready.Store(true)
	awaitReady(t, p, 2)
	for range 6 {
		if status, by, _ := send(t, client, http.MethodGet, url, ""); status != http.StatusOK || by == "b" {
			t.Errorf("status %d by %s, which is not ready", status, by)
		}
	}
	edges[1].unready.Store(false)
	awaitReady(t, p, 3)
	before := edges[1].served.Load()
	for range 3 {
		send(t, client, http.MethodGet, url, "")
	}
	if got := edges[1].served.Load() - before; got != 1 {
		t.Errorf("the backend that came back served %d of 3", got)
	}
}

// TestNoneReady: without an edge there is an error that says to come again.
func TestNoneReady(t *testing.T) {
	t.Parallel()
	e := startEdge(t, echo)
	e.unready.Store(true)
	_, url, client := startProxy(t, 0, Backend{"a", e.URL})
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("status %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
}

// TestNextWhenThereIsNoConnection: what has reached nobody goes to the next
// one, body and all; what has reached an edge is never sent again.
func TestNextWhenThereIsNoConnection(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	good := startEdge(t, echo)
	bad := startEdge(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	// Nothing asks for readiness here: that a backend has died is not known yet.
	p, err := New(Config{Backends: []Backend{{"dead", "http://" + closed.Addr().String()}, {"good", good.URL}, {"bad", bad.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range p.backends {
		b.ready = true
	}
	front := httptest.NewServer(p)
	defer front.Close()
	client := front.Client()

	status, by, answer := send(t, client, http.MethodPost, front.URL, "body") // dead's turn
	if status != http.StatusOK || by != "good" || !strings.HasSuffix(answer, " body") {
		t.Errorf("status %d by %s: %q, want that of the next one", status, by, answer)
	}
	if status, by, _ := send(t, client, http.MethodPost, front.URL, "body"); status != http.StatusOK || by != "good" { // its own turn
		t.Errorf("status %d by %s", status, by)
	}
	if status, _, _ := send(t, client, http.MethodPost, front.URL, "body"); status != http.StatusBadGateway {
		t.Errorf("status %d from an edge that broke off, want 502", status)
	}
	if good.served.Load() != 2 || bad.served.Load() != 1 {
		t.Errorf("good served %d and bad %d, want 2 and 1", good.served.Load(), bad.served.Load())
	}
}

// TestStreams: events arrive one by one; the end of either side is seen by the
// other.
func TestStreams(t *testing.T) {
	t.Parallel()
	next := make(chan string)     // what the edge writes; closed: it breaks off
	left := make(chan error, 100) // how requests ended, as the edge saw it
	e := startEdge(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for {
			select {
			case text, ok := <-next:
				if !ok {
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(w, text+"\n")
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				left <- r.Context().Err()
				return
			}
		}
	})
	_, url, client := startProxy(t, 1, Backend{"a", e.URL})
	open := func(ctx context.Context) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}

	ctx, leave := context.WithCancel(t.Context())
	lines := bufio.NewScanner(open(ctx).Body)
	for _, text := range []string{"one", "two"} {
		next <- text // the next one is not written before this one has arrived
		if !lines.Scan() || lines.Text() != text {
			t.Fatalf("read %q, %v, want %s", lines.Text(), lines.Err(), text)
		}
	}
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the edge saw %v when the client left", err)
	}

	lines = bufio.NewScanner(open(t.Context()).Body)
	next <- "three"
	if !lines.Scan() {
		t.Fatal(lines.Err())
	}
	close(next)
	if lines.Scan() || lines.Err() == nil {
		t.Errorf("read %q and no error from an edge that broke off: that looks like a good end", lines.Text())
	}
}

// TestAnswerBeforeTheBodyEnds: an answer that begins early neither waits for
// the body of its request nor is cut off by it.
func TestAnswerBeforeTheBodyEnds(t *testing.T) {
	t.Parallel()
	e := startEdge(t, func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := errors.Join(control.EnableFullDuplex(), control.Flush()); err != nil {
			t.Error(err)
		}
		body, err := io.ReadAll(r.Body)
		_, _ = w.Write(body)
		if err != nil {
			t.Errorf("the edge read %q and %v", body, err)
		}
	})
	_, url, client := startProxy(t, 1, Backend{"a", e.URL})
	body, rest := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req) // returns when the answer has begun
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.WriteString(rest, "all of it"); err != nil {
		t.Fatal(err)
	}
	rest.Close()
	if answer, err := io.ReadAll(resp.Body); err != nil || string(answer) != "all of it" {
		t.Errorf("the answer is %q, %v", answer, err)
	}
}

// TestAnswerThatEndsBeforeTheBody: the connection of a request that its edge
// did not read to the end serves the next one.
func TestAnswerThatEndsBeforeTheBody(t *testing.T) {
	t.Parallel()
	e := startEdge(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "early") })
	_, url, _ := startProxy(t, 1, Backend{"a", e.URL})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(conn)
	for i := range 20 {
		for _, part := range []string{"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf", "other"} {
			if _, err := io.WriteString(conn, part); err != nil {
				t.Fatal(err)
			}
			if part == "other" {
				break
			}
			resp, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
			answer, err := io.ReadAll(resp.Body)
			if err != nil || string(answer) != "early" {
				t.Fatalf("request %d: the answer is %q, %v", i, answer, err)
			}
			if resp.Close {
				t.Fatalf("request %d: the connection is closed", i)
			}
		}
	}
}

// TestManyAtOnce: concurrent requests are spread evenly.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	var backends []Backend
	var edges []*edge
	for _, name := range []string{"a", "b", "c"} {
		e := startEdge(t, echo)
		edges = append(edges, e)
		backends = append(backends, Backend{name, e.URL})
	}
	_, url, client := startProxy(t, 3, backends...)
	var senders sync.WaitGroup
	for range 30 {
		senders.Go(func() {
			resp, err := client.Get(url)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		})
	}
	senders.Wait()
	for i, e := range edges {
		if e.served.Load() != 10 {
			t.Errorf("backend %d served %d of 30", i, e.served.Load())
		}
	}
}

// TestNoOrigin: a backend needs one.
func TestNoOrigin(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "127.0.0.1:80", "https://127.0.0.1", "http://", ":"} {
		if _, err := New(Config{Backends: []Backend{{"a", url}}}); err == nil {
			t.Errorf("%q is taken", url)
		}
	}
}
