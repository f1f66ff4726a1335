package localnats_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/proto/localnats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func request(t *testing.T, nc *nats.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	sub, err := nc.Subscribe("echo", func(m *nats.Msg) {
		if err := m.Respond(m.Data); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	msg, err := nc.RequestWithContext(ctx, "echo", []byte("hello"))
	if err != nil || string(msg.Data) != "hello" {
		t.Errorf("got %v, %v", msg, err)
	}
}

func TestInMemory(t *testing.T) {
	t.Parallel()
	s, err := localnats.Start(localnats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if url := s.ClientURL(); url != "" {
		t.Errorf("it listens on %s", url)
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	request(t, nc)
	if nc.MaxPayload() != 1<<20 {
		t.Errorf("max payload %d", nc.MaxPayload())
	}
	nc.Close()

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.Shutdown()
	if _, err := s.InProcessConn(); err == nil {
		t.Error("it still takes connections")
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	s, err := localnats.Start(localnats.Config{Listen: "127.0.0.1:0", MaxPayload: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown()
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	request(t, nc)
	if nc.MaxPayload() != 4096 {
		t.Errorf("max payload %d", nc.MaxPayload())
	}
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	dir := t.TempDir()
	first, err := localnats.Start(localnats.Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Shutdown()

	var log bytes.Buffer
	for name, tc := range map[string]struct {
		cfg  localnats.Config
		want string
	}{
		"bad cluster":  {localnats.Config{ClusterListen: "127.0.0.1"}, "port"},
		"bad route":    {localnats.Config{ClusterListen: "127.0.0.1:0", Routes: []string{"x"}}, "port"},
		"lone route":   {localnats.Config{Routes: []string{"127.0.0.1:6222"}}, "cluster address"},
		"port taken":   {localnats.Config{Listen: taken.Addr().String()}, "in use"},
		"route taken":  {localnats.Config{Listen: "127.0.0.1:0", ClusterListen: taken.Addr().String()}, "in use"},
		"no port":      {localnats.Config{Listen: "127.0.0.1"}, "port"},
		"bad port":     {localnats.Config{Listen: "127.0.0.1:http"}, "not a number"},
		"dir in use":   {localnats.Config{DataDir: dir}, "in use"},
		"dir a device": {localnats.Config{DataDir: "/dev/null/x"}, "not a directory"},
	} {
		tc.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		s, err := localnats.Start(tc.cfg)
		if err == nil {
			s.Shutdown()
			t.Errorf("%s: started", name)
			continue
		}
		if !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v does not say %q", name, err, tc.want)
		}
	}
}

func TestDataDirIsFreeAfterwards(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		s, err := localnats.Start(localnats.Config{DataDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		nc, err := nats.Connect("", nats.InProcessServer(s))
		if err != nil {
			t.Fatal(err)
		}
		js, err := nc.JetStream()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if _, err := js.AccountInfo(nats.Context(ctx)); err != nil {
			t.Error(err)
		}
		cancel()
		nc.Close()
		s.Shutdown()
	}
}

func TestTemporaryJetStream(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	s, err := localnats.Start(localnats.Config{JetStream: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown()
	if !s.JetStreamReady() || s.ClusterAddr() != "" {
		t.Errorf("ready: %t, cluster %q", s.JetStreamReady(), s.ClusterAddr())
	}
	entries := func() int {
		found, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	if n := entries(); n != 1 {
		t.Errorf("%d temporary folders", n)
	}
	s.Shutdown()
	if n := entries(); n != 0 {
		t.Errorf("%d temporary folders are left", n)
	}
}

func TestClusterWithJetStream(t *testing.T) {
	t.Parallel()
	routes := freeAddrs(t, 3)
	servers := make([]*localnats.Server, len(routes))
	for i, addr := range routes {
		s, err := localnats.Start(localnats.Config{
			Name: "node" + strconv.Itoa(i), Listen: "127.0.0.1:0", JetStream: true,
			ClusterListen: addr, Routes: routes,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Shutdown)
		if got := s.ClusterAddr(); got != addr {
			t.Errorf("cluster address %q, want %q", got, addr)
		}
		servers[i] = s
	}
	limit := time.After(60 * time.Second)
	for _, s := range servers {
		for !s.JetStreamReady() {
			select {
			case <-limit:
				t.Fatal("they have not agreed on a leader")
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	// What one of them knows, another one tells.
	nc, err := nats.Connect(servers[0].ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := js.AddStream(&nats.StreamConfig{Name: "s", Subjects: []string{"s"}, Replicas: 3}, nats.Context(ctx)); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish("s", []byte("x"), nats.Context(ctx)); err != nil {
		t.Error(err)
	}
}

// freeAddrs returns addresses that nobody listens on.
func freeAddrs(t *testing.T, n int) []string {
	t.Helper()
	addrs := make([]string, n)
	for i := range addrs {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ln.Close() }()
		addrs[i] = ln.Addr().String()
	}
	return addrs
}
