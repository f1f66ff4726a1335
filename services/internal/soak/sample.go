package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/services/devcluster"
)

// every is the time between two samples of the processes.
const every = 5 * time.Second

// sample is what a process takes at some time.
type sample struct {
	at         time.Duration // since the first
	rss        float64       // MiB
	goroutines float64
}

// watch samples all processes for a while.
func watch(ctx context.Context, cluster *devcluster.Cluster, last time.Duration) (map[string][]sample, error) {
	all := map[string][]sample{}
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	began := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for time.Since(began) < last {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return all, nil
		}
		for _, p := range cluster.Processes() {
			if p.Role == devcluster.RoleProxy {
				continue // this program, which is not measured
			}
			if p.PID == 0 {
				return nil, fmt.Errorf("%s has ended", p.Name)
			}
			s := sample{at: time.Since(began)}
			var err error
			if s.rss, err = resident(p.PID, "VmRSS"); err != nil {
				return nil, err
			}
			if s.goroutines, err = goroutines(ctx, client, p.Admin); err != nil {
				return nil, fmt.Errorf("%s: %w", p.Name, err)
			}
			all[p.Name] = append(all[p.Name], s)
		}
	}
	return all, nil
}

// resident is a figure about the memory of a process, in MiB.
func resident(pid int, name string) (float64, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, name)
}

// goroutines reads their number from the metrics of a process.
func goroutines(ctx context.Context, client *http.Client, admin string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // it has been read
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			n, err := strconv.ParseFloat(value, 64)
			_, _ = io.Copy(io.Discard, resp.Body) // the connection is used again
			return n, err
		}
	}
	return 0, fmt.Errorf("%s tells no goroutines", admin)
}

// line is the straight line that fits samples best: the value at the beginning
// and the growth over the whole time.
func line(samples []sample, value func(sample) float64) (start, growth float64) {
	var n, sx, sy, sxx, sxy float64
	for _, s := range samples {
		x, y := s.at.Seconds(), value(s)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	d := n*sxx - sx*sx
	if d == 0 {
		return sy / max(n, 1), 0
	}
	slope := (n*sxy - sx*sy) / d
	return (sy - slope*sx) / n, slope * samples[len(samples)-1].at.Seconds()
}

// What a process may grow by over the time that counts: a part of what it had,
// and something for the noise of the garbage collector.
const (
	maxGrowth     = 0.10
	noiseMiB      = 6
	noiseRoutines = 20
)

// report prints how the processes have grown and says whether that is little.
func report(w io.Writer, all map[string][]sample) bool {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format+"\n", args...) } // for people to read
	held := true
	row("PROCESS\tRSS MiB\tslope MiB/min\tGOROUTINES\tslope a minute\t\t")
	for _, name := range names(all) {
		samples := all[name]
		minutes := samples[len(samples)-1].at.Minutes()
		rss, rssGrowth := line(samples, func(s sample) float64 { return s.rss })
		n, nGrowth := line(samples, func(s sample) float64 { return s.goroutines })
		verdict := "flat"
		if rssGrowth > maxGrowth*rss+noiseMiB || nGrowth > maxGrowth*n+noiseRoutines {
			verdict, held = "GROWS", false
		}
		row("%s\t%.1f\t%+.2f\t%.0f\t%+.2f\t%s\t", name, rss, rssGrowth/minutes, n, nGrowth/minutes, verdict)
	}
	_ = t.Flush() // as above
	return held
}
