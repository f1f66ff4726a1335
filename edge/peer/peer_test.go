package peer

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// edge is one edge, as far as its peers see it.
type edge struct {
	*Peers

	client *bus.Client
	// heard are the announcements it has acted on.
	mu    sync.Mutex
	heard []*millracev1.Announcement
	// acting makes it slow.
	acting time.Duration
	stop   func()
}

// start starts some edges over one NATS server and waits until they see each
// other.
func start(t *testing.T, n int) (edges []*edge) {
	t.Helper()
	server, err := localnats.Start(localnats.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	for range n {
		edges = append(edges, startEdge(t, server))
	}
	for _, e := range edges {
		<-e.Ready()
		<-e.client.Ready()
	}
	<-time.After(2 * time.Second) // their heartbeats
	return edges
}

func startEdge(t *testing.T, server *localnats.Server) *edge {
	t.Helper()
	connCtx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := bus.Connect(connCtx, bus.ConnConfig{InProcess: server, Name: "edge"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	e := &edge{client: bus.NewClient(conn, bus.ClientConfig{})}
	watcher := bus.NewWatcher(conn, bus.WatcherConfig{})
	e.Peers = New(conn, e.client, watcher.Members, Config{
		Deliver: func(req *millracev1.DeliverRequest) bool { return req.GetId() == "asked by "+e.ID() },
		Post:    func(_ context.Context, req *millracev1.PostRequest) bool { return req.GetConnection() == "of "+e.ID() },
		Heard:   e.hear,
	})
	ctx, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, actor := range []func(context.Context) error{e.client.Run, watcher.Run, e.Run} {
		running.Go(func() {
			if err := actor(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	e.stop = sync.OnceFunc(func() {
		end()
		running.Wait()
	})
	t.Cleanup(e.stop)
	return e
}

func (e *edge) hear(_ context.Context, a *millracev1.Announcement, wait bool) {
	if wait {
		<-time.After(e.acting)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, a)
}

// news returns what an edge has acted on since the last time.
func (e *edge) news() []*millracev1.Announcement {
	e.mu.Lock()
	defer e.mu.Unlock()
	news := e.heard
	e.heard = nil
	return news
}

// ended is an announcement.
func ended(scope string) *millracev1.Announcement {
	return &millracev1.Announcement{News: &millracev1.Announcement_SessionChanged{
		SessionChanged: &millracev1.SessionChanged{Scope: scope, Ended: true},
	}}
}

func TestDeliverAndPost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		edges := start(t, 3)
		ctx := context.Background()
		for _, from := range edges {
			for _, to := range edges { // to itself, too
				for id, want := range map[string]bool{"asked by " + to.ID(): true, "never asked": false} {
					if taken, err := from.Deliver(ctx, to.ID(), &millracev1.DeliverRequest{Id: id}); taken != want || err != nil {
						t.Errorf("Deliver %q = %v, %v", id, taken, err)
					}
				}
				for connection, want := range map[string]bool{"of " + to.ID(): true, "closed": false} {
					if known, err := from.Post(ctx, to.ID(), &millracev1.PostRequest{Connection: connection}); known != want || err != nil {
						t.Errorf("Post to %q = %v, %v", connection, known, err)
					}
				}
			}
		}
		edges[2].stop()
		time.Sleep(time.Second) // until NATS has heard
		begun := time.Now()
		if taken, err := edges[0].Deliver(ctx, edges[2].ID(), &millracev1.DeliverRequest{Id: "x"}); taken || err == nil {
			t.Errorf("Deliver to an edge that is gone = %v, %v", taken, err)
		}
		if known, err := edges[0].Post(ctx, edges[2].ID(), &millracev1.PostRequest{Connection: "x"}); known || err == nil {
			t.Errorf("Post to an edge that is gone = %v, %v", known, err)
		}
		if _, err := edges[0].Deliver(ctx, "no.edge > *", &millracev1.DeliverRequest{}); err == nil {
			t.Error("an id that is no token was taken")
		}
		if took := time.Since(begun); took > 100*time.Millisecond {
			t.Errorf("an edge that is gone held its peer up for %v", took)
		}
	})
}

func TestAnnounceAndTell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		edges := start(t, 3)
		if err := edges[0].Announce(ended("a")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, e := range edges {
			news := e.news()
			switch {
			case i == 0 && len(news) != 0:
				t.Errorf("an edge hears itself: %v", news)
			case i > 0 && (len(news) != 1 || news[0].GetSessionChanged().GetScope() != "a" || news[0].GetEdge() != edges[0].ID()):
				t.Errorf("edge %d hears %v", i, news)
			}
		}
		// Tell waits until the others have acted, and no longer than it must.
		edges[2].acting = 40 * time.Millisecond
		begun := time.Now()
		if err := edges[1].Tell(context.Background(), ended("b")); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != edges[2].acting {
			t.Errorf("Tell took %v", took)
		}
		for _, e := range []*edge{edges[0], edges[2]} {
			if news := e.news(); len(news) == 0 || news[len(news)-1].GetSessionChanged().GetScope() != "b" {
				t.Errorf("after Tell an edge has heard %v", news)
			}
		}
		edges[2].acting = time.Hour
		begun = time.Now()
		if err := edges[1].Tell(context.Background(), ended("c")); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != tellTimeout {
			t.Errorf("an edge that does not act held the others up for %v", took)
		}
		// Everybody hears who is asked, and then who has acted.
		synctest.Wait()
		news := edges[2].news()
		if len(news) != 2 || !slices.Contains(news[0].GetTold(), edges[2].ID()) || !slices.Equal(news[1].GetTold(), []string{edges[0].ID()}) {
			t.Errorf("the edge that does not act has heard %v", news)
		}
		time.Sleep(2 * time.Hour)
	})
}

// TestForeignAnnouncements: workers may speak to edges too, and what cannot be
// read harms nobody.
func TestForeignAnnouncements(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		edges := start(t, 1)
		stranger := edges[0].client
		payload, err := proto.Marshal(ended("of a worker"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range [][]byte{{0xff, 0xff}, payload, nil} {
			if err := stranger.Announce(Topic, p); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		news := edges[0].news()
		if len(news) != 2 || news[0].GetSessionChanged().GetScope() != "of a worker" || news[0].GetEdge() != "" {
			t.Errorf("heard %v", news)
		}
	})
}
