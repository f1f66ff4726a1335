package jetstream

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// newsEvery is how often the log is told that a stream has failed: one whose server
// has a full disk answers now and then.
const newsEvery = time.Minute

// news tells the log when a stream goes and comes back. It may be used concurrently.
type news struct {
	log *slog.Logger

	mu     sync.Mutex
	told   time.Time // when it was last told that it has failed
	failed bool      // that is what was told last
	untold int       // failures since then
}

// fail tells of a failure, or counts it.
func (n *news) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.told.IsZero() && time.Since(n.told) < newsEvery {
		n.untold++
		n.log.Debug("JetStream has failed", "error", err)
		return
	}
	n.tellLocked(err)
}

// still tells of a failure that goes on, if it was not told.
func (n *news) still(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.failed && n.untold > 0 && time.Since(n.told) >= newsEvery {
		n.tellLocked(err)
	}
}

func (n *news) tellLocked(err error) {
	args := []any{"error", err}
	if n.untold > 0 {
		args = append(args, "before", n.untold)
	}
	n.log.Warn("JetStream has failed", args...)
	n.told, n.failed, n.untold = time.Now(), true, 0
}

// recover tells that the stream can be used, if that is news; first: for the first
// time, at a level of its own.
func (n *news) recover(first bool, level slog.Level) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.failed && !first {
		level = slog.LevelDebug // its failure was not told either
	}
	n.failed = false
	n.log.Log(context.Background(), level, "JetStream is available")
}
