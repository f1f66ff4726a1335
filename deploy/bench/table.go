package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// rounds are the values of a figure, one of each round.
type rounds []float64

// median is the one in the middle; NaN when there are none.
func (r rounds) median() float64 {
	if len(r) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(r))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

// spread is how far apart the rounds are, as a share of the median.
func (r rounds) spread() float64 {
	if len(r) == 0 {
		return math.NaN()
	}
	if slices.Min(r) == slices.Max(r) { // 0 as well
		return 0
	}
	return (slices.Max(r) - slices.Min(r)) / r.median()
}

// figures are what was measured of a target under a shape.
type figures struct {
	rate, p50, p99, cpu rounds // calls a second; the times in µs; CPU-µs a call
	bytes               int    // of an answer
	lost                rounds // reports of progress, as a share of a call's
}

func (f *figures) add(o outcome) {
	calls := float64(o.calls)
	f.rate = append(f.rate, calls/o.took.Seconds())
	f.p50 = append(f.p50, micro(o.p50))
	f.p99 = append(f.p99, micro(o.p99))
	f.cpu = append(f.cpu, micro(o.cpu)/calls)
	f.bytes = o.bytes
	f.lost = append(f.lost, float64(o.lost)/calls)
}

// held is what was measured of sessions and idle streams.
type held struct {
	session       rounds // CPU-µs of one
	sessionMemory rounds // KiB
	streamMemory  rounds // KiB
}

func (h *held) add(k kept) {
	if k.sessions {
		h.session = append(h.session, micro(k.session))
		h.sessionMemory = append(h.sessionMemory, k.sessionMemory)
	}
	h.streamMemory = append(h.streamMemory, k.streamMemory)
}

// results are all figures, by shape and target.
type results struct {
	loads map[string]map[string]*figures
	held  map[string]*held
	// streams is how many idle streams there were.
	streams int
}

func (r *results) load(shape, target string) *figures {
	if r.loads[shape] == nil {
		r.loads[shape] = map[string]*figures{}
	}
	f := r.loads[shape][target]
	if f == nil {
		f = &figures{}
		r.loads[shape][target] = f
	}
	return f
}

func (r *results) hold(target string) *held {
	if r.held[target] == nil {
		r.held[target] = &held{}
	}
	return r.held[target]
}

// print writes the table: each figure with its ratio to that of the bare relay
// in three processes, or where that cannot do it of Millrace in three processes.
func (r *results) print(w io.Writer) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) } // a full disk shows elsewhere
	p("| | calls/s | p50 ms | p99 ms | CPU-µs a call | spread of that |\n|---|---|---|---|---|---|\n")
	for _, s := range shapes() {
		figures := r.loads[s.name]
		if len(figures) == 0 {
			continue
		}
		name, base := relay, figures[relay]
		for _, other := range []string{three, three + inSession} {
			if base == nil {
				name, base = other, figures[other]
			}
		}
		p("| **%s**; × is to %s | | | | | |\n", s.name, name)
		for _, t := range s.of() {
			f := figures[t.name]
			if f == nil {
				continue
			}
			cell := func(value, of rounds, unit float64) string {
				text := number(value.median() / unit)
				if base == nil {
					return text
				}
				return fmt.Sprintf("%s (%.2f ×)", text, value.median()/of.median())
			}
			b := base
			if b == nil {
				b = f
			}
			p("| %s | %s | %s | %s | %s | %.0f %% |\n", t.name,
				cell(f.rate, b.rate, 1), cell(f.p50, b.p50, 1000), cell(f.p99, b.p99, 1000), cell(f.cpu, b.cpu, 1), 100*f.cpu.spread())
		}
	}
	r.printHeld(p)
	for shape, of := range r.loads {
		for target, f := range of {
			if lost := f.lost.median(); lost > 0 {
				p("\n%s: %s loses %.2f reports of progress a call.\n", shape, target, lost)
			}
		}
	}
}

// printHeld writes what sessions and streams keep.
func (r *results) printHeld(p func(string, ...any)) {
	if len(r.held) == 0 {
		return
	}
	p("\n| | CPU-µs of a session | KiB kept for it | KiB of an idle stream, of %s | spread of that |\n|---|---|---|---|---|\n", grouped(float64(r.streams)))
	for _, t := range targets() {
		h := r.held[t.name]
		if h == nil {
			continue
		}
		p("| %s | %s | %s | %s | %.0f %% |\n", t.name, number(h.session.median()), number(h.sessionMemory.median()),
			number(h.streamMemory.median()), 100*h.streamMemory.spread())
	}
}

// noise sums up how far rounds were apart.
func (r *results) noise() string {
	var cpu, rate rounds
	for _, of := range r.loads {
		for _, f := range of {
			cpu = append(cpu, 100*f.cpu.spread())
			rate = append(rate, 100*f.rate.spread())
		}
	}
	if len(cpu) == 0 {
		return "nothing was measured under load"
	}
	return fmt.Sprintf("the rounds of a figure are apart (greatest less least, of the median): CPU %.0f %% in the median and %.0f %% at most, throughput %.0f %% and %.0f %%",
		cpu.median(), slices.Max(cpu), rate.median(), slices.Max(rate))
}

// number writes a figure with three digits; what was not measured is a dash.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case math.IsInf(v, 0): // what it is compared with took less than can be measured
		return "∞"
	case math.Abs(v) >= 999.5:
		return grouped(v)
	case math.Abs(v) >= 99.5:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 9.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// grouped writes a whole number with commas.
func grouped(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	var b strings.Builder
	for i, d := range digits {
		if left := len(digits) - i; i > 0 && left%3 == 0 && d != '-' && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
