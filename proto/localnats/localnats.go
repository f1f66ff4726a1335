// Package localnats runs a NATS server inside this process, so that the
// default installation needs nothing but the binary.
//
// The server opens no socket unless Config.Listen asks for one: connections of
// this process are made in memory through Server.InProcessConn, which
// satisfies nats.InProcessConnProvider. JetStream keeps its files in a data
// directory or, if asked, in a temporary one that ends with the server; without
// both it is core NATS only. Servers of several processes form a cluster when
// Config.ClusterListen and Config.Routes say so.
//
// Only the binary and tests import this package: everything else sees a
// connection and cannot tell a local server from a cluster.
package localnats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// readyTimeout bounds the wait for the server to come up; it takes a few
// milliseconds, and longer only when JetStream recovers large files.
const readyTimeout = 30 * time.Second

// readyPause is how long it is waited before the log is looked at again.
const readyPause = 100 * time.Millisecond

// maxMemory bounds what JetStream keeps in memory, in bytes. Streams reserve
// the most they may hold, so it is far from what is used.
const maxMemory = 1 << 30

// Config says what the server offers. The zero value is a server without
// sockets and without storage.
type Config struct {
	// Listen is the TCP address (host:port; port 0 picks a free one) for
	// clients of other processes. Empty: no TCP socket at all.
	Listen string
	// DataDir turns JetStream on and holds its files. It is locked while the
	// server runs: two servers on one directory corrupt it.
	DataDir string
	// JetStream turns JetStream on without a DataDir too: in a temporary folder
	// that is removed when the server stops.
	JetStream bool
	// Name is the name of the server, unique in its cluster; "" means
	// "millrace-local".
	Name string
	// ClusterListen is the TCP address (host:port; port 0 picks a free one)
	// for the other servers of a cluster. Empty: the server stands alone. A
	// cluster with JetStream needs the addresses of all its servers in the
	// Routes of each before it is formed: that is how a server knows how many
	// there are.
	ClusterListen string
	// ClusterName is the name of the cluster; "" means "millrace".
	ClusterName string
	// Routes are the cluster addresses (host:port) of the other servers; the
	// server's own one may be among them.
	Routes []string
	// MaxPayload is the largest NATS message in bytes; 0 means 1 MiB.
	MaxPayload int32
	// Logger receives the log of the server; nil discards it.
	Logger *slog.Logger
}

// Server is a running NATS server. Its methods may be called concurrently.
type Server struct {
	ns   *server.Server
	lock *os.File
	temp string        // removed at the end; "" when the files are to stay
	down chan struct{} // closed by Shutdown's first caller when all has stopped
	once chan struct{} // capacity 1: holds the right to shut down
	// healer looks after JetStream; nil without it.
	healer *healer
}

// Start starts a server and returns when it takes connections. It fails when
// the address is taken or the data directory is in use.
func Start(cfg Config) (*Server, error) {
	logger := cfg.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	opts := &server.Options{
		ServerName: cmp.Or(cfg.Name, "millrace-local"),
		DontListen: cfg.Listen == "",
		NoSigs:     true,
		MaxPayload: cfg.MaxPayload,
	}
	if opts.MaxPayload == 0 {
		opts.MaxPayload = 1 << 20
	}
	if cfg.Listen != "" {
		host, port, err := splitListen(cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("localnats: listen address %q: %w", cfg.Listen, err)
		}
		opts.Host, opts.Port = host, port
	}
	if err := cluster(opts, cfg); err != nil {
		return nil, err
	}
	s := &Server{down: make(chan struct{}), once: make(chan struct{}, 1)}
	if err := s.storage(opts, cfg); err != nil {
		s.release()
		return nil, err
	}

	ns, err := server.NewServer(opts)
	if err != nil {
		s.release()
		return nil, fmt.Errorf("localnats: %w", err)
	}
	s.ns = ns
	log := &serverLog{logger: logger, fatal: make(chan string, 1)}
	ns.SetLoggerV2(log, false, false, false)

	// Start does not block, and reports trouble only through the log.
	ns.Start()
	if err := log.awaitReady(ns); err != nil {
		s.Shutdown()
		return nil, err
	}
	if opts.JetStream {
		s.heal(opts.StoreDir, log)
	}
	return s, nil
}

// cluster sets how the server meets others.
func cluster(opts *server.Options, cfg Config) error {
	if cfg.ClusterListen == "" {
		if len(cfg.Routes) > 0 {
			return errors.New("localnats: routes to other servers need a cluster address of this one")
		}
		return nil
	}
	host, port, err := splitListen(cfg.ClusterListen)
	if err != nil {
		return fmt.Errorf("localnats: cluster address %q: %w", cfg.ClusterListen, err)
	}
	opts.Cluster = server.ClusterOpts{Name: cmp.Or(cfg.ClusterName, "millrace"), Host: host, Port: port}
	for _, route := range cfg.Routes {
		if _, _, err := splitListen(route); err != nil {
			return fmt.Errorf("localnats: route %q: %w", route, err)
		}
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats-route", Host: route})
	}
	return nil
}

// storage sets what JetStream may use. What it has taken is given back by
// release, also when it fails.
func (s *Server) storage(opts *server.Options, cfg Config) error {
	switch {
	case cfg.DataDir != "":
		lock, err := lockDir(cfg.DataDir)
		if err != nil {
			return fmt.Errorf("localnats: data directory %q: %w", cfg.DataDir, err)
		}
		s.lock = lock
		opts.StoreDir = cfg.DataDir
		// A single node has no replica to recover from, so an
		// acknowledged write must be on disk.
		opts.SyncAlways = cfg.ClusterListen == ""
	case cfg.JetStream:
		dir, err := os.MkdirTemp("", "millrace-nats-")
		if err != nil {
			return fmt.Errorf("localnats: temporary folder: %w", err)
		}
		s.temp, opts.StoreDir = dir, dir
	default:
		return nil
	}
	opts.JetStream = true
	opts.JetStreamMaxMemory = maxMemory
	return nil
}

// JetStreamReady reports whether JetStream answers now: at once where the server
// stands alone, in a cluster once its servers have elected a leader.
func (s *Server) JetStreamReady() bool {
	return s.ns.JetStreamEnabled() && (!s.ns.JetStreamIsClustered() || s.ns.JetStreamIsCurrent())
}

// ClusterAddr returns the address under which the other servers of a cluster
// reach this one, or "" when it stands alone.
func (s *Server) ClusterAddr() string {
	if addr := s.ns.ClusterAddr(); addr != nil {
		return addr.String()
	}
	return ""
}

// InProcessConn returns a new connection to the server through memory.
func (s *Server) InProcessConn() (net.Conn, error) { return s.ns.InProcessConn() }

// ClientURL returns the URL under which other processes reach the server, or
// "" when it does not listen.
func (s *Server) ClientURL() string {
	if s.ns.Addr() == nil {
		return ""
	}
	return s.ns.ClientURL()
}

// Run waits until ctx is done and shuts the server down. It is the actor form
// of Shutdown and always returns nil.
func (s *Server) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-s.down:
	}
	s.Shutdown()
	return nil
}

// Shutdown stops the server and returns when it has stopped. It may be called
// more than once.
func (s *Server) Shutdown() {
	select {
	case s.once <- struct{}{}:
	default:
		<-s.down
		return
	}
	s.healer.close()
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
	s.release()
	close(s.down)
}

// release gives back the folder of JetStream.
func (s *Server) release() {
	if s.lock != nil {
		// Closing the file releases the lock.
		_ = s.lock.Close()
	}
	if s.temp != "" {
		// It lies where the system cleans up by itself: if something stays
		// behind, nobody has to know.
		_ = os.RemoveAll(s.temp)
	}
}

// awaitReady waits until the server can be reached, or has said why it never will.
func (l *serverLog) awaitReady(ns *server.Server) error {
	for began := time.Now(); ; {
		// What has failed in Start is said already; its routes begin beside it.
		select {
		case msg := <-l.fatal:
			return errors.New("localnats: " + msg)
		default:
		}
		switch {
		case ns.ReadyForConnections(readyPause):
			return nil
		case time.Since(began) > readyTimeout:
			return fmt.Errorf("localnats: not ready after %v", readyTimeout)
		}
	}
}

func splitListen(addr string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port %q is not a number", p)
	}
	if n == 0 {
		return host, server.RANDOM_PORT, nil
	}
	return host, int(n), nil
}

// serverLog passes the log of the server on. Notices are debug messages here:
// a server that starts and stops with the process is no news.
type serverLog struct {
	logger *slog.Logger
	fatal  chan string // capacity 1, never closed; the first fatal message wins
	broken atomic.Bool // something cannot be written any more
}

func (l *serverLog) Noticef(format string, v ...any) { l.logger.Debug(fmt.Sprintf(format, v...)) }
func (l *serverLog) Warnf(format string, v ...any)   { l.logger.Warn(fmt.Sprintf(format, v...)) }
func (l *serverLog) Debugf(format string, v ...any)  { l.logger.Debug(fmt.Sprintf(format, v...)) }
func (l *serverLog) Tracef(format string, v ...any)  { l.logger.Debug(fmt.Sprintf(format, v...)) }

func (l *serverLog) Errorf(format string, v ...any) {
	msg := fmt.Sprintf(format, v...)
	if saysFull(msg) {
		l.broken.Store(true)
	}
	l.logger.Error(msg)
}

func (l *serverLog) Fatalf(format string, v ...any) {
	msg := fmt.Sprintf(format, v...)
	l.logger.Error(msg)
	select {
	case l.fatal <- msg:
	default:
	}
}
