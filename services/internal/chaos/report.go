package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// Told is how long the clients of affected calls waited to be told, in
// milliseconds.
type Told struct {
	Fault    string  `json:"fault"`
	Times    int     `json:"times"`
	Affected int     `json:"affected"`
	P50      float64 `json:"p50ms"`
	P99      float64 `json:"p99ms"`
	Max      float64 `json:"maxms"`
	// Whole is how long the cluster took to be whole after the end of a fault,
	// at most.
	Whole float64 `json:"wholeMaxMs"`
}

// Growth is what a process takes before and after.
type Growth struct {
	Name   string `json:"name"`
	Before Usage  `json:"before"`
	After  Usage  `json:"after"`
}

// report is what has come of it. Its exported fields are the summary as JSON.
type report struct {
	Seed     uint64         `json:"seed"`
	Took     string         `json:"took"`
	Calls    int            `json:"calls"`
	Attempts int            `json:"attempts"`
	Outcomes map[string]int `json:"outcomes"`        // how calls ended
	Answers  map[string]int `json:"answers"`         // how attempts ended
	Resumed  int            `json:"resumedAttempts"` // attempts that were taken up again
	Runs     int            `json:"executions"`
	Levels   map[string]int `json:"sessionWrites"` // how logging/setLevel ended
	Verdict  verdict        `json:"verdict"`
	Told     []Told         `json:"faults"`
	Growth   []Growth       `json:"processes"`
	Problems []string       `json:"problems"`
	Notes    map[string]int `json:"notes"`

	calls         []*call
	injections    []*Injection
	before, after map[string]Usage
}

// passed says whether all promises were kept.
func (r *report) passed() bool { return len(r.Verdict.Faults) == 0 && len(r.Problems) == 0 }

// sum judges and counts.
func (r *report) sum(ledger map[int][]execution) {
	r.Verdict = judge(r.calls, ledger)
	r.Calls = len(r.calls)
	r.Outcomes, r.Answers = map[string]int{}, map[string]int{}
	for _, ran := range ledger {
		r.Runs += len(ran)
	}
	for _, c := range r.calls {
		r.Attempts += len(c.Attempts)
		r.Outcomes[c.Attempts[len(c.Attempts)-1].Outcome]++
		for _, a := range c.Attempts {
			r.Answers[a.Outcome]++
			if a.Resumed > 0 {
				r.Resumed++
			}
		}
	}
	for i := range r.Verdict.Faults {
		f := &r.Verdict.Faults[i]
		for _, in := range r.injections {
			if n := len(f.Call.Attempts); n > 0 && !f.Call.Attempts[n-1].End.Before(in.At) && !f.Call.Attempts[0].Start.After(in.Whole) {
				f.During += in.Fault + " of " + in.Target + " "
			}
		}
	}
	affected, whole, times := map[string][]time.Duration{}, map[string]time.Duration{}, map[string]int{}
	for _, in := range r.injections {
		affected[in.Fault] = append(affected[in.Fault], told(in, r.calls, ledger)...)
		whole[in.Fault] = max(whole[in.Fault], in.Whole.Sub(in.Healed))
		times[in.Fault]++
	}
	ms := func(d time.Duration) float64 { return float64(d.Milliseconds()) }
	for _, f := range faults() {
		if times[f.name] == 0 {
			continue
		}
		all := affected[f.name]
		slices.Sort(all)
		t := Told{Fault: f.name, Times: times[f.name], Affected: len(all), Whole: ms(whole[f.name])}
		if n := len(all); n > 0 {
			t.P50, t.P99, t.Max = ms(all[n/2]), ms(all[min(n*99/100, n-1)]), ms(all[n-1])
		}
		r.Told = append(r.Told, t)
	}
	for _, name := range slices.Sorted(maps.Keys(r.before)) {
		r.Growth = append(r.Growth, Growth{name, r.before[name], r.after[name]})
	}
}

// write prints the report, and writes the summary to a file if it has a name.
func (r *report) write(w io.Writer, file string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format+"\n", args...) } // Flush reports the error
	row("\n%d calls, %d requests, %d resumed, %d executions, in %s (seed %d)", r.Calls, r.Attempts, r.Resumed, r.Runs, r.Took, r.Seed)
	row("\nOUTCOME\tCALLS\tREQUESTS\t")
	for _, kind := range slices.Sorted(maps.Keys(r.Answers)) {
		row("%s\t%d\t%d\t", kind, r.Outcomes[kind], r.Answers[kind])
	}
	row("\nFAULT\tTIMES\tAFFECTED\tTOLD p50 ms\tp99\tmax\tWHOLE AFTER max ms\t")
	for _, f := range r.Told {
		row("%s\t%d\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t", f.Fault, f.Times, f.Affected, f.P50, f.P99, f.Max, f.Whole)
	}
	row("\nPROCESS\tGOROUTINES\tafter\tRSS MiB\tafter\tFILES\tafter\t")
	for _, g := range r.Growth {
		row("%s\t%d\t%d\t%.1f\t%.1f\t%d\t%d\t", g.Name, g.Before.Goroutines, g.After.Goroutines, g.Before.RSS, g.After.RSS, g.Before.Files, g.After.Files)
	}
	row("\nsession writes: %v", r.Levels)
	for _, note := range slices.Sorted(maps.Keys(r.Notes)) {
		row("note: %s: %d", note, r.Notes[note])
	}
	for _, p := range r.Problems {
		row("problem: %s", p)
	}
	const shown = 20
	for i, f := range r.Verdict.Faults {
		if i == shown {
			row("... and %d more", len(r.Verdict.Faults)-shown)
			break
		}
		detail, err := json.Marshal(f)
		if err != nil {
			return err
		}
		row("fault: %s", detail)
	}
	v := &r.Verdict
	row("\nduplicates %d\nexecuted though refused %d\nwrong answers %d\nunanswered %d\nunknown outcomes %d\nproblems %d",
		v.Duplicates, v.Lies, v.Wrong, v.Unanswered, v.Unknown, len(r.Problems))
	if err := t.Flush(); err != nil {
		return err
	}
	if file == "" {
		return nil
	}
	return writeJSON(file, r)
}

// keep writes everything that is known to a folder, if it has a name.
func (r *report) keep(dir string) error {
	if dir == "" {
		return nil
	}
	var odd []*call // the others are all alike
	for _, c := range r.calls {
		if len(c.Attempts) > 1 || c.Attempts[0].Outcome != outcomeResult || c.Attempts[0].Resumed > 0 ||
			c.Attempts[0].End.Sub(c.Attempts[0].Start) > time.Duration(c.MS)*time.Millisecond+time.Second {
			odd = append(odd, c)
		}
	}
	if err := writeJSON(filepath.Join(dir, "odd-calls.json"), odd); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, "injections.json"), r.injections); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, "broken-promises.json"), r.Verdict.Faults)
}

func writeJSON(file string, value any) error {
	raw, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(raw, '\n'), 0o644) //nolint:gosec // for people to read
}
