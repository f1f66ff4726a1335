package bus

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/millrace/millrace/proto/bus/bustest"
	"github.com/millrace/millrace/proto/localnats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testLog writes to the log of a test, which shows it only on failure.
type testLog struct {
	mu sync.Mutex
	t  testing.TB
	b  strings.Builder
}

func newLog(t testing.TB) *testLog {
	if _, ok := t.(*testing.F); ok {
		return &testLog{} // its log is closed to what the fuzz target does
	}
	l := &testLog{t: t}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.t = nil
	})
	return l
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.b.Write(p)
		l.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

func (l *testLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *testLog) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// startNATS starts a server for one test.
func startNATS(t testing.TB) *localnats.Server {
	t.Helper()
	ns, err := localnats.Start(localnats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Shutdown)
	return ns
}

func connect(t testing.TB, ns *localnats.Server) *Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := Connect(ctx, ConnConfig{InProcess: ns, Name: t.Name(), Logger: newLog(t).logger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// actor runs f until the test ends or stop is called, whichever is first, and
// demands that it returns without an error.
func actor(t testing.TB, ready <-chan struct{}, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("actor: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("actor ended early: %v", err)
	}
	return stop
}

func startClient(t testing.TB, conn *Conn, cfg ClientConfig) *Client {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = newLog(t).logger()
	}
	c := NewClient(conn, cfg)
	actor(t, c.Ready(), c.Run)
	return c
}

// shortGrace is the grace period of servers whose end is not what is tested.
const shortGrace = 20 * time.Millisecond

// startServer serves the test service. Drains are short unless cfg says else.
func startServer(t testing.TB, conn *Conn, cfg ServerConfig, impl grpc_testing.TestServiceServer) (s *Server, stop func()) {
	t.Helper()
	if cfg.Pool == "" {
		cfg.Pool = "test"
	}
	if cfg.Grace == 0 {
		cfg.Grace = shortGrace
	}
	if cfg.Logger == nil {
		cfg.Logger = newLog(t).logger()
	}
	s = NewServer(conn, cfg)
	grpc_testing.RegisterTestServiceServer(s, impl)
	return s, actor(t, s.Ready(), s.Run)
}

// pair is a client and a server on connections of their own.
func pair(t testing.TB, impl grpc_testing.TestServiceServer) (grpc_testing.TestServiceClient, *Client, *Server) {
	t.Helper()
	ns := startNATS(t)
	s, _ := startServer(t, connect(t, ns), ServerConfig{}, impl)
	c := startClient(t, connect(t, ns), ClientConfig{})
	return grpc_testing.NewTestServiceClient(c.Pool("test")), c, s
}

// within is a context for calls that must end long before.
func within(t testing.TB) context.Context {
	t.Helper()
	return bustest.Within(t)
}

// eventually waits for a condition that something else brings about.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	ctx := within(t)
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatal("it never happened")
		case <-time.After(time.Millisecond):
		}
	}
}
