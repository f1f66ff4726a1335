package bus

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"

	"github.com/millrace/millrace/proto/localnats"
	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

// TestCallsForAnOffer: a call that is meant for what some instances offer reaches
// these, and no others, also a moment after they offer something else.
func TestCallsForAnOffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		servers := map[string]*Server{}
		stops := map[string]func(){}
		for _, offer := range []string{"one", "two"} {
			s := NewServer(connect(t, ns), ServerConfig{Pool: "test", Grace: shortGrace})
			grpc_testing.RegisterTestServiceServer(s, testService{})
			s.SetManifest([]byte(offer))
			servers[offer], stops[offer] = s, actor(t, s.Ready(), s.Run)
		}
		c := startClient(t, connect(t, ns), ClientConfig{})
		call := func(conn grpc.ClientConnInterface) (instance string, err error) {
			var by peer.Peer
			_, err = grpc_testing.NewTestServiceClient(conn).EmptyCall(within(t), &grpc_testing.Empty{}, grpc.Peer(&by))
			if by.Addr != nil {
				instance = by.Addr.String()
			}
			return instance, err
		}
		want := func(when, offer, by string) {
			t.Helper()
			for range 20 {
				got, err := call(c.Offering("test", HashOf([]byte(offer))))
				if err != nil || got != servers[by].Instance() {
					t.Fatalf("%s, a call for %q was served by %q: %v", when, offer, got, err)
				}
			}
		}
		want("at first", "one", "one")
		want("at first", "two", "two")
		// Any instance takes the others.
		seen := map[string]bool{}
		for range 100 {
			by, err := call(c.Pool("test"))
			if err != nil {
				t.Fatal(err)
			}
			seen[by] = true
		}
		if len(seen) != 2 {
			t.Errorf("%d instances were given the calls for any", len(seen))
		}
		servers["one"].SetManifest([]byte("three"))
		time.Sleep(time.Second)
		want("after the change", "one", "one")
		want("after the change", "three", "one")
		servers["one"].SetManifest([]byte("four"))
		time.Sleep(time.Second)
		want("after the second change", "four", "one")
		_, err := call(c.Offering("test", HashOf([]byte("one"))))
		wantReason(t, err, codes.Unavailable, ReasonNoResponders)
		stops["one"]()
		_, err = call(c.Offering("test", HashOf([]byte("four"))))
		wantReason(t, err, codes.Unavailable, ReasonNoResponders)
		want("at last", "two", "two")
	})
}

// versions are instances of one pool, one for each manifest.
func versions(t *testing.T, ns *localnats.Server, slots int, manifests ...string) (services map[string]*slowService, servers map[string]*Server) {
	t.Helper()
	services, servers = map[string]*slowService{}, map[string]*Server{}
	for _, manifest := range manifests {
		services[manifest] = &slowService{}
		s := NewServer(connect(t, ns), ServerConfig{Pool: "test", Slots: slots, Grace: shortGrace})
		grpc_testing.RegisterTestServiceServer(s, services[manifest])
		s.SetManifest([]byte(manifest))
		actor(t, s.Ready(), s.Run)
		servers[manifest] = s
	}
	return services, servers
}

// TestSlotsOfAVersion: a free slot goes to a call that the instance can serve, at
// once, and to no other, whoever waits.
func TestSlotsOfAVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		services, _ := versions(t, ns, 1, "one", "two")
		c := startClient(t, connect(t, ns), ClientConfig{WaitBudget: 10 * time.Second})
		w := tap(t, connect(t, ns), "i")
		began := time.Now()
		var wait sync.WaitGroup
		call := func(conn grpc.ClientConnInterface, name string, ms int, ends time.Duration) {
			wait.Go(func() {
				_, err := grpc_testing.NewTestServiceClient(conn).UnaryCall(within(t), slow(name, ms))
				if took := time.Since(began); err != nil || took < ends || took > ends+5*time.Millisecond {
					t.Errorf("%s: after %v, want %v: %v", name, took, ends, err)
				}
			})
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		of := func(manifest string) grpc.ClientConnInterface { return c.Offering("test", HashOf([]byte(manifest))) }
		ms := time.Millisecond
		call(of("one"), "one", 100, 100*ms)
		call(of("two"), "two", 331, 332*ms)
		// Its turn is at 332 ms, although there is a free slot from 100 ms on.
		call(of("two"), "two", 20, 352*ms)
		call(of("one"), "one", 50, 150*ms)
		// Versions come and go meanwhile; those who wait are not forgotten.
		for i := range 2 * maxManifests {
			c.Offering("test", HashOf(fmt.Append(nil, i)))
		}
		if got := c.Waiting("test"); got != 2 {
			t.Errorf("%d calls wait, want 2", got)
		}
		wait.Wait()
		for manifest, s := range services {
			for _, name := range s.order {
				if name != manifest {
					t.Errorf("a call for %q was run by %q", name, manifest)
				}
			}
		}
		taken := 0
		for _, f := range w.take() {
			if f.frame.GetKind() != busv1.Frame_KIND_OPEN {
				continue
			}
			taken++
			if !strings.Contains(f.subject, "."+tokenOpenFor) {
				t.Errorf("an offered slot was taken by %s", f.subject)
			}
		}
		if taken < 2 {
			t.Errorf("%d offered slots were taken, want 2", taken)
		}
		kept := 0
		c.pools.Range(func(any, any) bool { kept++; return true })
		if kept > maxManifests+1 {
			t.Errorf("%d connections are kept", kept)
		}
	})
}

// TestSlotsOfVersionsUnderLoad: while calls for each version and calls for any
// wait, every slot is used, and nothing is run by a version it was not for.
func TestSlotsOfVersionsUnderLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		const slots, each = 2, 40
		services, servers := versions(t, ns, slots, "one", "two")
		var clients []*Client
		for range 2 {
			clients = append(clients, startClient(t, connect(t, ns), ClientConfig{WaitBudget: 10 * time.Second}))
		}
		began := time.Now()
		var wait sync.WaitGroup
		for i := range 3 * each {
			c := clients[i/3%len(clients)]
			conn, name := c.Pool("test"), "any"
			if i%3 > 0 {
				name = []string{"one", "two"}[i%3-1]
				conn = c.Offering("test", HashOf([]byte(name)))
			}
			wait.Go(func() {
				if _, err := grpc_testing.NewTestServiceClient(conn).UnaryCall(within(t), slow(name, 50)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wait.Wait()
		ran := 0
		for manifest, s := range services {
			ran += len(s.order)
			for _, name := range s.order {
				if name != manifest && name != "any" {
					t.Errorf("a call for %q was run by %q", name, manifest)
				}
			}
			if s.atMax != slots {
				t.Errorf("%d calls of %q ran at a time, want %d", s.atMax, manifest, slots)
			}
			if servers[manifest].Stats().Offers == 0 {
				t.Errorf("%q offered nothing", manifest)
			}
		}
		if ran != 3*each {
			t.Errorf("%d executions of %d calls", ran, 3*each)
		}
		// One sort may be through before the others, and leaves its slots to them.
		if took, least := time.Since(began), 3*each/(2*slots)*50*time.Millisecond; took > least+least/2 {
			t.Errorf("it took %v, and %v would have been enough", took, least)
		}
	})
}

// TestOpenForAManifest: an OPEN that follows an offer is refused by an instance
// that has another manifest by now, and nobody is offered a slot that is of no use.
func TestOpenForAManifest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		_, servers := versions(t, ns, 1, "one")
		conn := connect(t, ns)
		w := tap(t, conn, "e", "cap")
		id := servers["one"].Instance()
		one, two := HashOf([]byte("one")).String(), HashOf([]byte("two")).String()
		open := func(token, want string) {
			t.Helper()
			rawOpen(t, conn, conn.prefix+"i."+id+"."+token, conn.prefix+"e.me.c1", nil)
			synctest.Wait()
			if got := w.kinds(); got != want {
				t.Errorf("%s: got %q, want %q", token, got, want)
			}
		}
		open("open-"+two, "BUSY")
		open("open-", "BUSY")
		open("open-"+one, "END+ACCEPT")
		open("open", "END+ACCEPT")
		wanted := func(manifest, by string) {
			t.Helper()
			if err := conn.nc.Publish(conn.prefix+"want.test."+manifest, nil); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			var got []string
			for _, f := range w.take() {
				got = append(got, strings.TrimPrefix(f.subject, conn.prefix))
			}
			if got := strings.Join(got, " "); got != by {
				t.Errorf("wanted for %s: offered on %q, want %q", manifest, got, by)
			}
		}
		wanted(two, "")
		wanted(one, "cap.test."+one)
		wanted(anyManifest, "cap.test._")
		servers["one"].SetManifest([]byte("two"))
		time.Sleep(10 * time.Millisecond)
		servers["one"].SetManifest([]byte("three"))
		time.Sleep(10 * time.Millisecond)
		w.take()
		wanted(one, "")
		wanted(two, "cap.test."+two)
		open("open-"+one, "BUSY")
	})
}
