package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/worker"
)

// TestStdioEnd: when the client closes its end, running calls finish and their
// answers are written.
func TestStdioEnd(t *testing.T) {
	t.Parallel()
	s := serveStdio(t)
	s.write(t, initializeLine(newestLegacy))
	s.write(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	s.write(t, `{"jsonrpc":"2.0","id":"index","method":"tools/call","params":{"name":"reindex","arguments":{},"_meta":{"progressToken":"p"}}}`)
	const reads = 20
	for i := range reads {
		s.write(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"get_term","arguments":{"slug":"mcp"}}}`, i))
	}
	if err := s.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	answers := map[string]int{}
	progress := 0
	for {
		line, ok := s.read(t)
		if !ok {
			break
		}
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Error  json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		switch {
		case m.Method == "notifications/progress":
			progress++
			if answers[`"index"`] > 0 {
				t.Error("progress after the result")
			}
		case m.Error != nil:
			t.Errorf("error: %s", line)
		default:
			answers[string(m.ID)]++
		}
	}
	if code := s.exitCode(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	if len(answers) != reads+2 || answers[`"index"`] != 1 || answers[`"hello"`] != 1 {
		t.Errorf("the answers are %v, want one for each of %d requests", answers, reads+2)
	}
	if progress < 5 {
		t.Errorf("%d progress notifications, want at least 5", progress)
	}
}

// TestStdioGarbage: what is no message is answered where an answer has a
// receiver, and nothing stops the messages around it.
func TestStdioGarbage(t *testing.T) {
	t.Parallel()
	s := serveStdio(t)
	for _, garbage := range []string{
		"hello", "{", "}", "null", "17", `"text"`, "[]", "{}", `{"jsonrpc":"2.0"}`, "\x00\xff", "\ufeff{}",
		`{"jsonrpc":"2.0","id":{},"method":"ping"}`, strings.Repeat("[", 100_000),
	} {
		a := parseAnswer(t, s.exchange(t, garbage))
		if a.Error == nil || a.Error.Code != -32700 && a.Error.Code != -32600 {
			t.Errorf("%.20q: %s, error %+v", garbage, a.Result, a.Error)
		}
		var r struct{}
		resultOf(t, s.exchange(t, `{"jsonrpc":"2.0","id":"still there","method":"ping"}`), `"still there"`, &r)
	}
	// These have no answer: the next line is that of the ping after them.
	for _, silent := range []string{"", "   ", "\r", `{"jsonrpc":"2.0","method":"no/such/notification"}`, `{"jsonrpc":"2.0","id":5,"result":{}}`} {
		s.write(t, silent)
	}
	var r struct{}
	resultOf(t, s.exchange(t, `{"jsonrpc":"2.0","id":"end","method":"ping"}`+"\r"), `"end"`, &r)
	// The last line counts even without a line end.
	if _, err := s.stdin.Write([]byte(`{"jsonrpc":"2.0","id":"last","method":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	if err := s.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	line, _ := s.read(t)
	resultOf(t, line, `"last"`, &r)
	if line, ok := s.read(t); ok {
		t.Errorf("one line too many: %s", line)
	}
	if code := s.exitCode(); code != 0 {
		t.Errorf("ended with %d", code)
	}
}

// TestStdioClientGone: a client that is killed takes the server with it, even
// when something still holds the other end of stdin.
func TestStdioClientGone(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := startTo(t, writer, "stdio")
	if err := errors.Join(writer.Close(), reader.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(s.stdin, initializeLine(newest)+"\n"); err != nil {
		t.Fatal(err)
	}
	if code := s.exitCode(); code != 5 || !strings.Contains(s.stderr.String(), "does not read") {
		t.Errorf("ended with %d and said %s, want 5 and the reason", code, s.stderr.String())
	}
}

// startEcho runs a worker with the tool echo, which returns what it is given,
// and the tool wait, which never ends.
func startEcho(t *testing.T, c cluster) {
	t.Helper()
	w := worker.New(worker.Config{Pool: "echo", Version: "1.0.0"})
	w.AddRawTool(worker.Tool{Name: "echo"}, func(_ context.Context, _ *worker.Call, args json.RawMessage) (*worker.Result, error) {
		var in struct{ Text string }
		if err := json.Unmarshal(args, &in); err != nil {
			return nil, err
		}
		return &worker.Result{Content: []worker.Content{worker.Text(in.Text)}}, nil
	})
	w.AddRawTool(worker.Tool{Name: "wait"}, func(ctx context.Context, call *worker.Call, _ json.RawMessage) (*worker.Result, error) {
		call.Progress(1, 2, "waiting")
		<-ctx.Done()
		return nil, ctx.Err()
	})
	serving, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1) // one result, never blocks
	go func() { ended <- w.Serve(serving, c.nats) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("worker: %v", err)
		}
	})
	<-w.Ready()
}

// TestStdioLongLines: a line of 8 MiB goes to a worker and back, and a line
// over the limit is answered and read to its end.
func TestStdioLongLines(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	startEcho(t, c)
	s := serveStdio(t, "--nats", c.nats)
	// Text that naive readers of lines and of JSON break: separators of
	// Unicode, escapes, pairs of surrogates.
	long := strings.Repeat("a\u2028b\u0085c😀\\n\\\"ł", 8<<20/len("a\u2028b\u0085c😀\\n\\\"ł"))
	call := func(id, text string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":"echo","arguments":{"text":"%s"}}}`, id, text)
	}
	var want string
	if err := json.Unmarshal([]byte(`"`+long+`"`), &want); err != nil {
		t.Fatal(err)
	}
	var r toolResult
	resultOf(t, s.exchange(t, call("long", long)), `"long"`, &r)
	if len(r.Content) != 1 || r.Content[0].Text != want {
		t.Errorf("8 MiB came back changed: %d bytes, want %d", len(r.Content[0].Text), len(want))
	}
	a := parseAnswer(t, s.exchange(t, call("too long", strings.Repeat("x", 17<<20))))
	if a.Error == nil || a.Error.Code != -32600 || !strings.Contains(a.Error.Message, "16777216") {
		t.Errorf("a line over the limit gave %+v, want -32600 that names the limit", a.Error)
	}
	resultOf(t, s.exchange(t, call("short", "ok")), `"short"`, &r)
	r.check(t, "ok")
}

// TestStdioSignal: SIGTERM ends the process in good order, also while a call
// runs that would not end.
func TestStdioSignal(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	startEcho(t, c)
	s := serveStdio(t, "--nats", c.nats)
	s.write(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait","arguments":{},"_meta":{"progressToken":1}}}`)
	if line, _ := s.read(t); !strings.Contains(line, "notifications/progress") {
		t.Fatalf("the call does not run: %s", line)
	}
	s.signal(syscall.SIGTERM)
	if code := s.exitCode(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	for {
		if _, ok := s.read(t); !ok {
			break
		}
	}
}
