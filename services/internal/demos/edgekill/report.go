package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// report is what has come of the calls.
type report struct {
	calls      []*call
	steps      int
	identified int    // had an event id when the edge was killed
	edge       string // that was killed
	held       int    // calls it held
	took       time.Duration
	runs       map[string]int // executions by item, over all workers
}

// count is one line of the report: a number and what it has to be.
type count struct {
	what      string
	got, want int
	atLeast   bool
}

func (c count) holds() bool { return c.got == c.want || c.atLeast && c.got > c.want }

// counts are the lines of the report.
func (r *report) counts() []count {
	var resumed, collected, twice, lost, repeated, executions, again int
	for _, c := range r.calls {
		c.mu.Lock()
		if c.resumed > 0 && c.results > 0 {
			resumed++
		}
		collected += min(c.results, 1)
		twice += max(c.results-1, 0)
		// Each step once and in order, over all streams of the call.
		seen := map[float64]bool{}
		for i, p := range c.progress {
			if seen[p] || i > 0 && p < c.progress[i-1] {
				repeated++
			}
			seen[p] = true
		}
		lost += max(r.steps-len(seen), 0)
		n := r.runs[c.item]
		executions += n
		again += max(n-1, 0)
		c.mu.Unlock()
	}
	n := len(r.calls)
	return []count{
		{"calls", n, n, false},
		{"with an event id when the edge was killed", r.identified, n, false},
		{"held by " + r.edge + ", which was killed", r.held, n * 3 / 10, true},
		{"resumed on another edge to the result", resumed, r.held, true},
		{"results collected", collected, n, false},
		{"results that came twice", twice, 0, false},
		{"executions counted by the workers", executions, n, false},
		{"executions of calls that had run before", again, 0, false},
		{"progress notifications lost", lost, 0, false},
		{"progress notifications repeated or out of order", repeated, 0, false},
	}
}

func (r *report) passed() bool {
	return !slices.ContainsFunc(r.counts(), func(c count) bool { return !c.holds() })
}

// print writes the report, and of what failed the first three reasons.
func (r *report) print(w io.Writer) {
	for _, c := range r.counts() {
		verdict := ""
		switch {
		case c.holds():
		case c.atLeast:
			verdict = fmt.Sprintf("   <-- want at least %d", c.want)
		default:
			verdict = fmt.Sprintf("   <-- want %d", c.want)
		}
		_, _ = fmt.Fprintf(w, "%6d  %s%s\n", c.got, c.what, verdict) // a report that cannot be written has no reader
	}
	shown := 0
	for _, c := range r.calls {
		if c.failure != nil && shown < 3 {
			shown++
			_, _ = fmt.Fprintf(w, "  call %d: %v\n", c.id, c.failure) // as above
		}
	}
	verdict := "PASS"
	if !r.passed() {
		verdict = "FAIL"
	}
	_, _ = fmt.Fprintf(w, "%s after %v\n", verdict, r.took.Round(100*time.Millisecond)) // as above
}
