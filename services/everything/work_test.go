package everything

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/millrace/millrace/worker/workertest"
)

// TestWork: each execution is counted, for its item and its batch alone.
func TestWork(t *testing.T) {
	t.Parallel()
	w := New(Config{}).worker
	for _, args := range []string{`{"batch":"a","item":"1","steps":2}`, `{"batch":"a","item":"1"}`, `{"batch":"a","item":"2"}`, `{"batch":"b","item":"1"}`} {
		out := workertest.Call(t, w, "work", json.RawMessage(args))
		if out.Error != nil || out.Result.GetIsError() {
			t.Fatalf("%s: %v, %v", args, out.Error, out.Result)
		}
	}
	if out := workertest.Call(t, w, "work", json.RawMessage(`{"batch":"c","item":"x","steps":3}`)); out.Text() != "c/x is done." {
		t.Errorf("it said %q", out.Text())
	}
	instances := map[string]bool{}
	for batch, want := range map[string]map[string]int{"a": {"1": 2, "2": 1}, "b": {"1": 1}, "c": {"x": 1}, "nobody's": {}} {
		out := workertest.Call(t, w, "work_runs", map[string]string{"batch": batch})
		var got worked
		if err := json.Unmarshal([]byte(out.Text()), &got); err != nil {
			t.Fatalf("%v: %s", err, out.Text())
		}
		if !maps.Equal(got.Runs, want) || got.Runs == nil {
			t.Errorf("batch %s: %v, want %v", batch, got.Runs, want)
		}
		instances[got.Instance] = true
	}
	if len(instances) != 1 || instances[""] {
		t.Errorf("one instance called itself %v", instances)
	}
}
