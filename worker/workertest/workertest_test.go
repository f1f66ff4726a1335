package workertest_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/millrace/millrace/worker"
	"github.com/millrace/millrace/worker/workertest"
)

type in struct {
	N int `json:"n"`
}

func newWorker() *worker.Worker {
	w := worker.New(worker.Config{Pool: "test"})
	worker.AddTool(w, worker.Tool{Name: "count"}, func(_ context.Context, call *worker.Call, in in) (in, error) {
		for i := range in.N {
			call.Progress(float64(i+1), float64(in.N), "step")
		}
		return in, nil
	})
	return w
}

func TestCall(t *testing.T) {
	t.Parallel()
	w := newWorker()
	for _, args := range []any{in{N: 2}, map[string]int{"n": 2}, json.RawMessage(`{"n":2}`)} {
		out := workertest.Call(t, w, "count", args)
		if out.Error != nil || string(out.Result.GetStructuredContent()) != `{"n":2}` || out.Text() != `{"n":2}` {
			t.Errorf("outcome: %+v", out)
		}
		if len(out.Progress) != 2 || string(out.Progress[1].GetProgress()) != "2" || string(out.Progress[1].GetTotal()) != "2" {
			t.Errorf("progress: %v", out.Progress)
		}
	}
	out := workertest.Call(t, w, "count", map[string]string{"n": "two"})
	if out.Result != nil || out.Text() != "" || out.Error.GetDetail() != `property "n" must be an integer, not a string` {
		t.Errorf("outcome: %+v", out)
	}
}

// failure is a testing.TB on which a call fails instead of the test.
type failure struct {
	testing.TB
	failed string
}

func (f *failure) Helper() {}

func (f *failure) Fatalf(format string, _ ...any) {
	f.failed = format
	panic(f) // Fatalf does not return
}

func TestCallFails(t *testing.T) {
	t.Parallel()
	broken := newWorker()
	broken.AddRawTool(worker.Tool{Name: "count"}, nil)
	for name, call := range map[string]func(testing.TB){
		"mistakes":  func(t testing.TB) { workertest.Call(t, broken, "count", in{}) },
		"arguments": func(t testing.TB) { workertest.Call(t, newWorker(), "count", make(chan int)) },
	} {
		fake := &failure{TB: t}
		func() {
			defer func() { _ = recover() }()
			call(fake)
		}()
		if fake.failed == "" {
			t.Errorf("%s: the test did not fail", name)
		}
	}
}
