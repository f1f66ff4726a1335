package main

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// bound is one thing that a goal asks for: what at most limit, as measured.
type bound struct {
	what  string
	value float64
	limit float64
}

func (b bound) met() bool { return b.value <= b.limit }

// goal is what Millrace is to reach: a first step, and what is aimed at.
type goal struct {
	what      string
	step, aim []bound
}

// goals are those of the design, with what was measured.
func (r *results) goals() []goal {
	pick := func(shape, target string, of func(*figures) rounds) float64 {
		f := r.loads[shape][target]
		if f == nil {
			return math.NaN()
		}
		return of(f).median()
	}
	cpu := func(f *figures) rounds { return f.cpu }
	ratio := func(shape, of, to string) float64 { return pick(shape, of, cpu) / pick(shape, to, cpu) }
	// below: CPU of one at most limit times that of the other.
	below := func(shape, of, to string, limit float64) bound {
		return bound{"CPU × " + to, ratio(shape, of, to), limit}
	}
	streams := math.NaN()
	if h := r.held[three+inSession]; h != nil {
		streams = h.streamMemory.median()
	}
	sessions := math.NaN()
	if h := r.held[three+inSession]; h != nil {
		sessions = h.sessionMemory.median()
	}
	p50 := func(f *figures) rounds { return f.p50 }
	p99 := func(f *figures) rounds { return f.p99 }
	modernBound := below(smallModern, three, mcpgoStateless, 1)
	modernBound.what += " in 2026-07-28"
	perEvent := func(target string) float64 {
		// What the call costs without progress is the same for both.
		return (pick(progress, target, cpu) - pick(alone, target, cpu)) / 10
	}
	return []goal{
		{
			what: "three processes, small calls",
			step: []bound{below(small, three, relay, 1.35), below(small, three, mcpgoStateless, 1), modernBound},
			aim:  []bound{below(small, three, relay, 0.8), below(small, three, fixedAnswer, 2), below(small, three, mcpgoStateful, 1)},
		},
		{
			what: "`millrace up`, small calls",
			step: []bound{below(small, up, relayUp, 1.35)},
			aim:  []bound{below(small, up, relayUp, 0.65)},
		},
		{
			what: "latency",
			step: []bound{
				{"p50 at 1 connection × " + relay, pick(alone, three, p50) / pick(alone, relay, p50), 1.05},
				{"p99 at 64 × " + mcpgoStateless, pick(small, three, p99) / pick(small, mcpgoStateless, p99), 1},
			},
		},
		{
			what: "64 KiB results, three processes",
			step: []bound{below(big, three, relay, 1.25)}, aim: []bound{below(big, three, fixedAnswer, 6.5)},
		},
		{
			what: "900 KiB results, three processes",
			step: []bound{below(huge, three, relay, 1.25)}, aim: []bound{below(huge, three, fixedAnswer, 9.5)},
		},
		{
			what: "`tools/list` of 1,000 tools",
			step: []bound{below(longList, three, fixedAnswer, 1.5)},
		},
		{
			what: "a report of progress, three processes",
			step: []bound{{"CPU × " + relay, perEvent(three) / perEvent(relay), 1.3}},
			aim:  []bound{{"CPU × " + fixedAnswer, perEvent(three) / perEvent(fixedAnswer), 1}},
		},
		{
			what: "an idle stream, on the edge",
			step: []bound{{"KiB", streams, 8}}, aim: []bound{{"KiB", streams, 5}},
		},
		{
			what: "`initialize`",
			step: []bound{
				{"CPU × `tools/list` of one tool", pick(handshake, three+inSession, cpu) / pick(shortList, three, cpu), 2},
				// Garbage that waits counts here; that nothing is kept at all is a
				// test of package edge.
				{"KiB that the edge grows by", sessions, 2},
			},
		},
	}
}

// printGoals writes which goals are met.
func (r *results) printGoals(w io.Writer) {
	_, _ = fmt.Fprint(w, "\n| goal | first step: measured (at most) | met | aim: measured (at most) | met |\n|---|---|---|---|---|\n") // as the table
	say := func(bounds []bound) (string, string) {
		if len(bounds) == 0 {
			return "", ""
		}
		texts, met := make([]string, len(bounds)), "yes"
		for i, b := range bounds {
			texts[i] = fmt.Sprintf("%s %s (%g)", b.what, number(b.value), b.limit)
			switch {
			case math.IsNaN(b.value):
				met = "not measured"
			case !b.met() && met == "yes":
				met = "no"
			}
		}
		return strings.Join(texts, "; "), met
	}
	for _, g := range r.goals() {
		step, stepMet := say(g.step)
		aim, aimMet := say(g.aim)
		_, _ = fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", g.what, step, stepMet, aim, aimMet) // as above
	}
}
