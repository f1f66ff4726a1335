package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// spare is how much garbage a process may always have before the collector
	// runs. A process of ours lives on some megabytes, and by default the
	// collector would run for each few megabytes of results that pass through:
	// that was a third of the processor time of a result of 64 KiB.
	spare = 64 << 20
	// mostPercent bounds what the heap can become when what lives grows.
	mostPercent = 400
	// defaultPercent is that of the Go runtime.
	defaultPercent = 100
)

// collector has the garbage collector wait for spare bytes of garbage where it
// would wait for fewer: the heap is at most twice what lives, or spare more. A
// memory limit (GOMEMLIMIT) goes before it, as before any GOGC; and who sets
// GOGC has decided, then there is nothing to run.
func collector() []actor {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	return []actor{{"collector", func(ctx context.Context) error {
		cycle := make(chan struct{}, 1) // full: a cycle that has not been looked at
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		for percent := defaultPercent; ; {
			metrics.Read(live)
			if wanted := percentFor(live[0].Value.Uint64()); wanted != percent {
				debug.SetGCPercent(wanted)
				percent = wanted
			}
			onCollection(cycle)
			select {
			case <-cycle:
			case <-ctx.Done():
				return nil
			}
		}
	}}}
}

// onCollection sends to cycle when the collector has run: what lives is known
// then, and a large result must not wait for a clock until its garbage counts.
func onCollection(cycle chan<- struct{}) {
	garbage := new([64]byte) // of its own: small objects share their memory
	runtime.AddCleanup(garbage, func(cycle chan<- struct{}) {
		select {
		case cycle <- struct{}{}:
		default:
		}
	}, cycle)
}

// percentFor is the percentage for what lives in the heap. It is a multiple of
// 20, since a change stops everything for a moment.
func percentFor(live uint64) int {
	const step = 20
	if live == 0 { // nothing was collected yet
		return mostPercent
	}
	return int(min(max(spare*100/live/step*step, defaultPercent), mostPercent))
}
