package session

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTickets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		tickets := NewTickets(NewMemory())
		take := func(name string) bool {
			taken, err := tickets.Take(ctx, name, time.Minute)
			if err != nil {
				t.Error(err)
			}
			return taken
		}
		if !take("a") || take("a") || take("a") || !take("b") {
			t.Error("a ticket is good once, and another one is another one")
		}
		tickets.GiveBack(ctx, "a", time.Minute)
		if !take("a") || take("a") {
			t.Error("one that was given back is good once more")
		}
		tickets.GiveBack(ctx, "untaken", time.Minute)
		if !take("untaken") {
			t.Error("one that nobody has taken is good")
		}
		cancelled, cancel := context.WithCancel(ctx)
		cancel()
		tickets.GiveBack(cancelled, "a", time.Minute)
		if !take("a") {
			t.Error("it is given back when the caller has gone")
		}
		for range 100 {
			tickets.GiveBack(ctx, "a", time.Minute)
			var taken atomic.Int64
			var wait sync.WaitGroup
			for range 10 {
				wait.Go(func() {
					if take("a") {
						taken.Add(1)
					}
				})
			}
			if wait.Wait(); taken.Load() != 1 {
				t.Fatalf("%d of 10 took it", taken.Load())
			}
		}
	})
}

// Without the store nobody gets one.
func TestTicketsWithoutTheirStore(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "not a key of any store"} {
		taken, err := NewTickets(noStore{}).Take(context.Background(), name, time.Minute)
		if taken || err == nil {
			t.Errorf("%s: %v, %v", name, taken, err)
		}
	}
	if taken, err := NewTickets(NewMemory()).Take(context.Background(), "not a key", time.Minute); taken || err == nil {
		t.Errorf("a name that is no key: %v, %v", taken, err)
	}
}

type noStore struct{}

func (noStore) Get(context.Context, string) ([]byte, uint64, error) { return nil, 0, ErrUnavailable }
func (noStore) Put(context.Context, string, []byte, uint64, time.Duration) (uint64, error) {
	return 0, ErrUnavailable
}
