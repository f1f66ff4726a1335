package catalog

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// contracted is a manifest whose tools have contracts: "name" or "name/contract".
func contracted(pool string, tools ...string) *millracev1.Manifest {
	m := &millracev1.Manifest{Pool: pool}
	for _, t := range tools {
		name, contract, _ := strings.Cut(t, "/")
		m.Tools = append(m.Tools, &millracev1.Tool{
			Name: name, Definition: []byte(`{"name":"` + name + `","description":"` + contract + `"}`), Contract: []byte(name + contract),
		})
	}
	return m
}

func TestActiveVersion(t *testing.T) {
	t.Parallel()
	now := time.Now()
	of := func(number string, ready int, age time.Duration) version {
		return version{number: number, hash: bus.HashOf([]byte(number)), ready: ready, since: now.Add(-age)}
	}
	const old = time.Hour
	for name, c := range map[string]struct {
		versions []version // the highest first
		want     string
		again    time.Duration
	}{
		"alone":                       {[]version{of("2.0.0", 1, 0)}, "2.0.0", 0},
		"too young":                   {[]version{of("2.0.0", 2, time.Second), of("1.0.0", 2, old)}, "1.0.0", 2 * time.Second},
		"settled":                     {[]version{of("2.0.0", 2, settle), of("1.0.0", 9, old)}, "2.0.0", 0},
		"one of many":                 {[]version{of("2.0.0", 1, old), of("1.0.0", 3, old)}, "1.0.0", 0},
		"one of two":                  {[]version{of("2.0.0", 1, old), of("1.0.0", 2, old)}, "2.0.0", 0},
		"the old one leaves":          {[]version{of("2.0.0", 1, 0), of("1.0.0", 0, old)}, "2.0.0", 0},
		"three, the middle one ready": {[]version{of("3.0.0", 2, 0), of("2.0.0", 2, old), of("1.0.0", 4, old)}, "2.0.0", settle},
		"a roll-back":                 {[]version{of("2.0.0", 0, old), of("1.0.0", 1, 0)}, "1.0.0", 0},
		"all leave":                   {[]version{of("2.0.0", 0, old), of("1.0.0", 0, old)}, "2.0.0", 0},
	} {
		chosen, again := active(c.versions, now)
		if chosen == nil || chosen.number != c.want || again != c.again {
			t.Errorf("%s: %+v, again in %v; want %s, %v", name, chosen, again, c.want, c.again)
		}
	}
	if chosen, _ := active(nil, now); chosen != nil {
		t.Errorf("without versions %+v is chosen", chosen)
	}
}

func TestVersionsAreOrderedWithoutRegardToArrival(t *testing.T) {
	t.Parallel()
	now := time.Now()
	member := func(number, offer string, draining bool) bus.Member {
		return bus.Member{Version: number, Draining: draining, Manifests: []bus.Hash{bus.HashOf([]byte(offer))}}
	}
	members := []bus.Member{
		member("1.9.0", "a", false), member("1.10.0", "b", false), member("1.10.0", "b", true),
		member("1.10.0", "c", false), member("nightly", "d", false), member("1.0.0", "a", false),
	}
	want := versionsOf(members, nil, now, true)
	if len(want) != 4 || want[0].number != "1.10.0" || want[1].number != "1.10.0" || want[2].number != "1.9.0" || want[2].ready != 2 || want[3].number != "nightly" {
		t.Fatalf("versions: %+v", want)
	}
	slices.Reverse(members)
	if got := versionsOf(members, nil, now, true); !slices.Equal(got, want) {
		t.Errorf("in another order: %+v, want %+v", got, want)
	}
	// What was not there before has begun now; what was has begun then.
	later := now.Add(time.Second)
	for _, v := range versionsOf(members, want[:2], later, false) {
		known := v.hash == want[0].hash || v.hash == want[1].hash
		if v.since.IsZero() != known || !known && v.since != later {
			t.Errorf("%s is ready since %v", v.number, v.since)
		}
	}
}

// TestRollingUpdate: the lists change once, when the new version can bear the
// load; a tool whose contract is the same goes to all versions, any other to
// those that have it as it is listed.
func TestRollingUpdate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		v1, v2 := contracted("p", "same", "other/1"), contracted("p", "same", "other/2")
		old := []*instance{c.instance("p", "1.0.0", v1), c.instance("p", "1.0.0", v1), c.instance("p", "1.0.0", v1)}
		c.wait("p")
		only := func(item string) int {
			tool, ok := c.catalog.Snapshot().Tool(item)
			if !ok {
				t.Fatalf("%s is not offered", item)
			}
			if hash, ok := c.catalog.Choose(tool.Offers); ok != (len(tool.Offers.Only) > 0) || ok && hash != tool.Offers.Listed {
				t.Errorf("%s goes to %s (%v) and is listed from %s", item, hash, ok, tool.Offers.Listed)
			}
			return len(tool.Offers.Only)
		}
		want := func(when, listed string, same, other int) {
			t.Helper()
			tool, _ := c.catalog.Snapshot().Tool("other")
			if !strings.Contains(string(tool.Definition), `"`+listed+`"`) || only("same") != same || only("other") != other {
				t.Errorf("%s: %s is listed; same %d, other %d; want %s, %d, %d", when, tool.Definition, only("same"), only("other"), listed, same, other)
			}
		}
		want("before", "1", 0, 0)
		digest := c.catalog.Snapshot().ToolsDigest
		young := []*instance{c.instance("p", "2.0.0", v2)}
		time.Sleep(10 * time.Second)
		want("one new instance", "1", 0, 1)
		if c.catalog.Snapshot().ToolsDigest != digest {
			t.Error("the lists have changed while the old version is active")
		}
		young = append(young, c.instance("p", "2.0.0", v2))
		time.Sleep(2 * time.Second)
		want("two new instances", "2", 0, 1)
		digest = c.catalog.Snapshot().ToolsDigest
		for _, i := range old {
			i.stop()
		}
		time.Sleep(2 * time.Second)
		want("afterwards", "2", 0, 0)
		if c.catalog.Snapshot().ToolsDigest != digest {
			t.Error("the lists have changed with the end of the old version")
		}
		for _, i := range young {
			i.stop()
		}
	})
}

func TestNamespacedConflicts(t *testing.T) {
	t.Parallel()
	prompt := func(name string) *millracev1.Prompt {
		return &millracev1.Prompt{Name: name, Definition: []byte(`{"name":"` + name + `"}`), Completed: []string{"x"}, Scopes: []string{"s"}}
	}
	a, b, c := manifest("a", "shared", "c.taken"), manifest("b", "shared"), manifest("c", "shared", "taken")
	b.Tools[0] = &millracev1.Tool{
		Name: "shared", ReadOnly: true, Scopes: []string{"s"},
		Definition: []byte(`{ "title":"x", "name" : "shared" , "inputSchema":{"type":"object","properties":{"name":{"type":"string","x-mcp-header":"N"}}}}`),
	}
	c.Tools = append(c.Tools, &millracev1.Tool{Name: strings.Repeat("n", longestName), Definition: []byte(`{}`)})
	a.Tools = append(a.Tools, c.Tools[2], &millracev1.Tool{Name: "taken", Definition: []byte(`{"name":"taken"}`)})
	a.Prompts, b.Prompts = []*millracev1.Prompt{prompt("p")}, []*millracev1.Prompt{prompt("p")}
	a.Resources = []*millracev1.Resource{{Uri: "x://", Definition: []byte(`{}`)}}
	b.Resources = a.Resources
	pools := []poolManifests{
		{name: "b", manifests: []*millracev1.Manifest{b}}, {name: "c", manifests: []*millracev1.Manifest{c}}, {name: "a", manifests: []*millracev1.Manifest{a}},
	}
	s := newSnapshot(pools, true)
	if got, want := offered(s), []string{"b.shared@b", "c.shared@c", "c.taken@a", c.Tools[2].Name + "@a", "shared@a", "taken@a"}; !slices.Equal(got, want) {
		t.Errorf("offered %q, want %q", got, want)
	}
	tool, _ := s.Tool("b.shared")
	if tool.Origin != "shared" || !tool.ReadOnly || len(tool.Headers) != 1 || !slices.Equal(tool.Scopes, []string{"s"}) {
		t.Errorf("renamed: %+v", tool)
	}
	if want := bytes.Replace(b.Tools[0].Definition, []byte(`"shared"`), []byte(`"b.shared"`), 1); !bytes.Equal(tool.Definition, want) {
		t.Errorf("definition %s, want %s", tool.Definition, want)
	}
	if _, ok := s.For(caller()).Tool("b.shared"); ok {
		t.Error("the other name opens what scopes have closed")
	}
	p, ok := s.Prompt("b.p")
	if !ok || p.Origin != "p" || p.Pool != "b" || !slices.Equal(p.Completed, []string{"x"}) {
		t.Errorf("prompt: %+v", p)
	}
	as := map[string]string{}
	for _, problem := range s.Problems {
		if !problem.Conflict {
			t.Errorf("no conflict: %+v", problem)
		}
		as[problem.Pool+" "+problem.Item] += problem.As + ";"
	}
	for item, want := range map[string]string{
		"b shared": "b.shared;", "c shared": "c.shared;", "b p": "b.p;", "b x://": ";", "c taken": ";", "c " + c.Tools[2].Name: ";",
	} {
		if as[item] != want {
			t.Errorf("%s is offered as %q, want %q", item, as[item], want)
		}
	}
	if len(as) != 6 {
		t.Errorf("problems: %+v", s.Problems)
	}
	slices.Reverse(pools)
	if again := newSnapshot(pools, true); !slices.Equal(offered(again), offered(s)) || again.ToolsDigest != s.ToolsDigest {
		t.Error("the outcome depends on the order of pools")
	}
	if hidden := newSnapshot(pools, false); len(hidden.Problems) != 6 || len(hidden.Tools) != 4 {
		t.Errorf("without namespaces: %q, %+v", offered(hidden), hidden.Problems)
	}
}

func TestProblemsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := newClusterWith(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		a := c.instance("a", "1.0.0", manifest("a", "shared"))
		c.instance("b", "1.0.0", manifest("b", "shared"))
		c.wait("a", "b")
		c.instance("c", "1.0.0", manifest("c", "other"))
		c.instance("b", "1.0.0", manifest("b", "shared"))
		c.wait("c")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		count := func(text string) int { return strings.Count(log.String(), text) }
		if count("not offered") != 1 || count("no problem any more") != 0 {
			t.Errorf("log:\n%s", log.String())
		}
		a.stop()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if count("not offered") != 1 || count("no problem any more") != 1 {
			t.Errorf("log:\n%s", log.String())
		}
		if got := offered(c.catalog.Snapshot()); !slices.Equal(got, []string{"other@c", "shared@b"}) {
			t.Errorf("%v is offered", got)
		}
	})
}
