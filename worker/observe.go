package worker

import (
	"errors"

	"google.golang.org/grpc/stats"
)

// Load is what an instance has to do.
type Load struct {
	// Slots is how many calls may run at a time, Used how many do.
	Slots, Used int
	// Stalled is how many of Used are handlers that go on although their call has
	// ended, by its deadline or because nobody waits any more. They keep their
	// slots until they return.
	Stalled int
	// Refused is how often a call was refused since Run was called, for want of
	// a slot or because the instance leaves. The edge asks another instance
	// then, or the same one again.
	Refused uint64
}

// Load returns what the worker has to do now; nothing before Run and after it.
func (w *Worker) Load() Load {
	w.mu.RLock()
	server := w.server
	w.mu.RUnlock()
	if server == nil {
		return Load{}
	}
	s := server.Stats()
	return Load{Slots: s.Slots, Used: s.Used, Stalled: s.Stalled, Refused: s.Refused}
}

// Pool returns the name of the pool of the worker.
func (w *Worker) Pool() string { return w.cfg.Pool }

// UseStats adds handlers that hear of every call as those of a gRPC server do:
// tracers of the gRPC ecosystem are such handlers. They hear of a call before
// the middleware, and what they put into its context is in that of the handler.
//
// UseStats is called before Run.
func (w *Worker) UseStats(handlers ...stats.Handler) {
	w.register(func() error {
		if w.running {
			return errors.New("worker: stats handlers were added after Run was called")
		}
		w.stats = append(w.stats, handlers...)
		return nil
	})
}

func (w *Worker) statsHandlers() []stats.Handler {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.stats
}
