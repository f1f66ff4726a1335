package main

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

const (
	// attemptTimeout is how long a client waits for the answer to a request:
	// the call timeout, after which the edge says so itself, and as long again
	// for calls that report progress and for edges that are frozen.
	attemptTimeout = 2 * callTimeout
	// attempts is how often a client makes a call at most.
	attempts = 8
	// sessions are used at the same time, each for sessionAge.
	sessions   = 24
	sessionAge = 15 * time.Second
)

// call is one call, and what its client has been told.
type call struct {
	Token      int       `json:"token"`
	MS         int       `json:"ms"`
	Idempotent bool      `json:"idempotent"`
	Legacy     bool      `json:"legacy"`
	Progress   bool      `json:"progress"`
	Attempts   []attempt `json:"attempts"`

	cancelAfter time.Duration // 0: it is not
}

// session is a session that calls share for a while.
type session struct {
	mu   sync.Mutex
	id   string
	used time.Time // since when
}

// load makes calls at a rate, whatever becomes of them. Its methods may be
// called concurrently.
type load struct {
	client  *client
	rate    float64
	long    int        // milliseconds
	chance  *rand.Rand // of the goroutine that begins calls
	open    []*session
	running sync.WaitGroup

	mu     sync.Mutex
	calls  []*call              // all that have ended
	begun  int                  // all that were begun
	levels map[string]int       // how logging/setLevel ended
	served map[string]time.Time // when a call that a process has served had begun, the last one
	active map[int]time.Time    // when those calls had begun that have not ended, by token
}

func newLoad(url string, o options, seed uint64) *load {
	l := &load{
		client: newClient(url), rate: o.rate, long: int(o.long.Milliseconds()), chance: rand.New(rand.NewPCG(seed, 1)), //nolint:gosec // it is to be repeatable
		levels: map[string]int{}, served: map[string]time.Time{}, active: map[int]time.Time{},
	}
	for range sessions {
		l.open = append(l.open, &session{})
	}
	return l
}

// run begins calls until ctx ends, and returns when all have ended.
func (l *load) run(ctx context.Context) {
	defer l.running.Wait()
	began := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	// An open load: a cluster that answers slowly gets no fewer calls. What a
	// busy machine was late for is made up for.
	for n := 0; ; n++ {
		timer.Reset(time.Until(began.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		l.begun++
		token := l.begun
		l.active[token] = time.Now()
		l.mu.Unlock()
		c := l.draw(token)
		s := l.open[l.chance.IntN(len(l.open))]
		l.running.Go(func() { l.make(context.WithoutCancel(ctx), c, s) })
	}
}

// draw makes up a call: seven of ten take a millisecond, two half a second, and
// one five seconds.
func (l *load) draw(token int) *call {
	c := &call{Token: token, MS: 1, Idempotent: l.chance.IntN(2) == 0, Legacy: l.chance.IntN(2) == 0}
	switch l.chance.IntN(10) {
	case 0:
		c.MS = l.long
	case 1, 2:
		c.MS = 500
	}
	c.Progress = c.MS > 1 && l.chance.IntN(2) == 0
	if c.MS > 1 && l.chance.IntN(50) == 0 {
		c.cancelAfter = time.Duration(50+l.chance.IntN(c.MS-100)) * time.Millisecond
	}
	return c
}

// make makes a call as often as the rules of its client allow: again when
// nothing was executed, and when that is not known only if it does no harm.
func (l *load) make(ctx context.Context, c *call, s *session) {
	for n := 1; n <= attempts; n++ {
		v := &conversation{client: l.client, call: c, number: n, id: c.Token*attempts + n, a: &attempt{Start: time.Now()}}
		if c.Legacy {
			if v.session = l.sessionOf(ctx, s); v.session == "" {
				v.a.Outcome, v.a.End, v.retryAfter = outcomeNoEdge, time.Now(), time.Second
			}
		}
		if v.a.Outcome == "" {
			v.run(ctx)
		}
		c.Attempts = append(c.Attempts, *v.a)
		if v.a.Outcome == outcomeResult {
			l.note(v.a)
		}
		if v.a.Outcome == outcomeSessionLost {
			s.mu.Lock()
			s.id = ""
			s.mu.Unlock()
		}
		repeatable := notExecuted(v.a.Outcome)
		switch v.a.Outcome {
		case outcomeWorkerLost, outcomeEdgeLost, outcomeConnectionLost, outcomeTimeout, outcomeNotKept, outcomeTooLarge, outcomeResultLost, outcomeMayHave:
			repeatable = c.Idempotent
		}
		if !repeatable || c.cancelAfter > 0 {
			break
		}
		if n < attempts {
			pause(ctx, max(v.retryAfter, 50*time.Millisecond))
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
	delete(l.active, c.Token)
}

// sessionOf returns the id of a session, a new one if it is old; "" if none is
// to be had.
func (l *load) sessionOf(ctx context.Context, s *session) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id != "" && time.Since(s.used) < sessionAge {
		return s.id
	}
	id, level, err := l.client.initialize(ctx)
	if err != nil {
		level = "initialize: " + err.Error()
	}
	l.mu.Lock()
	l.levels[level]++
	l.mu.Unlock()
	s.id, s.used = id, time.Now()
	return id
}

// note notes who has served.
func (l *load) note(a *attempt) {
	worker := a.Worker[:max(strings.LastIndexByte(a.Worker, '-'), 0)]
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range []string{a.Edge, worker} {
		if a.Start.After(l.served[name]) {
			l.served[name] = a.Start
		}
	}
}

// silent returns the name of an edge or a worker that has served no call that
// began after a time; "" when all have.
func (l *load) silent(c *cluster, since time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range c.all {
		if p.role != roleNATS && !l.served[p.name].After(since) {
			return p.name
		}
	}
	return ""
}

// drained says whether all calls that had begun before a time have ended.
func (l *load) drained(before time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, began := range l.active {
		if began.Before(before) {
			return false
		}
	}
	return true
}

// count is how many calls have ended.
func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.calls)
}
