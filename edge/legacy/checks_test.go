package legacy

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestChecks: what is wanted is done soon, whenever it is wanted, and once.
func TestChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c checks
		var at []time.Duration
		begun := time.Now()
		c.within(time.Second) // the news came before the start
		c.within(2 * time.Second)
		stop := c.start(func() time.Duration { return time.Minute }, func() bool {
			at = append(at, time.Since(begun))
			time.Sleep(time.Second) // fake
			return true
		})
		time.Sleep(1500 * time.Millisecond)
		c.within(0) // while it runs
		time.Sleep(10 * time.Second)
		c.within(0)           // while it waits
		c.within(time.Second) // later than it is due
		time.Sleep(2 * time.Minute)
		stop()
		c.within(0)
		time.Sleep(2 * time.Minute)
		want := []time.Duration{time.Second, 2 * time.Second, 11500 * time.Millisecond, 72500 * time.Millisecond}
		if len(at) != len(want) {
			t.Fatalf("checked after %v, want %v", at, want)
		}
		for i := range want {
			if at[i] != want[i] {
				t.Errorf("check %d after %v, want %v", i, at[i], want[i])
			}
		}
	})
}
