package legacy

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace/edge/seal"
)

func TestRoutes(t *testing.T) {
	t.Parallel()
	ring, err := seal.NewRing()
	if err != nil {
		t.Fatal(err)
	}
	r := route{edge: "abc123def4", stream: "STREAM", round: 300, index: 2, kept: true}
	id := r.id(ring, "scope")
	if again := r.id(ring, "scope"); again != id {
		t.Errorf("written again it is %q, not %q", again, id)
	}
	if got, ok := parseRoute(ring, "scope", id); !ok || got != r {
		t.Errorf("parseRoute = %+v, %v", got, ok)
	}
	for _, other := range []route{{"abc123def4", "STREAM", 300, 3, true}, {"abc123def4", "STREAM", 301, 2, true}, {"abc123def4S", "TREAM", 300, 2, true}, {"x", "STREAM", 300, 2, true}, {"abc123def4", "STREAM", 300, 2, false}} {
		if other.id(ring, "scope") == id {
			t.Errorf("%+v has the same id", other)
		}
	}
	otherRing, err := seal.NewRing()
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]func() (route, bool){
		"another session": func() (route, bool) { return parseRoute(ring, "scop", id) },
		"no session":      func() (route, bool) { return parseRoute(ring, "", id) },
		"another key":     func() (route, bool) { return parseRoute(otherRing, "scope", id) },
		"cut":             func() (route, bool) { return parseRoute(ring, "scope", id[:len(id)-4]) },
		"made up":         func() (route, bool) { return parseRoute(ring, "scope", "millrace-1") },
		"long":            func() (route, bool) { return parseRoute(ring, "scope", strings.Repeat("a", 10_000)) },
		"another purpose": func() (route, bool) { return parseRoute(ring, "scope", ring.Seal("scope", []byte("x"))) },
	} {
		if got, ok := bad(); ok {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// Payloads that no edge writes, under a good code.
	for _, payload := range []string{"", "\x05abc", "\x01a", "\x01a\x01b", "\x01a\x01b\x01", "\x01a\x01b\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01", "\x01a\x01b\x01\x01\x01"} {
		if got, ok := parseRoute(ring, "scope", ring.Seal(routePurpose+"scope", []byte(payload))); ok {
			t.Errorf("payload %q: %+v", payload, got)
		}
	}
}

func TestListPlaces(t *testing.T) {
	t.Parallel()
	var p listPlace
	for i := range p {
		for j := range p[i] {
			p[i][j] = byte(rand.N(256))
		}
	}
	for _, id := range []string{p.String() + "-ABC-1", p.String() + "-"} {
		if got, ok := parseListPlace(id); !ok || got != p {
			t.Errorf("parseListPlace(%q) = %v, %v", id, got, ok)
		}
	}
	for _, id := range []string{"", "g-", "g-x-1", p.String(), p.String()[1:] + "-1", strings.Repeat("g-", 40), "STREAM-1-2", "g-" + strings.Repeat("*", 24) + "-x"} {
		if got, ok := parseListPlace(id); ok {
			t.Errorf("parseListPlace(%q) = %v", id, got)
		}
	}
	if looksLikePlace(p.String() + "-ABC-1") {
		t.Error("a place of a call's stream looks like this too")
	}
}

// TestNewestStreamStays opens streams of one session on several edges, which
// hear of each other in any order: one stays.
func TestNewestStreamStays(t *testing.T) {
	t.Parallel()
	for range 500 {
		const edges = 4
		var (
			all  [edges]streams
			open [edges]*stream
			news [edges][]string // what an edge has still to hear
		)
		tell := func(from int) {
			for to := range edges {
				if to != from {
					news[to] = append(news[to], open[from].holder)
				}
			}
		}
		hear := func(at int) {
			if len(news[at]) > 0 {
				i := rand.N(len(news[at])) // from different edges, so in any order
				all[at].taken("s", news[at][i])
				news[at] = append(news[at][:i], news[at][i+1:]...)
			}
		}
		for _, at := range rand.Perm(edges) {
			for range rand.N(3) {
				hear(rand.N(edges))
			}
			ctx, end := context.WithCancelCause(context.Background())
			open[at] = &stream{scope: "s", ctx: ctx, end: end}
			all[at].open(open[at])
			tell(at)
		}
		for at := range edges {
			for len(news[at]) > 0 {
				hear(at)
			}
		}
		left := 0
		for _, s := range open {
			if s.ctx.Err() == nil {
				left++
			} else if !errors.Is(context.Cause(s.ctx), errReplaced) {
				t.Errorf("a stream ended with %v", context.Cause(s.ctx))
			}
			s.end(nil)
		}
		if left != 1 {
			t.Fatalf("%d streams are left", left)
		}
	}
}

// TestLaterStreamIsNewer: the later one stays when its edge has heard of the
// other, however the clocks of the edges differ.
func TestLaterStreamIsNewer(t *testing.T) {
	t.Parallel()
	ahead, behind := streams{last: 1 << 62}, streams{}
	open := func(s *streams) *stream {
		ctx, end := context.WithCancelCause(context.Background())
		st := &stream{scope: "s", ctx: ctx, end: end}
		s.open(st)
		return st
	}
	first := open(&ahead)
	defer first.end(nil)
	behind.taken("s", first.holder)
	second := open(&behind)
	defer second.end(nil)
	ahead.taken("s", second.holder)
	if first.ctx.Err() == nil || second.ctx.Err() != nil {
		t.Errorf("the first one: %v, the second one: %v", first.ctx.Err(), second.ctx.Err())
	}
	// What is no holder changes nothing.
	for _, bad := range []string{"", "x", strings.Repeat("f", 100), strings.Repeat("z", 30)} {
		behind.taken("s", bad)
	}
	if second.ctx.Err() != nil {
		t.Error("nonsense ended a stream")
	}
	behind.closed(first) // not its stream
	if behind.of("s") != second {
		t.Error("a stream was forgotten that is open")
	}
	behind.closed(second)
	if behind.of("s") != nil {
		t.Error("a closed stream is still there")
	}
}
