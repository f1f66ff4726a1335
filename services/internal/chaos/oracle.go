package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// execution is one run of a tool at a worker.
type execution struct {
	Worker  string    `json:"worker"` // process, in one of its lives
	Run     int64     `json:"run"`
	Attempt int       `json:"attempt"`
	Begin   time.Time `json:"begin"`
	End     time.Time `json:"end"` // zero: the process did not live to see it
}

// readLedgers reads what the workers wrote down, by the token of the call.
func readLedgers(dir string) (map[int][]execution, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := map[int][]execution{}
	for _, entry := range files {
		if err := readLedger(filepath.Join(dir, entry.Name()), entry.Name(), all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func readLedger(path, worker string, all map[int][]execution) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it is read only
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var event string
		var at, run int64
		var token, number int
		if _, err := fmt.Sscanf(lines.Text(), "%s %d %d %d %d", &event, &at, &run, &token, &number); err != nil {
			return fmt.Errorf("ledger of %s: %q: %w", worker, lines.Text(), err)
		}
		if event == noteBegin {
			all[token] = append(all[token], execution{Worker: worker, Run: run, Attempt: number, Begin: time.Unix(0, at)})
			continue
		}
		i := slices.IndexFunc(all[token], func(e execution) bool { return e.Worker == worker && e.Run == run })
		if i < 0 {
			return fmt.Errorf("ledger of %s: %q ends what has not begun", worker, lines.Text())
		}
		all[token][i].End = time.Unix(0, at)
	}
	return lines.Err()
}

// Fault is a promise that was not kept, with all that is known of the call.
type Fault struct {
	What       string      `json:"what"`
	During     string      `json:"during,omitempty"` // the fault that had been injected
	Call       *call       `json:"call"`
	Executions []execution `json:"executions"`
}

// verdict is what the oracle says.
type verdict struct {
	// Duplicates are executions too many of calls that must not run twice, Lies
	// calls that ran although their client was told that they did not, Wrong
	// answers that are not those of the call, Unanswered what got none, and
	// Unknown outcomes that have no name.
	Duplicates int     `json:"duplicates"`
	Lies       int     `json:"executedThoughRefused"`
	Wrong      int     `json:"wrongAnswers"`
	Unanswered int     `json:"unanswered"`
	Unknown    int     `json:"unknownOutcomes"`
	Faults     []Fault `json:"-"`
}

// judge compares what clients were told with what workers did.
func judge(calls []*call, ledger map[int][]execution) verdict {
	var v verdict
	known := make(map[int]bool, len(calls))
	for _, c := range calls {
		known[c.Token] = true
		v.judge(c, ledger[c.Token])
	}
	for token, ran := range ledger {
		if !known[token] {
			v.add(&v.Wrong, "a call that nobody has made was executed", &call{Token: token}, ran)
		}
	}
	return v
}

func (v *verdict) add(count *int, what string, c *call, ran []execution) {
	*count++
	v.Faults = append(v.Faults, Fault{What: what, Call: c, Executions: ran})
}

func (v *verdict) judge(c *call, ran []execution) {
	if !c.Idempotent && len(ran) > 1 {
		v.add(&v.Duplicates, fmt.Sprintf("executed %d times", len(ran)), c, ran)
	}
	by := map[int]int{}
	for _, e := range ran {
		by[e.Attempt]++
	}
	for i, a := range c.Attempts {
		n := by[i+1]
		if a.Wrong != "" {
			v.add(&v.Wrong, a.Wrong, c, ran)
		}
		switch {
		case a.Outcome == outcomeUnanswered:
			v.add(&v.Unanswered, "no answer in time", c, ran)
		case a.Outcome == outcomeOther:
			v.add(&v.Unknown, "an answer that says nothing: "+a.Detail, c, ran)
		case notExecuted(a.Outcome) && n > 0:
			v.add(&v.Lies, fmt.Sprintf("attempt %d: %s, but executed", i+1, a.Outcome), c, ran)
		case a.Outcome == outcomeResult && !slices.ContainsFunc(ran, func(e execution) bool {
			return e.Worker == a.Worker && e.Run == a.Run && e.Attempt == i+1
		}):
			v.add(&v.Wrong, "a result that no worker has given", c, ran)
		case n > 2:
			// The edge repeats a call that may be repeated once.
			v.add(&v.Duplicates, fmt.Sprintf("attempt %d executed %d times", i+1, n), c, ran)
		}
	}
}

// Injection is one fault that was injected.
type Injection struct {
	Fault  string    `json:"fault"`
	Target string    `json:"target"`
	At     time.Time `json:"at"`
	Healed time.Time `json:"healed"`
	Whole  time.Time `json:"whole"`
	life   string    // of the target when it was hit, as its ledger is called
}

// told is, for each attempt that an injection has affected, the time until its
// client was told. Affected is what a killed, frozen or parted worker ran; and
// of all other calls that met the fault, before its end, those that failed, had to be taken up
// again, or came more than a second late. Told is not the end of a repeated
// call but its new beginning, and the time a call takes anyway does not count.
// Who was never answered was not told, and is counted by judge.
func told(in *Injection, calls []*call, ledger map[int][]execution) []time.Duration {
	var all []time.Duration
	for _, c := range calls {
		ran := ledger[c.Token]
		for i := range c.Attempts {
			a := &c.Attempts[i]
			if a.End.Before(in.At) || a.Start.After(in.Healed) || a.Outcome == outcomeCancelled || a.Outcome == outcomeUnanswered {
				continue
			}
			from := in.At
			if a.Start.After(from) {
				from = a.Start
			}
			work := time.Duration(c.MS) * time.Millisecond
			hit, again := false, time.Time{}
			for _, e := range ran {
				if e.Attempt != i+1 {
					continue
				}
				if e.Worker == in.life && e.Begin.Before(in.At) && (e.End.IsZero() || e.End.After(in.At)) {
					hit = true
				} else if e.Begin.After(in.At) {
					again = e.Begin
				}
			}
			late := a.End.Sub(a.Start) > work+time.Second
			switch {
			case a.Outcome == outcomeResult && hit && !again.IsZero():
				all = append(all, again.Sub(from))
			case a.Outcome == outcomeResult && (hit || late || a.Resumed > 0):
				due := a.Start.Add(work)
				if due.Before(from) {
					due = from
				}
				all = append(all, max(a.End.Sub(due), 0))
			case a.Outcome != outcomeResult:
				all = append(all, a.End.Sub(from))
			}
		}
	}
	slices.Sort(all)
	return all
}
