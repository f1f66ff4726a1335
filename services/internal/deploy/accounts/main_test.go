// Package accounts holds the test of the users in deploy/nats: a server runs
// with these files, edges and workers connect as their users, everything works
// that Millrace does, and nothing else is allowed.
package accounts

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/proto/bus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// folder is where the files are that are tested.
const folder = "../../../../deploy/nats"

// patience is how long something may take that always comes.
const patience = 30 * time.Second

// users are those of accounts.conf and, by the same template, two pools of ours.
func users() []string { return []string{"edge", "operator", "glossary", "system", "fixture", "other"} }

func password(user string) string { return "secret-of-" + user }

// node is a NATS server with the users.
type node struct {
	t   testing.TB
	ns  *server.Server
	log *violations
}

// start starts a server that stops with the test.
func start(t testing.TB) *node {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"edge.conf", "operator.conf", "pool-glossary.conf"} {
		copyFile(t, filepath.Join(folder, name), filepath.Join(dir, name))
	}
	accounts := read(t, filepath.Join(folder, "accounts.conf"))
	var passwords strings.Builder
	for _, user := range users() {
		fmt.Fprintf(&passwords, "NATS_%s_PASSWORD: %q\n", strings.ToUpper(user), password(user))
	}
	const last = "permissions: { include ./pool-glossary.conf } }\n"
	if strings.Count(accounts, last) != 1 {
		t.Fatalf("accounts.conf has not one line that ends in %q", last)
	}
	pools := last
	for _, pool := range []string{"fixture", "other"} {
		write(t, filepath.Join(dir, "pool-"+pool+".conf"), permissions(t, pool))
		pools += fmt.Sprintf("{ user: %s, password: $NATS_%s_PASSWORD, permissions: { include ./pool-%s.conf } }\n", pool, strings.ToUpper(pool), pool)
	}
	write(t, filepath.Join(dir, "accounts.conf"), passwords.String()+strings.Replace(accounts, last, pools, 1))

	// The server as it is documented, but for where it listens and writes.
	conf := read(t, filepath.Join(folder, "server.conf"))
	for documented, here := range map[string]string{
		"listen: 0.0.0.0:4222": "listen: 127.0.0.1:-1", "http: 127.0.0.1:8222": "",
		"store_dir: /data": "store_dir: " + filepath.Join(dir, "data"), "max_file_store: 10GB": "max_file_store: 1GB",
	} {
		if strings.Count(conf, documented) != 1 {
			t.Fatalf("server.conf has not one %q", documented)
		}
		conf = strings.Replace(conf, documented, here, 1)
	}
	write(t, filepath.Join(dir, "server.conf"), conf)
	opts, err := server.ProcessConfigFile(filepath.Join(dir, "server.conf"))
	if err != nil {
		t.Fatal(err)
	}
	opts.NoSigs = true
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, ns: ns, log: &violations{}}
	ns.SetLoggerV2(n.log, false, false, false)
	ns.Start()
	t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	if !ns.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	return n
}

// permissions has the script write what a pool may do.
func permissions(t testing.TB, pool string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(folder, "pool"), pool).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func (n *node) url(user string) string {
	return "nats://" + user + ":" + password(user) + "@" + n.ns.Addr().String()
}

// connect connects as a user, as the processes of Millrace do.
func (n *node) connect(user string) *bus.Conn {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.ConnConfig{URL: n.url(user), Name: user, Logger: logger(n.t)})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(conn.Close)
	return conn
}

func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// violations is a log of a server that keeps what was refused.
type violations struct {
	mu   sync.Mutex
	seen []string
}

func (v *violations) add(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); strings.Contains(text, "Violation") {
		v.mu.Lock()
		v.seen = append(v.seen, text)
		v.mu.Unlock()
	}
}

func (v *violations) list() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string(nil), v.seen...)
}

func (v *violations) Noticef(format string, args ...any) { v.add(format, args...) }
func (v *violations) Warnf(format string, args ...any)   { v.add(format, args...) }
func (v *violations) Fatalf(format string, args ...any)  { v.add(format, args...) }
func (v *violations) Errorf(format string, args ...any)  { v.add(format, args...) }
func (v *violations) Debugf(string, ...any)              {}
func (v *violations) Tracef(string, ...any)              {}

func read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	write(t, to, read(t, from))
}
