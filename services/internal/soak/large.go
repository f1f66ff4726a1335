package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/millrace/millrace/services/devcluster"
)

const (
	// largeBytes is the size of a large result; together is how many are asked
	// for at once.
	largeBytes = 50 << 20
	together   = 100
	// maxTimes is how many times its size a result may take in each edge.
	maxTimes = 3
	// roomMiB is what all large results together may take in an edge: the
	// default of --max-results-in-flight.
	roomMiB = 256
)

// holder is a process whose memory is measured.
type holder struct {
	name string
	pid  int
}

// largeResults has large results go through the edges, and reports how much
// the memory of each edge has grown at most meanwhile.
func largeResults(ctx context.Context, o options, cluster *devcluster.Cluster, stdout io.Writer) error {
	var edges []holder
	for _, p := range cluster.Processes() {
		if p.Role == devcluster.RoleEdge {
			edges = append(edges, holder{p.Name, p.PID})
		}
	}
	l := newLoad(cluster.URL())
	l.http.Timeout = 5 * time.Minute
	session, err := l.session(ctx)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer t.Flush() //nolint:errcheck // for people to read
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format+"\n", args...) }
	row("50 MiB RESULTS\tPROCESS\tGROWN MiB\tTIMES\tMAY BE\t")
	held := true
	idle := map[string]float64{} // memory before the first large result
	measure := func(what string, processes []holder, limit float64, do func() error) error {
		for _, p := range processes {
			if err := forgetPeak(p.pid); err != nil {
				return err
			}
			if _, ok := idle[p.name]; !ok {
				rss, err := resident(p.pid, "VmRSS")
				if err != nil {
					return err
				}
				idle[p.name] = rss
			}
		}
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		for _, p := range processes {
			peak, err := resident(p.pid, "VmHWM")
			if err != nil {
				return err
			}
			grown := peak - idle[p.name]
			row("%s\t%s\t%.0f\t%.1f\t%.0f MiB\t", what, p.name, grown, grown/50, limit)
			held = held && grown < limit
		}
		return nil
	}
	// Through each edge once, one after another: the proxy goes round.
	each := func(session string) func() error {
		return func() error {
			for range edges {
				if err := l.large(ctx, session); err != nil {
					return err
				}
			}
			return nil
		}
	}
	if err := measure("legacy", edges, maxTimes*50, each(session)); err != nil {
		return err
	}
	if err := measure("modern", edges, maxTimes*50, each("")); err != nil {
		return err
	}
	var results, refused int
	if err := measure(strconv.Itoa(together)+" at once", edges, maxTimes*roomMiB, func() (err error) {
		results, refused, err = l.manyLarge(ctx)
		return err
	}); err != nil {
		return err
	}
	s, err := startStdio(ctx, o.millrace, cluster.NATS())
	if err != nil {
		return err
	}
	defer s.stop()
	for _, era := range []string{"legacy", "modern"} {
		if err := measure("stdio, "+era, []holder{{"stdio", s.cmd.Process.Pid}}, maxTimes*50, func() error { return s.large(l, era == "modern") }); err != nil {
			return err
		}
	}
	row("of %d at once: %d results, %d refused with the limit they met", together, results, refused)
	if results == 0 || results+refused != together {
		held = false
	}
	if !held {
		return errShown
	}
	return nil
}

// forgetPeak has the kernel note the highest memory of a process anew.
func forgetPeak(pid int) error {
	return os.WriteFile("/proc/"+strconv.Itoa(pid)+"/clear_refs", []byte("5"), 0)
}

// largeArguments are those of a call that returns a large result.
var largeArguments = fmt.Sprintf(`{"bytes":%d}`, largeBytes) //nolint:gochecknoglobals // a constant that has to be computed

// large makes a call and counts the bytes of its result.
func (l *load) large(ctx context.Context, session string) error {
	n, status, start, err := l.read(ctx, session)
	if err == nil && n < largeBytes {
		err = fmt.Errorf("%s with %d bytes: %s", status, n, start)
	}
	return err
}

// read makes a call for a large result, without keeping it.
func (l *load) read(ctx context.Context, session string) (n int64, status, start string, err error) {
	headers, body := l.message(session, "big", largeArguments, "")
	resp, err := l.send(ctx, http.MethodPost, session, headers, body)
	if err != nil {
		return 0, "", "", err
	}
	defer resp.Body.Close() //nolint:errcheck // it has been read
	head := make([]byte, 2000)
	got, err := io.ReadFull(resp.Body, head)
	if err != nil && err != io.ErrUnexpectedEOF { //nolint:errorlint // of ReadFull itself
		return 0, "", "", err
	}
	n, err = io.Copy(io.Discard, resp.Body)
	return n + int64(got), resp.Status, string(head[:got]), err
}

// manyLarge makes many calls at once. Each has its result or is refused with
// the name of a limit.
func (l *load) manyLarge(ctx context.Context) (results, refused int, err error) {
	var mu sync.Mutex
	var running sync.WaitGroup
	for range together {
		running.Go(func() {
			n, status, start, failed := l.read(ctx, "")
			var answer struct {
				Error struct {
					Data struct {
						Limit string `json:"limit"`
					} `json:"data"`
				} `json:"error"`
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case failed != nil:
				err = failed
			case n >= largeBytes:
				results++
			case json.Unmarshal([]byte(start), &answer) == nil && answer.Error.Data.Limit != "":
				refused++
			default:
				err = fmt.Errorf("%s: %s", status, start)
			}
		})
	}
	running.Wait()
	return results, refused, err
}

// stdio is a bridge between a client and the cluster.
type stdio struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startStdio(ctx context.Context, millrace, nats string) (*stdio, error) {
	cmd := exec.CommandContext(ctx, millrace, "--log-level=error", "stdio", "--nats="+nats) //nolint:gosec // the binary of the cluster
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &stdio{cmd, in, bufio.NewReaderSize(out, 64<<10)}, cmd.Start()
}

// stop ends the bridge as a client does.
func (s *stdio) stop() {
	_ = s.in.Close() // it ends with its input
	_ = s.cmd.Wait()
}

// large makes a call and counts the bytes of the answer.
func (s *stdio) large(l *load, modern bool) error {
	session := "a connection"
	if modern {
		session = ""
	} else if _, err := s.ask(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + legacyRevision + `","capabilities":{},"clientInfo":{"name":"soak","version":"1"}}}`); err != nil {
		return err
	}
	_, body := l.message(session, "big", largeArguments, "")
	n, err := s.ask(body)
	if err == nil && n < largeBytes {
		err = fmt.Errorf("an answer of %d bytes", n)
	}
	return err
}

// ask writes a message and reads the line that answers it, without keeping it.
func (s *stdio) ask(message string) (n int, err error) {
	if _, err := io.WriteString(s.in, message+"\n"); err != nil {
		return 0, err
	}
	for {
		part, err := s.out.ReadSlice('\n')
		n += len(part)
		if err != bufio.ErrBufferFull { //nolint:errorlint // of ReadSlice itself
			return n, err
		}
	}
}
