package edge

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/edge/mcp"
)

// visiting runs the worker of pages and waits until every edge knows it.
func (c *cluster) visiting() *visiting {
	c.t.Helper()
	p := c.nodes[0].visiting()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, n := range c.nodes {
		if err := n.edge.WaitReady(ctx, "pages"); err != nil {
			c.t.Fatal(err)
		}
	}
	return p
}

// The answers of a round count once, whichever edges they reach.
func TestOnceOnlyStateOnEveryEdge(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	p := c.visiting()
	begin := func() string {
		_, first := c.nodes[0].modernCall(`{"elicitation":{}}`, `{"name":"redeem"}`)
		_, state := inputRequired(t, first)
		return `{"name":"redeem","requestState":"` + state + `"` + redeemed
	}
	const used = "was used before"
	again := begin()
	// On a busy machine the store may take so long to say that it has marked a
	// state that it is asked again, and then the state counts as used.
	for tries := 0; p.redeemed.Load() == 0 && tries < 10; tries++ {
		again = begin()
		_, got := c.nodes[1].modernCall(`{"elicitation":{}}`, again)
		want(t, "the first use", got, map[bool]string{true: "redeemed 1", false: used}[p.redeemed.Load() == 1])
	}
	for _, n := range c.nodes {
		if _, got := n.modernCall(`{"elicitation":{}}`, again); !strings.Contains(got, used) {
			t.Errorf("a second use: %s", got)
		}
	}
	again = begin()
	var wins atomic.Int64
	var wait sync.WaitGroup
	for i := range 30 {
		wait.Go(func() {
			if _, got := c.nodes[i%clusterSize].modernCall(`{"elicitation":{}}`, again); strings.Contains(got, "redeemed") {
				wins.Add(1)
			} else if !strings.Contains(got, used) {
				t.Error(got)
			}
		})
	}
	wait.Wait()
	if wins.Load() > 1 || p.redeemed.Load() != 1+wins.Load() {
		t.Errorf("%d of 30 went on, %d were redeemed", wins.Load(), p.redeemed.Load())
	}
	again = begin()
	c.storeDown.Store(true)
	for _, n := range c.nodes {
		if status, got := n.modernCall(`{"elicitation":{}}`, again); status != http.StatusServiceUnavailable || !strings.Contains(got, `"reason":"unavailable"`) {
			t.Errorf("without the store: %d %s", status, got)
		}
	}
	if p.redeemed.Load() != 1+wins.Load() {
		t.Errorf("%d were redeemed without the store", p.redeemed.Load())
	}
}

// The end of a visit reaches the stream of the session that was sent there, on
// whichever edge it is.
func TestElicitationCompleteOnEveryEdge(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Config{})
	c.visiting()
	sessions := make([]string, clusterSize)
	streams := make([]*callStream, clusterSize)
	for i, n := range c.nodes {
		sessions[i] = c.session("2025-11-25", visitsPages)
		streams[i] = n.listen(sessions[i])
	}
	want(t, "a visit", c.nodes[1].request(sessions[0], mcp.MethodToolsCall, `{"name":"visit"}`), `"code":-32042`)
	want(t, "its end", c.nodes[2].request(sessions[2], mcp.MethodToolsCall, `{"name":"finish"}`), "finished")
	// What each hears next: the others nothing but the change that follows.
	c.nodes[0].addTool("later")
	for i, s := range streams {
		next := s.message(t)
		if i == 0 {
			want(t, "who was asked", next, `"method":"notifications/elicitation/complete","params":{"elicitationId":"visit-1"}`)
			next = s.message(t)
		}
		want(t, "the change", next, mcp.NotificationToolsChanged)
	}
}

// message returns the next message of a stream; events that only tell their
// place are none.
func (c *callStream) message(t testing.TB) string {
	t.Helper()
	for {
		if m := c.soon(t, "a message"); m != "" {
			return m
		}
	}
}
