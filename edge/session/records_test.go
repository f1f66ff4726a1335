package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// faulty is a Memory that can be cut off and that counts.
type faulty struct {
	*Memory

	down       atomic.Bool
	gets, puts atomic.Int64
	ttl        atomic.Int64 // of the last Put
	// hold, when set, delays the answer to a Get until it is closed.
	hold atomic.Pointer[chan struct{}]
}

func newFaulty() *faulty { return &faulty{Memory: NewMemory()} }

func (f *faulty) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	f.gets.Add(1)
	if f.down.Load() {
		return nil, 0, fmt.Errorf("%w: cut off", ErrUnavailable)
	}
	value, revision, err := f.Memory.Get(ctx, key)
	if hold := f.hold.Load(); hold != nil {
		select {
		case <-*hold:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
	return value, revision, err
}

func (f *faulty) Put(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	f.puts.Add(1)
	f.ttl.Store(int64(ttl))
	if f.down.Load() {
		return 0, fmt.Errorf("%w: cut off", ErrUnavailable)
	}
	return f.Memory.Put(ctx, key, value, revision, ttl)
}

func newSession(scope string) *Session { return &Session{Scope: scope, Issued: time.Now()} }

func level(name string) func(*Record) error {
	return func(r *Record) error { r.Level = name; return nil }
}

func follow(uri string) func(*Record) error {
	return func(r *Record) error { r.URIs = append(r.URIs, uri); return nil }
}

func end(r *Record) error { r.Ended = true; return nil }

func wantLevel(t *testing.T, r *Records, scope, want string) {
	t.Helper()
	if record, err := r.Get(t.Context(), scope); err != nil || record.Level != want {
		t.Errorf("level %q (%v), want %q", record.Level, err, want)
	}
}

func update(t *testing.T, r *Records, s *Session, change func(*Record) error) {
	t.Helper()
	if _, err := r.Update(t.Context(), s, change); err != nil {
		t.Fatal(err)
	}
}

func TestRecordsAreRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		a, b, s := NewRecords(store, RecordsConfig{}), NewRecords(store, RecordsConfig{}), newSession("s")
		for range 100 {
			wantLevel(t, a, "s", "")
		}
		if n := store.gets.Load(); n != 1 {
			t.Errorf("%d reads of a record that does not exist", n)
		}
		update(t, b, s, level("debug"))
		wantLevel(t, b, "s", "debug")
		wantLevel(t, a, "s", "")
		a.Forget("s")
		wantLevel(t, a, "s", "debug")

		update(t, b, s, level("error"))
		time.Sleep(9 * time.Second)
		wantLevel(t, a, "s", "debug")
		time.Sleep(time.Second)
		wantLevel(t, a, "s", "error")
	})
}

// TestRecordsAreReadOnceAtATime: what the first requests of a session need is
// fetched once, however many they are. It is pain 53.
func TestRecordsAreReadOnceAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, hold := newFaulty(), make(chan struct{})
		store.hold.Store(&hold)
		r := NewRecords(store, RecordsConfig{})
		var group sync.WaitGroup
		for range 50 {
			group.Go(func() { wantLevel(t, r, "s", "") })
		}
		impatient, cancel := context.WithCancel(t.Context())
		group.Go(func() {
			if _, err := r.Get(impatient, "s"); !errors.Is(err, context.Canceled) {
				t.Errorf("a caller that has left got %v", err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(hold)
		group.Wait()
		// One more if the one that read was the one that left.
		if n := store.gets.Load(); n > 2 {
			t.Errorf("%d reads for one record", n)
		}
	})
}

// A read that was under way when another edge announced a change brings what
// was before it.
func TestForgetOvertakesARead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, hold := newFaulty(), make(chan struct{})
		a, b, s := NewRecords(store, RecordsConfig{}), NewRecords(store, RecordsConfig{}), newSession("s")
		update(t, b, s, level("info"))
		store.hold.Store(&hold)
		done := make(chan struct{})
		go func() {
			defer close(done)
			wantLevel(t, a, "s", "debug")
		}()
		synctest.Wait()
		update(t, b, s, level("debug"))
		a.Forget("s")
		store.hold.Store(nil)
		close(hold)
		<-done
	})
}

// TestUpdateOvertakenByARead: what an update has read is older than what somebody
// else has read meanwhile.
func TestUpdateOvertakenByARead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, hold := newFaulty(), make(chan struct{})
		a, b, s := NewRecords(store, RecordsConfig{}), NewRecords(store, RecordsConfig{}), newSession("s")
		update(t, b, s, level("info"))
		store.hold.Store(&hold)
		done := make(chan struct{})
		go func() {
			defer close(done)
			update(t, a, s, func(*Record) error { return nil })
		}()
		synctest.Wait()
		store.hold.Store(nil)
		update(t, b, s, level("debug"))
		wantLevel(t, a, "s", "debug")
		close(hold)
		<-done
		wantLevel(t, a, "s", "debug")
	})
}

// TestUnread: what is remembered, or nothing, is not what the store says.
func TestUnread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		r, s := NewRecords(store, RecordsConfig{}), newSession("s")
		unread := func(when string, want bool) {
			t.Helper()
			if record, err := r.Get(t.Context(), "s"); err != nil || record.Unread != want {
				t.Errorf("%s: unread %v (%v), want %v", when, record.Unread, err, want)
			}
		}
		store.down.Store(true)
		unread("never read", true)
		store.down.Store(false)
		time.Sleep(time.Minute)
		unread("without a record", false)
		update(t, r, s, level("info"))
		store.down.Store(true)
		unread("just written", false)
		time.Sleep(time.Minute)
		unread("while the store is down", true)
		store.down.Store(false)
		time.Sleep(time.Minute)
		unread("when it is back", false)
	})
}

func TestUpdatesOfTwoEdgesAreBothKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, s := newFaulty(), newSession("s")
		edges := []*Records{NewRecords(store, RecordsConfig{}), NewRecords(store, RecordsConfig{}), NewRecords(store, RecordsConfig{})}
		var group sync.WaitGroup
		for i := range 150 {
			group.Go(func() {
				if _, err := edges[i%3].Update(t.Context(), s, follow(fmt.Sprintf("u:%03d", i))); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		record, err := NewRecords(store, RecordsConfig{}).Get(t.Context(), "s")
		if err != nil || len(record.URIs) != 150 || !slices.IsSorted(record.URIs) {
			t.Errorf("%d resources (%v) of 150, sorted %t", len(record.URIs), err, slices.IsSorted(record.URIs))
		}
		puts := store.puts.Load()
		update(t, edges[0], s, follow("u:007"))
		if store.puts.Load() != puts {
			t.Error("what is there already was written again")
		}
	})
}

func TestChangeMayRefuse(t *testing.T) {
	t.Parallel()
	store := newFaulty()
	r, s := NewRecords(store, RecordsConfig{}), newSession("s")
	update(t, r, s, follow("u:b"))
	held, err := r.Get(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	refusal := errors.New("no")
	_, err = r.Update(t.Context(), s, func(record *Record) error {
		record.URIs[0] = "u:spoiled"
		return refusal
	})
	if !errors.Is(err, refusal) || errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if record, _ := r.Get(t.Context(), "s"); record.URIs[0] != "u:b" || held.URIs[0] != "u:b" {
		t.Errorf("a refused change is seen: %v, %v", record.URIs, held.URIs)
	}
	if _, err := r.Update(t.Context(), s, follow(string(make([]byte, MaxValue)))); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	wantLevel(t, r, "s", "")
}

func TestEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		a, b, s := NewRecords(store, RecordsConfig{}), NewRecords(store, RecordsConfig{}), newSession("s")
		update(t, a, s, follow("u:a"))
		time.Sleep(time.Hour / 4)
		update(t, a, s, end)
		if left := time.Duration(store.ttl.Load()); left != 24*time.Hour+skew-time.Hour/4 {
			t.Errorf("the record lives for %v, which is not the rest of the session's age", left)
		}
		for _, r := range []*Records{a, b} {
			if _, err := r.Get(t.Context(), "s"); !errors.Is(err, ErrExpired) || !errors.Is(err, ErrUnknown) {
				t.Errorf("an ended session reads as %v", err)
			}
			if _, err := r.Update(t.Context(), s, level("info")); !errors.Is(err, ErrExpired) {
				t.Errorf("an ended session is changed: %v", err)
			}
		}
		time.Sleep(24 * time.Hour)
		if _, _, err := store.Memory.Get(t.Context(), recordKey("s")); !errors.Is(err, ErrNotFound) {
			t.Errorf("the record outlives its session: %v", err)
		}
	})
}

func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		a, b := NewRecords(store, RecordsConfig{}), NewRecords(store, RecordsConfig{})
		s := newSession("s")
		wantLevel(t, a, "nothing", "")
		update(t, a, s, level("debug"))

		// In use for hours, now here and now there.
		puts := store.puts.Load()
		for i := range 12 * 60 {
			time.Sleep(time.Minute)
			wantLevel(t, []*Records{a, b}[i/29%2], "s", "debug")
		}
		if n := store.puts.Load() - puts; n > 12*12+1 {
			t.Errorf("%d writes in 12 hours, more than one in five minutes", n)
		}
		// The last use here is exact; there it may be five minutes late.
		time.Sleep(30 * time.Minute)
		wantLevel(t, b, "s", "debug")
		time.Sleep(35*time.Minute + time.Second)
		for _, r := range []*Records{a, b, NewRecords(store, RecordsConfig{})} {
			if _, err := r.Get(t.Context(), "s"); !errors.Is(err, ErrExpired) {
				t.Errorf("an idle session reads as %v", err)
			}
			if _, err := r.Update(t.Context(), s, level("info")); !errors.Is(err, ErrExpired) {
				t.Errorf("an idle session is changed: %v", err)
			}
		}
		// One that has changed nothing has nothing to expire.
		wantLevel(t, a, "nothing", "")
	})
}

func TestStoreDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		r := NewRecords(store, RecordsConfig{})
		known, other := newSession("known"), newSession("other")
		update(t, r, known, level("debug"))
		update(t, NewRecords(store, RecordsConfig{}), other, level("error"))
		time.Sleep(time.Minute)

		store.down.Store(true)
		asked := store.gets.Load()
		for i := range 50 {
			for j := range 20 {
				wantLevel(t, r, "known", "debug")
				wantLevel(t, r, "other", "")
				wantLevel(t, r, strconv.Itoa(20*i+j), "")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := store.gets.Load() - asked; n < 4 || n > 6 {
			t.Errorf("a store that was down for 5 s was asked %d times", n)
		}
		if _, err := r.Update(t.Context(), known, level("info")); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a change without a store: %v", err)
		}
		if _, err := r.Update(t.Context(), other, end); !errors.Is(err, ErrUnavailable) {
			t.Errorf("an end without a store: %v", err)
		}

		store.down.Store(false)
		time.Sleep(time.Second)
		wantLevel(t, r, "known", "debug")
		wantLevel(t, r, "other", "error")
		update(t, r, known, level("info"))
		wantLevel(t, r, "known", "info")
	})
}

// TestEndedElsewhere: an edge that was told of the end of a session believes it,
// even if it cannot look.
func TestEndedElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		r, s := NewRecords(store, RecordsConfig{}), newSession("s")
		update(t, r, s, level("debug"))
		if !r.Available() {
			t.Error("the store has answered, and is not available")
		}
		store.down.Store(true)
		r.End("s")
		r.End("never seen")
		for _, scope := range []string{"s", "never seen"} {
			if _, err := r.Get(t.Context(), scope); !errors.Is(err, ErrExpired) {
				t.Errorf("%s reads as %v", scope, err)
			}
		}
		time.Sleep(time.Minute) // nothing new can be learned meanwhile
		if _, err := r.Get(t.Context(), "s"); !errors.Is(err, ErrExpired) || r.Available() {
			t.Errorf("a minute later it reads as %v, the store is available: %v", err, r.Available())
		}
		// What is stored is the truth.
		store.down.Store(false)
		time.Sleep(time.Minute)
		wantLevel(t, r, "s", "debug")
		if !r.Available() {
			t.Error("the store is back, and is not available")
		}
	})
}

// A session that was in use while the store was away is not idle.
func TestUseWhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		a, b := NewRecords(store, RecordsConfig{}), NewRecords(store, RecordsConfig{})
		update(t, a, newSession("s"), level("debug"))
		store.down.Store(true)
		for range 60 {
			time.Sleep(time.Minute)
			wantLevel(t, a, "s", "debug")
		}
		store.down.Store(false)
		time.Sleep(time.Minute)
		wantLevel(t, a, "s", "debug")
		wantLevel(t, b, "s", "debug")
	})
}

func TestRememberedIsBounded(t *testing.T) {
	t.Parallel()
	store := newFaulty()
	r := NewRecords(store, RecordsConfig{MaxCached: 100})
	for i := range 10_000 {
		s := newSession(strconv.Itoa(i))
		update(t, r, s, level("debug"))
		update(t, r, s, end)
		if _, err := r.Get(t.Context(), "0"); !errors.Is(err, ErrExpired) {
			t.Fatal(err)
		}
	}
	if n := len(r.young) + len(r.old); n > 100 {
		t.Errorf("%d records are remembered, more than 100", n)
	}
	// What is used stays.
	if n := store.gets.Load(); n > 10_100 {
		t.Errorf("%d reads", n)
	}
}

func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	store, s := NewMemory(), newSession("s")
	if _, err := store.Put(t.Context(), recordKey("s"), []byte("{"), 0, 0); err != nil {
		t.Fatal(err)
	}
	r := NewRecords(store, RecordsConfig{})
	wantLevel(t, r, "s", "")
	update(t, r, s, level("debug"))
	wantLevel(t, NewRecords(store, RecordsConfig{}), "s", "debug")
}

func BenchmarkRecordGet(b *testing.B) {
	r := NewRecords(NewMemory(), RecordsConfig{})
	for name, scope := range map[string]string{"changed": "s", "unchanged": "none"} {
		b.Run(name, func(b *testing.B) {
			if scope == "s" {
				if _, err := r.Update(b.Context(), newSession(scope), follow("u:a")); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Get(b.Context(), scope); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A record that is too old as soon as it is there is read once for each Get.
func TestNothingIsRemembered(t *testing.T) {
	t.Parallel()
	store := newFaulty()
	r := NewRecords(store, RecordsConfig{CacheAge: time.Nanosecond})
	for range 10 {
		wantLevel(t, r, "s", "")
	}
	if n := store.gets.Load(); n > 10 {
		t.Errorf("%d reads", n)
	}
}

// The last minutes of use on one edge, which it has not written down yet, count
// on another one too.
func TestUseNotYetWrittenDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		a, b := NewRecords(store, RecordsConfig{}), NewRecords(store, RecordsConfig{})
		update(t, a, newSession("s"), level("debug"))
		time.Sleep(4 * time.Minute)
		puts := store.puts.Load()
		wantLevel(t, a, "s", "debug")
		if store.puts.Load() != puts {
			t.Error("a use was written down that is covered by the one before")
		}
		time.Sleep(29 * time.Minute)
		wantLevel(t, b, "s", "debug")
	})
}

// TestRecordsNothingToChange: what would change nothing here may change what another
// edge has made of it, and this one has not heard of.
func TestRecordsNothingToChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		a, b, s := NewRecords(store, RecordsConfig{}), NewRecords(store, RecordsConfig{}), newSession("s")
		update := func(r *Records, change func(*Record) error) {
			t.Helper()
			if _, err := r.Update(t.Context(), s, change); err != nil {
				t.Fatal(err)
			}
		}
		update(a, follow("x"))
		update(b, func(r *Record) error { r.URIs = nil; return nil })
		update(a, follow("x"))
		got, err := NewRecords(store, RecordsConfig{}).Get(t.Context(), "s")
		if err != nil || !slices.Equal(got.URIs, []string{"x"}) {
			t.Errorf("stored are %v, %v", got.URIs, err)
		}
	})
}
