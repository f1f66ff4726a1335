package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// kept is what one round has measured of sessions and idle streams.
type kept struct {
	sessions      bool          // there were some
	session       time.Duration // processor time of initialize and initialized
	sessionMemory float64       // KiB of a session
	streamMemory  float64       // KiB of an idle stream
}

// openers is how many connections sessions are begun on at the same time.
const openers = 16

// idle begins sessions on a server that has just been started, then opens a
// stream in each, and looks at the memory of the process that holds them.
func idle(ctx context.Context, s *server, t target, n int, rest time.Duration) (k kept, err error) {
	sessions := make(chan string, n) // all of them
	if !t.session {
		for range n {
			sessions <- ""
		}
	} else if k, err = begin(ctx, s, n, sessions, rest); err != nil {
		return k, err
	}
	before, err := s.front.memory()
	if err != nil {
		return k, err
	}
	streams := make(chan *conn, n) // all of them; closed below
	err = parallel(ctx, openers, n, func(int) error {
		c, err := dial(ctx, s.url)
		if err != nil {
			return err
		}
		c.session = <-sessions
		streams <- c
		if err := c.listen(); err != nil {
			return fmt.Errorf("stream %d of %d: %w", len(streams), n, err)
		}
		c.reader = nil // nothing more comes
		return nil
	})
	close(streams)
	defer func() {
		for c := range streams {
			c.close()
		}
	}()
	if err != nil {
		return k, err
	}
	if err := wait(ctx, rest); err != nil {
		return k, err
	}
	after, err := s.front.memory()
	k.streamMemory = float64(after-before) / 1024 / float64(n)
	return k, err
}

// begin begins sessions. A fifth of them is begun before anything is measured:
// the first ones make the process grow for other reasons.
func begin(ctx context.Context, s *server, n int, sessions chan<- string, rest time.Duration) (k kept, err error) {
	conns := make([]*conn, openers)
	for i := range conns {
		if conns[i], err = dial(ctx, s.url); err != nil {
			return k, err
		}
		defer conns[i].close()
	}
	open := func(number int) error {
		err := conns[number].open()
		sessions <- conns[number].session
		return err
	}
	warm := n / 5
	if err := parallel(ctx, openers, warm, open); err != nil {
		return k, err
	}
	memory, err := s.front.memory()
	if err != nil {
		return k, err
	}
	cpu, err := s.cpu()
	if err != nil {
		return k, err
	}
	if err := parallel(ctx, openers, n-warm, open); err != nil {
		return k, err
	}
	after, err := s.cpu()
	if err != nil {
		return k, err
	}
	k.sessions, k.session = true, (after-cpu)/time.Duration(n-warm)
	if err := wait(ctx, rest); err != nil {
		return k, err
	}
	grown, err := s.front.memory()
	k.sessionMemory = float64(grown-memory) / 1024 / float64(n-warm)
	return k, err
}

// parallel has a number of workers do something n times in all. It returns the
// first error.
func parallel(ctx context.Context, workers, n int, do func(worker int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var begun atomic.Int64
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for ctx.Err() == nil && begun.Add(1) <= int64(n) {
				if err := do(worker); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// wait waits.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
