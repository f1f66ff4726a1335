// Package everything is a worker that uses all there is: the tools, resources
// and prompts that the conformance suite of the protocol calls by name, and
// some that tests of ours need, which wait, crash, count or answer at length.
// It is no use to anybody but tests and people who try a client out.
//
// It is written as the author of a tool would write it, once for all revisions
// of the protocol.
package everything

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/worker"
)

// Pool is the name all instances of this worker share.
const Pool = "everything"

// Config describes the worker. The zero value works.
type Config struct {
	// Version of the worker, as in worker.Config. Default "0.0.0".
	Version string
	// Slots is how many calls run at the same time, as in worker.Config.
	Slots int
	// Grace is how long running calls may go on after Run was told to stop, as
	// in worker.Config.
	Grace time.Duration
	// Exit ends the process, for the tool crash; nil: the tool cannot do that.
	Exit func()
	// Development is as in worker.Config.
	Development bool
	// Logger takes what only the operator may see. Nil: discarded.
	Logger *slog.Logger
}

// Everything is an actor: Run serves it.
type Everything struct {
	worker *worker.Worker
	exit   func()

	// dangers counts the side effects of the tool danger.
	dangers atomic.Int64
	// redeemed counts those of the tool redeem.
	redeemed atomic.Int64

	extras extras

	mu sync.Mutex
	// holds are the calls of the tool hold, by the name they were given; kept
	// for ever, since only tests make them.
	holds map[string]*holding
	// visits are those of the tool test_url_elicitation_required, by name; kept
	// as holds are.
	visits map[string]*visit
}

// New returns the worker.
func New(cfg Config) *Everything {
	e := &Everything{exit: cfg.Exit, holds: map[string]*holding{}, visits: map[string]*visit{}, worker: worker.New(worker.Config{
		Pool:    Pool,
		Version: cmp.Or(cfg.Version, "0.0.0"),
		Title:   "Everything",
		Instructions: "This worker is for trying out clients: each of its tools, resources and prompts " +
			"shows one feature of the protocol.",
		Slots:       cfg.Slots,
		Grace:       cfg.Grace,
		Development: cfg.Development,
		Logger:      cfg.Logger,
	})}
	e.addContentTools()
	e.addReportingTools()
	e.addInputTools()
	e.addRoundTools()
	e.addTriggers()
	e.addTestTools()
	e.addWorkTools()
	e.addHoldTools()
	e.addPageTools()
	e.addResources()
	e.addPrompts()
	return e
}

// Ready returns a channel that is closed when the worker takes calls.
func (e *Everything) Ready() <-chan struct{} { return e.worker.Ready() }

// Worker returns the worker, for who measures it: before Run it may be given
// middleware.
func (e *Everything) Worker() *worker.Worker { return e.worker }

// Run serves the worker on conn until ctx is done, as worker.Run does. It can
// be run once.
func (e *Everything) Run(ctx context.Context, conn *bus.Conn) error {
	stop, err := e.extras.share(conn)
	if err != nil {
		return fmt.Errorf("everything: %w", err)
	}
	defer stop()
	return e.worker.Run(ctx, conn)
}

// none are the arguments of a tool that takes none.
type none struct{}

// pause waits, unless the call ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
