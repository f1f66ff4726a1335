// Package docs holds the tests of what the documentation promises.
package docs

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
)

// TestFirstWorkerOfTheREADME builds the README's worker as it stands there,
// runs it against a server, and calls its tool.
func TestFirstWorkerOfTheREADME(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	if block == nil {
		t.Fatal("the README shows no Go program")
	}
	server, err := localnats.Start(localnats.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	const address = "nats://127.0.0.1:4222"
	source := string(block[1])
	if strings.Count(source, address) != 1 {
		t.Fatalf("the program does not name %s once", address)
	}
	if lines := strings.Count(source[strings.Index(source, "type greeting"):], "\n"); lines > 20 {
		t.Errorf("the program takes %d lines after its imports; the README promises a short one", lines)
	}
	dir := t.TempDir()
	file, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "worker")
	if err := os.WriteFile(file, []byte(strings.Replace(source, address, server.ClientURL(), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, file)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the program does not build: %v\n%s", err, out)
	}
	worker := exec.CommandContext(ctx, binary)
	worker.Stderr = t.Output()
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = worker.Process.Kill() // it has no other way to stop
		_ = worker.Wait()         // killed
	}()

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
	if err := e.WaitReady(ctx, "greeter"); err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp",
		strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"greet","arguments":{"name":"Ala"}}}`))
	request.Header.Set("Content-Type", "application/json")
	e.Handler().ServeHTTP(recorder, request)
	if got, want := recorder.Body.String(), `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"Hello, Ala!"}]}}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
