package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// warmUp is how long the load runs before anything is measured, settling how
	// long the cluster may take afterwards to be as it was.
	warmUp   = 6 * time.Second
	settling = 30 * time.Second
	// wholeness is how long the cluster may take to be whole after a fault.
	wholeness = time.Minute
)

// experiment runs the load and injects the faults, and judges.
func (c *cluster) experiment(ctx context.Context, faults []fault) (*report, error) {
	r := &report{}
	warm := newLoad(c.url, c.opts, c.opts.seed)
	warming, cancel := context.WithTimeout(ctx, warmUp)
	warm.run(warming)
	cancel()
	before, err := c.quiet(ctx, nil)
	if err != nil {
		return nil, err
	}
	r.before = before

	l := newLoad(c.url, c.opts, c.opts.seed+1)
	l.begun = 10 * warm.begun // no token is used twice
	loading, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.run(loading)
	}()
	pause(ctx, c.opts.long) // until as many long calls run as ever will
	c.injectAll(ctx, faults, l, r)
	for l.count() < c.opts.calls && ctx.Err() == nil {
		pause(ctx, 100*time.Millisecond)
	}
	stop()
	<-ended
	if ctx.Err() != nil {
		r.Problems = append(r.Problems, "interrupted")
		ctx = context.WithoutCancel(ctx) // what there is can be judged
	}
	if r.after, err = c.quiet(ctx, before); err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	for _, p := range c.all {
		if n := p.crashed(); n > 0 {
			r.Problems = append(r.Problems, fmt.Sprintf("%s ended %d times by itself", p.name, n))
		}
	}
	ledger, err := readLedgers(filepath.Join(c.dir, "ledger"))
	if err != nil {
		return nil, err
	}
	for _, w := range warm.calls {
		delete(ledger, w.Token)
	}
	r.calls, r.Levels, r.Notes = l.calls, l.levels, c.notes
	r.sum(ledger)
	return r, r.keep(c.opts.keep)
}

// injectAll injects all faults, round by round and in each in another order.
func (c *cluster) injectAll(ctx context.Context, faults []fault, l *load, r *report) {
	chance := rand.New(rand.NewPCG(c.opts.seed, 2)) //nolint:gosec // it is to be repeatable
	for round := range c.opts.rounds {
		for _, i := range chance.Perm(len(faults)) {
			in, err := c.injectOne(ctx, &faults[i], l, chance)
			r.injections = append(r.injections, in)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				continue
			}
			r.Problems = append(r.Problems, fmt.Sprintf("round %d, %s of %s: %v", round+1, in.Fault, in.Target, err))
			if err := c.repair(ctx, l); err != nil {
				r.Problems = append(r.Problems, fmt.Sprintf("given up: %v", err))
				return
			}
		}
		c.say("round %d of %d done, %d calls", round+1, c.opts.rounds, l.count())
	}
}

var errNotDrained = errors.New("calls have not been answered yet")

// injectOne injects one fault, ends it, and waits until the cluster is whole.
func (c *cluster) injectOne(ctx context.Context, f *fault, l *load, chance *rand.Rand) (*Injection, error) {
	in := &Injection{Fault: f.name}
	var p *process
	switch f.role {
	case "links":
		in.Target = f.role
	case "":
		var err error
		if p, err = c.leader(); err != nil {
			return in, err
		}
	default:
		some := c.of(f.role)
		p = some[chance.IntN(len(some))]
	}
	if p != nil {
		in.Target = p.name
		in.life = fmt.Sprintf("%s-%d", p.name, p.pid())
	}
	in.At = time.Now()
	heal, err := f.inject(c, p)
	if err != nil {
		return in, err
	}
	pause(ctx, f.lasts)
	if err := heal(); err != nil {
		return in, err
	}
	in.Healed = time.Now()
	in.Whole = in.Healed
	// A proxy that has not noticed yet would say that all is well.
	pause(ctx, 500*time.Millisecond)
	wait, cancel := context.WithTimeout(ctx, wholeness)
	defer cancel()
	err = until(wait, func() error { return c.whole(l, in.Healed) })
	in.Whole = time.Now()
	if err != nil {
		return in, fmt.Errorf("not whole: %w", err)
	}
	// The calls that met this fault are not to meet the next one, so that it is
	// known which one they suffered from; those that nobody answers are not
	// waited for.
	answered, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_ = until(answered, func() error {
		if l.drained(in.Healed) {
			return nil
		}
		return errNotDrained
	})
	if c.opts.verbose {
		c.say("%s of %s: whole %.1f s after its end", in.Fault, in.Target, in.Whole.Sub(in.Healed).Seconds())
	}
	return in, nil
}

// repair starts again what a fault has left behind, so that the others can be
// tried. That it was needed is a problem of its own.
func (c *cluster) repair(ctx context.Context, l *load) error {
	c.say("the cluster does not heal by itself; all is started again")
	since := time.Now()
	for _, p := range c.all {
		if p.running() {
			if err := p.kill(); err != nil {
				return err
			}
			pause(ctx, time.Second)
		}
		if err := p.start(); err != nil {
			return err
		}
	}
	wait, cancel := context.WithTimeout(ctx, 2*wholeness)
	defer cancel()
	return until(wait, func() error { return c.whole(l, since) })
}

// quiet measures the processes when nothing runs. With before it waits until
// they are near it, and returns an error if they never are.
func (c *cluster) quiet(ctx context.Context, before map[string]Usage) (map[string]Usage, error) {
	wait, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	if before == nil {
		pause(ctx, 3*time.Second)
	}
	now, stacks := map[string]Usage{}, map[string]string{}
	err := until(wait, func() error {
		var far []string
		for _, p := range c.all {
			u, s, err := p.usage()
			if err != nil {
				return err
			}
			now[p.name], stacks[p.name] = u, s
			if before == nil {
				continue
			}
			// Generous: what is looked for grows with the calls, of which there
			// were tens of thousands. A worker keeps a goroutine for each slot
			// that was ever used, of which there are 64.
			if b := before[p.name]; u.Goroutines > b.Goroutines+b.Goroutines/2+100 {
				far = append(far, fmt.Sprintf("%s has %d goroutines, %d before", p.name, u.Goroutines, b.Goroutines))
			}
			limit := 2*before[p.name].RSS + 64
			if p.role == roleNATS {
				limit += 2 * 384 // what streams in memory may hold, and the garbage of it
			}
			if u.RSS > limit {
				far = append(far, fmt.Sprintf("%s has %.0f MiB, %.0f before", p.name, u.RSS, before[p.name].RSS))
			}
		}
		if far != nil {
			return fmt.Errorf("not back at the baseline: %s", strings.Join(far, "; "))
		}
		return nil
	})
	if c.opts.keep != "" {
		for name, s := range stacks {
			when := "before"
			if before != nil {
				when = "after"
			}
			_ = os.WriteFile(filepath.Join(c.dir, "log", name+".stacks-"+when), []byte(s), 0o644) //nolint:gosec // for people to read; nothing depends on it
		}
	}
	return now, err
}
