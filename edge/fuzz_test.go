package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/tools/txtar"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// These tests play mutated conversations against a live system: NATS, a worker
// and an edge in this process, in real time. Whatever a client says, the edge
// must not panic nor hang, must answer each request whose id can be read once,
// with that id, and must say nothing that the schema of the revision refuses.

// patience is how long one conversation may take: far above all limits of the
// system, and less than the ten seconds after which the fuzzing engine ends the
// process without a word about where it hangs.
const patience = 8 * time.Second

// fuzzed starts the one system of a process, whose limits are short.
func fuzzed(f *testing.F) *system {
	f.Helper()
	s := start(f, Config{
		PageSize: 4, CallTimeout: 200 * time.Millisecond, CallCeiling: 500 * time.Millisecond,
		AskTimeout: 100 * time.Millisecond, Grace: 5 * time.Second, Keepalive: 50 * time.Millisecond,
		Limits: jsonrpc.Limits{MaxBytes: 1 << 20},
	})
	// These tools would take the only worker away.
	for i := range s.lost {
		s.lost[i].Store(true)
	}
	return s
}

// scripts are the messages of the conversations of an era, a line each.
func scripts(f *testing.F, era string) (all []string) {
	f.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", era, "*.txtar"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no conversations of %s (%v)", era, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		var lines []string
		for _, section := range txtar.Parse(raw).Files {
			switch section.Name {
			case "stdin":
				lines = append(lines, strings.TrimSpace(string(section.Data)))
			case "request":
				if _, sent, ok := strings.Cut(string(section.Data), "\n\n"); ok && strings.TrimSpace(sent) != "" {
					lines = append(lines, strings.ReplaceAll(strings.TrimSpace(sent), "\n", " "))
				}
			}
		}
		all = append(all, strings.Join(lines, "\n"))
	}
	return all
}

func FuzzLegacy(f *testing.F) {
	dates := mcp.Supported()[1:]
	for i, script := range scripts(f, "legacy") {
		f.Add(uint8(i), i%2 == 0, script)
		f.Add(uint8(i+1), i%2 == 1, script)
	}
	s := fuzzed(f)
	f.Fuzz(func(t *testing.T, date uint8, overHTTP bool, script string) {
		begin := `{"jsonrpc":"2.0","id":"begin","method":"initialize","params":{"protocolVersion":"` + dates[int(date)%len(dates)] +
			`","capabilities":{"elicitation":{},"roots":{}},"clientInfo":{"name":"fuzz","version":"1"}}}`
		g := newFuzzGame(t, s)
		if !overHTTP {
			g.stdio(begin + "\n" + script)
			return
		}
		session := g.post(begin, nil)
		for _, line := range lines(script) {
			g.post(line, []string{mcp.HeaderSessionID + ": " + session})
		}
	})
}

func FuzzStateless(f *testing.F) {
	for i, script := range scripts(f, "stateless") {
		f.Add(i%3 == 0, true, "", script)
		f.Add(true, i%2 == 0, "greeting", script)
	}
	s := fuzzed(f)
	f.Fuzz(func(t *testing.T, overHTTP, honest bool, name, script string) {
		g := newFuzzGame(t, s)
		if !overHTTP {
			g.stdio(script)
			return
		}
		for _, line := range lines(script) {
			headers := modernHeaders(line)
			if !honest {
				headers[len(headers)-1] = mcp.HeaderName + ": " + name
			}
			g.post(line, headers)
		}
	})
}

// lines are the messages of a script, at most so many that an input takes no
// time.
func lines(script string) []string {
	all := strings.Split(script, "\n")
	return all[:min(len(all), 20)]
}

// fuzzGame is one conversation. Its context ends when it takes too long.
type fuzzGame struct {
	t   *testing.T
	s   *system
	w   *wire
	ctx context.Context
}

func newFuzzGame(t *testing.T, s *system) *fuzzGame {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	told := make(chan struct{}) // closed when the end of the context has been told
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		stacks := make([]byte, 4<<20)
		t.Errorf("the conversation takes longer than %v:\n%s", patience, stacks[:runtime.Stack(stacks, true)])
	})
	t.Cleanup(func() {
		if !stop() {
			<-told
		}
		cancel()
	})
	return &fuzzGame{t, s, newWire(t), ctx} // reports its faults at the end
}

// expectation is what must come back for one message.
type expectation struct {
	id string // raw, empty when it cannot be read
	// optional: the answer may stay out, as the client takes the request back
	// or the request is a stream.
	optional bool
}

// expect reads a message independently of the edge's codec, and strictly: of
// what two readers may see in two ways nothing is expected.
func expect(line string) (e expectation, ok bool) {
	raw := jsontext.Value(line)
	if !raw.IsValid() || raw.Kind() != '{' {
		return e, false
	}
	var m map[string]json.RawMessage
	var method, version string
	if json.Unmarshal(raw, &m) != nil || json.Unmarshal(m["method"], &method) != nil || json.Unmarshal(m["jsonrpc"], &version) != nil || version != "2.0" {
		return e, false
	}
	id := m["id"]
	if len(id) == 0 || id[0] != '"' && bytes.ContainsAny(id, "ntf[{.eE") || m["result"] != nil || m["error"] != nil {
		return e, false
	}
	return expectation{string(id), method == mcp.MethodListen}, true
}

// stdio plays a script on one connection.
func (g *fuzzGame) stdio(script string) {
	script = strings.Join(lines(script), "\n")
	var out bytes.Buffer
	ended := make(chan error, 1) // one result
	go func() {
		ended <- g.s.observeStdio(g.ctx, g.w, strings.NewReader(script), &out)
	}()
	select {
	case err := <-ended:
		if err != nil {
			g.t.Errorf("ServeStdio ended with %v", err)
		}
	case <-time.After(patience + time.Second):
		g.t.Fatalf("ServeStdio hangs on %q", script)
	}
	got := map[string]int{}
	for line := range strings.SplitSeq(out.String(), "\n") {
		var m received
		if json.Unmarshal([]byte(line), &m) == nil && m.Method == "" && m.ID != nil {
			got[string(m.ID)]++
		}
		g.clean(line)
	}
	want := map[string]int{}
	// Messages that are no plain request: one that a client takes back by a
	// notification has no answer, and what one reader cannot read may be a
	// request with any id to another.
	var odd strings.Builder
	for _, line := range lines(script) {
		if e, ok := expect(line); ok && !e.optional {
			want[e.id]++
		} else {
			odd.WriteString(line + "\n")
		}
	}
	for id, n := range want {
		if got[id] != n && !strings.Contains(odd.String(), id) {
			g.t.Errorf("%d answers to %d requests with the id %s in %q:\n%s", got[id], n, id, script, out.String())
		}
	}
}

// clean reports what must never reach a client.
func (g *fuzzGame) clean(text string) {
	for _, inner := range []string{"secret of the handler", "goroutine ", "runtime error"} {
		if strings.Contains(text, inner) {
			g.t.Errorf("%q left the edge: %.500s", inner, text)
		}
	}
}

// post sends one message, and returns the session that came back.
func (g *fuzzGame) post(line string, headers []string) (session string) {
	e, readable := expect(line)
	ctx := g.ctx
	if e.optional {
		// A subscription lasts until its client leaves.
		var leave context.CancelFunc
		ctx, leave = context.WithTimeout(ctx, 20*time.Millisecond)
		defer leave()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp", strings.NewReader(line))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for _, h := range headers {
		key, value, _ := strings.Cut(h, ": ")
		req.Header.Set(key, strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return -1
			}
			return r
		}, value))
	}
	resp, err := g.s.fuzzClient(g.w).Do(req)
	if e.optional && errors.Is(err, context.DeadlineExceeded) {
		return ""
	}
	if err != nil {
		g.t.Fatalf("%v\nposting %q", err, line)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if e.optional {
		return ""
	}
	if err != nil {
		g.t.Fatalf("%v\nreading the answer to %q", err, line)
	}
	g.clean(string(raw))
	if !readable {
		return resp.Header.Get(mcp.HeaderSessionID)
	}
	var answers []string
	messages := [][]byte{raw}
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		messages = nil
		for event := range bytes.SplitSeq(raw, []byte("\n\n")) {
			messages = append(messages, eventData(event))
		}
	}
	for _, data := range messages {
		var m received
		if json.Unmarshal(data, &m) == nil && m.Method == "" && m.ID != nil {
			answers = append(answers, string(m.ID))
		}
	}
	if len(answers) != 1 || answers[0] != e.id {
		g.t.Errorf("answers with the ids %q to %q: %d %.1000s", answers, line, resp.StatusCode, raw)
	}
	return resp.Header.Get(mcp.HeaderSessionID)
}

// fuzzClient is a client whose exchanges w observes.
func (s *system) fuzzClient(w *wire) *http.Client {
	inner, ok := s.client.Transport.(*transport)
	if !ok {
		panic(fmt.Sprintf("the client's transport is %T", s.client.Transport))
	}
	return &http.Client{Transport: w.transport(inner.next)}
}
