package accounts

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/edge/jetstream"
	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/worker"
)

// large is the size of a message that takes many frames.
const large = 5 << 20

// system is a Millrace of two edges and a worker under their users.
type system struct {
	t      *testing.T
	node   *node
	worker *worker.Worker
	edges  []string // URLs of the MCP endpoints
	http   *http.Client
	// step makes the tool "steps" go on; each call takes a value for each step.
	step chan struct{}
}

func startSystem(t *testing.T) *system {
	t.Helper()
	s := &system{t: t, node: start(t), http: &http.Client{Transport: &http.Transport{}}, step: make(chan struct{})}
	t.Cleanup(s.http.CloseIdleConnections)
	s.startWorker()
	for range 2 {
		s.edges = append(s.edges, s.startEdge())
	}
	return s
}

// run runs an actor until the end of the test.
func (s *system) run(name string, actor func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1) // one result
	go func() { done <- actor(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("%s: %v", name, err)
		}
	})
}

func (s *system) startEdge() (url string) {
	s.t.Helper()
	conn := s.node.connect("edge")
	store, err := jetstream.New(conn, jetstream.Config{Logger: logger(s.t)})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	key, err := store.Key(ctx, "seal", func() []byte { return []byte("0123456789abcdef0123456789abcdef") })
	if err != nil {
		s.t.Fatal(err)
	}
	e, err := edge.New(conn, edge.Config{
		Keys: []seal.Key{{ID: 1, Secret: key}}, Store: store, Streams: store, ListTTL: time.Millisecond, Logger: logger(s.t),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.run("store", store.Run)
	s.run("edge", e.Run)
	if err := e.WaitReady(ctx, "fixture"); err != nil {
		s.t.Fatal(err)
	}
	s.eventually("the store", store.Available)
	server := httptest.NewServer(e.Handler())
	s.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL + "/mcp"
}

func (s *system) startWorker() {
	type text struct {
		Text string `json:"text"`
	}
	type none struct{}
	s.worker = worker.New(worker.Config{Pool: "fixture", Version: "1.0.0", Logger: logger(s.t)})
	worker.AddTool(s.worker, worker.Tool{Name: "echo", Description: "Returns its text."},
		func(_ context.Context, _ *worker.Call, in text) (string, error) { return in.Text, nil })
	worker.AddTool(s.worker, worker.Tool{Name: "steps", Description: "Reports each of three steps."},
		func(ctx context.Context, call *worker.Call, _ none) (string, error) {
			for i := range 3 {
				call.Progress(float64(i+1), 3, "")
				select {
				case <-s.step:
				case <-ctx.Done():
					return "", context.Cause(ctx)
				}
			}
			return "all steps", nil
		})
	type answer struct {
		Name string `json:"name"`
	}
	worker.AddTool(s.worker, worker.Tool{Name: "ask", Description: "Asks who the user is."},
		func(_ context.Context, call *worker.Call, _ none) (string, error) {
			answers, err := call.Ask(worker.ElicitFor[answer]("who", "Who are you?"))
			if err != nil {
				return "", err
			}
			who, _, err := worker.Accepted[answer](answers, "who")
			return "hello " + who.Name, err
		})
	s.worker.AddResource(worker.Resource{URI: "memo://one", Name: "one", MIMEType: "text/plain"},
		func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
			return worker.TextContents("text/plain", "first note"), nil
		})
	conn := s.node.connect("fixture")
	s.run("worker", func(ctx context.Context) error { return s.worker.Run(ctx, conn) })
}

func (s *system) eventually(what string, met func() bool) {
	s.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-limit.C:
			s.t.Fatalf("in vain: %s", what)
		}
	}
}

// request sends a request to an edge; headers are "Key: value".
func (s *system) request(ctx context.Context, edge int, method, body string, headers ...string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, s.edges[edge], strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for _, h := range headers {
		key, value, _ := strings.Cut(h, ": ")
		req.Header.Set(key, value)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

// post sends a message and returns the answer.
func (s *system) post(edge int, body string, headers ...string) (*http.Response, string) {
	s.t.Helper()
	resp := s.request(s.t.Context(), edge, http.MethodPost, body, headers...)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp, string(text)
}

// stream is an answer that is a stream, or a listening one.
type stream struct {
	t      *testing.T
	events chan event // closed at its end
	cancel context.CancelFunc
}

type event struct{ id, data string }

func (s *system) stream(edge int, method, body string, headers ...string) *stream {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	if method == http.MethodGet {
		headers = append(headers, "Accept: text/event-stream")
	}
	resp := s.request(ctx, edge, method, body, headers...)
	st := &stream{t: s.t, events: make(chan event, 100), cancel: cancel} // more than any test has
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body) // only to say it
		s.t.Fatalf("%s: %s %s", method, resp.Status, text)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(st.events)
		defer resp.Body.Close()
		var ev event
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				ev.id = id
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				ev.data = data
			}
			if lines.Text() == "" {
				if ev.data != "" {
					st.events <- ev
				}
				ev = event{}
			}
		}
	})
	s.t.Cleanup(func() {
		cancel()
		reading.Wait()
	})
	return st
}

// want returns the next message, which must contain the parts.
func (st *stream) want(parts ...string) event {
	st.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case ev, ok := <-st.events:
		if !ok {
			st.t.Fatalf("the stream ended; want %q", parts)
		}
		for _, part := range parts {
			if !strings.Contains(ev.data, part) {
				st.t.Fatalf("got %.300s; want %q", ev.data, part)
			}
		}
		return ev
	case <-limit.C:
		st.t.Fatalf("in vain: %q", parts)
	}
	return event{}
}

func (s *system) session() string {
	s.t.Helper()
	resp, text := s.post(0, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{"form":{}}},"clientInfo":{"name":"t","version":"1"}}}`)
	id := resp.Header.Get("Mcp-Session-Id")
	if id == "" {
		s.t.Fatalf("no session: %s %s", resp.Status, text)
	}
	header := "Mcp-Session-Id: " + id
	s.post(1, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, header)
	return header
}

// TestEverythingWorks uses all there is under the users of deploy/nats, and then
// asks the server whether it refused anything.
func TestEverythingWorks(t *testing.T) {
	t.Parallel()
	s := startSystem(t)

	t.Run("a call", func(t *testing.T) {
		_, text := s.post(0, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hi"}}}`)
		if !strings.Contains(text, `"text":"hi"`) {
			t.Errorf("got %s", text)
		}
	})
	t.Run("5 MiB both ways", func(t *testing.T) {
		long := strings.Repeat("abcdefgh", large/8)
		_, text := s.post(1, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"`+long+`"}}}`)
		if !strings.Contains(text, `"text":"`+long+`"`) {
			t.Errorf("got %d bytes: %.200s", len(text), text)
		}
	})
	session := s.session()
	t.Run("progress, and back on another edge", func(t *testing.T) {
		call := s.stream(0, http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"steps","arguments":{},"_meta":{"progressToken":"p"}}}`, session)
		first := call.want(`"progress":1`)
		s.step <- struct{}{}
		call.want(`"progress":2`)
		call.cancel()
		rest := s.stream(1, http.MethodGet, "", session, "Last-Event-ID: "+first.id)
		rest.want(`"progress":2`)
		s.step <- struct{}{}
		rest.want(`"progress":3`)
		s.step <- struct{}{}
		rest.want(`"id":7`, "all steps")
	})
	t.Run("a question, answered to another edge", func(t *testing.T) {
		call := s.stream(0, http.MethodPost, `{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"ask","arguments":{}}}`, session)
		var question struct {
			ID json.RawMessage `json:"id"`
		}
		if err := json.Unmarshal([]byte(call.want("elicitation/create").data), &question); err != nil {
			t.Fatal(err)
		}
		resp, text := s.post(1, `{"jsonrpc":"2.0","id":`+string(question.ID)+`,"result":{"action":"accept","content":{"name":"Ala"}}}`, session)
		if resp.StatusCode != http.StatusAccepted {
			t.Fatalf("%s %s", resp.Status, text)
		}
		call.want(`"id":8`, "hello Ala")
	})
	t.Run("a cancellation on another edge", func(t *testing.T) {
		call := s.stream(0, http.MethodPost, `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"steps","arguments":{},"_meta":{"progressToken":"q"}}}`, session)
		call.want(`"progress":1`)
		s.post(1, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`, session)
		limit := time.NewTimer(patience)
		defer limit.Stop()
		select {
		case _, open := <-call.events:
			if open { // an answer is allowed, as long as the stream ends
				<-call.events
			}
		case <-limit.C:
			t.Fatal("the call goes on")
		}
	})
	t.Run("changes", func(t *testing.T) {
		listen := s.stream(1, http.MethodGet, "", session)
		if _, text := s.post(0, `{"jsonrpc":"2.0","id":10,"method":"resources/subscribe","params":{"uri":"memo://one"}}`, session); !strings.Contains(text, `"result"`) {
			t.Fatalf("got %s", text)
		}
		s.worker.ResourceUpdated("memo://one")
		listen.want("notifications/resources/updated", "memo://one")
		s.worker.AddResource(worker.Resource{URI: "memo://two", Name: "two"}, func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
			return worker.TextContents("text/plain", "second note"), nil
		})
		listen.want("notifications/resources/list_changed")
	})
	t.Run("news of a question that was answered elsewhere", func(t *testing.T) {
		if err := s.worker.ElicitationComplete("of-nobody", "1"); err != nil {
			t.Error(err)
		}
	})
	t.Run("what a session changes, and its end", func(t *testing.T) {
		if _, text := s.post(0, `{"jsonrpc":"2.0","id":11,"method":"logging/setLevel","params":{"level":"error"}}`, session); !strings.Contains(text, `"result"`) {
			t.Fatalf("got %s", text)
		}
		resp := s.request(t.Context(), 0, http.MethodDelete, "", session)
		resp.Body.Close()
		if resp.StatusCode >= http.StatusBadRequest {
			t.Errorf("DELETE: %s", resp.Status)
		}
		resp, text := s.post(1, `{"jsonrpc":"2.0","id":12,"method":"tools/list"}`, session)
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("the session lives on: %s %s", resp.Status, text)
		}
	})
	t.Run("an operator looks", func(t *testing.T) {
		nc, err := nats.Connect(s.node.url("operator"), nats.CustomInboxPrefix("_INBOX.operator"))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		list, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.NAMES", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"KV_mr_main_sessions", "KV_mr_main_keys", "mr_main_events", "mr_main_calls"} {
			if !bytes.Contains(list.Data, []byte(name)) {
				t.Errorf("there is no stream %s: %s", name, list.Data)
			}
		}
	})
	if refused := s.node.log.list(); len(refused) > 0 {
		t.Errorf("the server refused:\n%s", strings.Join(refused, "\n"))
	}
}
