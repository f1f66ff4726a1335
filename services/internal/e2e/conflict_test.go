package e2e

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/worker"
)

// TestConflictsAreReported: what two pools announce is in ls and in the log of the
// edge, once, and served under another name where that is wanted.
func TestConflictsAreReported(t *testing.T) {
	t.Parallel()
	nats := startCluster(t).nats
	for _, pool := range []string{"books", "web"} {
		conn, err := bus.Connect(t.Context(), bus.ConnConfig{URL: nats, Name: pool, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		w := worker.New(worker.Config{Pool: pool, Version: "1.0.0", Logger: slog.New(slog.DiscardHandler)})
		w.AddRawTool(worker.Tool{Name: "search", InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
				return &worker.Result{Content: []worker.Content{worker.Text("found in " + pool)}}, nil
			})
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1) // one result
		go func() { ended <- w.Run(ctx, conn) }()
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		<-w.Ready()
	}
	plainEdge := serve(t, "edge", "--nats", nats, "--wait-for", "books", "--wait-for", "web")
	named := serve(t, "edge", "--nats", nats, "--wait-for", "books", "--wait-for", "web", "--namespace-conflicts")
	plainEdge.log(`level=ERROR msg="not offered" pool=web item=search`)
	named.log(`level=WARN msg="offered under another name" pool=web item=search as=web.search`)
	for _, e := range []*server{plainEdge, named} {
		if n := strings.Count(e.stderr.String(), "item=search"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, e.stderr.String())
		}
	}
	for tool, want := range map[string]string{"search": "found in books", "web.search": "found in web"} {
		r := command(t, "", "call", tool, "--url", named.url)
		if r.code != 0 || !strings.Contains(r.stdout, want) {
			t.Errorf("call %s ended with %d: %s%s", tool, r.code, r.stdout, r.stderr)
		}
	}
	if r := command(t, "", "call", "web.search", "--url", plainEdge.url); r.code == 0 {
		t.Errorf("an edge without the flag has web.search: %s", r.stdout)
	}
	for flag, as := range map[string]string{"": "", "--namespace-conflicts": "web.search"} {
		args := []string{"ls", "--nats", nats}
		if flag != "" {
			args = append(args, flag)
		}
		table := command(t, "", args...)
		shown := "-"
		if as != "" {
			shown = as
		}
		if !strings.Contains(table.stdout, "PROBLEM") || !strings.Contains(strings.Join(strings.Fields(table.stdout), " "), "search web "+shown+" the pool") {
			t.Errorf("ls %s: %s%s", flag, table.stdout, table.stderr)
		}
		var got struct {
			Problems []struct {
				Pool, Item, OfferedAs string
				Conflict              bool
			} `json:"problems"`
		}
		if err := json.Unmarshal([]byte(command(t, "", append(args, "--json")...).stdout), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Problems) != 1 || !got.Problems[0].Conflict || got.Problems[0].Pool != "web" || got.Problems[0].OfferedAs != as {
			t.Errorf("ls --json %s: %+v", flag, got.Problems)
		}
	}
}
