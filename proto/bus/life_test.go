package bus

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"

	busv1 "github.com/millrace/millrace/proto/millrace/bus/v1"
)

func TestAnInstanceWhoseFramesArriveIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		worker := newRawWorker(t, connect(t, ns), "test")
		conn := connect(t, ns)
		c := startClient(t, conn, ClientConfig{})
		var lost lostLog
		w := startWatcher(t, conn, WatcherConfig{OnLost: lost.add, Heard: c.Heard})
		// It has said once that it is there, and answers no probe.
		(&silentWorker{t: t, conn: worker.conn, id: worker.id}).beat(&busv1.Heartbeat{Epoch: 1})
		stream, err := grpc_testing.NewTestServiceClient(c.Pool("test")).StreamingOutputCall(within(t), &grpc_testing.StreamingOutputCallRequest{})
		if err != nil {
			t.Fatal(err)
		}
		m := <-worker.opens
		worker.send(m, worker.accept(1))
		for seq := range uint64(100) {
			time.Sleep(250 * time.Millisecond)
			worker.send(m, response(t, seq+2, 10))
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		if got := lost.take(); len(got) != 0 || len(w.Members()) != 1 {
			t.Fatalf("lost %+v, members %+v", got, w.Members())
		}
		time.Sleep(3 * time.Second) // and now it is silent
		if got := lost.take(); len(got) != 1 || len(w.Members()) != 0 {
			t.Errorf("lost %+v, members %+v", got, w.Members())
		}
	})
}

// An answer may wait in our own socket, behind large results for example.
func TestASlowConnectionLosesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &faults{ns: startNATS(t)}
		startServer(t, connect(t, f.ns), ServerConfig{}, testService{})
		conn := connectFaulty(t, f)
		var lost lostLog
		w := startWatcher(t, conn, WatcherConfig{OnLost: lost.add})
		c := startClient(t, conn, ClientConfig{})
		f.hold()
		done := make(chan error, 1)
		go func() {
			_, err := grpc_testing.NewTestServiceClient(c.Pool("test")).EmptyCall(within(t), &grpc_testing.Empty{})
			done <- err
		}()
		time.Sleep(9 * time.Second)
		f.release()
		if err := <-done; err != nil {
			t.Errorf("the call: %v", err)
		}
		time.Sleep(5 * time.Second)
		if got := lost.take(); len(got) != 0 || len(w.Members()) != 1 {
			t.Errorf("lost %+v, members %+v", got, w.Members())
		}
	})
}

// A probe whose time has passed while this process stood still is made anew.
func TestStandingStillLosesNobody(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	conn := connect(t, ns)
	asked := make(chan struct{}, 10)
	worker := newSilentWorker(t, conn, func(*nats.Msg) { asked <- struct{}{} })
	w := NewWatcher(conn, WatcherConfig{Logger: newLog(t).logger()})
	r := &watcherRun{
		w: w, members: make(map[string]*watched), changed: make(map[string]time.Time),
		inbox: conn.nc.NewInbox(),
	}
	now := time.Now()
	m := &watched{Member: Member{Instance: worker.id, Pool: "test", Epoch: 1}, seen: now}
	r.members[m.Instance] = m
	echoed := func() {
		t.Helper()
		<-asked
		r.onPong(&nats.Msg{Subject: r.inbox + "." + tokenEcho, Data: []byte("1000")}, now)
	}
	now = now.Add(lateAfter)
	r.checkLate(now, false)
	echoed()
	for range 5 {
		now = now.Add(10 * time.Second)
		r.checkLate(now, true)
		if m.tries != 0 || m.silent {
			t.Fatalf("it counts: %+v", m)
		}
		echoed()
	}
	for range probeTries - 1 {
		now = now.Add(probeTimeout)
		r.checkLate(now, false)
		if m.silent {
			t.Fatal("lost too early")
		}
		echoed()
	}
	now = now.Add(probeTimeout)
	r.checkLate(now, false)
	if !m.silent || len(w.Members()) != 0 {
		t.Errorf("it is not lost: %+v", m)
	}
}

// What comes back after it was given up is one member, lost once.
func TestAnInstanceThatComesBackIsCountedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		var lost lostLog
		conn := connect(t, ns)
		w := startWatcher(t, conn, WatcherConfig{OnLost: lost.add})
		var frozen atomic.Bool
		other := connect(t, ns)
		worker := newSilentWorker(t, other, func(m *nats.Msg) {
			if !frozen.Load() {
				_ = m.Respond([]byte{8, 7}) // epoch 7
			}
		})
		beat := &busv1.Heartbeat{Epoch: 7, Slots: 8}
		worker.beat(beat)
		roster := func() Roster { return must[Roster](t)(w.Roster(within(t), "test")) }
		check := func(what string, members, inRoster, losses int) {
			t.Helper()
			synctest.Wait()
			if got := lost.take(); len(w.Members()) != members || len(roster().Members) != inRoster || len(got) != losses {
				t.Errorf("%s: members %+v, roster %+v, lost %+v", what, w.Members(), roster(), got)
			}
		}
		time.Sleep(time.Minute)
		check("it answers probes", 1, 1, 0)
		quiet := roster().Changed
		frozen.Store(true)
		time.Sleep(4 * time.Second)
		check("frozen", 0, 1, 1)
		if !roster().Changed.After(quiet) {
			t.Error("the roster does not say that something has happened")
		}
		time.Sleep(time.Minute)
		check("frozen for long", 0, 1, 0)
		worker.beat(beat)
		check("back by heartbeat", 1, 1, 0)
		time.Sleep(4 * time.Second)
		check("frozen again", 0, 1, 1)
		frozen.Store(false)
		time.Sleep(2 * time.Second)
		check("back by an answer", 1, 1, 0)
		frozen.Store(true)
		time.Sleep(4 * time.Second)
		check("frozen once more", 0, 1, 1)
		worker.beat(&busv1.Heartbeat{Epoch: 8, Slots: 8})
		check("back after a restart", 1, 1, 0)
		time.Sleep(4 * time.Second)
		check("frozen for the last time", 0, 1, 1)
		changed := roster().Changed
		other.Close()
		time.Sleep(2 * time.Second)
		check("gone for good", 0, 0, 0)
		if !roster().Changed.After(changed) {
			t.Error("the roster does not say that it is gone")
		}
	})
}

func TestTheAcceptBudgetIsNotChargedWhileWeStoodStill(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	c := &Client{}
	awake := clock{last: now}
	tick := func(d time.Duration) {
		now = now.Add(d)
		awake.sweep(now)
		c.still.Store(int64(awake.lost))
	}
	tick(clientSweep)
	call := &clientCall{c: c, lastPush: now, pushStill: c.still.Load(), pushes: 1}
	tick(clientSweep)
	tick(time.Hour)
	tick(clientSweep)
	if got, push := call.unansweredFor(now); got != 3*clientSweep || push != 1 {
		t.Errorf("push %d waits %v", push, got)
	}
}

// Nobody at all answers while the answer could be here: that still ends.
func TestASilentPoolEndsTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, _, client := rawPair(t, ClientConfig{})
		_, err := client.EmptyCall(within(t), &grpc_testing.Empty{})
		wantReason(t, err, codes.Unavailable, ReasonNotAccepted)
	})
}

// Many large results at once starve everything else in this process, heartbeats
// and probes too.
func TestLargeResultsLoseNobody(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	const instances, parallel, size = 2, 20, 4 << 20
	for range instances {
		startServer(t, connect(t, ns), ServerConfig{}, leanService{})
	}
	conn := connect(t, ns)
	var lost lostLog
	var c *Client
	w := NewWatcher(conn, WatcherConfig{
		OnLost: func(m Member) { lost.add(m); c.Lost(m.Instance, m.Epoch) },
		Heard:  func(instance string) uint64 { return c.Heard(instance) },
	})
	c = startClient(t, conn, ClientConfig{Members: w})
	actor(t, w.Synced(), w.Run)
	eventually(t, func() bool { // a watcher that has just begun knows too little
		return must[Roster](t)(w.Roster(within(t), "test")).Changed.Before(time.Now())
	})
	client := grpc_testing.NewTestServiceClient(c.Pool("test"))
	var calls errgroup.Group
	for range parallel {
		calls.Go(func() error {
			resp, err := client.UnaryCall(within(t), &grpc_testing.SimpleRequest{ResponseSize: size})
			if err == nil && len(resp.GetPayload().GetBody()) != size {
				t.Error("a result is not whole")
			}
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		t.Error(err)
	}
	if got := lost.take(); len(got) != 0 || len(w.Members()) != instances {
		t.Errorf("lost %+v, members %+v", got, w.Members())
	}
}
