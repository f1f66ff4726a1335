package session

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors of a Store. An implementation may wrap them.
var (
	// ErrNotFound: there is no value under the key, or its time is over.
	ErrNotFound = errors.New("session: nothing is stored under this key")
	// ErrConflict: somebody else has written the value since its revision.
	ErrConflict = errors.New("session: the stored value has changed meanwhile")
	// ErrUnavailable: the store cannot be reached now. Whether a write that
	// got this error was done is not known.
	ErrUnavailable = errors.New("session: the store is not available")
	// ErrTooLarge: the value is larger than MaxValue.
	ErrTooLarge = fmt.Errorf("session: a stored value is larger than %d bytes", MaxValue)
)

const (
	// MaxValue is the size in bytes up to which every store takes a value. It
	// leaves room in the largest message that NATS servers take by default.
	MaxValue = 512 << 10
	// maxKey is the length of the longest key in bytes.
	maxKey = 200
)

// Store keeps small values that all edges share. It is safe for concurrent
// use. Keys are tokens of A-Z, a-z, 0-9, "_" and "-" joined by "."; anything
// else is an error of the caller and is refused with another error than those
// above.
type Store interface {
	// Get returns the value of a key and its revision, which is never 0. The
	// value is the caller's. Errors: ErrNotFound, ErrUnavailable.
	Get(ctx context.Context, key string) (value []byte, revision uint64, err error)
	// Put writes a value if the key still has the given revision, and returns
	// the new one; revision 0 means that there is none. The value lives for
	// ttl from now, rounded up to seconds, whatever the one before had; 0: for
	// ever. Errors: ErrConflict, ErrUnavailable, ErrTooLarge.
	Put(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error)
}

// CheckKey returns an error for a key that no Store takes.
func CheckKey(key string) error {
	if len(key) > maxKey {
		return fmt.Errorf("session: a key of %d bytes, at most %d are allowed", len(key), maxKey)
	}
	last := byte('.')
	for _, c := range []byte(key) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		case c == '.' && last != '.':
		default:
			return fmt.Errorf("session: key %q is not made of tokens joined by dots", key)
		}
		last = c
	}
	if last == '.' {
		return fmt.Errorf("session: key %q is not made of tokens joined by dots", key)
	}
	return nil
}

// wholeSeconds rounds a time to live up: stores count in seconds.
func wholeSeconds(ttl time.Duration) time.Duration {
	return (ttl + time.Second - 1).Truncate(time.Second)
}
