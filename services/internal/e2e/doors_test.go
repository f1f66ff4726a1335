package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// door is one way to reach the server, in one revision: messages go in as raw
// bytes and the answer comes out as it is written.
type door struct {
	name, revision string
	// meta is what each request carries in params._meta, empty in the
	// revisions with a handshake.
	meta string
	// send sends one message and returns its answer; status is 0 on stdio.
	// method and name are those of the message, as an HTTP header mirrors
	// them in the newest revision.
	send func(t *testing.T, raw, method, name string) (status int, body string)
}

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + newest + `","io.modelcontextprotocol/clientCapabilities":{}}`

func legacyRevisions() []string {
	return []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}
}

func initializeLine(revision string) string {
	return `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"` + revision + `","capabilities":{},"clientInfo":{"name":"raw","version":"1.0"}}}`
}

// allDoors opens every door: each revision over HTTP (without a session, with
// one) and over stdio.
func allDoors(t *testing.T, s *server, nats string) []door {
	t.Helper()
	var doors []door
	for _, revision := range legacyRevisions() {
		sessionless := http.Header{"Mcp-Protocol-Version": {revision}}
		resp, body := post(t, s.url, initializeLine(revision), nil)
		var r initializeResult
		resultOf(t, body, `"hello"`, &r)
		if r.ProtocolVersion != revision {
			t.Errorf("asked for %s, got %s", revision, r.ProtocolVersion)
		}
		session := http.Header{"Mcp-Protocol-Version": {revision}, "Mcp-Session-Id": {resp.Header.Get("Mcp-Session-Id")}}
		doors = append(doors,
			httpDoor("http/"+revision+"/sessionless", s.url, revision, sessionless),
			httpDoor("http/"+revision+"/session", s.url, revision, session),
		)
		line := serveStdio(t, "--nats", nats)
		resultOf(t, line.exchange(t, initializeLine(revision)), `"hello"`, &r)
		line.write(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		doors = append(doors, door{name: "stdio/" + revision, revision: revision, send: line.send})
	}
	plain := httpDoor("http/plain", s.url, legacyWithoutHeader, nil)
	modern := door{name: "http/" + newest, revision: newest, meta: modernMeta, send: func(t *testing.T, raw, method, name string) (int, string) {
		t.Helper()
		header := http.Header{"Mcp-Protocol-Version": {newest}, "Mcp-Method": {method}}
		if name != "" {
			header.Set("Mcp-Name", name)
		}
		resp, body := post(t, s.url, raw, header)
		return resp.StatusCode, body
	}}
	line := serveStdio(t, "--nats", nats)
	return append(doors, plain, modern, door{name: "stdio/" + newest, revision: newest, meta: modernMeta, send: line.send})
}

func httpDoor(name, url, revision string, header http.Header) door {
	return door{name: name, revision: revision, send: func(t *testing.T, raw, _, _ string) (int, string) {
		t.Helper()
		resp, body := post(t, url, raw, header)
		return resp.StatusCode, body
	}}
}

// post posts bytes as a client that takes JSON and streams.
func post(t *testing.T, url, raw string, header http.Header) (*http.Response, string) {
	t.Helper()
	resp := postStream(t, url, raw, header)
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("answer cut off after %q: %v", body, err)
	}
	return resp, string(body)
}

// postStream is post without reading the body.
func postStream(t *testing.T, url, raw string, header http.Header) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header.Clone()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * patience}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// stdioServer is a running `millrace stdio` and the lines it prints.
type stdioServer struct {
	*process
	lines chan string // closed when stdout ends; holds all a test expects
}

// serveStdio starts a server on stdio.
func serveStdio(t *testing.T, args ...string) *stdioServer {
	t.Helper()
	return serveStdioBinary(t, millrace(t), args...)
}

// serveStdioBinary is serveStdio for another build of the binary.
func serveStdioBinary(t *testing.T, binary string, args ...string) *stdioServer {
	t.Helper()
	s := &stdioServer{lines: make(chan string, 10_000)}
	reader, writer := io.Pipe()
	s.process = startBinary(t, binary, writer, append([]string{"stdio"}, args...)...)
	go func() {
		<-s.done
		writer.Close()
	}()
	go func() {
		defer close(s.lines)
		lines := bufio.NewReaderSize(reader, 1<<20)
		for {
			line, err := lines.ReadString('\n')
			if line != "" {
				s.lines <- line
			}
			if err != nil {
				return
			}
		}
	}()
	return s
}

// write sends one line.
func (s *stdioServer) write(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(s.stdin, line+"\n"); err != nil {
		t.Fatalf("write: %v; stderr:\n%s", err, s.stderr.String())
	}
}

// read returns the next line, which must be one whole JSON object; ok is false
// when stdout has ended.
func (s *stdioServer) read(t *testing.T) (line string, ok bool) {
	t.Helper()
	deadline := time.NewTimer(2 * patience)
	defer deadline.Stop()
	select {
	case line, ok = <-s.lines:
	case <-deadline.C:
		t.Fatal("no line in time")
	}
	if !ok {
		return "", false
	}
	if !strings.HasSuffix(line, "\n") || !json.Valid([]byte(line)) || !strings.HasPrefix(line, `{"jsonrpc":"2.0",`) {
		t.Errorf("stdout holds something else than messages: %.200q", line)
	}
	return strings.TrimSuffix(line, "\n"), true
}

// exchange sends one line and returns the next one.
func (s *stdioServer) exchange(t *testing.T, line string) string {
	t.Helper()
	s.write(t, line)
	answer, ok := s.read(t)
	if !ok {
		t.Fatalf("stdout ended instead of an answer to %.200s; stderr:\n%s", line, s.stderr.String())
	}
	return answer
}

func (s *stdioServer) send(t *testing.T, raw, _, _ string) (int, string) {
	t.Helper()
	return 0, s.exchange(t, raw)
}

// request writes a request for a door.
func (d door) request(id, method, params string) string {
	switch {
	case d.meta == "":
	case params == "":
		params = d.meta
	default:
		params += "," + d.meta
	}
	if params == "" {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q}`, id, method)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s}}`, id, method, params)
}
