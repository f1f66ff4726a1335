package edge

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// TestPain4OneExecutor: whatever number of edges and workers there is, a call is
// run by one of them, once.
func TestPain4OneExecutor(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	const workers, callers, each = 3, 8, 40
	var ran executions
	by := make([]counter, workers)
	for i := range workers {
		type in struct {
			Name string `json:"name"`
		}
		w := worker.New(worker.Config{Pool: "executors", Version: "1.0.0"})
		worker.AddTool(w, worker.Tool{Name: "execute"}, func(_ context.Context, _ *worker.Call, in in) (string, error) {
			ran.add(in.Name)
			by[i].add()
			return "ran " + in.Name, nil
		})
		conn := c.conn("executors")
		run(t, "executors", func(ctx context.Context) error { return w.Run(ctx, conn) })
		<-w.Ready()
	}
	for _, n := range c.nodes {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := n.edge.WaitReady(ctx, "executors"); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	session := c.session("2025-11-25", `{}`)
	var running sync.WaitGroup
	for caller := range callers {
		running.Go(func() {
			for i := range each {
				name := fmt.Sprintf("%d-%d", caller, i)
				params := `{"name":"execute","arguments":{"name":"` + name + `"}}`
				var got string
				if i%2 == 0 {
					got = c.request(session, "tools/call", params)
				} else {
					_, got = c.modernCall(`{}`, params)
				}
				want(t, "the call "+name, got, `"ran `+name+`"`)
				if n := ran.of(name); n != 1 {
					t.Errorf("the call %s was run %d times", name, n)
				}
			}
		})
	}
	running.Wait()
	sum := 0
	for i := range by {
		sum += by[i].value()
		if by[i].value() == 0 {
			t.Errorf("worker %d of %d was given nothing", i, workers)
		}
	}
	if sum != callers*each {
		t.Errorf("%d executions of %d calls", sum, callers*each)
	}
}

// faulty is a worker that ends each call in a way that its name says, and that no
// worker should.
type faulty struct {
	millracev1.UnimplementedWorkerServiceServer

	ends map[string]func(grpc.ServerStreamingServer[millracev1.CallToolResponse]) error
}

func (f *faulty) CallTool(req *millracev1.CallToolRequest, stream grpc.ServerStreamingServer[millracev1.CallToolResponse]) error {
	return f.ends[req.GetName()](stream)
}

// TestPain9NoFaultIsAnEmptySuccess: a call that a worker or the bus ends without an
// outcome, in whatever way, is an error to its client, and never a result.
func TestPain9NoFaultIsAnEmptySuccess(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	type calls = grpc.ServerStreamingServer[millracev1.CallToolResponse]
	send := func(stream calls, events ...*millracev1.CallToolResponse) error {
		for _, e := range events {
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		return nil
	}
	progress := &millracev1.CallToolResponse{Event: &millracev1.CallToolResponse_Progress{Progress: &millracev1.Progress{Progress: []byte("1")}}}
	f := &faulty{ends: map[string]func(calls) error{
		"nothing":       func(calls) error { return nil },
		"progress-only": func(stream calls) error { return send(stream, progress) },
		"unknown-event": func(stream calls) error { return send(stream, &millracev1.CallToolResponse{}) },
		"unknown-error": func(stream calls) error {
			return send(stream, &millracev1.CallToolResponse{Event: &millracev1.CallToolResponse_Error{Error: &millracev1.Error{}}})
		},
		"panic":          func(calls) error { panic("secret") },
		"plain-error":    func(calls) error { return context.DeadlineExceeded },
		"progress-panic": func(stream calls) error { _ = send(stream, progress); panic("secret") },
	}}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		f.ends["code-"+code.String()] = func(calls) error { return status.Error(code, "secret") }
		f.ends["progress-"+code.String()] = func(stream calls) error {
			_ = send(stream, progress)
			return status.Error(code, "secret")
		}
	}
	manifest := &millracev1.Manifest{Pool: "faulty", Version: "1.0.0"}
	for name := range f.ends {
		manifest.Tools = append(manifest.Tools, &millracev1.Tool{
			Name: name, Definition: []byte(`{"name":"` + name + `","inputSchema":{"type":"object"}}`),
			// What may be repeated is, and must not end well for that.
			Idempotent: len(name)%2 == 0,
		})
	}
	announced, err := proto.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	server := bus.NewServer(s.conn("faulty"), bus.ServerConfig{Pool: "faulty"})
	millracev1.RegisterWorkerServiceServer(server, f)
	server.SetManifest(announced)
	run(t, "faulty", server.Run)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.edge.WaitReady(ctx, "faulty"); err != nil {
		t.Fatal(err)
	}
	session := s.session("2025-11-25", `{}`)
	for name := range f.ends {
		params := `{"name":"` + name + `","arguments":{},"_meta":{"progressToken":1}}`
		legacy := body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+params+`}`,
			mcp.HeaderSessionID+": "+session, "Accept: application/json, text/event-stream"))
		_, modern := s.modernCall(`{}`, `{"name":"`+name+`","arguments":{}}`)
		for era, got := range map[string]string{"legacy": legacy, "modern": modern} {
			var a struct {
				ID     json.RawMessage `json:"id"`
				Result json.RawMessage `json:"result"`
				Error  *struct {
					Code    int    `json:"code"`
					Message string `json:"message"`
				} `json:"error"`
			}
			if err := json.Unmarshal([]byte(lastData(got)), &a); err != nil || a.Error == nil || a.Error.Code == 0 || a.Error.Message == "" || a.Result != nil || string(a.ID) != "1" {
				t.Errorf("%s, %s: %s", name, era, got)
			}
			// What is exhausted is told in the words of whoever found it.
			if strings.Contains(got, "secret") && !strings.HasSuffix(name, codes.ResourceExhausted.String()) {
				t.Errorf("%s, %s: what is inside is told: %s", name, era, got)
			}
		}
	}
}

// lastData is the last message of a stream, or the body if that is none.
func lastData(text string) string {
	if i := strings.LastIndex(text, "data: {"); i >= 0 {
		return strings.TrimSpace(text[i+len("data: "):])
	}
	return text
}

// TestB61ASlowReader: a client that reads slowly what a tool reports by the ten
// thousand gets the result, after progress that only grows and ends with the last
// report; it holds up nobody else, and what waits for it is bounded. Its tool does
// not wait for it to read progress, but to read log messages, none of which is
// lost. It is pain 35 too.
func TestB61ASlowReader(t *testing.T) {
	t.Parallel()
	const steps, logs, others = 20_000, 2_000, 50
	s := start(t, Config{WriteTimeout: 5 * time.Minute})
	session := s.session("2025-11-25", `{}`)
	type none struct{}
	var chatted atomic.Bool
	reported := make(chan struct{})
	line := strings.Repeat("x", 1<<10)
	s.offer(func(w *worker.Worker) {
		worker.AddTool(w, worker.Tool{Name: "chatter", Timeout: time.Hour}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
			for n := range steps {
				call.Progress(float64(n+1), steps, "")
				if n%(steps/logs) == 0 {
					call.Log(worker.LevelInfo, "chatter", line)
				}
			}
			chatted.Store(true)
			return "all said", nil
		})
		worker.AddTool(w, worker.Tool{Name: "reporter", Timeout: time.Hour}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
			for n := range steps {
				call.Progress(float64(n+1), steps, line)
			}
			close(reported)
			return "all said", nil
		})
	})
	echo := func() {
		var running sync.WaitGroup
		for i := range others {
			running.Go(func() {
				name := fmt.Sprint("other ", i)
				got := body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"of":"`+name+`"}}}`))
				want(t, name, got, name+`\"}"`)
			})
		}
		running.Wait()
	}
	// call calls a tool, and reads what it says after unread has returned.
	call := func(tool string, unread func()) (told, logged int) {
		resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":"slow","method":"tools/call","params":{"name":"`+tool+`","arguments":{},"_meta":{"progressToken":"p"}}}`,
			mcp.HeaderSessionID+": "+session, "Accept: application/json, text/event-stream")
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("HTTP %d", resp.StatusCode)
		}
		// It has not read anything when all others have been served.
		echo()
		unread()
		var before float64
		ended := false
		lines := bufio.NewScanner(resp.Body)
		for n := 0; lines.Scan(); {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok || data == "" {
				continue
			}
			if ended {
				t.Errorf("%s: after the result: %.200s", tool, data)
			}
			if n++; n%1000 == 0 {
				echo()
			}
			var m struct {
				ID     string          `json:"id"`
				Method string          `json:"method"`
				Result json.RawMessage `json:"result"`
				Params struct {
					Progress float64 `json:"progress"`
				} `json:"params"`
			}
			if err := json.Unmarshal([]byte(data), &m); err != nil {
				t.Fatalf("%.200s: %v", data, err)
			}
			switch {
			case m.ID == "slow":
				ended = true
				want(t, "the result", string(m.Result), "all said")
			case m.Method == "notifications/message":
				logged++
			case m.Method == "notifications/progress":
				if m.Params.Progress <= before {
					t.Errorf("%s: progress %v after %v", tool, m.Params.Progress, before)
				}
				before = m.Params.Progress
				told++
			}
		}
		if !ended {
			t.Errorf("%s: the stream ended without the result: %v", tool, lines.Err())
		}
		if before != steps {
			t.Errorf("%s: the last progress was %v of %d", tool, before, steps)
		}
		return told, logged
	}
	told, _ := call("reporter", func() {
		select {
		case <-reported: // before anything was read
		case <-time.After(time.Minute):
			t.Error("the tool waits for a client that does not read its progress")
		}
	})
	if told == 0 || told >= steps {
		t.Errorf("%d reports were told of %d to a client that does not read", told, steps)
	}
	// Nor is all that it has to read somewhere in between: this tool waits for its
	// client.
	_, logged := call("chatter", func() {
		if chatted.Load() {
			t.Error("the tool has said everything to a client that has read nothing")
		}
	})
	if logged != logs {
		t.Errorf("%d log messages were told of %d", logged, logs)
	}
	echo()
}
