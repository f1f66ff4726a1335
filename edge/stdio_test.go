package edge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// stdioRun is one ServeStdio that runs to its end.
type stdioRun struct {
	out  bytes.Buffer
	err  error
	took time.Duration
}

// serveText serves a whole input, as from a pipe that is closed behind it.
func serveText(ctx context.Context, s *system, input string) *stdioRun {
	r := &stdioRun{}
	begun := time.Now()
	r.err = s.serveStdio(ctx, strings.NewReader(input), &r.out)
	r.took = time.Since(begun)
	return r
}

func (r *stdioRun) lines() []string {
	return strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n")
}

const stdioInit = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}` + "\n"

func TestStdioAnswersWhatWasReadBeforeTheEnd(t *testing.T) {
	t.Parallel()
	for _, delay := range []string{"0", "2000"} {
		synctest.Test(t, func(t *testing.T) {
			s := start(t, Config{})
			input := stdioInit + strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"n":1,"delay_ms":`+delay+`}}}`+"\n", 10)
			r := serveText(context.Background(), s, strings.TrimSuffix(input, "\n")) // the last line has no end
			if r.err != nil || len(r.lines()) != 11 {
				t.Errorf("delay %s: %d answers, %v", delay, len(r.lines()), r.err)
			}
		})
	}
}

func TestStdioCallThatNeverEndsIsCutAfterTheGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{Grace: 3 * time.Second})
		r := serveText(context.Background(), s, stdioInit+`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}`+"\n")
		if r.err != nil || r.took < 3*time.Second || r.took > 4*time.Second {
			t.Errorf("ended after %v with %v", r.took, r.err)
		}
		synctest.Wait()
		if n := s.ran.value(); n != 1 {
			t.Errorf("%d handlers saw their context end, want 1", n)
		}
	})
}

func TestStdioEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		ctx, cancel := context.WithCancel(context.Background())
		in, inW := io.Pipe()
		done := make(chan error)
		go func() { done <- s.serveStdio(ctx, in, io.Discard) }()
		if _, err := io.WriteString(inW, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}`+"\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if n := s.ran.value(); n != 1 {
			t.Errorf("%d handlers saw their context end, want 1", n)
		}
		inW.Close()
	})
}

func TestStdioCancelRightBehindItsCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		input := stdioInit
		const n = 50
		for i := range n {
			input += fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"hang"}}`+"\n", i) +
				fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`+"\n", i)
		}
		// This one names nothing.
		input += `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}` + "\n"
		r := serveText(context.Background(), s, input)
		if r.err != nil || len(r.lines()) != 1 || r.took > 5*time.Second {
			t.Errorf("%d messages after %v, %v: a call was not cancelled", len(r.lines()), r.took, r.err)
		}
	})
}

// brokenPipe is stdout whose reader has gone.
type brokenPipe struct{}

var errPipe = errors.New("broken pipe")

func (brokenPipe) Write([]byte) (int, error) { return 0, errPipe }

func TestStdioEndsWhenNobodyReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		in, inW := io.Pipe()
		done := make(chan error)
		go func() { done <- s.serveStdio(context.Background(), in, brokenPipe{}) }()
		text := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}` + "\n" + stdioInit
		if _, err := io.WriteString(inW, text); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, errPipe) {
			t.Errorf("ServeStdio = %v", err)
		}
		inW.Close()
	})
}

// TestB47LinesOfAnyLength is a report from the field: a line above the buffer
// of a line scanner ended the connection.
func TestB47LinesOfAnyLength(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		const limit = 16 << 20
		var input strings.Builder
		sizes := []int{65_535, 65_536, 65_537, 1<<20 + 1, 8 << 20}
		for _, size := range sizes {
			input.WriteString(`{"jsonrpc":"2.0","id":` + `1` + `,"method":"tools/call","params":{"name":"echo","arguments":{"x":"` + strings.Repeat("Q", size) + `"}}}` + "\n")
		}
		input.WriteString(`{"jsonrpc":"2.0","id":"long","method":"ping","params":{"x":"` + strings.Repeat("y", limit) + `"}}` + "\n")
		input.WriteString(`{"jsonrpc":"2.0","id":"after","method":"ping"}` + "\n")
		r := serveText(context.Background(), s, input.String())
		found := map[int]bool{}
		var refused, after bool
		for _, line := range r.lines() {
			switch {
			case strings.HasPrefix(line, `{"jsonrpc":"2.0","id":"long","error":{"code":-32600`):
				refused = true
			case strings.HasPrefix(line, `{"jsonrpc":"2.0","id":"after","result"`):
				after = true
			default:
				for _, size := range sizes {
					// Once escaped in the text and once structured is out of the
					// revision assumed here, so the payload is there once.
					if strings.Count(line, "Q") == size {
						found[size] = true
					}
				}
			}
		}
		if len(found) != len(sizes) || !refused || !after {
			t.Errorf("round trips %v, the long line refused %v, ping after it %v", found, refused, after)
		}
	})
}

// slowReader is an output that knows whether its reader keeps up.
type slowReader struct {
	bytes.Buffer
	log []string
}

func (r *slowReader) Write(p []byte) (int, error) {
	kind := "answer"
	if bytes.Contains(p, []byte("notifications/")) {
		kind = "notice"
	}
	r.log = append(r.log, kind)
	return r.Buffer.Write(p)
}

func (r *slowReader) WaitRead(time.Duration) { r.log = append(r.log, "wait") }

func TestStdioAnswerWaitsUntilItsProgressIsRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		out := &slowReader{}
		input := stdioInit + `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"n":2},"_meta":{"progressToken":1}}}` + "\n"
		if err := s.edge.ServeStdio(context.Background(), strings.NewReader(input), out); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(out.log, " "); got != "answer notice notice wait answer" {
			t.Errorf("written: %s", got)
		}
	})
}
