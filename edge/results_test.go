package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/worker"
)

// bigResult is the size of the result of the tool "big".
const bigResult = 1 << 20

// addBig adds a tool with a large result, which counts its executions.
func (s *system) addBig() {
	type none struct{}
	text := strings.Repeat("x", bigResult)
	worker.AddTool(s.worker, worker.Tool{Name: "big"}, func(context.Context, *worker.Call, none) (string, error) {
		s.ran.add()
		return text, nil
	})
	for {
		changed := s.edge.Catalog().Changed()
		if _, ok := s.edge.Catalog().Snapshot().Tool("big"); ok {
			return
		}
		<-changed
	}
}

// wantRoom: the large results that were on their way have left.
func (s *system) wantRoom(when string) {
	s.t.Helper()
	if !s.edge.results.room.TryAcquire(s.edge.results.limit) {
		s.t.Errorf("%s: not all room was given back", when)
		return
	}
	s.edge.results.room.Release(s.edge.results.limit)
}

// TestResultsInFlight: results that have no room wait, and all arrive when those
// before them are read; with clients that read nothing they end with the limit's
// name, and no room is lost.
func TestResultsInFlight(t *testing.T) {
	t.Parallel()
	const fit, all = 3, 9
	date := mcp.Modern().Date
	modern := `,"_meta":{"io.modelcontextprotocol/protocolVersion":"` + date + `","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	for name, c := range map[string]struct {
		meta    string
		headers []string
	}{
		"legacy, JSON":   {"", []string{"Accept: application/json"}},
		"legacy, stream": {"", []string{"Accept: text/event-stream"}},
		"modern, JSON":   {modern, []string{"Accept: application/json", mcp.HeaderProtocolVersion + ": " + date, mcp.HeaderMethod + ": tools/call", mcp.HeaderName + ": big"}},
		"modern, stream": {modern, []string{"Accept: text/event-stream", mcp.HeaderProtocolVersion + ": " + date, mcp.HeaderMethod + ": tools/call", mcp.HeaderName + ": big"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := start(t, Config{
					MaxResultsInFlight: fit*bigResult + bigResult/2,
					Keepalive:          time.Hour, // who waits for the lock of a stalled stream is not idle to a bubble
				})
				s.addBig()
				begin := func() (responses chan *http.Response) {
					responses = make(chan *http.Response, all) // one for each
					for range all {
						go func() {
							responses <- s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"big","arguments":{}`+c.meta+`}}`, c.headers...)
						}()
					}
					return responses
				}
				responses := begin()
				time.Sleep(time.Second)
				if got := len(responses); got != fit {
					t.Errorf("%d results are on their way, want %d", got, fit)
				}
				for n := range all {
					if got := body(t, <-responses); len(got) < bigResult {
						t.Errorf("result %d: %.300s", n, got)
					}
				}
				synctest.Wait()
				s.wantRoom("after results that were read")
				if got := s.ran.value(); got != all {
					t.Errorf("%d executions of %d calls", got, all)
				}

				// Nobody reads: those that have room are cut off, the others are
				// refused or have their turn.
				responses = begin()
				time.Sleep(29 * time.Second)
				if got := len(responses); got != fit {
					t.Errorf("%d results are on their way, want %d", got, fit)
				}
				refused, cut := 0, 0
				for range all {
					resp := <-responses
					time.Sleep(35 * time.Second)
					raw, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					switch text := string(raw); {
					case err != nil || len(raw) < bigResult && !strings.Contains(text, `"error"`):
						cut++
					case strings.Contains(text, `"reason":"too_large"`) && strings.Contains(text, `"limit":"max-results-in-flight"`) &&
						strings.Contains(text, "--max-results-in-flight") && strings.Contains(text, "was executed"):
						refused++
					case len(raw) > bigResult:
					default:
						t.Errorf("%v %.300s", err, text)
					}
				}
				if cut == 0 || refused+cut < fit {
					t.Errorf("%d were refused and %d cut off", refused, cut)
				}
				synctest.Wait()
				s.wantRoom("after clients that did not read")
			})
		})
	}
}

// TestResultsInFlightOnStdio is the same for one client with many requests. It
// runs under the real clock, as who waits for its turn to write is not idle to a
// bubble.
func TestResultsInFlightOnStdio(t *testing.T) {
	t.Parallel()
	s := start(t, Config{MaxResultsInFlight: 3*bigResult + bigResult/2})
	s.addBig()
	in, requests := io.Pipe()
	answers, out := io.Pipe()
	stop := run(t, "stdio", func(ctx context.Context) error { return s.edge.ServeStdio(ctx, in, out) })
	for id := range 9 {
		if _, err := fmt.Fprintf(requests, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"big","arguments":{}}}`+"\n", id); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the room is full", func() bool {
		if s.edge.results.room.TryAcquire(bigResult) {
			s.edge.results.room.Release(bigResult)
			return false
		}
		return true
	})
	d := json.NewDecoder(answers)
	for range 9 {
		var a struct {
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		if err := d.Decode(&a); err != nil || len(a.Result) < bigResult {
			t.Errorf("%v: %.100s %s", err, a.Result, a.Error)
		}
	}
	requests.Close()
	stop()
	s.wantRoom("at the end")
}

// TestAResultLargerThanAllRoom is refused at once, and so is one that is larger
// than any may be.
func TestAResultLargerThanAllRoom(t *testing.T) {
	t.Parallel()
	for limit, cfg := range map[string]Config{
		"max-results-in-flight": {MaxResultsInFlight: bigResult},
		"max-result":            {MaxResult: 1}, // and what may surround it
	} {
		synctest.Test(t, func(t *testing.T) {
			s := start(t, cfg)
			s.addBig()
			begun := time.Now()
			got := s.callText("big")
			for _, part := range []string{`"code":-32603`, `"reason":"too_large"`, `"limit":"` + limit + `"`, "--" + limit, "was executed"} {
				if !strings.Contains(got, part) {
					t.Errorf("%s: %.500s does not say %s", limit, got, part)
				}
			}
			if took := time.Since(begun); took > time.Second {
				t.Errorf("%s: it took %v", limit, took)
			}
			synctest.Wait()
			s.wantRoom("afterwards")
		})
	}
}

// TestTimeLimitsAreNamed: of the limits that can end a call, that of the tool among
// them (pain 54), the error names the one that did.
func TestTimeLimitsAreNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{CallTimeout: 2 * time.Second, CallCeiling: 10 * time.Second})
		type none struct{}
		wait := func(ctx context.Context, _ *worker.Call, _ none) (string, error) {
			<-ctx.Done()
			return "", context.Cause(ctx)
		}
		worker.AddTool(s.worker, worker.Tool{Name: "own", Timeout: time.Second}, wait)
		worker.AddTool(s.worker, worker.Tool{Name: "long", Timeout: time.Minute}, wait)
		worker.AddTool(s.worker, worker.Tool{Name: "none"}, wait)
		time.Sleep(time.Second)
		call := func(tool, arguments string) (got string, took time.Duration) {
			begun := time.Now()
			got = body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`","arguments":`+arguments+`,"_meta":{"progressToken":1}}}`, "Accept: application/json, text/event-stream"))
			return got, time.Since(begun)
		}
		for tool, c := range map[string]struct {
			arguments, limit, raise string
			after                   time.Duration
		}{
			"own":   {"{}", "tool-timeout", "worker.Tool", time.Second},
			"none":  {"{}", "call-timeout", "--call-timeout", 2 * time.Second},
			"long":  {"{}", "call-ceiling", "--call-ceiling", 10 * time.Second},
			"count": {`{"n":100,"delay_ms":500}`, "call-ceiling", "--call-ceiling", 10 * time.Second},
		} {
			got, took := call(tool, c.arguments)
			if !strings.Contains(got, `"limit":"`+c.limit+`"`) || !strings.Contains(got, c.raise) || !strings.Contains(got, `"reason":"timeout"`) {
				t.Errorf("%s: %s", tool, got)
			}
			if took < c.after || took > c.after+time.Second {
				t.Errorf("%s: after %v, want %v", tool, took, c.after)
			}
		}
	})
}
