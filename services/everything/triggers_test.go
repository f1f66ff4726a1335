package everything

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	"github.com/millrace/millrace/worker/workertest"
)

// TestTriggersReachAllInstances: whichever instance a trigger is called in, all
// of them offer the same.
func TestTriggersReachAllInstances(t *testing.T) {
	t.Parallel()
	server, err := localnats.Start(localnats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	var instances [2]*Everything
	for i := range instances {
		conn, err := bus.Connect(t.Context(), bus.ConnConfig{InProcess: server})
		if err != nil {
			t.Fatal(err)
		}
		e := New(Config{})
		instances[i] = e
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1) // one result
		go func() { ended <- e.Run(ctx, conn) }()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			conn.Close()
		})
		<-e.Ready()
	}
	for i, there := range []bool{true, false, true} {
		called, other := instances[i%2], instances[(i+1)%2]
		for _, kind := range []string{"tool", "prompt", "resource"} {
			out := workertest.Call(t, called.worker, "test_trigger_"+kind+"_change", json.RawMessage(nil))
			if out.Error != nil || out.Result.GetIsError() {
				t.Fatalf("%s: %v, %v", kind, out.Error, out.Result)
			}
			limit := time.After(20 * time.Second)
			for {
				other.extras.mu.Lock()
				got := other.extras.all[kind].there
				other.extras.mu.Unlock()
				if got == there {
					break
				}
				select {
				case <-time.After(time.Millisecond):
				case <-limit:
					t.Fatalf("%s: the other instance has it: %v, want %v", kind, got, there)
				}
			}
		}
	}
}
