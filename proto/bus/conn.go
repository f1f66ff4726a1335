package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// defaultTenant is the tenant token when none is configured.
	defaultTenant = "main"
	// pendingBytes bounds what waits in this process for one subscription.
	// The windows keep it far below; reaching it is an alarm.
	pendingBytes = 256 << 20
)

// ConnConfig says how to reach the bus. One of URL and InProcess is needed.
type ConnConfig struct {
	// URL is one NATS URL or a comma-separated list.
	URL string
	// CredsFile is a file of NATS credentials, CAFile one of certificates of the
	// authorities to trust instead of the system's, CertFile and KeyFile are the
	// certificate to show, in PEM; "" means none. With a CAFile or a CertFile the
	// connection is TLS or fails. The files are read again for each connection
	// that is made, so they may be replaced. They are not used in process.
	CredsFile, CAFile, CertFile, KeyFile string
	// InProcess connects through memory to a server of this process.
	InProcess nats.InProcessConnProvider
	// Name is the name of the connection as operators see it.
	Name string
	// Tenant is the first token of every subject after "mr"; "" means "main".
	Tenant string
	// Logger receives connection events; nil discards them.
	Logger *slog.Logger
	// Dialer replaces the dialer, for tests with faults.
	Dialer nats.CustomDialer
}

// Conn is a connection to the bus, shared by the clients, servers and watchers
// of a process. Its methods may be called concurrently.
type Conn struct {
	nc      *nats.Conn
	tenant  string
	prefix  string // "mr.<tenant>."
	memory  bool   // the server is in this process
	pending int    // bytes that may wait here for one subscription
	logger  *slog.Logger
	// dead is closed when the connection has ended for good and not by Close.
	// The event goroutine of the connection closes it.
	dead   chan struct{}
	closed atomic.Bool // Close was called
	latest latestConn  // behind nc

	disconnects, faults, slow atomic.Uint64 // see ConnCounts

	mu        sync.Mutex
	listeners map[*connListener]struct{}
}

// connListener is told about the connection. The functions are called from the
// connection's own event goroutine and must not block.
type connListener struct {
	down func()                       // the connection was lost, and frames with it
	up   func()                       // it is back
	slow func(sub *nats.Subscription) // messages of sub were dropped here
}

// Connect opens a connection and returns when it is established. When ctx ends
// first, or the server refuses the credentials for good, it gives up and returns
// the reason. An established connection is reopened for ever when it is lost. Only
// when the server ends it with an error that the client library takes for final
// (the credentials are refused, a message is larger than a limit that was lowered
// meanwhile) it stays closed: then the Run methods of whatever uses it return an
// error.
func Connect(ctx context.Context, cfg ConnConfig) (*Conn, error) {
	logger := cfg.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	tenant := cfg.Tenant
	if tenant == "" {
		tenant = defaultTenant
	}
	if !validToken(tenant) {
		return nil, fmt.Errorf("bus: tenant %q: want 1 to %d of A-Z a-z 0-9 _ -", tenant, maxToken)
	}
	if cfg.URL == "" && cfg.InProcess == nil {
		return nil, errors.New("bus: neither a URL nor a server of this process is configured")
	}
	c := &Conn{
		tenant:    tenant,
		prefix:    "mr." + tenant + ".",
		pending:   pendingBytes,
		memory:    cfg.InProcess != nil || cfg.Dialer != nil,
		logger:    logger,
		dead:      make(chan struct{}),
		listeners: make(map[*connListener]struct{}),
	}
	connected := make(chan struct{}, 1) // the handler may run again; never closed, excess is dropped
	opts := []nats.Option{
		nats.Name(cfg.Name),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(500*time.Millisecond, 500*time.Millisecond),
		// Without a buffer a publish fails at once while disconnected. With
		// one, requests would run after their callers had left.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.CustomInboxPrefix(c.prefix + "e." + newID() + ".rq"),
		nats.ConnectHandler(func(*nats.Conn) {
			select {
			case connected <- struct{}{}:
			default:
			}
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // none: it was closed on purpose
				logger.Warn("bus connection lost", "error", err)
				c.disconnects.Add(1)
			}
			c.each(func(l *connListener) func() { return l.down })
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			logger.Info("bus connection restored", "server", nc.ConnectedServerName())
			c.each(func(l *connListener) func() { return l.up })
			// The first connection after a failed first attempt arrives here
			// in some versions of the client.
			select {
			case connected <- struct{}{}:
			default:
			}
		}),
		nats.ClosedHandler(func(nc *nats.Conn) {
			if !c.closed.Load() {
				logger.Error("bus connection closed for good", "error", nc.LastError())
				close(c.dead)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			logger.Error("bus error", "subject", subject, "error", err)
			c.faults.Add(1)
			if errors.Is(err, nats.ErrSlowConsumer) {
				c.slow.Add(1)
			}
			if sub != nil && errors.Is(err, nats.ErrSlowConsumer) {
				c.each(func(l *connListener) func() {
					if l.slow == nil {
						return nil
					}
					return func() { l.slow(sub) }
				})
			}
		}),
	}
	opts = append(opts, cfg.access()...)
	if cfg.InProcess != nil {
		opts = append(opts, nats.InProcessServer(gatherInProcess{cfg.InProcess, &c.latest}))
	}
	dialer := cfg.Dialer
	if dialer == nil {
		dialer = &net.Dialer{Timeout: nats.DefaultTimeout}
	}
	opts = append(opts, nats.SetCustomDialer(gatherDialer{dialer, &c.latest}))
	nc, err := nats.Connect(cfg.URL, opts...)
	if err != nil {
		return nil, fmt.Errorf("bus: connect: %w", err)
	}
	c.nc = nc
	if nc.IsConnected() {
		return c, nil
	}
	select {
	case <-connected:
		return c, nil
	case <-c.dead:
		err := c.deadError()
		c.Close()
		return nil, err
	case <-ctx.Done():
		last := nc.LastError()
		c.Close()
		return nil, fmt.Errorf("bus: not connected: %w", errors.Join(ctx.Err(), last))
	}
}

// access are the options that say as whom to connect.
func (cfg *ConnConfig) access() (opts []nats.Option) {
	if cfg.InProcess != nil {
		return nil
	}
	if cfg.CredsFile != "" {
		opts = append(opts, nats.UserCredentials(cfg.CredsFile))
	}
	if cfg.CAFile != "" {
		opts = append(opts, nats.RootCAs(cfg.CAFile))
	}
	if cfg.CertFile != "" || cfg.KeyFile != "" {
		opts = append(opts, nats.ClientCert(cfg.CertFile, cfg.KeyFile))
	}
	return opts
}

// NATS returns the underlying connection, for what this package does not cover.
func (c *Conn) NATS() *nats.Conn { return c.nc }

// Connected reports whether the connection is up now.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// Close closes the connection for good. What was published before is sent.
func (c *Conn) Close() {
	c.closed.Store(true)
	c.nc.Close()
	c.latest.close()
}

// deadError is what Run returns when the connection has ended for good.
func (c *Conn) deadError() error {
	err := c.nc.LastError()
	if err == nil {
		return errors.New("bus: the connection is closed for good")
	}
	return fmt.Errorf("bus: the server has closed the connection for good: %w", err)
}

// publish sends a message; reply may be "". It copies b.
func (c *Conn) publish(subject, reply string, b []byte) error {
	if reply == "" {
		return c.nc.Publish(subject, b)
	}
	return c.nc.PublishRequest(subject, reply, b)
}

// drain ends subscriptions after what is on the way to them was handled.
func (c *Conn) drain(subs ...*nats.Subscription) {
	if c.memory {
		// Whoever could still send something goes down with us. And the
		// client library waits with timers that it shares between
		// connections, which tests with fake time do not survive.
		for _, sub := range subs {
			unsubscribe(sub)
		}
		return
	}
	limit := time.NewTimer(stuckWait)
	defer limit.Stop()
	ended := make([]chan struct{}, 0, len(subs)) // each is closed by the client library
	for _, sub := range subs {
		done := make(chan struct{})
		sub.SetClosedHandler(func(string) { close(done) })
		if sub.Drain() == nil { // else it has ended already
			ended = append(ended, done)
		}
	}
	for _, done := range ended {
		select {
		case <-done:
		case <-limit.C:
			return
		}
	}
}

// listen registers l and returns the function that removes it.
func (c *Conn) listen(l *connListener) (remove func()) {
	c.mu.Lock()
	c.listeners[l] = struct{}{}
	c.mu.Unlock()
	return func() {
		c.mu.Lock()
		delete(c.listeners, l)
		c.mu.Unlock()
	}
}

func (c *Conn) each(pick func(*connListener) func()) {
	c.mu.Lock()
	var calls []func()
	for l := range c.listeners {
		if f := pick(l); f != nil {
			calls = append(calls, f)
		}
	}
	c.mu.Unlock()
	for _, f := range calls {
		f()
	}
}

// newID returns a random token of 10 characters: 50 bits, enough for ids that
// live as long as a process.
func newID() string {
	const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	for i, v := range b {
		b[i] = alphabet[v&31]
	}
	return string(b[:])
}
