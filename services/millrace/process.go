package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/oklog/run"
)

// drainGrace is how long one actor may take to stop before the next one is
// told to; the whole process is bounded by what supervises it.
const drainGrace = 15 * time.Second

// process is the actors of one process. They start together; when one returns
// or a signal comes they are stopped one after another, in the order they were
// added: an actor that drains does so while everything it needs still runs.
type process struct {
	group run.Group
	log   *slog.Logger
}

func newProcess(ctx context.Context, log *slog.Logger) *process {
	p := &process{log: log}
	p.group.Add(run.ContextHandler(ctx))
	p.group.Add(run.SignalHandler(ctx, os.Interrupt, syscall.SIGTERM))
	return p
}

// stopping has f called when the process begins to stop: before any actor that
// is added later is told to.
func (p *process) stopping(f func()) {
	ended := make(chan struct{}) // closed when it stops
	p.group.Add(func() error {
		<-ended
		return nil
	}, func(error) {
		f()
		close(ended)
	})
}

// actor is a part of a process. Its run returns when the context ends and all
// that it started has stopped.
type actor struct {
	name string
	run  func(ctx context.Context) error
}

// add adds actors, in the order in which they are to be stopped.
func (p *process) add(actors ...actor) {
	for _, a := range actors {
		p.addOne(a.name, a.run)
	}
}

func (p *process) addOne(name string, execute func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}) // closed when execute has returned
	p.group.Add(func() error {
		defer close(done)
		if err := execute(ctx); err != nil && ctx.Err() == nil {
			if _, exit := errors.AsType[*exitError](err); exit {
				return err
			}
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}, func(error) {
		cancel()
		select {
		case <-done:
		case <-time.After(drainGrace):
			p.log.Warn("not stopped in time, going on", "actor", name)
		}
	})
}

// run runs the actors to their end. A signal is a good end.
func (p *process) run() error {
	err := p.group.Run()
	if errors.Is(err, run.ErrSignal) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
