package everything

import (
	"context"
	"time"

	"github.com/millrace/millrace/worker"
)

// holding is one call of the tool hold.
type holding struct {
	started, ended, released chan struct{} // each closed when that has happened
	cancelled                bool          // whether its context ended; to be read when ended is closed
}

// holding returns the call of hold with a name, which may be yet to come.
func (e *Everything) holding(name string) *holding {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.holds[name]
	if h == nil {
		h = &holding{started: make(chan struct{}), ended: make(chan struct{}), released: make(chan struct{})}
		e.holds[name] = h
	}
	return h
}

// begin closes the channel of a thing that happens once, and says whether it
// had not happened before.
func (e *Everything) begin(ch chan struct{}) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-ch:
		return false
	default:
		close(ch)
		return true
	}
}

// held is what the tool held says about a call of hold.
type held struct {
	Started   bool `json:"started"`
	Ended     bool `json:"ended"`
	Cancelled bool `json:"cancelled"`
}

// addHoldTools adds a tool that runs until it is cancelled, and one that tells
// whether it was: nobody else sees what a cancellation does at the worker,
// since a cancelled call has no answer.
func (e *Everything) addHoldTools() {
	worker.AddTool(e.worker, worker.Tool{
		Name: "hold", Timeout: time.Hour,
		Description: "Reports progress once and runs until it is cancelled or held lets it go. A name is good for one call.",
	}, func(ctx context.Context, call *worker.Call, in struct {
		Name string `json:"name" jsonschema:"what held is to ask for"`
	},
	) (string, error) {
		h := e.holding(in.Name)
		if !e.begin(h.started) {
			return "", worker.InvalidArguments("there was a call of that name already")
		}
		defer close(h.ended)
		call.Progress(1, 2, "holding")
		select {
		case <-h.released:
			return "Let go.", nil
		case <-ctx.Done():
			h.cancelled = true
			return "", ctx.Err()
		}
	})
	worker.AddTool(e.worker, worker.Tool{
		Name:        "held",
		Description: "Waits until a call of hold has ended, but only for so long; then tells whether it was cancelled, and lets it go if it still runs.",
	}, func(ctx context.Context, _ *worker.Call, in struct {
		Name string `json:"name" jsonschema:"that of the call"`
		MS   int    `json:"ms,omitempty" jsonschema:"how long to wait, in milliseconds"`
	},
	) (held, error) {
		h := e.holding(in.Name)
		timer := time.NewTimer(time.Duration(in.MS) * time.Millisecond)
		defer timer.Stop()
		select {
		case <-h.ended:
		case <-timer.C:
		case <-ctx.Done():
			return held{}, ctx.Err()
		}
		now := held{}
		select {
		case <-h.started:
			now.Started = true
		default:
		}
		select {
		case <-h.ended:
			now.Ended, now.Cancelled = true, h.cancelled
		default:
			e.begin(h.released)
		}
		return now, nil
	})
}
