package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/services/everything"
)

const (
	maxMessage = 16 << 20 // of a client, by default
	maxResult  = 64 << 20 // the largest text
)

// countingProxy passes connections on to NATS and counts them: who reconnects
// comes again.
type countingProxy struct {
	url   string
	count atomic.Int64
}

func startCountingProxy(t *testing.T, to string) *countingProxy {
	t.Helper()
	at, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &countingProxy{url: "nats://" + ln.Addr().String()}
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			p.count.Add(1)
			out, err := net.Dial("tcp", at.Host)
			if err != nil {
				in.Close()
				continue
			}
			for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
				passing.Go(func() {
					_, _ = io.Copy(to, from) // its end is the end of both
					in.Close()
					out.Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		ln.Close()
		passing.Wait()
	})
	return p
}

// largeDoor is a door for messages that are not looked at as a whole.
type largeDoor struct {
	name   string
	modern bool
	sse    bool // the answer must be a stream
	// send sends a message and returns its answer.
	send func(t *testing.T, raw, method, tool string) []byte
}

// largeDoors are the ways in that differ in how they carry large messages.
func largeDoors(t *testing.T, url string, stdio ...string) []largeDoor {
	t.Helper()
	var doors []largeDoor
	for _, modern := range []bool{false, true} {
		revision := newestLegacy
		if modern {
			revision = newest
		}
		for _, sse := range []bool{false, true} {
			accept, mediaType := "application/json", "application/json"
			if sse {
				accept, mediaType = "text/event-stream", "text/event-stream"
			}
			doors = append(doors, largeDoor{"http " + revision + " " + mediaType, modern, sse, func(t *testing.T, raw, method, tool string) []byte {
				t.Helper()
				header := http.Header{"Mcp-Protocol-Version": {revision}, "Accept": {accept}}
				if modern {
					header["Mcp-Method"] = []string{method}
					if tool != "" {
						header["Mcp-Name"] = []string{tool}
					}
				}
				status, got, body := postLarge(t, url, strings.NewReader(raw), header)
				if status == http.StatusOK && got != mediaType {
					t.Errorf("Content-Type %q", got)
				}
				if got == "text/event-stream" {
					body = bytes.TrimSuffix(bytes.TrimPrefix(body, []byte("data: ")), []byte("\n\n"))
				}
				return body
			}})
		}
		line := serveStdioBinary(t, plain(t), append(stdio, "--log-level", "warn")...)
		if !modern {
			var r initializeResult
			resultOf(t, line.exchange(t, initializeLine(revision)), `"hello"`, &r)
		}
		var turn sync.Mutex // one exchange at a time
		doors = append(doors, largeDoor{"stdio " + revision, modern, false, func(t *testing.T, raw, _, _ string) []byte {
			t.Helper()
			turn.Lock()
			defer turn.Unlock()
			return []byte(line.exchange(t, raw))
		}})
	}
	return doors
}

// postLarge is post without copies that large bodies do not need.
func postLarge(t *testing.T, url string, body io.Reader, header http.Header) (status int, mediaType string, answer []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * patience}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("answer cut off after %d bytes: %v", len(answer), err)
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), answer
}

// call calls a tool with arguments of any size.
func (d largeDoor) call(t *testing.T, tool, arguments string) []byte {
	t.Helper()
	meta := ""
	if d.modern {
		meta = "," + modernMeta
	}
	return d.send(t, `{"jsonrpc":"2.0","id":"large","method":"tools/call","params":{"name":"`+tool+`","arguments":`+arguments+meta+`}}`, "tools/call", tool)
}

// alive: a small request is answered as ever.
func (d largeDoor) alive(t *testing.T) {
	t.Helper()
	method, params := "ping", "{}"
	if d.modern {
		method, params = "tools/list", "{"+modernMeta+"}"
	}
	a := parseAnswer(t, string(d.send(t, `{"jsonrpc":"2.0","id":"small","method":"`+method+`","params":`+params+`}`, method, "")))
	if a.Error != nil || string(a.ID) != `"small"` {
		t.Errorf("%s: after a large message %s gave %s, error %+v", d.name, method, a.Result, a.Error)
	}
}

// cut cuts a long run of the text out of a message: what is between the first
// mark and the next quote.
func cut(t *testing.T, message []byte, mark string) (long, rest []byte) {
	t.Helper()
	_, after, ok := bytes.Cut(message, []byte(mark))
	if !ok {
		t.Fatalf("no %s in %.300s", mark, message)
	}
	long, _, ok = bytes.Cut(after, []byte(`"`))
	if !ok {
		t.Fatalf("the message is cut off after %s: %.300s", mark, message)
	}
	long = bytes.TrimSuffix(long, []byte(`\`)) // inside a text that is JSON itself
	begin := len(message) - len(after)
	return long, slices.Concat(message[:begin], message[begin+len(long):])
}

// checkCut: the message holds the text after each of the marks, and is a good
// answer without them.
func (d largeDoor) checkCut(t *testing.T, message []byte, want string, marks ...string) {
	t.Helper()
	wantSum := sum(want)
	for _, mark := range marks {
		var long []byte
		long, message = cut(t, message, mark)
		if len(long) != len(want) || sum(long) != wantSum {
			t.Errorf("%s: %d bytes came after %s, want the %d that were sent", d.name, len(long), mark, len(want))
		}
	}
	var r toolResult
	resultOf(t, string(message), `"large"`, &r)
	if r.IsError {
		t.Errorf("%s: an error: %+v", d.name, r)
	}
}

// largeSystem is an edge and a worker in processes of their own, with a NATS
// server with default limits.
type largeSystem struct {
	*server
	nats  *countingProxy
	doors []largeDoor
}

func startLarge(t *testing.T, flags ...string) *largeSystem {
	t.Helper()
	// This process only passes bytes on: the NATS server is in another one.
	up := serveBinary(t, plain(t), "up", "--nats-listen", "127.0.0.1:0")
	s := &largeSystem{nats: startCountingProxy(t, up.log(`msg="NATS takes workers[^"]*" url=(\S+)`)[0])}
	startBinary(t, plain(t), nil, "everything", "--nats", s.nats.url, "--log-level", "warn")
	s.server = serveBinary(t, plain(t), "edge", append([]string{"--nats", s.nats.url}, flags...)...)
	s.doors = largeDoors(t, s.url, "--nats", s.nats.url)
	for _, d := range s.doors {
		eventually(t, d.name+" lists the tools of the worker", func() bool {
			params := "{}"
			if d.modern {
				params = "{" + modernMeta + "}"
			}
			return bytes.Contains(d.send(t, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":`+params+`}`, "tools/list", ""), []byte(`"big"`))
		})
	}
	connections := s.nats.count.Load()
	if want := int64(4); connections != want { // an edge, a worker, two on stdio
		t.Errorf("%d connections to NATS, want %d", connections, want)
	}
	t.Cleanup(func() {
		if got := s.nats.count.Load(); got != connections {
			t.Errorf("%d more connections to NATS: somebody lost one", got-connections)
		}
		if log := s.stderr.String(); strings.Contains(log, "bus connection lost") {
			t.Errorf("the edge lost its connection:\n%s", log)
		}
	})
	return s
}

// TestSizes: the largest result and the largest arguments go through every
// door whole.
func TestSizes(t *testing.T) {
	t.Parallel()
	s := serveBinary(t, plain(t), "up", "--worker", "everything")
	const echoed = maxMessage - 300 // and what a request has around its arguments
	result, arguments := everything.Big(maxResult), everything.Big(echoed-len(`{"text":""}`))
	for _, d := range largeDoors(t, s.url, "--worker", "everything") {
		d.checkCut(t, d.call(t, "big", fmt.Sprintf(`{"bytes":%d}`, maxResult)), result, `"text":"`)
		d.alive(t)
		// The structured result, and the same as a text.
		d.checkCut(t, d.call(t, "echo", `{"text":"`+arguments+`"}`), arguments, `"text":"{\"text\":\"`, `"structuredContent":{"text":"`)
		d.alive(t)
	}
	// The client that comes with it prints as much.
	r := execute(t, "", exec.Command(plain(t), "call", "big", "--url", s.url, "--arg", fmt.Sprintf("bytes=%d", maxResult)))
	if r.code != 0 || sum(r.stdout) != sum(result+"\n") {
		t.Errorf("millrace call ended with %d and printed %d bytes: %s", r.code, len(r.stdout), r.stderr)
	}
}

// TestB58LargeMessages: messages around and above the limit of NATS for one
// message.
func TestB58LargeMessages(t *testing.T) {
	t.Parallel()
	s := startLarge(t)
	shapes := []string{"text", "blob", "structured"}
	result := func(t *testing.T, d largeDoor, size int, shape string) {
		t.Helper()
		want, mark := everything.Big(size), `"text":"`
		switch shape {
		case "blob":
			want, mark = base64.StdEncoding.EncodeToString([]byte(want)), `"blob":"`
		case "structured":
			mark = `"big":"`
		}
		d.checkCut(t, d.call(t, "big", fmt.Sprintf(`{"bytes":%d,"as":%q}`, size, shape)), want, mark)
		d.alive(t)
	}
	request := func(t *testing.T, d largeDoor, size int) {
		t.Helper()
		long := everything.Big(size)
		d.checkCut(t, d.call(t, "echo", `{"text":"`+long+`"}`), long, `"text":"{\"text\":\"`, `"structuredContent":{"text":"`)
		d.alive(t)
	}
	for i, d := range s.doors {
		for _, size := range []int{1_000_000, 1_048_000, 1_048_576, 1_048_577, 1_500_000} {
			for _, shape := range shapes {
				result(t, d, size, shape)
			}
			request(t, d, size)
		}
		// The larger ones take their time, so each door has one shape; results
		// of 10 MB are below.
		result(t, d, 32_000_000, shapes[(i+1)%len(shapes)])
		request(t, d, 10_000_000)
	}
	t.Run("in parallel", func(t *testing.T) {
		var calls sync.WaitGroup
		for i := range 20 {
			calls.Go(func() { result(t, s.doors[i%len(s.doors)], 10_000_000, shapes[i%len(shapes)]) })
		}
		calls.Wait()
	})
}

// TestB58AboveTheLimits: what is larger than a limit is refused with an error
// that names the limit, and harms nothing.
func TestB58AboveTheLimits(t *testing.T) {
	t.Parallel()
	// This edge takes more than a worker does.
	s := startLarge(t, "--max-body", fmt.Sprint(2*maxMessage))
	refused := func(d largeDoor, what string, code int, limit, tool, arguments string) {
		t.Helper()
		begin := time.Now()
		a := parseAnswer(t, string(d.call(t, tool, arguments)))
		t.Logf("%s: %s over the limit: after %v: %+v", d.name, what, time.Since(begin), a.Error)
		if a.Error == nil || a.Error.Code != code || !strings.Contains(a.Error.Message, limit) || code != -32600 && string(a.ID) != `"large"` {
			t.Errorf("%s: %s over the limit gave %.200s, error %+v", d.name, what, a.Result, a.Error)
		}
		d.alive(t)
	}
	for _, d := range s.doors {
		refused(d, "a result", -32603, "68157440", "big", fmt.Sprintf(`{"bytes":%d}`, maxResult+2<<20))
		arguments := `{"text":"` + everything.Big(maxMessage+2<<20) + `"}`
		if strings.HasPrefix(d.name, "stdio") {
			refused(d, "a line", -32600, "16777216", "echo", arguments)
		} else {
			refused(d, "arguments", -32603, "17825792", "echo", arguments)
		}
	}
	t.Run("body/read late", func(t *testing.T) {
		at, err := url.Parse(s.url)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", at.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		body := strings.Repeat(" ", 2*maxMessage+1)
		if _, err := fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", at.Host, len(body), body); err != nil {
			t.Fatalf("a client that reads when it has sent everything cannot send it: %v", err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("status %s", resp.Status)
		}
	})
	for name, declared := range map[string]bool{"declared": true, "chunked": false} {
		t.Run("body/"+name, func(t *testing.T) {
			status, answer := postHalf(t, s.url, 2*maxMessage+2, declared)
			a := parseAnswer(t, answer)
			if status != http.StatusRequestEntityTooLarge || a.Error == nil || a.Error.Code != -32600 || !strings.Contains(a.Error.Message, fmt.Sprint(2*maxMessage)) {
				t.Errorf("status %d, %s", status, answer)
			}
		})
	}
}

// postHalf posts a body of a size, but for its last byte, and returns the
// answer that comes before that. A declared size is sent without any body.
func postHalf(t *testing.T, to string, size int, declared bool) (status int, answer string) {
	t.Helper()
	body, more := io.Pipe()
	defer more.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if declared {
		req.ContentLength = int64(size)
	} else {
		go func() { _, _ = more.Write(bytes.Repeat([]byte(" "), size-1)) }() // the server stops reading it
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}
