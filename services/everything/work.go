package everything

import (
	"context"
	"crypto/rand"
	"maps"
	"sync"
	"time"

	"github.com/millrace/millrace/worker"
)

// ledger counts the executions of the tool work in one instance.
type ledger struct {
	instance string // tells instances apart; unique

	mu   sync.Mutex
	runs map[string]map[string]int // by batch and item; kept for ever, since only tests work
}

func newLedger() *ledger {
	return &ledger{instance: rand.Text(), runs: map[string]map[string]int{}}
}

func (l *ledger) add(batch, item string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs[batch] == nil {
		l.runs[batch] = map[string]int{}
	}
	l.runs[batch][item]++
}

func (l *ledger) of(batch string) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.runs[batch])
}

// worked is what work_runs returns.
type worked struct {
	Instance string         `json:"instance"`
	Runs     map[string]int `json:"runs"`
}

// addWorkTools adds a tool whose executions can be counted over all instances:
// what tells a call that was made twice from one whose result was lost.
func (e *Everything) addWorkTools() {
	done := newLedger()
	worker.AddTool(e.worker, worker.Tool{
		Name:        "work",
		Description: "Works on an item of a batch in steps, with progress after each. It must not run twice for one call; work_runs tells how often it ran.",
		Annotations: &worker.Annotations{DestructiveHint: new(true), IdempotentHint: new(false)},
		Timeout:     time.Hour,
	}, func(ctx context.Context, call *worker.Call, in struct {
		Batch string `json:"batch" jsonschema:"what the items belong to"`
		Item  string `json:"item" jsonschema:"what to work on"`
		Steps int    `json:"steps,omitempty" jsonschema:"how many steps it takes"`
		Delay int    `json:"delay_ms,omitempty" jsonschema:"how long each step takes, in milliseconds"`
	},
	) (string, error) {
		done.add(in.Batch, in.Item)
		for i := range max(in.Steps, 0) {
			if err := pause(ctx, time.Duration(in.Delay)*time.Millisecond); err != nil {
				return "", err
			}
			call.Progress(float64(i+1), float64(in.Steps), in.Item)
		}
		return in.Batch + "/" + in.Item + " is done.", nil
	})
	worker.AddTool(e.worker, worker.Tool{
		Name: "work_runs", Description: "Returns how often work ran for each item of a batch in the instance that answers, and which one that is.", Annotations: readOnly(),
	}, func(_ context.Context, _ *worker.Call, in struct {
		Batch string `json:"batch" jsonschema:"what the items belong to"`
	},
	) (worked, error) {
		runs := done.of(in.Batch)
		if runs == nil {
			runs = map[string]int{}
		}
		return worked{Instance: done.instance, Runs: runs}, nil
	})
}
