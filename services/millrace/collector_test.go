package main

import (
	"runtime"
	"testing"
)

func TestCollectorBoundsGarbage(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct {
		live    uint64
		percent int
	}{
		{0, mostPercent},
		{1, mostPercent},
		{8 * mib, mostPercent},
		{16 * mib, 400},
		{20 * mib, 320},
		{32 * mib, 200},
		{60 * mib, 100},
		{64 * mib, defaultPercent},
		{4096 * mib, defaultPercent},
	} {
		if got := percentFor(c.live); got != c.percent {
			t.Errorf("%d MiB live: %d %%, want %d", c.live/mib, got, c.percent)
		}
		if garbage := c.live * uint64(percentFor(c.live)) / 100; garbage > max(spare, c.live) {
			t.Errorf("%d MiB live: %d MiB of garbage", c.live/mib, garbage/mib)
		}
	}
}

func TestCollectorLeavesGOGCAlone(t *testing.T) {
	t.Setenv("GOGC", "100")
	if actors := collector(); actors != nil {
		t.Errorf("%d actors, though GOGC is set", len(actors))
	}
	t.Setenv("GOGC", "")
	if actors := collector(); len(actors) != 1 {
		t.Errorf("%d actors, though GOGC is not set", len(actors))
	}
}

func TestCollectorHearsOfCollections(t *testing.T) {
	t.Parallel()
	cycle := make(chan struct{}, 1)
	onCollection(cycle)
	for range 100 { // what is garbage is the collector's to say, not at which of its runs
		runtime.GC()
		select {
		case <-cycle:
			return
		default:
		}
	}
	<-cycle // its cleanup runs on a goroutine of its own
}
