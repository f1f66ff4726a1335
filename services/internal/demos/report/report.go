// Package report prints what a demonstration has counted, and says whether it is
// what it has to be.
package report

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// Count is one line of a report: a number and what it has to be.
type Count struct {
	What      string
	Got, Want int
	// AtLeast: more than Want is as good.
	AtLeast bool
}

// Holds says whether the number is what it has to be.
func (c Count) Holds() bool { return c.Got == c.Want || c.AtLeast && c.Got > c.Want }

// Passed says whether all hold.
func Passed(counts []Count) bool {
	return !slices.ContainsFunc(counts, func(c Count) bool { return !c.Holds() })
}

// Print writes the counts, of what has failed the first three reasons, and the
// verdict. A report that cannot be written has no reader.
func Print(w io.Writer, counts []Count, reasons []string, took time.Duration) {
	for _, c := range counts {
		verdict := ""
		switch {
		case c.Holds():
		case c.AtLeast:
			verdict = fmt.Sprintf("   <-- want at least %d", c.Want)
		default:
			verdict = fmt.Sprintf("   <-- want %d", c.Want)
		}
		_, _ = fmt.Fprintf(w, "%6d  %s%s\n", c.Got, c.What, verdict)
	}
	for _, reason := range reasons[:min(3, len(reasons))] {
		_, _ = fmt.Fprintf(w, "  %s\n", reason)
	}
	verdict := "PASS"
	if !Passed(counts) {
		verdict = "FAIL"
	}
	_, _ = fmt.Fprintf(w, "%s after %v\n", verdict, took.Round(100*time.Millisecond))
}
