package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/services/everything"
)

// These tests are reports from the field about stdio servers; the names are
// those of the bank of cases.

// TestB47LongLines: no line is too long below the limit, whichever way it goes.
func TestB47LongLines(t *testing.T) {
	t.Parallel()
	for _, d := range largeDoors(t, "", "--worker", "everything") {
		if !strings.HasPrefix(d.name, "stdio") {
			continue
		}
		for _, size := range []int{65_535, 65_536, 65_537, 1_048_577, 8_388_608} {
			long := everything.Big(size)
			d.checkCut(t, d.call(t, "echo", `{"text":"`+long+`"}`), long, `"text":"{\"text\":\"`, `"structuredContent":{"text":"`)
			d.alive(t)
			d.checkCut(t, d.call(t, "big", fmt.Sprintf(`{"bytes":%d}`, size)), long, `"text":"`)
			d.alive(t)
		}
	}
}

// TestB47EndlessLine: a line far above the limit is refused when it ends, and
// is not kept.
func TestB47EndlessLine(t *testing.T) {
	t.Parallel()
	s := serveStdioBinary(t, plain(t), "--worker", "everything")
	var r struct{}
	resultOf(t, s.exchange(t, `{"jsonrpc":"2.0","id":"before","method":"ping"}`), `"before"`, &r)
	before := s.peak(t)
	const size = 100 << 20
	if _, err := io.WriteString(s.stdin, `{"jsonrpc":"2.0","id":"endless","method":"ping","params":{"x":"`); err != nil {
		t.Fatal(err)
	}
	part := bytes.Repeat([]byte("x"), 1<<20)
	for range size / len(part) {
		if _, err := s.stdin.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	a := parseAnswer(t, s.exchange(t, `"}}`))
	if a.Error == nil || a.Error.Code != -32600 || !strings.Contains(a.Error.Message, fmt.Sprint(maxMessage)) || a.ID != nil && string(a.ID) != `"endless"` && string(a.ID) != "null" {
		t.Errorf("a line of %d bytes gave %s, error %+v", size, a.ID, a.Error)
	}
	resultOf(t, s.exchange(t, `{"jsonrpc":"2.0","id":"after","method":"ping"}`), `"after"`, &r)
	grown := s.peak(t) - before
	t.Logf("the line cost %d MiB of memory", grown>>20)
	// The limit, and the copies of a buffer that grows.
	if grown > 5*maxMessage {
		t.Errorf("a line of %d bytes cost %d bytes of memory", size, grown)
	}
}

// peak is the most memory that the process has had, in bytes.
func (p *process) peak(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no VmHWM in %s", status)
	return 0
}

// TestB48EndOfInput: what was read is answered, then the process ends, with
// code 0, whatever runs.
func TestB48EndOfInput(t *testing.T) {
	t.Parallel()
	const handshake = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"printf","version":"1"}}}\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n`
	calls := func(tool, arguments string) string {
		var lines []string
		for i := range 10 {
			lines = append(lines, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s","arguments":%s}}`, i, tool, arguments))
		}
		return handshake + strings.Join(lines, `\n`) // without an end of the last line
	}
	for name, c := range map[string]struct {
		input   string
		answers int
	}{
		"quick calls":         {calls("echo", "{}"), 11},
		"calls of 2 s":        {calls("slow", `{"ms":2000}`), 11},
		"nothing":             {"", 0},
		"only the handshake":  {handshake, 1},
		"a call without end":  {handshake + `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","arguments":{"ms":3600000}}}`, 1},
		"one line, no LF":     {`{"jsonrpc":"2.0","id":1,"method":"ping"}`, 1},
		"a line that is cut":  {`{"jsonrpc":"2.0","id":1,"meth`, 1},
		"an answer to nobody": {handshake + `{"jsonrpc":"2.0","id":77,"result":{}}`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, "bash", "-c", "printf '"+c.input+"' | exec "+plain(t)+" stdio --worker everything --log-level error")
			cmd.Env = environment()
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			begin := time.Now()
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, stderr.String())
			}
			took := time.Since(begin)
			answers := 0
			for line := range strings.Lines(stdout.String()) {
				parseAnswer(t, line)
				answers++
			}
			// A call that is cut off may be answered or not.
			if answers != c.answers && !(name == "a call without end" && answers == 2) {
				t.Errorf("%d answers, want %d:\n%s", answers, c.answers, stdout.String())
			}
			// Who waits does not work.
			cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			t.Logf("took %v and %v of the processor", took, cpu)
			if cpu > 5*time.Second {
				t.Errorf("it took %v of the processor in %v", cpu, took)
			}
		})
	}
	t.Run("nothing, with a bus", func(t *testing.T) {
		t.Parallel()
		c := startCluster(t)
		r := command(t, "", "stdio", "--nats", c.nats)
		if r.code != 0 || r.stdout != "" {
			t.Errorf("ended with %d and printed %q: %s", r.code, r.stdout, r.stderr)
		}
	})
}

// TestB48Signals: a signal during a call ends the process in good order.
func TestB48Signals(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			s := serveStdio(t, "--worker", "everything", "--log-level", "warn")
			s.write(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"n":1000000,"delay_ms":10},"_meta":{"progressToken":1}}}`)
			if line, _ := s.read(t); !strings.Contains(line, "notifications/progress") {
				t.Fatalf("the call does not run: %s", line)
			}
			s.signal(signal)
			for {
				if _, ok := s.read(t); !ok {
					break
				}
			}
			if code := s.exitCode(); code != 0 {
				t.Errorf("ended with %d:\n%s", code, s.stderr.String())
			}
		})
	}
}

// TestB48ReaderGone: a client that closes its end while it is written to ends
// the process.
func TestB48ReaderGone(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := startTo(t, writer, "stdio", "--worker", "everything")
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(s.stdin, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"n":1000000,"delay_ms":1},"_meta":{"progressToken":1}}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(reader).ReadString('\n'); err != nil || !strings.Contains(line, "notifications/progress") {
		t.Fatalf("%v: the call does not run: %s", err, line)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	if code := s.exitCode(); code != 5 || !strings.Contains(s.stderr.String(), "does not read") {
		t.Errorf("ended with %d, want 5 and the reason:\n%s", code, s.stderr.String())
	}
}

// TestB48ParentKilled: a client that is killed leaves nobody behind, even when a
// call may go on for long after the end of the input.
func TestB48ParentKilled(t *testing.T) {
	t.Parallel()
	// The shell holds the other ends of the pipes, as a desktop program does.
	parent := exec.Command("bash", "-c", `
		coproc SERVER { exec "$0" stdio --worker everything --log-level error --grace 1h; }
		echo '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","arguments":{"ms":3600000}}}' >&"${SERVER[1]}"
		echo '{"jsonrpc":"2.0","id":2,"method":"ping"}' >&"${SERVER[1]}"
		read -r answer <&"${SERVER[0]}"
		echo "$SERVER_PID $answer"
		read -r never`, millrace(t))
	parent.Env = environment()
	stdin, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(stdout).ReadString('\n')
	killErr := parent.Process.Kill()
	_ = parent.Wait() // it was killed
	pid, answer, _ := strings.Cut(line, " ")
	if readErr != nil || killErr != nil || !strings.Contains(answer, `"id":2`) {
		t.Fatalf("%v, %v: the server does not run: %q", readErr, killErr, line)
	}
	begin := time.Now()
	eventually(t, "the server of a client that was killed ends", func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		if err != nil {
			return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
		}
		// Whoever has inherited it may not have asked for its exit code yet.
		_, state, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(state, "Z")
	})
	t.Logf("it was there for another %v", time.Since(begin))
}

// TestB49BrokenLines: a broken line is answered with an error, before and after
// the handshake, and ends nothing.
func TestB49BrokenLines(t *testing.T) {
	t.Parallel()
	broken := []struct{ line, id string }{
		{"not json", ""},
		{`{"jsonrpc":"2.0","id":1,"method":`, "1"},
		{"[", ""},
		{`"x"`, ""},
		{"42", ""},
		{"null", ""},
		{"Content-Length: 10", ""},
		{`{"jsonrpc":"2.0","id":5,"method":"ping"}{`, "5"},
		{strings.Repeat("\x00", 64), ""},
	}
	s := serveStdio(t, "--worker", "everything")
	send := func() {
		t.Helper()
		for _, b := range broken {
			a := parseAnswer(t, s.exchange(t, b.line))
			if a.Error == nil || a.Error.Code != -32700 && a.Error.Code != -32600 {
				t.Errorf("%q: result %s, error %+v", b.line, a.Result, a.Error)
			}
			// The id of the line, where it can be read, is as good as none.
			if id := string(a.ID); id != "" && id != "null" && id != b.id {
				t.Errorf("%q: the id is %s", b.line, id)
			}
		}
	}
	send()
	var hello initializeResult
	resultOf(t, s.exchange(t, strings.Replace(initializeLine(newestLegacy), `"hello"`, "1", 1)), "1", &hello)
	send()
	s.write(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	send()
	var r struct{}
	resultOf(t, s.exchange(t, `{"jsonrpc":"2.0","id":2,"method":"ping"}`), "2", &r)
	if err := s.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if line, ok := s.read(t); ok {
		t.Errorf("one line too many: %s", line)
	}
	if code := s.exitCode(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	if got := strings.Count(s.stderr.String(), "a line of stdin is no message"); got < 3*8 {
		t.Errorf("the log names %d of the broken lines:\n%s", got, s.stderr.String())
	}
}
