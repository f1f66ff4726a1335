package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// peakRSS is the most memory that a process has had so far, in bytes.
func peakRSS(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(raw), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// counted reads to the end and returns how much it was and how it began.
func counted(r io.Reader) (size int64, head string) {
	var first bytes.Buffer
	n, _ := io.CopyN(&first, r, 4096) // less is the end
	rest, _ := io.Copy(io.Discard, r) // as is an error, which the size shows
	return n + rest, first.String()
}

// TestManyLargeResultsAtOnce: a hundred results of 50 MiB at once, through one edge
// in both eras and through stdio, are bounded by the limit for results in flight:
// each arrives or is refused by its name, and the memory of the edges shows that
// only some are there at a time. The worker is a process of its own without the
// race detector, like the edge: what is looked at is memory.
func TestManyLargeResultsAtOnce(t *testing.T) {
	t.Parallel()
	const (
		size  = 50 << 20
		limit = 110 << 20 // two of them
		lines = 20        // that stdio is asked for
	)
	nats := startCluster(t).nats
	startBinary(t, plain(t), nil, "everything", "--nats", nats)
	flags := []string{"--nats", nats, "--max-results-in-flight", strconv.Itoa(limit), "--slot-wait", "10ms", "--call-timeout", "5m"}
	edge := serveBinary(t, plain(t), "edge", append(flags, "--wait-for", "everything")...)
	before := peakRSS(t, edge.cmd.Process.Pid)

	var whole, refused, again atomic.Int64
	// judge reports whether the call is to be made again: there was no slot, or on
	// a machine as busy as this one no word from the worker.
	judge := func(door string, n int64, head string) (repeat bool) {
		switch {
		case n > size:
			whole.Add(1)
		case strings.Contains(head, `"limit":"max-results-in-flight"`):
			refused.Add(1)
		case strings.Contains(head, `"limit":"slot-wait"`), strings.Contains(head, `"reason":"worker_lost"`), strings.Contains(head, `"reason":"unavailable"`):
			again.Add(1)
			return true
		default:
			t.Errorf("%s: %d bytes: %.500s", door, n, head)
		}
		return false
	}
	var calls sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Minute}
	for i := range 100 {
		calls.Go(func() {
			revision, meta := newestLegacy, ""
			header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
			if i%2 == 0 {
				revision, meta = newest, ","+modernMeta
				header["Accept"], header["Mcp-Method"], header["Mcp-Name"] = []string{"text/event-stream"}, []string{"tools/call"}, []string{"big"}
			}
			header["Mcp-Protocol-Version"] = []string{revision}
			for repeat := true; repeat && t.Context().Err() == nil; {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, edge.url, strings.NewReader(fmt.Sprintf(
					`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"big","arguments":{"bytes":%d}%s}}`, size, meta)))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header = header
				resp, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				n, head := counted(resp.Body)
				resp.Body.Close()
				if repeat = judge(revision, n, head); repeat {
					<-time.After(time.Second)
				}
			}
		})
	}
	calls.Wait()
	if got := whole.Load() + refused.Load(); got != 100 || whole.Load() < 2 {
		t.Errorf("%d results arrived and %d were refused", whole.Load(), refused.Load())
	}
	// A result is there twice while it comes, and the collector lets as much again
	// pile up.
	grown := peakRSS(t, edge.cmd.Process.Pid) - before
	t.Logf("%d results arrived, %d were refused, %d calls were made again; the edge grew by %d MiB", whole.Load(), refused.Load(), again.Load(), grown>>20)
	if most := int64(4 * limit); grown > most {
		t.Errorf("the edge grew by %d MiB with %d MiB of results in flight", grown>>20, limit>>20)
	}

	// The same over stdio, where one client reads all of it.
	whole.Store(0)
	refused.Store(0)
	answers := &lineCounter{line: func(n int64, head string) { judge("stdio", n, head) }, want: lines, all: make(chan struct{})}
	line := startBinary(t, plain(t), answers, append([]string{"stdio"}, flags...)...)
	for i := range answers.want {
		if _, err := fmt.Fprintf(line.stdin, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"big","arguments":{"bytes":%d},%s}}`+"\n", i, size, modernMeta); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-answers.all:
	case <-line.done:
		t.Error("stdio has ended")
	case <-time.After(10 * time.Minute):
		t.Error("not all answers came on stdio")
	}
	grown = peakRSS(t, line.cmd.Process.Pid)
	t.Logf("stdio: %d results arrived, %d were refused; the process has had %d MiB", whole.Load(), refused.Load(), grown>>20)
	if most := int64(4*limit) + before; grown > most || whole.Load() < 2 {
		t.Errorf("stdio has had %d MiB with %d MiB of results in flight; %d arrived", grown>>20, limit>>20, whole.Load())
	}
}

// lineCounter is a stdout whose lines are counted and not kept.
type lineCounter struct {
	line func(size int64, head string)
	want int
	all  chan struct{} // closed with the last line that is wanted

	size int64
	head []byte
	seen int
}

// Write implements io.Writer.
func (l *lineCounter) Write(p []byte) (int, error) {
	whole := len(p)
	for len(p) > 0 {
		part, _, ended := bytes.Cut(p, []byte("\n"))
		l.size += int64(len(part))
		l.head = append(l.head, part[:min(len(part), 4096-len(l.head))]...)
		if p = p[len(part):]; !ended {
			break
		}
		p = p[1:]
		l.line(l.size, string(l.head))
		l.size, l.head = 0, l.head[:0]
		if l.seen++; l.seen == l.want {
			close(l.all)
		}
	}
	return whole, nil
}
