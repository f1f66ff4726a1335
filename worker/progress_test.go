package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// unread starts a call of the tool "run" whose events nobody reads.
func unread(ctx context.Context, t *testing.T, w *worker.Worker) grpc.ServerStreamingClient[millracev1.CallToolResponse] {
	t.Helper()
	stream, err := pair(t, w).CallTool(ctx, &millracev1.CallToolRequest{
		Name: "run", Context: &millracev1.CallContext{WantsProgress: true, LogLevel: "info", ClientCapabilities: []byte(`{"elicitation":{}}`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return stream
}

// rest reads a call to its end: the progress, which has to rise, with each thing
// behind it in words.
func rest(t *testing.T, stream grpc.ServerStreamingClient[millracev1.CallToolResponse]) (progress []float64, events []string) {
	t.Helper()
	last := 0.0
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return progress, events
		}
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case event.GetProgress() != nil:
			var done float64
			if err := json.Unmarshal(event.GetProgress().GetProgress(), &done); err != nil || done <= last {
				t.Errorf("progress %v after %v, %v", done, last, err)
			}
			last = done
			progress = append(progress, done)
			events = append(events, event.GetProgress().GetMessage())
		case event.GetLog() != nil:
			events = append(events, string(event.GetLog().GetData()))
		case event.GetResult() != nil:
			events = append(events, "result")
		case event.GetError() != nil:
			events = append(events, "error")
		case event.GetNeedsInput() != nil:
			events = append(events, "question")
		case event.GetCloseStream() != nil:
			events = append(events, "close")
		}
	}
}

// flood reports more than the window of a call takes.
func flood(call *worker.Call, from, n int) (next int) {
	for i := range n {
		call.Progress(float64(from+i), worker.UnknownTotal, strings.Repeat("x", 100))
	}
	return from + n
}

// A client that reads nothing does not hold up a tool that reports progress: it
// gets fewer reports, rising, with the last one before the outcome.
func TestProgressOfASlowReader(t *testing.T) {
	t.Parallel()
	const reports = 10_000 // over a megabyte
	for outcome, end := range map[string]func(call *worker.Call) (string, error){
		"result": func(*worker.Call) (string, error) { return "done", nil },
		"error": func(*worker.Call) (string, error) {
			return "", &worker.ProtocolError{Code: -32000, Message: "no"}
		},
		"question": func(call *worker.Call) (string, error) {
			_, err := call.Ask(personForm("who"))
			return "", err
		},
	} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				said := make(chan struct{})
				w := newWorker(nil)
				worker.AddTool(w, worker.Tool{Name: "run"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
					next := flood(call, 1, reports)
					call.Progress(float64(next), worker.UnknownTotal, "last")
					close(said)
					return end(call)
				})
				stream := unread(t.Context(), t, w)
				select {
				case <-said:
				default:
					t.Error("the tool waits for a client that does not read")
				}
				progress, events := rest(t, stream)
				if n := len(progress); n < 100 || n > reports/2 {
					t.Errorf("%d reports were told of %d", n, reports+1)
				}
				if got := strings.Join(events[max(len(events)-2, 0):], " "); got != "last "+outcome {
					t.Errorf("the call ends with %q", got)
				}
			})
		})
	}
}

// What is not progress waits for the client, behind the progress made before it.
// Progress that is made while it waits comes behind it.
func TestProgressWhileALogMessageWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		said, logged := make(chan struct{}), make(chan struct{})
		w := newWorker(nil)
		worker.AddTool(w, worker.Tool{Name: "run"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
			next := flood(call, 1, 10_000)
			call.Progress(float64(next), worker.UnknownTotal, "before")
			go func() {
				defer close(logged)
				call.Log(worker.LevelInfo, "", "message")
			}()
			time.Sleep(time.Second) // it is waiting then
			next = flood(call, next+1, 10)
			call.Progress(float64(next), worker.UnknownTotal, "behind")
			close(said)
			<-logged
			call.CloseStream(0)
			return "done", nil
		})
		stream := unread(t.Context(), t, w)
		time.Sleep(2 * time.Second)
		select {
		case <-said:
		default:
			t.Error("progress waits for a log message")
		}
		select {
		case <-logged:
			t.Error("a log message did not wait for the window")
		default:
		}
		progress, events := rest(t, stream)
		if n := len(progress); n > 5_000 {
			t.Errorf("%d reports were told", n)
		}
		if got := strings.Join(events[max(len(events)-5, 0):], " "); got != `before "message" behind close result` {
			t.Errorf("the call ends with %q", got)
		}
	})
}

// The report that is kept is sent when the client has made room for it, also when
// the tool says nothing more for long.
func TestProgressBeforeAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		w := newWorker(nil)
		worker.AddTool(w, worker.Tool{Name: "run"}, func(ctx context.Context, call *worker.Call, _ struct{}) (string, error) {
			next := 1
			for range 2 {
				next = flood(call, next, 10_000)
				call.Progress(float64(next), worker.UnknownTotal, "pause")
				next++
				select {
				case <-goOn:
				case <-ctx.Done():
					return "", context.Cause(ctx)
				}
			}
			return "done", nil
		})
		stream := unread(t.Context(), t, w)
		for range 2 {
			for last := ""; last != "pause"; {
				event, err := stream.Recv() // an error when nothing comes until the deadline
				if err != nil {
					t.Fatal(err)
				}
				last = event.GetProgress().GetMessage()
			}
			goOn <- struct{}{}
		}
		if _, events := rest(t, stream); strings.Join(events, " ") != "result" {
			t.Errorf("after the pauses came %q", events)
		}
	})
}

// A call that is cancelled while its last report waits ends, and frees its slot.
func TestCancelWhileProgressWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(nil)
		worker.AddTool(w, worker.Tool{Name: "run"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
			flood(call, 1, 10_000)
			return "done", nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		stream := unread(ctx, t, w)
		if got := w.Load().Used; got != 1 {
			t.Errorf("%d slots are used before", got)
		}
		cancel()
		synctest.Wait()
		if got := w.Load().Used; got != 0 {
			t.Errorf("%d slots are used after the end", got)
		}
		for {
			if _, err := stream.Recv(); err != nil {
				if status.Code(err) != codes.Canceled {
					t.Error(err)
				}
				return
			}
		}
	})
}

// What a report costs whose reader keeps up: all of it, worker, bus and reader.
func BenchmarkProgress(b *testing.B) {
	server := startBus(b)
	n := make(chan int, 1)
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "run"}, func(_ context.Context, call *worker.Call, _ struct{}) (string, error) {
		for i := range <-n {
			call.Progress(float64(i), worker.UnknownTotal, "step")
		}
		return "done", nil
	})
	serve(b, server, w)
	// A window that is never closed.
	client := bus.NewClient(connect(b, server), bus.ClientConfig{Window: 1 << 30})
	start(b, client.Run, client.Ready())
	b.ReportAllocs()
	b.ResetTimer()
	n <- b.N
	events, err := callTool(b.Context(), millracev1.NewWorkerServiceClient(client.Pool("test")), &millracev1.CallToolRequest{
		Name: "run", Context: &millracev1.CallContext{WantsProgress: true},
	})
	if err != nil || len(events) != b.N+1 {
		b.Errorf("%d events of %d: %v", len(events), b.N+1, err)
	}
}
