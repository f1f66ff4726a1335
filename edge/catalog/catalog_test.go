package catalog

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/edge/peer"
	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a NATS server, a watcher and the catalog over it.
type cluster struct {
	t       *testing.T
	server  *localnats.Server
	catalog *Catalog
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return newClusterWith(t, Config{Logger: slog.New(slog.DiscardHandler)})
}

func newClusterWith(t *testing.T, cfg Config) *cluster {
	t.Helper()
	server, err := localnats.Start(localnats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	c := &cluster{t: t, server: server}
	watcher := bus.NewWatcher(c.conn("edge"), bus.WatcherConfig{})
	c.catalog = New(watcher, cfg)
	c.run(watcher.Run)
	c.run(c.catalog.Run)
	return c
}

func (c *cluster) conn(name string) *bus.Conn {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.ConnConfig{InProcess: c.server, Name: name})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(conn.Close)
	return conn
}

// run runs an actor until stop or the end of the test.
func (c *cluster) run(actor func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1) // one result
	go func() { done <- actor(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	}
	c.t.Cleanup(stop)
	return stop
}

// instance is one running instance of a pool.
type instance struct {
	conn   *bus.Conn
	server *bus.Server
	stop   func()
}

func (c *cluster) instance(pool, version string, m *millracev1.Manifest) *instance {
	c.t.Helper()
	conn := c.conn(pool)
	i := &instance{conn: conn, server: bus.NewServer(conn, bus.ServerConfig{Pool: pool, Version: version})}
	i.announce(c.t, m)
	i.stop = c.run(i.server.Run)
	<-i.server.Ready()
	return i
}

func (i *instance) announce(t *testing.T, m *millracev1.Manifest) {
	t.Helper()
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	i.server.SetManifest(raw)
}

// manifest has the named tools; the definition says whose they are.
func manifest(pool string, tools ...string) *millracev1.Manifest {
	m := &millracev1.Manifest{Pool: pool}
	for _, name := range tools {
		m.Tools = append(m.Tools, &millracev1.Tool{Name: name, Definition: []byte(`{"name":"` + name + `"}`)})
	}
	return m
}

// offered lists tool@pool.
func offered(s *Snapshot) []string {
	var names []string
	for _, t := range s.Tools {
		names = append(names, t.Name+"@"+t.Pool)
	}
	return names
}

func (c *cluster) wait(pools ...string) *Snapshot {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.catalog.WaitPools(ctx, pools...); err != nil {
		c.t.Fatal(err)
	}
	<-c.catalog.Ready()
	return c.catalog.Snapshot()
}

// TestEdgesOfferNothing: the pool of the edges is none of workers, whatever an
// instance of it announces.
func TestEdgesOfferNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.instance(peer.Pool, "9.0.0", manifest(peer.Pool, "a-tool"))
		c.instance("b", "1.0.0", manifest("b", "a-tool"))
		c.wait("b")
		time.Sleep(2 * time.Second)
		s := c.catalog.Snapshot()
		if got, want := offered(s), []string{"a-tool@b"}; !slices.Equal(got, want) || len(s.Problems) > 0 {
			t.Errorf("offered: %q, problems: %v", got, s.Problems)
		}
	})
}

func TestConflictsDoNotDependOnArrival(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			for _, pool := range order {
				c.instance(pool, "1.0.0", manifest(pool, "shared", "of-"+pool))
				c.wait(pool)
			}
			s := c.wait("a", "b")
			if got, want := offered(s), []string{"of-a@a", "of-b@b", "shared@a"}; !slices.Equal(got, want) {
				t.Errorf("order %v: offered %v, want %v", order, got, want)
			}
			if len(s.Problems) != 1 || s.Problems[0].Pool != "b" || s.Problems[0].Item != "shared" {
				t.Errorf("order %v: problems %+v", order, s.Problems)
			}
		})
	}
}

func TestNewestVersionIsListed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		old := c.instance("p", "1.9.0", manifest("p", "old"))
		c.wait("p")
		young := c.instance("p", "1.10.0", manifest("p", "young"))
		time.Sleep(4 * time.Second)
		if got := offered(c.catalog.Snapshot()); !slices.Equal(got, []string{"young@p"}) {
			t.Errorf("with both versions %v is offered", got)
		}
		young.stop()
		time.Sleep(3 * time.Second)
		if got := offered(c.catalog.Snapshot()); !slices.Equal(got, []string{"old@p"}) {
			t.Errorf("with the old version alone %v is offered", got)
		}
		old.stop()
	})
}

func TestChangeAtRunTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		i := c.instance("p", "1.0.0", manifest("p", "one"))
		c.wait("p")
		changed := c.catalog.Changed()
		i.announce(t, manifest("p", "one", "two"))
		begun := time.Now()
		<-changed
		if took := time.Since(begun); took > 100*time.Millisecond {
			t.Errorf("the change took %v", took)
		}
		if got := offered(c.catalog.Snapshot()); !slices.Equal(got, []string{"one@p", "two@p"}) {
			t.Errorf("%v is offered", got)
		}
	})
}

func TestPoolThatLeavesGoesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		i := c.instance("p", "1.0.0", manifest("p", "one"))
		c.wait("p")
		i.stop()
		time.Sleep(time.Second)
		if got := offered(c.catalog.Snapshot()); got != nil {
			t.Errorf("a second after it said goodbye %v is offered", got)
		}
	})
}

func TestPoolThatVanishesIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		i := c.instance("p", "1.0.0", manifest("p", "one"))
		s := c.wait("p")
		i.conn.Close() // as if the process had been killed
		time.Sleep(20 * time.Second)
		if c.catalog.Snapshot() != s {
			t.Error("the list changed while the pool was held")
		}
		time.Sleep(20 * time.Second)
		if got := offered(c.catalog.Snapshot()); got != nil {
			t.Errorf("40 s after it vanished %v is offered", got)
		}
	})
}

// TestWaitForAPoolThatComesBack: what comes back is what was listed all the time.
func TestWaitForAPoolThatComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m := manifest("a", "x")
		first := c.instance("a", "1", m)
		c.wait("a")
		first.conn.Close() // as if the process had been killed: what it has stays listed
		time.Sleep(5 * time.Second)
		if got := c.catalog.watcher.Members(); len(got) > 0 {
			t.Fatalf("%v are there", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		found := make(chan error, 1) // one result
		go func() { found <- c.catalog.WaitPools(ctx, "a") }()
		synctest.Wait()
		c.instance("a", "1", m)
		if err := <-found; err != nil {
			t.Error(err)
		}
	})
}

func TestBadItemsAreNamedAndTheRestIsServed(t *testing.T) {
	t.Parallel()
	m := manifest("p", "good")
	m.Tools = append(m.Tools,
		&millracev1.Tool{Name: "", Definition: []byte(`{}`)},
		&millracev1.Tool{Name: "list", Definition: []byte(`[]`)},
		&millracev1.Tool{Name: "good", Definition: []byte(`{}`)},
	)
	m.ResourceTemplates = []*millracev1.ResourceTemplate{
		{UriTemplate: "x://{", Definition: []byte(`{}`)},
		{UriTemplate: "x://{+all}", Definition: []byte(`{}`)},
		{UriTemplate: "x://fixed/{name}", Definition: []byte(`{}`)},
	}
	m.Resources = []*millracev1.Resource{{Uri: "x://fixed/one", Definition: []byte(`{}`)}}
	s := newSnapshot([]poolManifests{{name: "p", manifests: []*millracev1.Manifest{m}}}, false)
	if got := offered(s); !slices.Equal(got, []string{"good@p"}) {
		t.Errorf("%v is offered", got)
	}
	if len(s.Problems) != 4 {
		t.Errorf("problems: %+v", s.Problems)
	}
	for uri, want := range map[string]string{
		"x://fixed/one": "", "x://fixed/two": "x://fixed/{name}", "x://other/two": "x://{+all}",
	} {
		if _, template, ok := s.Resource(uri); !ok || template != want {
			t.Errorf("Resource(%q) = %q, %v; want %q", uri, template, ok, want)
		}
	}
	if _, _, ok := s.Resource("y://x"); ok {
		t.Error("a URI that matches nothing is found")
	}
}
