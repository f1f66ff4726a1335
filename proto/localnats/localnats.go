// Package localnats runs a NATS server inside this process, so that the
// default installation needs nothing but the binary.
//
// The server opens no socket unless Config.Listen asks for one: connections of
// this process are made in memory through Server.InProcessConn, which
// satisfies nats.InProcessConnProvider. Without a data directory it is core
// NATS only; with one, JetStream keeps its files there.
//
// Only the binary and tests import this package: everything else sees a
// connection and cannot tell a local server from a cluster.
package localnats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// readyTimeout bounds the wait for the server to come up; it takes a few
// milliseconds, and longer only when JetStream recovers large files.
const readyTimeout = 30 * time.Second

// Config says what the server offers. The zero value is a server without
// sockets and without storage.
type Config struct {
	// Listen is the TCP address (host:port; port 0 picks a free one) for
	// clients of other processes. Empty: no TCP socket at all.
	Listen string
	// DataDir turns JetStream on and holds its files. It is locked while the
	// server runs: two servers on one directory corrupt it.
	DataDir string
	// MaxPayload is the largest NATS message in bytes; 0 means 1 MiB.
	MaxPayload int32
	// Logger receives the log of the server; nil discards it.
	Logger *slog.Logger
}

// Server is a running NATS server. Its methods may be called concurrently.
type Server struct {
	ns   *server.Server
	lock *os.File
	down chan struct{} // closed by Shutdown's first caller when all has stopped
	once chan struct{} // capacity 1: holds the right to shut down
}

// Start starts a server and returns when it takes connections. It fails when
// the address is taken or the data directory is in use.
func Start(cfg Config) (*Server, error) {
	logger := cfg.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	opts := &server.Options{
		ServerName: "millrace-local",
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
	s := &Server{down: make(chan struct{}), once: make(chan struct{}, 1)}
	if cfg.DataDir != "" {
		lock, err := lockDir(cfg.DataDir)
		if err != nil {
			return nil, fmt.Errorf("localnats: data directory %q: %w", cfg.DataDir, err)
		}
		s.lock = lock
		opts.JetStream = true
		opts.StoreDir = cfg.DataDir
		opts.JetStreamMaxMemory = 256 << 20
		// A single node has no replica to recover from, so an
		// acknowledged write must be on disk.
		opts.SyncAlways = true
	}

	ns, err := server.NewServer(opts)
	if err != nil {
		s.unlock()
		return nil, fmt.Errorf("localnats: %w", err)
	}
	s.ns = ns
	log := &serverLog{logger: logger, fatal: make(chan string, 1)}
	ns.SetLoggerV2(log, false, false, false)

	// Start does not block, and reports trouble only through the log.
	ns.Start()
	select {
	case msg := <-log.fatal:
		s.Shutdown()
		return nil, errors.New("localnats: " + msg)
	default:
	}
	if !ns.ReadyForConnections(readyTimeout) {
		s.Shutdown()
		return nil, fmt.Errorf("localnats: not ready after %v", readyTimeout)
	}
	return s, nil
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
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
	s.unlock()
	close(s.down)
}

func (s *Server) unlock() {
	if s.lock != nil {
		// Closing the file releases the lock.
		_ = s.lock.Close()
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
}

func (l *serverLog) Noticef(format string, v ...any) { l.logger.Debug(fmt.Sprintf(format, v...)) }
func (l *serverLog) Warnf(format string, v ...any)   { l.logger.Warn(fmt.Sprintf(format, v...)) }
func (l *serverLog) Errorf(format string, v ...any)  { l.logger.Error(fmt.Sprintf(format, v...)) }
func (l *serverLog) Debugf(format string, v ...any)  { l.logger.Debug(fmt.Sprintf(format, v...)) }
func (l *serverLog) Tracef(format string, v ...any)  { l.logger.Debug(fmt.Sprintf(format, v...)) }

func (l *serverLog) Fatalf(format string, v ...any) {
	msg := fmt.Sprintf(format, v...)
	l.logger.Error(msg)
	select {
	case l.fatal <- msg:
	default:
	}
}
