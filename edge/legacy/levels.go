package legacy

import (
	"sync"
	"time"
)

// defaultLevel is the log level of a client that never set one. The
// specification leaves it to the server.
const defaultLevel = "info"

const (
	// maxLevels bounds the memory of clients that set a level and leave.
	maxLevels = 100_000
	// levelAge is how long a level is kept: the longest a session lives.
	levelAge = 24 * time.Hour
)

// levels are the log levels that clients of this edge have set, by scope. The
// zero value is ready; it is safe for concurrent use.
type levels struct {
	mu      sync.RWMutex
	byScope map[string]levelEntry
}

type levelEntry struct {
	level string
	since time.Time
}

func (l *levels) set(scope, level string) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byScope == nil {
		l.byScope = map[string]levelEntry{}
	}
	if len(l.byScope) >= maxLevels {
		for s, e := range l.byScope {
			if now.Sub(e.since) > levelAge {
				delete(l.byScope, s)
			}
		}
		for s := range l.byScope { // all are young: any one makes room
			if len(l.byScope) < maxLevels {
				break
			}
			delete(l.byScope, s)
		}
	}
	l.byScope[scope] = levelEntry{level, now}
}

func (l *levels) get(scope string) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if e, ok := l.byScope[scope]; ok {
		return e.level
	}
	return defaultLevel
}
