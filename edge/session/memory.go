package session

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// maxValues bounds the values of a Memory.
	maxValues = 200_000
	// sweepFrom is how many values are made at least before a Memory looks for
	// those whose time is over.
	sweepFrom = 1024
	// evictSample is how many values are compared to find an old one.
	evictSample = 16
)

// Memory is a Store inside one process: what an edge uses that shares its
// sessions with nobody. It keeps up to 200,000 values and drops old ones beyond
// that.
type Memory struct {
	mu       sync.Mutex
	values   map[string]memoryValue
	revision uint64 // of the last write
	made     int    // values made since the last look for those that are over
}

type memoryValue struct {
	data     []byte
	revision uint64
	expires  time.Time // zero: never
}

func (v memoryValue) expired(now time.Time) bool {
	return !v.expires.IsZero() && !now.Before(v.expires)
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{values: map[string]memoryValue{}}
}

// Get implements Store.
func (m *Memory) Get(_ context.Context, key string) ([]byte, uint64, error) {
	if err := CheckKey(key); err != nil {
		return nil, 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.values[key]
	if !ok || v.expired(time.Now()) {
		return nil, 0, ErrNotFound
	}
	return slices.Clone(v.data), v.revision, nil
}

// Put implements Store.
func (m *Memory) Put(_ context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	if err := CheckKey(key); err != nil {
		return 0, err
	}
	if len(value) > MaxValue {
		return 0, ErrTooLarge
	}
	now := time.Now()
	v := memoryValue{data: slices.Clone(value)}
	if ttl > 0 {
		v.expires = now.Add(wholeSeconds(ttl))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.values[key]
	if ok && old.expired(now) {
		old, ok = memoryValue{}, false
	}
	if old.revision != revision {
		return 0, ErrConflict
	}
	if !ok {
		m.makeRoomLocked(now)
	}
	m.revision++
	v.revision = m.revision
	m.values[key] = v
	return v.revision, nil
}

// makeRoomLocked drops what nobody can read any more, and beyond the bound one
// of the values that were written longest ago. Looking at all values only when
// half of them are new makes it cheap for each.
func (m *Memory) makeRoomLocked(now time.Time) {
	if m.made++; m.made >= max(sweepFrom, len(m.values)/2) {
		m.made = 0
		for key, v := range m.values {
			if v.expired(now) {
				delete(m.values, key)
			}
		}
	}
	if len(m.values) >= maxValues {
		m.evictLocked()
	}
}

// evictLocked drops the oldest of some values.
func (m *Memory) evictLocked() {
	oldest, revision, n := "", uint64(0), 0
	for key, v := range m.values {
		if n == 0 || v.revision < revision {
			oldest, revision = key, v.revision
		}
		if n++; n == evictSample {
			break
		}
	}
	delete(m.values, oldest)
}
