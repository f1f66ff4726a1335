package edge

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
)

// TestYoungEdgeTakesNobodyForGone: an edge that has just started does not know yet
// who is there.
func TestYoungEdgeTakesNobodyForGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, err := localnats.Start(localnats.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer server.Shutdown()
		conn, err := bus.Connect(t.Context(), bus.ConnConfig{InProcess: server})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		p := &presence{watcher: bus.NewWatcher(conn, bus.WatcherConfig{})}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{}, 2) // one for each
		go func() { _ = p.watcher.Run(ctx); done <- struct{}{} }()
		go func() { p.run(ctx); done <- struct{}{} }()
		defer func() { cancel(); <-done; <-done }()
		p.lost("lost")
		if !p.alive("unknown") || p.alive("lost") || p.alive("") {
			t.Errorf("young: unknown %v, lost %v, nobody %v", p.alive("unknown"), p.alive("lost"), p.alive(""))
		}
		<-p.watcher.Synced()
		if !p.alive("unknown") {
			t.Error("gone, when it may have been late only")
		}
		time.Sleep(2 * settleTime) // fake
		if p.alive("unknown") || p.alive("lost") {
			t.Error("what nobody has heard of in all that time is alive")
		}
	})
}
