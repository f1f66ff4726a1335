// Package proxy is the load balancer of a development cluster: plain round
// robin over the edges that are ready, and nothing that could hide a mistake of
// theirs. It knows no sessions, opens a new connection for every request, and
// repeats a request only when no connection could be made for it.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// HeaderServedBy names, in every answer, the backend that gave it.
const HeaderServedBy = "Dev-Cluster-Served-By"

// Backend is an edge.
type Backend struct {
	// Name is how logs and HeaderServedBy call it.
	Name string
	// URL is its origin, such as http://127.0.0.1:8081.
	URL string
}

// Config says what the proxy stands in front of.
type Config struct {
	Backends []Backend
	// Interval is the time between two questions for /readyz to each backend;
	// 0 means 200 ms.
	Interval time.Duration
	// Patience is how long a backend may take to answer that question, and to
	// take a connection; 0 means 1 s.
	Patience time.Duration
	// Logger takes changes of readiness and failed requests; nil discards.
	Logger *slog.Logger
}

// Proxy is a handler that passes requests on. Until Run has asked a backend
// whether it is ready, it gets none. Its methods may be called concurrently.
type Proxy struct {
	interval, patience time.Duration
	log                *slog.Logger
	backends           []*backend
	handler            *httputil.ReverseProxy
	probe              *http.Client

	mu      sync.Mutex
	turn    int           // the next backend in the round
	changed chan struct{} // closed and replaced when readiness changes
}

// backend is an edge and what is known of it.
type backend struct {
	name   string
	origin *url.URL
	ready  bool // guarded by Proxy.mu
}

// New returns a proxy. It fails when an origin is not one.
func New(cfg Config) (*Proxy, error) {
	p := &Proxy{
		interval: cmp.Or(cfg.Interval, 200*time.Millisecond),
		patience: cmp.Or(cfg.Patience, time.Second),
		log:      cfg.Logger,
		changed:  make(chan struct{}),
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	for _, b := range cfg.Backends {
		origin, err := url.Parse(b.URL)
		if err != nil || origin.Scheme != "http" || origin.Host == "" {
			return nil, fmt.Errorf("proxy: %q is no origin of a backend", b.URL)
		}
		p.backends = append(p.backends, &backend{name: b.Name, origin: origin})
	}
	// A connection for each request: one that is kept would stick to its edge.
	// Bytes pass as they are, compressed or not.
	transport := &http.Transport{
		DialContext:        p.dial,
		DisableKeepAlives:  true,
		DisableCompression: true,
	}
	p.probe = &http.Client{Transport: transport, Timeout: p.patience}
	p.handler = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			// Host stays what the client wrote: the edge judges it.
			r.SetXForwarded()
		},
		Transport:     &roundRobin{p, transport},
		FlushInterval: -1, // events leave one by one
		ErrorHandler:  p.failed,
		ErrorLog:      slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	return p, nil
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Otherwise the server closes the body of the request when the answer
	// begins, and a transport that is still looking for the end of that body
	// takes the connection down, answer and all. HTTP/2 needs no asking.
	_ = http.NewResponseController(w).EnableFullDuplex()
	p.handler.ServeHTTP(w, r)
	// What an early answer has left of the body is read while this request is
	// served: the server would do it when it already reads the next one, and
	// panic. An error is that of a client that has left.
	_ = r.Body.Close()
}

// Run asks the backends whether they are ready until ctx ends.
func (p *Proxy) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, b := range p.backends {
		g.Go(func() error {
			p.watch(ctx, b)
			return nil
		})
	}
	return g.Wait()
}

// WaitReady returns when all backends are ready, or with an error that names
// those that are not when ctx ends.
func (p *Proxy) WaitReady(ctx context.Context) error {
	for {
		p.mu.Lock()
		changed, missing := p.changed, []string(nil)
		for _, b := range p.backends {
			if !b.ready {
				missing = append(missing, b.name)
			}
		}
		p.mu.Unlock()
		if missing == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("proxy: not ready: %v: %w", missing, context.Cause(ctx))
		}
	}
}

// watch keeps what is known of one backend.
func (p *Proxy) watch(ctx context.Context, b *backend) {
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	for {
		ready := p.ask(ctx, b)
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		changed := b.ready != ready
		if changed {
			b.ready = ready
			close(p.changed)
			p.changed = make(chan struct{})
		}
		p.mu.Unlock()
		if changed {
			p.log.Info("readiness changed", "backend", b.name, "ready", ready)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// ask asks one backend whether it is ready.
func (p *Proxy) ask(ctx context.Context, b *backend) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.origin.JoinPath("readyz").String(), nil)
	if err != nil {
		return false
	}
	resp, err := p.probe.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // the status is all
	return resp.StatusCode == http.StatusOK
}

// order is the ready backends, the one whose turn it is first.
func (p *Proxy) order() []*backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	ready := make([]*backend, 0, len(p.backends))
	for i := range p.backends {
		if b := p.backends[(p.turn+i)%len(p.backends)]; b.ready {
			ready = append(ready, b)
		}
	}
	if len(ready) > 0 {
		for i, b := range p.backends {
			if b == ready[0] {
				p.turn = i + 1
			}
		}
	}
	return ready
}

var (
	errNoneReady   = errors.New("proxy: no edge is ready")
	errUnreachable = errors.New("proxy: no connection")
)

// dial makes a connection and marks the error of one that cannot be made.
func (p *Proxy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: p.patience}).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return conn, nil
}

// roundRobin sends each request to the backend whose turn it is.
type roundRobin struct {
	proxy     *Proxy
	transport *http.Transport
}

// RoundTrip implements http.RoundTripper. A request that has reached a backend
// is never sent to another one: who repeats a call runs it twice.
func (t *roundRobin) RoundTrip(req *http.Request) (*http.Response, error) {
	err := errNoneReady
	for _, b := range t.proxy.order() {
		out := req.WithContext(req.Context()) // a shallow copy: a RoundTripper leaves its request alone
		to := *req.URL
		to.Scheme, to.Host = b.origin.Scheme, b.origin.Host
		out.URL = &to
		if req.Body != nil {
			// The transport would close the body of a request that it could not
			// send, and the next backend is to get it. ReverseProxy closes it.
			out.Body = io.NopCloser(req.Body)
		}
		var resp *http.Response
		if resp, err = t.transport.RoundTrip(out); err == nil {
			resp.Header.Set(HeaderServedBy, b.name)
			return resp, nil
		}
		if !errors.Is(err, errUnreachable) || req.Context().Err() != nil {
			return nil, fmt.Errorf("%s: %w", b.name, err)
		}
	}
	return nil, err
}

// failed answers a request that got no answer.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the client has left; the edge has seen its connection end
	}
	p.log.Warn("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	status := http.StatusBadGateway
	if errors.Is(err, errNoneReady) || errors.Is(err, errUnreachable) {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, http.StatusText(status), status)
}
