package worker_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
	"github.com/millrace/millrace/worker"
)

// A tool at its limit sends its calls to another instance and lets those of
// other tools in.
func TestToolSlots(t *testing.T) {
	t.Parallel()
	server := startBus(t)
	block := newBlocking()
	for _, name := range []string{"a", "b"} {
		w := newWorker(nil)
		worker.AddTool(w, worker.Tool{Name: "block", Slots: 1}, func(context.Context, *worker.Call, struct{}) (string, error) {
			block.began <- name
			<-block.free
			return name, nil
		})
		returning(w, "other", name, nil)
		serve(t, server, w)
	}
	client := dial(t, server)
	first := block.call(t, client)
	one := block.waitBegan(t)
	second := block.call(t, client)
	if other := block.waitBegan(t); other == one {
		t.Errorf("both calls run on %s", one)
	}
	_, err := callTool(t.Context(), client, &millracev1.CallToolRequest{Name: "block"})
	if status.Code(err) != codes.ResourceExhausted || bus.Reason(err) != bus.ReasonOverloaded {
		t.Errorf("a third call: %v, reason %q", err, bus.Reason(err))
	}
	// So much before the name that it is not in the first chunk.
	_, err = callTool(t.Context(), client, &millracev1.CallToolRequest{
		Name: "block", Context: &millracev1.CallContext{ClientInfo: bytes.Repeat([]byte(" "), 1<<20)},
	})
	if status.Code(err) != codes.ResourceExhausted || bus.Reason(err) != bus.ReasonOverloaded {
		t.Errorf("a call whose name comes late: %v, reason %q", err, bus.Reason(err))
	}
	if outcome(t, client, "other", ``).GetResult() == nil {
		t.Error("the other tool gives no result")
	}
	close(block.free)
	for _, answers := range []<-chan answer{first, second} {
		if a := <-answers; a.err != nil || len(a.events) != 1 || a.events[0].GetResult() == nil {
			t.Errorf("a call in a slot: %v, %v", a.events, a.err)
		}
	}
	// The slots are free again, for both ways in.
	for _, info := range []string{"", strings.Repeat(" ", 1<<20)} {
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			events, err := callTool(ctx, client, &millracev1.CallToolRequest{Name: "block", Context: &millracev1.CallContext{ClientInfo: []byte(info)}})
			cancel()
			if err != nil || len(events) != 1 {
				t.Errorf("afterwards: %v, %v", events, err)
			}
			<-block.began
		}
	}
}

// A call that is refused or cancelled gives its slot back.
func TestToolSlotsAreGivenBack(t *testing.T) {
	t.Parallel()
	began := make(chan struct{})
	w := newWorker(nil)
	worker.AddTool(w, worker.Tool{Name: "wait", Slots: 1}, func(ctx context.Context, _ *worker.Call, in struct {
		Wait bool `json:"wait,omitempty"`
	},
	) (string, error) {
		if in.Wait {
			began <- struct{}{}
			<-ctx.Done()
		}
		return "", ctx.Err()
	})
	worker.AddTool(w, worker.Tool{Name: "panic", Slots: 1}, func(context.Context, *worker.Call, struct{}) (string, error) { panic("oh") })
	client := pair(t, w)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client.CallTool(ctx, &millracev1.CallToolRequest{Name: "wait", Arguments: []byte(`{"wait":true}`)})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, began, "the handler")
		cancel()
		if _, err := stream.Recv(); err == nil || err == io.EOF {
			t.Errorf("a cancelled call: %v", err)
		}
		if outcome(t, client, "wait", `{"wait":1}`).GetError() == nil || outcome(t, client, "panic", ``).GetError() == nil {
			t.Error("no error")
		}
		if outcome(t, client, "wait", ``).GetResult() == nil {
			t.Error("no result")
		}
	}
}

// Calls that wait for a slot of their tool do not keep those of other tools from
// the slots that are free, and get theirs as soon as it is free.
func TestToolSlotsAreOffered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := startBus(t)
		w := newWorker(nil)
		sleep := func(d time.Duration) func(context.Context, *worker.Call, struct{}) (string, error) {
			return func(context.Context, *worker.Call, struct{}) (string, error) {
				time.Sleep(d)
				return "", nil
			}
		}
		worker.AddTool(w, worker.Tool{Name: "rare", Slots: 1}, sleep(100*time.Millisecond))
		worker.AddTool(w, worker.Tool{Name: "other"}, sleep(10*time.Millisecond))
		serve(t, server, w)
		client := dial(t, server)
		began := time.Now()
		var rare, other sync.WaitGroup
		call := func(wg *sync.WaitGroup, name string) {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if events, err := callTool(ctx, client, &millracev1.CallToolRequest{Name: name}); err != nil || len(events) != 1 {
					t.Errorf("%s: %v, %v", name, events, err)
				}
			})
		}
		for range 5 {
			call(&rare, "rare")
		}
		time.Sleep(50 * time.Millisecond)
		for range 200 {
			call(&other, "other")
		}
		other.Wait()
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("the other tool took %v", took)
		}
		rare.Wait()
		if took := time.Since(began); took < 500*time.Millisecond || took > 600*time.Millisecond {
			t.Errorf("five calls of 100 ms, one at a time, took %v", took)
		}
	})
}
