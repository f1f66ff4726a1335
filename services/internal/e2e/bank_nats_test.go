package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestB59WorkersThatAreGone: a client hears of a worker that is not there, is killed
// or is frozen in the middle of its call, and nobody runs the call a second time.
// What is left of a pool is listed as before. (NATS that is gone itself is
// TestAllNodesOfNATSAreLost of edge.)
func TestB59WorkersThatAreGone(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	s := serve(t, "edge", "--nats", c.nats)
	header := http.Header{"Mcp-Protocol-Version": {newestLegacy}}
	message := func(method, params string) string {
		return `{"jsonrpc":"2.0","id":"b59","method":"` + method + `","params":` + params + `}`
	}
	ask := func(method, params string) (status int, a answer) {
		t.Helper()
		resp, text := post(t, s.url, message(method, params), header)
		return resp.StatusCode, parseAnswer(t, text)
	}
	listed := func() string {
		t.Helper()
		_, a := ask("tools/list", "{}")
		if a.Error != nil {
			t.Errorf("tools/list: %+v", a.Error)
		}
		return string(a.Result)
	}

	if got := listed(); got != `{"tools":[]}` {
		t.Errorf("without workers: %s", got)
	}
	if status, a := ask("tools/call", `{"name":"hold","arguments":{"name":"nobody"}}`); a.Error == nil || status == http.StatusNotFound {
		t.Errorf("a call without workers: HTTP %d, %s", status, a.Result)
	}

	// running waits until one instance of n runs the call.
	running := func(n int) {
		t.Helper()
		eventually(t, "an instance runs the call", func() bool {
			used, all := 0, c.ls(t).Instances
			for _, i := range all {
				used += i.Used
			}
			return len(all) == n && used == 1
		})
	}
	joined := func(n int) {
		t.Helper()
		s.log(`(?s)` + strings.Repeat(`msg="instance joined" pool=everything.*`, n))
		eventually(t, "the tools are listed", func() bool { return strings.Contains(listed(), `"hold"`) })
	}
	// hold begins a call and returns its answer.
	hold := func(name string) <-chan string {
		answers := make(chan string, 1) // one answer
		go func() {
			client := &http.Client{Timeout: 2 * patience}
			resp, err := client.Post(s.url, "application/json", strings.NewReader(message("tools/call", fmt.Sprintf(`{"name":"hold","arguments":{"name":%q}}`, name))))
			if err != nil {
				answers <- err.Error()
				return
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				text = []byte(err.Error())
			}
			answers <- string(text)
		}()
		return answers
	}
	lost := func(what, text string) {
		t.Helper()
		a := parseAnswer(t, text)
		var data struct {
			Reason string `json:"reason"`
		}
		if a.Error == nil || a.Error.Code != -32603 || json.Unmarshal(a.Error.Data, &data) != nil || data.Reason != "worker_lost" || string(a.ID) != `"b59"` {
			t.Errorf("%s: %s, error %+v, want -32603 with the reason worker_lost", what, a.Result, a.Error)
		}
	}
	// notAgain: the instance that is left has not been given the call.
	notAgain := func(name string) {
		t.Helper()
		var now struct {
			Structured struct {
				Started *bool `json:"started"`
			} `json:"structuredContent"`
		}
		eventually(t, "the instance that is left answers", func() bool {
			// One that is frozen may still be given calls for a moment.
			_, a := ask("tools/call", fmt.Sprintf(`{"name":"held","arguments":{"name":%q}}`, name))
			return a.Error == nil && json.Unmarshal(a.Result, &now) == nil && now.Structured.Started != nil
		})
		if *now.Structured.Started {
			t.Errorf("the call %s was run twice", name)
		}
	}

	first := start(t, "everything", "--nats", c.nats)
	joined(1)
	killed := hold("killed")
	running(1)
	second := start(t, "everything", "--nats", c.nats)
	joined(2)
	all := listed()
	first.signal(os.Kill)
	first.exitCode()
	lost("killed", <-killed)
	notAgain("killed")

	frozen := hold("frozen")
	running(1)
	start(t, "everything", "--nats", c.nats)
	joined(3)
	second.signal(syscall.SIGSTOP)
	lost("frozen", <-frozen)
	notAgain("frozen")
	if got := listed(); got != all || !strings.Contains(got, `"hold"`) {
		t.Errorf("with one instance of three: %.200s, want %.200s", got, all)
	}
	second.signal(syscall.SIGCONT)
	eventually(t, "the one that was frozen is there again, once, and runs nothing", func() bool {
		used, all := 0, c.ls(t).Instances
		for _, i := range all {
			used += i.Used
		}
		return len(all) == 2 && used == 0
	})
}
