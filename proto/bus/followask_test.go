package bus

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/proto/localnats"
)

// leaderless is a call whose events are not stored for a while, as if their stream
// had no leader. Time is fake.
type leaderless struct {
	t      *testing.T
	ns     *localnats.Server
	log    *memoryLog
	say    chan<- string // what the call sends; closed: it ends
	call   grpc.ServerStreamingClient[outputResponse]
	number uint64
	leave  func() // stops the caller
	gone   func() // and the instance
	reader *Client
	asked  atomic.Int32 // questions to instances
}

func newLeaderless(t *testing.T, cfg ServerConfig) *leaderless {
	t.Helper()
	ns := startNATS(t)
	l := &leaderless{t: t, ns: ns, log: newMemoryLog(t, connect(t, ns))}
	service, say := steps()
	l.say = say
	_, l.gone = startServer(t, connect(t, ns), cfg, service)
	startServer(t, connect(t, ns), ServerConfig{Pool: "other"}, testService{})
	conn := connect(t, ns)
	l.reader = NewClient(conn, ClientConfig{Members: startWatcher(t, conn, WatcherConfig{})})
	sub, err := conn.nc.Subscribe("mr.main.i.*.events", func(*nats.Msg) { l.asked.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unsubscribe(sub) })
	caller := NewClient(connect(t, ns), ClientConfig{})
	l.leave = actor(t, caller.Ready(), caller.Run)
	l.call = resumable(t, caller, within(t), 1, &l.number)
	return l
}

// saying sends messages, and returns when they are where they can be.
func (l *leaderless) saying(words ...string) {
	l.t.Helper()
	for _, word := range words {
		l.say <- word
		synctest.Wait()
	}
}

// losing makes the log lose everything, or keep it again.
func (l *leaderless) losing(all bool) {
	synctest.Wait()
	l.log.mu.Lock()
	defer l.log.mu.Unlock()
	l.log.lose = func(*frame) bool { return all }
}

// Whoever comes back after the end of a call gets it, though it was published while
// nobody stored it, and soon; and then it is stored.
func TestFollowAsksForTheEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before []string // stored
		want   string
		pool   bool // without it nobody knows whom to ask
	}{
		"after messages": {before: []string{"a", "b"}, want: "1/2:a 1/3:b 1/4:c 1/5:d 1/6!end:OutOfRange"},
		"from the start": {want: "1/2:c 1/3:d 1/4!end:OutOfRange", pool: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLeaderless(t, ServerConfig{})
				time.Sleep(eventsAfter)
				l.saying(c.before...)
				l.leave()
				l.losing(true)
				l.saying("c", "d")
				close(l.say)
				l.losing(false)
				began := time.Now()
				f := follow(t, l.reader, l.log, EventPoint{})
				if c.pool {
					f.Pool("test")
				}
				n := len(strings.Fields(c.want))
				if got := nextWords(t, f, n); got != c.want {
					t.Errorf("events\n%s, want\n%s", got, c.want)
				}
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("it took %v", took)
				}
				synctest.Wait()
				if got := l.asked.Load(); got != 1 {
					t.Errorf("%d questions", got)
				}
				// The next one has all of it from the log.
				if got := nextWords(t, follow(t, l.reader, l.log, EventPoint{}), n); got != c.want {
					t.Errorf("events\n%s are stored, want\n%s", got, c.want)
				}
				if got := l.asked.Load(); got != 1 {
					t.Errorf("%d questions in all", got)
				}
			})
		})
	}
}

// What is missing in the middle is asked for before it is left out.
func TestFollowAsksForWhatIsMissing(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 2*defaultChunk) // three frames with the head of the message
	for name, c := range map[string]struct {
		lost  []string
		cfg   ServerConfig
		want  string
		large bool // of the gap
	}{
		"messages":        {lost: []string{"b", "c"}, want: "1/2:a 1/3:b 1/4:c 1/5:z 1/6!end:OutOfRange"},
		"a large one":     {lost: []string{large}, want: "1/2:a 1/3:" + large + " 1/6:z 1/7!end:OutOfRange"},
		"they are gone":   {lost: []string{"b", "c"}, cfg: ServerConfig{EventMemory: 1}, want: "1/2:a 1/5:z 1/6!end:OutOfRange"},
		"too large ones":  {lost: []string{large}, cfg: ServerConfig{EventBytes: 1000}, want: "1/2:a 1/6:z 1/7!end:OutOfRange"},
		"and what is not": {lost: []string{"b", large}, cfg: ServerConfig{EventBytes: 1000}, want: "1/2:a 1/3:b 1/7:z 1/8!end:OutOfRange"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLeaderless(t, c.cfg)
				time.Sleep(eventsAfter)
				l.saying("a")
				l.leave()
				l.losing(true)
				l.saying(c.lost...)
				l.losing(false)
				l.saying("z")
				close(l.say)
				synctest.Wait()
				began := time.Now()
				f := follow(t, l.reader, l.log, EventPoint{})
				if got := nextWords(t, f, len(strings.Fields(c.want))); got != c.want {
					t.Errorf("events\n%.200s, want\n%.200s", got, c.want)
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A gap before the end says whether what is missing was too large or was lost.
func TestGapsSayWhy(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]ServerConfig{"lost": {EventMemory: 1}, "large": {EventBytes: 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLeaderless(t, cfg)
				time.Sleep(eventsAfter)
				l.leave()
				l.losing(true)
				l.saying("the result")
				l.losing(false)
				close(l.say)
				synctest.Wait()
				f := follow(t, l.reader, l.log, EventPoint{})
				e, err := f.Next(within(t))
				if err != nil || !e.Gap || e.Large != (name == "large") {
					t.Errorf("%+v, %v", e, err)
				}
				if e, err := f.Next(within(t)); err != nil || !e.End || e.Gap {
					t.Errorf("%+v, %v", e, err)
				}
			})
		})
	}
}

// When an instance has forgotten how its call ended, whoever follows is told that.
func TestFollowOfWhatIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLeaderless(t, ServerConfig{EventMemory: 1})
		time.Sleep(eventsAfter)
		l.saying("a")
		l.leave()
		f := follow(t, l.reader, l.log, EventPoint{})
		f.Pool("test")
		if got := nextWords(t, f, 1); got != "1/2:a" {
			t.Errorf("events %s", got)
		}
		// While it runs nothing is said.
		quiet, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if e, err := f.Next(quiet); !errors.Is(err, context.DeadlineExceeded) || l.asked.Load() < 2 {
			t.Errorf("%+v, %v, %d questions", e, err, l.asked.Load())
		}
		l.losing(true)
		close(l.say)
		synctest.Wait()
		// Closed and opened again: what is sent now was not heard.
		f.Close()
		began := time.Now()
		f = follow(t, l.reader, l.log, EventPoint{1, 1})
		if got := nextWords(t, f, 1); got != "1/2:a" {
			t.Errorf("events %s", got)
		}
		e, err := f.Next(within(t))
		if err != nil || !e.End || e.EventPoint != (EventPoint{1, 3}) {
			t.Errorf("%+v, %v", e, err)
		}
		wantReason(t, e.Err, codes.DataLoss, ReasonEventsLost)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
		wantEvents(t, f, "")
	})
}

// Nobody concludes anything from an instance that is not there.
func TestFollowOfALostInstance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLeaderless(t, ServerConfig{})
		time.Sleep(eventsAfter)
		l.saying("a")
		l.leave()
		l.losing(true)
		l.gone()
		f := follow(t, l.reader, l.log, EventPoint{})
		f.Pool("test")
		wantEvents(t, f, "1/2:a")
	})
}

// A caller that reads on does not notice that its events are published again.
func TestTheCallerPassesOverWhatIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLeaderless(t, ServerConfig{})
		l.losing(true)
		time.Sleep(eventsAfter)
		l.saying("a", "b")
		l.losing(false)
		f := follow(t, l.reader, l.log, EventPoint{})
		f.Pool("test")
		if got := nextWords(t, f, 2); got != "1/2:a 1/3:b" {
			t.Errorf("events %s", got)
		}
		l.saying("c")
		close(l.say)
		said, err := hear(l.call)
		if got := strings.Join(said, " "); got != "a b c" {
			t.Errorf("the caller heard %s", got)
		}
		if got := nextWords(t, f, 2); got != "1/4:c 1/5!end:OutOfRange" {
			t.Errorf("events %s", got)
		}
		if status.Code(err) != codes.OutOfRange {
			t.Error(err)
		}
	})
}

// An instance keeps the newest events, for a while.
func TestEventMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &eventMemory{limit: 10 * (keptEvent + 20)}
		add := func(r *keptRound, number uint64, kind uint32) {
			m.add(r, &frame{kind: kind, seq: number}, make([]byte, 10))
		}
		all := func(from, until place) (numbers int) {
			_, events := m.find("s.t", from, until)
			return len(events)
		}
		one, two := newKeptRound("mr.main.e.c.ev.s.t.1"), newKeptRound("mr.main.e.c.ev.s.t.z")
		if one.round != 1 || two.round != 35 || one.stream != "s.t" || newKeptRound("mr.main.e.c.ev.s.t.") != nil {
			t.Fatalf("%+v %+v", one, two)
		}
		for n := range uint64(5) {
			add(one, n+1, kindData)
		}
		add(one, 6, kindEnd)
		for n := range uint64(3) {
			add(two, n+1, kindData)
		}
		for _, c := range []struct {
			from, until place
			want        int
		}{
			{want: 9},
			{from: place{1, 4}, want: 6},
			{from: place{1, 4}, until: place{1, 6}, want: 2},
			{from: place{1, 4}, until: place{35, 2}, want: 4},
			{from: place{2, 0}, want: 3},
			{from: place{36, 0}, want: 0},
		} {
			if got := all(c.from, c.until); got != c.want {
				t.Errorf("%v to %v: %d events, want %d", c.from, c.until, got, c.want)
			}
		}
		rounds, _ := m.find("s.t", place{}, place{})
		if len(rounds) != 2 || !rounds[0].GetEnded() || rounds[1].GetEnded() {
			t.Errorf("rounds %v", rounds)
		}
		for n := range uint64(100) {
			add(two, n+4, kindData)
		}
		if rounds, events := m.find("s.t", place{}, place{}); len(rounds) != 1 || len(events) < 9 || m.size > m.limit {
			t.Errorf("%d rounds, %d events, %d bytes", len(rounds), len(events), m.size)
		}
		time.Sleep(eventsKept + time.Second)
		m.expire(time.Now())
		if m.size != 0 || len(m.streams) != 0 || len(m.queue) != 0 {
			t.Errorf("what is left: %+v", m)
		}
	})
}
