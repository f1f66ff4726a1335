package localnats_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
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
		"port taken":   {localnats.Config{Listen: taken.Addr().String()}, "in use"},
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
