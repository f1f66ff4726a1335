// Package docs holds the tests of what the documentation promises.
package docs

import (
	"context"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
)

// root is the folder of the repository.
const root = "../../.."

// TestFirstWorkerOfTheREADME builds the README's worker as it stands there,
// runs it against a server, and calls its tool.
func TestFirstWorkerOfTheREADME(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	if block == nil {
		t.Fatal("the README shows no Go program")
	}
	source := string(block[1])
	_, own, found := strings.Cut(source, "type greeting")
	if lines := strings.Count(own, "\n"); !found || lines > 20 {
		t.Errorf("the program takes %d lines after its imports; the README promises a short one", lines)
	}
	server := startNATS(t)
	const address = "nats://127.0.0.1:4222"
	if strings.Count(source, address) != 1 {
		t.Fatalf("the program does not name %s once", address)
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(strings.Replace(source, address, server.ClientURL(), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	process := startWorker(t, build(t, root, file))
	defer func() { _ = process.stop(syscall.SIGKILL) }() // it listens to no other signal
	got := call(t, server, "greeter", `{"name":"greet","arguments":{"name":"Ala"}}`)
	if want := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"Hello, Ala!"}]}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestWorkerInItsOwnModule does the same with the example that lies in a module
// of its own, as a user's worker does.
func TestWorkerInItsOwnModule(t *testing.T) {
	t.Parallel()
	binary := build(t, filepath.Join(root, "docs/examples/first-worker"), ".")
	modules, err := exec.CommandContext(t.Context(), "go", "version", "-m", binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(modules), "github.com/nats-io/nats.go") || strings.Contains(string(modules), "nats-server") {
		t.Errorf("the binary should have the NATS client and no NATS server in it:\n%s", modules)
	}
	server := startNATS(t)
	process := startWorker(t, binary, "NATS_URL="+server.ClientURL())
	got := call(t, server, "words", `{"name":"word_count","arguments":{"text":"to be or not to be"}}`)
	if !strings.Contains(got, `{\"words\":6,\"counts\":{`) {
		t.Errorf("got %s", got)
	}
	if err := process.stop(syscall.SIGTERM); err != nil {
		t.Errorf("the worker ended with %v", err)
	}
}

func startNATS(t *testing.T) *localnats.Server {
	t.Helper()
	server, err := localnats.Start(localnats.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	return server
}

// build builds a program and returns the path of the binary.
func build(t *testing.T, dir, program string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "worker")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, program)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the program does not build: %v\n%s", err, out)
	}
	return binary
}

// process is a running worker.
type process struct{ cmd *exec.Cmd }

func startWorker(t *testing.T, binary string, env ...string) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &process{cmd}
}

// stop sends a signal and returns how the process ended.
func (p *process) stop(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return err
	}
	return p.cmd.Wait()
}

// call calls a tool through an edge once its pool is there.
func call(t *testing.T, server *localnats.Server, pool, params string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.ConnConfig{URL: server.ClientURL(), Name: "edge"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	e, err := edge.New(conn, edge.Config{})
	if err != nil {
		t.Fatal(err)
	}
	edgeCtx, stop := context.WithCancel(ctx)
	done := make(chan error, 1) // one result
	go func() { done <- e.Run(edgeCtx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	if err := e.WaitReady(ctx, pool); err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp",
		strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+params+`}`))
	request.Header.Set("Content-Type", "application/json")
	e.Handler().ServeHTTP(recorder, request)
	return recorder.Body.String()
}

// TestTestsThatAreNamed: the documentation names tests as evidence; each of them
// is there.
func TestTestsThatAreNamed(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`).FindAllSubmatch(source, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	named := 0
	for _, page := range append(pages, filepath.Join(root, "README.md"), filepath.Join(root, "CHANGELOG.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`).FindAll(text, -1) {
			named++
			name := string(m)
			// An argument of -run or -bench may be the beginning of names.
			if !there[name] && !beginsOne(name, there) {
				t.Errorf("%s names %s, which is no test", filepath.Base(page), name)
			}
		}
	}
	if named < 30 {
		t.Errorf("only %d tests are named: the pages are not read as they should be", named)
	}
}

func beginsOne(name string, there map[string]bool) bool {
	for full := range there {
		if strings.HasPrefix(full, name) {
			return true
		}
	}
	return false
}
