package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/proto/localnats"
	"github.com/millrace/millrace/worker"
)

// cluster is a NATS server that processes of the test join.
type cluster struct{ nats string }

func startCluster(t *testing.T) cluster {
	t.Helper()
	c, _ := startStoppableCluster(t)
	return c
}

// startStoppableCluster also returns what stops NATS before the test ends.
func startStoppableCluster(t *testing.T) (c cluster, shutdown func()) {
	t.Helper()
	nats, err := localnats.Start(localnats.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	// Registered first, so that it ends after the processes that use it.
	t.Cleanup(nats.Shutdown)
	return cluster{nats.ClientURL()}, nats.Shutdown
}

// TestErrors sends wrong messages through every door.
func TestErrors(t *testing.T) {
	t.Parallel()
	s := serve(t, "up", "--nats-listen", "127.0.0.1:0")
	nats := s.log(`msg="NATS takes workers[^"]*" url=(\S+)`)[0]
	type want struct {
		id   string // empty: the id cannot be read
		code int
		// status over HTTP in the revisions with a handshake and without.
		legacy, modern int
		names          string // what the message must name
	}
	for _, d := range allDoors(t, s, nats) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range []struct {
				name              string
				raw, method, tool string
				want              want
			}{
				{name: "no JSON", raw: `{"jsonrpc"`, want: want{"", -32700, 400, 400, "not JSON"}},
				{name: "no JSON at all", raw: `hello`, want: want{"", -32700, 400, 400, "not JSON"}},
				{name: "no JSON after the id", raw: `{"jsonrpc":"2.0","id":"a-1","method":"tools/list",}`, want: want{`"a-1"`, -32700, 400, 400, "not JSON"}},
				{name: "no object", raw: `"tools/list"`, want: want{"", -32600, 400, 400, "object"}},
				{name: "no version", raw: `{"id":"a-2","method":"tools/list"}`, want: want{`"a-2"`, -32600, 400, 400, "jsonrpc"}},
				{name: "wrong version", raw: `{"jsonrpc":"1.0","id":"a-3","method":"tools/list"}`, want: want{`"a-3"`, -32600, 400, 400, "jsonrpc"}},
				{name: "no method", raw: `{"jsonrpc":"2.0","id":"a-4"}`, want: want{`"a-4"`, -32600, 400, 400, "method"}},
				{name: "wrong case", raw: `{"jsonrpc":"2.0","id":"a-5","Method":"tools/list"}`, want: want{`"a-5"`, -32600, 400, 400, "method"}},
				{name: "twice the same key", raw: `{"jsonrpc":"2.0","id":"a-6","method":"tools/list","method":"ping"}`, want: want{`"a-6"`, -32600, 400, 400, "twice"}},
				{name: "null id", raw: `{"jsonrpc":"2.0","id":null,"method":"tools/list"}`, want: want{"", -32600, 400, 400, "id"}},
				{name: "fractional id", raw: `{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}`, want: want{"", -32600, 400, 400, "id"}},
				{name: "unknown method", raw: d.request(`9007199254740993`, "no/such", ""), method: "no/such", want: want{`9007199254740993`, -32601, 200, 404, "no/such"}},
				{name: "unknown tool", raw: d.request(`"żółć"`, "tools/call", `"name":"no_such","arguments":{}`), method: "tools/call", tool: "no_such", want: want{`"żółć"`, -32602, 200, 200, "no_such"}},
				{name: "no tool", raw: d.request(`0`, "tools/call", `"arguments":{}`), method: "tools/call", want: want{`0`, -32602, 200, 400, "name"}},
				{name: "arguments are no object", raw: d.request(`""`, "tools/call", `"name":"get_term","arguments":["mcp"]`), method: "tools/call", tool: "get_term", want: want{`""`, -32602, 200, 200, "arguments"}},
			} {
				status, body := d.send(t, c.raw, c.method, c.tool)
				a := parseAnswer(t, body)
				switch {
				case a.Error == nil:
					t.Errorf("%s: a result: %s", c.name, body)
					continue
				case a.Error.Code != c.want.code || !strings.Contains(a.Error.Message, c.want.names):
					t.Errorf("%s: error %d %q, want %d and %q in the text", c.name, a.Error.Code, a.Error.Message, c.want.code, c.want.names)
				}
				if got := string(a.ID); got != c.want.id && !(c.want.id == "" && got == "null") {
					t.Errorf("%s: the id is %s, want %q", c.name, got, c.want.id)
				}
				wantStatus := c.want.legacy
				if d.meta != "" {
					wantStatus = c.want.modern
				}
				if status != 0 && status != wantStatus {
					t.Errorf("%s: HTTP status %d, want %d", c.name, status, wantStatus)
				}
			}
			d.checkMissingSlug(t)
			// The door still works.
			var r toolResult
			_, body := d.send(t, d.request(`-1`, "tools/call", `"name":"get_term","arguments":{"slug":"mcp"}`), "tools/call", "get_term")
			resultOf(t, body, `-1`, &r)
			r.check(t, "# MCP")
		})
	}
}

// checkMissingSlug: which revisions show wrong arguments to the model.
func (d door) checkMissingSlug(t *testing.T) {
	t.Helper()
	status, body := d.send(t, d.request(`"slug?"`, "tools/call", `"name":"get_term","arguments":{}`), "tools/call", "get_term")
	if status != 0 && status != http.StatusOK {
		t.Errorf("missing slug: HTTP status %d", status)
	}
	if d.revision >= newestLegacy {
		var r toolResult
		resultOf(t, body, `"slug?"`, &r)
		if !r.IsError || len(r.Content) != 1 || !strings.Contains(r.Content[0].Text, `"slug"`) {
			t.Errorf("missing slug: %+v, want isError and a text that names it", r)
		}
		return
	}
	a := parseAnswer(t, body)
	var data struct {
		Detail string `json:"detail"`
	}
	if a.Error == nil || json.Unmarshal(a.Error.Data, &data) != nil {
		t.Fatalf("missing slug: %s, want an error with data", body)
	}
	if a.Error.Code != -32602 || !strings.Contains(data.Detail, "slug") || string(a.ID) != `"slug?"` {
		t.Errorf("missing slug: %s, want -32602, the id, and slug in data.detail", body)
	}
}

// TestWorkerFailures: what clients hear of workers that fail, hang or are gone.
func TestWorkerFailures(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	log := &text{}
	w := worker.New(worker.Config{Pool: "faulty", Version: "1.0.0", Logger: slog.New(slog.NewTextHandler(log, nil))})
	hung := make(chan struct{})
	w.AddRawTool(worker.Tool{Name: "panics"}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
		panic("inner secret")
	})
	w.AddRawTool(worker.Tool{Name: "fails"}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
		return nil, errors.New("the author's text")
	})
	w.AddRawTool(worker.Tool{Name: "hangs", Timeout: 300 * time.Millisecond}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
		<-hung // deaf to its context
		return &worker.Result{}, nil
	})
	serving, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1) // one result, never blocks
	go func() { ended <- w.Serve(serving, c.nats) }()
	stopped := false
	stopWorker := func() {
		if stopped {
			return
		}
		stopped = true
		close(hung)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("worker: %v\n%s", err, log.String())
		}
	}
	t.Cleanup(stopWorker)
	s := serve(t, "edge", "--nats", c.nats)
	eventually(t, "the edge knows the tools", func() bool {
		_, body := post(t, s.url, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, nil)
		return strings.Contains(body, "panics")
	})

	doors := func(t *testing.T, check func(t *testing.T, d door)) {
		t.Helper()
		for _, d := range []door{
			httpDoor("legacy", s.url, legacyWithoutHeader, nil),
			{name: "modern", revision: newest, meta: modernMeta, send: func(t *testing.T, raw, method, name string) (int, string) {
				t.Helper()
				resp, body := post(t, s.url, raw, http.Header{"Mcp-Protocol-Version": {newest}, "Mcp-Method": {method}, "Mcp-Name": {name}})
				return resp.StatusCode, body
			}},
		} {
			t.Run(d.name, func(t *testing.T) { check(t, d) })
		}
	}
	call := func(t *testing.T, d door, tool string) answer {
		t.Helper()
		_, body := d.send(t, d.request(`"w"`, "tools/call", `"name":"`+tool+`"`), "tools/call", tool)
		if strings.Contains(body, "secret") {
			t.Errorf("inner text reached the client: %s", body)
		}
		a := parseAnswer(t, body)
		if string(a.ID) != `"w"` {
			t.Errorf("the id is %s", a.ID)
		}
		return a
	}
	reason := func(t *testing.T, a answer) string {
		t.Helper()
		var data struct {
			Reason string `json:"reason"`
		}
		if a.Error == nil || a.Error.Code != -32603 {
			t.Fatalf("%s, error %+v, want -32603", a.Result, a.Error)
		}
		if len(a.Error.Data) > 0 {
			if err := json.Unmarshal(a.Error.Data, &data); err != nil {
				t.Fatal(err)
			}
		}
		return data.Reason
	}

	t.Run("panics", func(t *testing.T) {
		doors(t, func(t *testing.T, d door) {
			a := call(t, d, "panics")
			if r := reason(t, a); r != "" || a.Error.Message != "internal error" {
				t.Errorf("%+v, want an internal error and no more", a.Error)
			}
		})
		if !strings.Contains(log.String(), "inner secret") {
			t.Errorf("the log does not say what happened:\n%s", log.String())
		}
	})
	t.Run("fails", func(t *testing.T) {
		doors(t, func(t *testing.T, d door) {
			var r toolResult
			if a := call(t, d, "fails"); json.Unmarshal(a.Result, &r) != nil || !r.IsError || r.Content[0].Text != "the author's text" {
				t.Errorf("%s, error %+v, want a result with isError", a.Result, a.Error)
			}
		})
	})
	t.Run("hangs", func(t *testing.T) {
		doors(t, func(t *testing.T, d door) {
			a := call(t, d, "hangs")
			if r := reason(t, a); r != "timeout" || !strings.Contains(a.Error.Message, "300ms") {
				t.Errorf("%+v, want the reason timeout and the time", a.Error)
			}
		})
	})
	stopWorker()
	t.Run("gone", func(t *testing.T) {
		doors(t, func(t *testing.T, d door) {
			// A pool that said goodbye is forgotten at once; the tool is
			// unknown then, and the answer says so.
			var a answer
			eventually(t, "the edge notices that the worker has left", func() bool {
				a = call(t, d, "panics")
				return a.Error != nil && a.Error.Code == -32602
			})
		})
	})
}
