package main

import (
	"fmt"
	"io"
	"time"

	"github.com/millrace/millrace/services/internal/demos/client"
	"github.com/millrace/millrace/services/internal/demos/report"
)

// outcome is what has come of the calls.
type outcome struct {
	calls      []*client.Call
	steps      int
	identified int    // had an event id when the edge was killed
	edge       string // that was killed
	held       int    // calls it held
	took       time.Duration
	runs       map[string]int // executions by item, over all workers
}

// counts are the lines of the report.
func (o *outcome) counts() []report.Count {
	var resumed, collected, twice, lost, repeated, executions, again int
	for _, c := range o.calls {
		seen := c.Seen()
		if seen.Resumed > 0 && seen.Results > 0 {
			resumed++
		}
		collected += min(seen.Results, 1)
		twice += max(seen.Results-1, 0)
		missing, more := seen.Progressed(o.steps)
		lost += missing
		repeated += more
		n := o.runs[c.Work().Item]
		executions += n
		again += max(n-1, 0)
	}
	n := len(o.calls)
	return []report.Count{
		{What: "calls", Got: n, Want: n},
		{What: "with an event id when the edge was killed", Got: o.identified, Want: n},
		{What: "held by " + o.edge + ", which was killed", Got: o.held, Want: n * 3 / 10, AtLeast: true},
		{What: "resumed on another edge to the result", Got: resumed, Want: o.held, AtLeast: true},
		{What: "results collected", Got: collected, Want: n},
		{What: "results that came twice", Got: twice},
		{What: "executions counted by the workers", Got: executions, Want: n},
		{What: "executions of calls that had run before", Got: again},
		{What: "progress notifications lost", Got: lost},
		{What: "progress notifications repeated or out of order", Got: repeated},
	}
}

func (o *outcome) passed() bool { return report.Passed(o.counts()) }

// print writes the report, and why calls failed.
func (o *outcome) print(w io.Writer) {
	var reasons []string
	for _, c := range o.calls {
		if err := c.Seen().Failure; err != nil {
			reasons = append(reasons, fmt.Sprintf("call %d: %v", c.ID(), err))
		}
	}
	report.Print(w, o.counts(), reasons, o.took)
}
