package session

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryComparesAndSets(t *testing.T) {
	t.Parallel()
	m, ctx := NewMemory(), t.Context()
	if _, _, err := m.Get(ctx, "a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("nothing reads as %v", err)
	}
	if _, err := m.Put(ctx, "a", nil, 7, 0); !errors.Is(err, ErrConflict) {
		t.Errorf("a revision that never was: %v", err)
	}
	one, err := m.Put(ctx, "a", []byte("one"), 0, 0)
	if err != nil || one == 0 {
		t.Fatal(one, err)
	}
	if _, err := m.Put(ctx, "a", []byte("other"), 0, 0); !errors.Is(err, ErrConflict) {
		t.Errorf("made twice: %v", err)
	}
	two, err := m.Put(ctx, "a", []byte("two"), one, 0)
	if err != nil || two == one {
		t.Fatal(two, err)
	}
	if _, err := m.Put(ctx, "a", []byte("late"), one, 0); !errors.Is(err, ErrConflict) {
		t.Errorf("an old revision: %v", err)
	}
	value, revision, err := m.Get(ctx, "a")
	if string(value) != "two" || revision != two || err != nil {
		t.Errorf("Get = %q, %d, %v", value, revision, err)
	}
	value[0] = 'x'
	if again, _, _ := m.Get(ctx, "a"); string(again) != "two" {
		t.Error("a reader changed what is stored")
	}
	if _, err := m.Put(ctx, "a", make([]byte, MaxValue+1), two, 0); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

func TestMemoryTimeToLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, ctx := NewMemory(), t.Context()
		revision, err := m.Put(ctx, "a", []byte("one"), 0, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		if revision, err = m.Put(ctx, "a", []byte("two"), revision, time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		if _, _, err := m.Get(ctx, "a"); err != nil {
			t.Errorf("gone before its time: %v", err)
		}
		time.Sleep(time.Second)
		if _, _, err := m.Get(ctx, "a"); !errors.Is(err, ErrNotFound) {
			t.Errorf("there after its time: %v", err)
		}
		if _, err := m.Put(ctx, "a", nil, revision, 0); !errors.Is(err, ErrConflict) {
			t.Errorf("what is gone still has its revision: %v", err)
		}
		if _, err := m.Put(ctx, "a", nil, 0, time.Nanosecond); err != nil {
			t.Errorf("what is gone cannot be made again: %v", err)
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, ctx := NewMemory(), t.Context()
		for i := range 10_000 {
			if _, err := m.Put(ctx, "short."+strconv.Itoa(i), nil, 0, time.Second); err != nil {
				t.Fatal(err)
			}
			if i%100 == 0 {
				time.Sleep(time.Second)
			}
		}
		if n := len(m.values); n > 2*sweepFrom {
			t.Errorf("%d values of which at most 100 can be read", n)
		}
		for i := range maxValues + 5000 {
			if _, err := m.Put(ctx, "long."+strconv.Itoa(i), nil, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(m.values); n > maxValues {
			t.Errorf("%d values, more than %d", n, maxValues)
		}
		if _, _, err := m.Get(ctx, "long."+strconv.Itoa(maxValues+4999)); err != nil {
			t.Errorf("the newest value is gone: %v", err)
		}
	})
}

func TestKeys(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"a", "a.b", "A-z_0.9", strings.Repeat("x", maxKey)} {
		if err := CheckKey(key); err != nil {
			t.Error(err)
		}
	}
	m := NewMemory()
	for _, key := range []string{"", ".", "a.", ".a", "a..b", "a b", "a*", ">", "ü", "a/b", strings.Repeat("x", maxKey+1)} {
		if CheckKey(key) == nil {
			t.Errorf("key %q is taken", key)
		}
		if _, _, err := m.Get(t.Context(), key); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("Get(%q) = %v", key, err)
		}
		if _, err := m.Put(t.Context(), key, nil, 0, 0); err == nil {
			t.Errorf("Put(%q) works", key)
		}
	}
}
