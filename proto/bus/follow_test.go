package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// publisher writes events as an instance and as the client "c1" do.
type publisher struct {
	t    testing.TB
	conn *Conn
}

func (p publisher) send(round uint32, f frame) {
	p.t.Helper()
	token, err := EventsKey{Session: "s", Stream: "t", Round: round}.token()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.conn.publish("mr.main.e.c1."+token, "", f.appendTo(nil)); err != nil {
		p.t.Fatal(err)
	}
}

// data sends a message that says s, or a part of it.
func (p publisher) data(round uint32, number uint64, s string, flags uint32) {
	p.t.Helper()
	p.send(round, frame{kind: kindData, seq: number, flags: flags, data: []byte(s), ctl: []byte("mr.main.i.x.c1")})
}

func (p publisher) end(round uint32, number uint64, flags uint32) {
	p.t.Helper()
	p.send(round, frame{kind: kindEnd, seq: number, flags: flags})
}

// flush returns when everybody has what was sent.
func (p publisher) flush() {
	p.t.Helper()
	if err := flush(within(p.t), p.conn.nc); err != nil {
		p.t.Fatal(err)
	}
}

// eventWord is an event as a short word.
func eventWord(e Event) string {
	w := fmt.Sprintf("%d/%d", e.Round, e.Number)
	if e.Message != nil {
		m := &outputResponse{}
		if proto.Unmarshal(e.Message, m) == nil && m.GetPayload() != nil {
			w += ":" + string(m.GetPayload().GetBody())
		} else {
			w += ":" + string(e.Message)
		}
	}
	if e.Gap {
		w += "!gap"
	}
	if e.End {
		w += "!end"
	}
	if e.Err != nil {
		w += ":" + status.Code(e.Err).String()
	}
	return w
}

// following reads the events of a call until ctx ends.
func following(ctx context.Context, f *Follower) (words []string, err error) {
	for {
		e, err := f.Next(ctx)
		if err != nil {
			return words, err
		}
		words = append(words, eventWord(e))
	}
}

// wantEvents demands these events, and no other for half a minute of fake time.
func wantEvents(t testing.TB, f *Follower, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	words, err := following(ctx, f)
	if got := strings.Join(words, " "); got != want {
		t.Errorf("events\n%s, want\n%s", got, want)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func follow(t testing.TB, c *Client, log EventLog, after EventPoint) *Follower {
	t.Helper()
	f, err := c.Follow(log, "s", "t", after)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// What is stored, what is sent, and what is both makes one sequence, wherever
// the reading begins.
func TestFollow(t *testing.T) {
	t.Parallel()
	write := func(p publisher) {
		p.data(1, 2, "a", FlagFirst)
		p.data(1, 3, "b", 0)
		p.data(1, 4, "", 0)
		p.data(1, 5, "c", FlagMore)
		p.data(1, 6, "d", FlagMore|FlagRest)
		p.data(1, 7, "e", FlagRest)
		p.send(1, frame{kind: kindEnd, seq: 8, status: encodeStatus(status.New(codes.NotFound, "no"))})
		p.data(3, 1, "f", FlagFirst) // round 2 was short
		p.send(3, frame{kind: kindEnd, seq: 2, flags: FlagMessage, data: []byte("g")})
		p.end(4, 2, FlagFirst)
	}
	const all = "1/2:a 1/3:b 1/4: 1/5:cde 1/8!end:NotFound 3/1:f 3/2:g!end 4/2!end"
	for _, c := range []struct {
		after EventPoint
		want  string
	}{
		{EventPoint{}, all},
		{EventPoint{Round: 1}, all},
		{EventPoint{1, 2}, "1/3:b 1/4: 1/5:cde 1/8!end:NotFound 3/1:f 3/2:g!end 4/2!end"},
		{EventPoint{1, 5}, "1/8!end:NotFound 3/1:f 3/2:g!end 4/2!end"},
		{EventPoint{1, 8}, "3/1:f 3/2:g!end 4/2!end"},
		{EventPoint{Round: 2}, "3/1:f 3/2:g!end 4/2!end"},
		{EventPoint{3, 1}, "3/2:g!end 4/2!end"},
		{EventPoint{3, 2}, "4/2!end"},
		{EventPoint{4, 2}, ""},
	} {
		t.Run(fmt.Sprint(c.after), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ns := startNATS(t)
				conn := connect(t, ns)
				log := newMemoryLog(t, connect(t, ns))
				reader := NewClient(connect(t, ns), ClientConfig{}) // it need not run
				p := publisher{t, conn}

				live := follow(t, reader, log, c.after)
				if err := flush(within(t), reader.conn.nc); err != nil {
					t.Fatal(err)
				}
				write(p)
				p.flush()
				synctest.Wait()
				wantEvents(t, live, c.want)
				wantEvents(t, follow(t, reader, log, c.after), c.want)
			})
		})
	}
}

// Ready has what is there already, in order with Next, and never waits.
func TestFollowReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		conn := connect(t, ns)
		log := newMemoryLog(t, connect(t, ns))
		f := follow(t, NewClient(connect(t, ns), ClientConfig{}), log, EventPoint{})
		ready := func(want string) {
			t.Helper()
			got := ""
			if e, ok := f.Ready(); ok {
				got = eventWord(e)
			}
			if got != want {
				t.Errorf("ready is %q, not %q", got, want)
			}
		}
		ready("")
		p := publisher{t, conn}
		p.data(1, 1, "a", FlagFirst)
		p.data(1, 2, "b", 0)
		p.data(1, 3, "c", FlagMore) // a part
		p.flush()
		synctest.Wait()
		if e, err := f.Next(within(t)); err != nil || eventWord(e) != "1/1:a" {
			t.Errorf("next is %s, %v", eventWord(e), err)
		}
		ready("1/2:b")
		ready("")
		p.data(1, 4, "d", FlagRest)
		p.end(1, 5, 0)
		p.flush()
		synctest.Wait()
		ready("1/3:cd")
		ready("1/5!end")
		ready("")
	})
}

// Frames that are missing are looked for, and left out when they cannot be found.
func TestFollowGaps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		write func(publisher)
		lost  string // numbers that are not kept
		want  string
		live  string // what is different for whoever was there
	}{
		"messages": {
			write: func(p publisher) {
				for i := range uint64(6) {
					p.data(1, i+1, string(rune('a'+i)), FlagFirst*uint32(1-min(i, 1)))
				}
				p.end(1, 7, 0)
			},
			lost: "2 3 5", want: "1/1:a 1/4:d 1/6:f 1/7!end",
			live: "1/1:a 1/2:b 1/3:c 1/4:d 1/5:e 1/6:f 1/7!end",
		},
		"the beginning": {
			write: func(p publisher) {
				p.data(1, 1, "a", FlagFirst)
				p.data(1, 2, "b", 0)
				p.end(1, 3, 0)
			},
			lost: "1", want: "1/2:b 1/3!end", live: "1/1:a 1/2:b 1/3!end",
		},
		"the last message": {
			write: func(p publisher) {
				p.data(1, 1, "a", FlagFirst)
				p.data(1, 2, "b", 0)
				p.end(1, 3, 0)
			},
			lost: "2", want: "1/1:a 1/2!gap 1/3!end", live: "1/1:a 1/2:b 1/3!end",
		},
		"the end of the last message": {
			write: func(p publisher) {
				p.data(1, 1, "a", FlagFirst)
				p.data(1, 2, "b", FlagMore)
				p.data(1, 3, "c", FlagRest)
				p.end(1, 4, 0)
			},
			lost: "3", want: "1/1:a 1/3!gap 1/4!end", live: "1/1:a 1/2:bc 1/4!end",
		},
		"the beginning of the last message": {
			write: func(p publisher) {
				p.data(1, 1, "a", FlagFirst)
				p.data(1, 2, "b", FlagMore)
				p.data(1, 3, "c", FlagRest)
				p.end(1, 4, 0)
			},
			lost: "2", want: "1/1:a 1/3!gap 1/4!end", live: "1/1:a 1/2:bc 1/4!end",
		},
		"the middle of a message": {
			write: func(p publisher) {
				p.data(1, 1, "a", FlagFirst|FlagMore)
				p.data(1, 2, "b", FlagRest|FlagMore)
				p.data(1, 3, "c", FlagRest)
				p.data(1, 4, "d", 0)
				p.end(1, 5, 0)
			},
			lost: "2", want: "1/4:d 1/5!end", live: "1/1:abc 1/4:d 1/5!end",
		},
		"the only message": {
			write: func(p publisher) { p.end(1, 3, 0) },
			want:  "1/2!gap 1/3!end",
		},
		"message with the end": {
			write: func(p publisher) {
				p.data(1, 1, "a", FlagFirst)
				p.data(1, 2, "b", 0)
				p.send(1, frame{kind: kindEnd, seq: 3, flags: FlagMessage})
			},
			lost: "2", want: "1/1:a 1/3:!end", live: "1/1:a 1/2:b 1/3:!end",
		},
		"an end": {
			write: func(p publisher) {
				p.data(1, 1, "a", FlagFirst)
				p.data(1, 2, "b", FlagMore)
				p.end(1, 9, 0)
				p.data(2, 1, "c", FlagFirst)
				p.end(2, 2, 0)
			},
			lost: "9", want: "1/1:a 2/1:c 2/2!end", live: "1/1:a 1/8!gap 1/9!end 2/1:c 2/2!end",
		},
		"end of the caller": {
			write: func(p publisher) {
				p.data(1, 1, "a", FlagFirst)
				p.end(1, 0, 0)
				p.data(1, 2, "b", 0) // has overtaken it
				p.end(1, 3, 0)
				p.data(2, 1, "c", FlagFirst)
				p.end(2, 2, 0)
			},
			want: "1/1:a 1/2:b 1/3!end 2/1:c 2/2!end",
		},
		"end of the caller alone": {
			write: func(p publisher) {
				p.data(1, 1, "a", FlagFirst)
				p.data(1, 2, "b", FlagMore)
				p.end(1, 0, 0)
				p.end(2, 0, 0)
				p.data(3, 2, "c", FlagFirst)
			},
			want: "1/1:a 1/2!gap 1/3!end 2/1!end 3/2:c",
		},
		"rounds in the wrong order": {
			write: func(p publisher) {
				p.data(2, 1, "c", FlagFirst)
				p.end(2, 2, 0)
				p.data(1, 1, "a", FlagFirst)
				p.end(1, 2, 0)
			},
			want: "1/1:a 1/2!end 2/1:c 2/2!end", live: "1/1:a 1/2!end 2/1:c 2/2!end",
		},
		"nonsense": {
			write: func(p publisher) {
				p.data(1, 1, "a", FlagFirst)
				p.send(1, frame{kind: kindHeaders, seq: 2})
				if err := p.conn.publish("mr.main.e.c1.ev.s.t.1", "", []byte{0xff}); err != nil {
					p.t.Error(err)
				}
				p.data(1, 2, "b", 0)
				p.data(1, 2, "b", 0)
				p.end(1, 3, 0)
			},
			want: "1/1:a 1/2:b 1/3!end",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ns := startNATS(t)
				conn := connect(t, ns)
				log := &memoryLog{}
				if name != "nonsense" { // which it would complain about
					log = newMemoryLog(t, connect(t, ns))
				}
				log.lose = func(f *frame) bool {
					return f.seq > 0 && strings.Contains(" "+c.lost+" ", fmt.Sprintf(" %d ", f.seq))
				}
				reader := NewClient(connect(t, ns), ClientConfig{})
				p := publisher{t, conn}
				live := follow(t, reader, log, EventPoint{})
				if err := flush(within(t), reader.conn.nc); err != nil {
					t.Fatal(err)
				}
				c.write(p)
				p.flush()
				synctest.Wait()
				want := c.live
				if want == "" {
					want = c.want
				}
				wantEvents(t, live, want)
				if name != "nonsense" {
					wantEvents(t, follow(t, reader, log, EventPoint{}), c.want)
				}
			})
		})
	}
}

// A message that is in the log a moment after those who listen have heard the
// next is waited for.
func TestFollowWaitsForTheLog(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{10 * time.Millisecond, 1900 * time.Millisecond, 5 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ns := startNATS(t)
				conn := connect(t, ns)
				log := newMemoryLog(t, connect(t, ns))
				log.holdBack()
				reader := NewClient(connect(t, ns), ClientConfig{})
				p := publisher{t, conn}
				p.data(1, 1, "a", FlagFirst) // before anybody listens
				p.data(1, 2, "b", 0)
				p.flush()
				f := follow(t, reader, log, EventPoint{1, 1})
				if err := flush(within(t), reader.conn.nc); err != nil {
					t.Fatal(err)
				}
				p.data(1, 3, "c", 0)
				p.end(1, 4, 0)
				timer := time.AfterFunc(late, log.release)
				defer timer.Stop()
				want := "1/2:b 1/3:c 1/4!end"
				if late > followGap {
					want = "1/3:c 1/4!end"
				}
				wantEvents(t, f, want)
			})
		})
	}
}

// What is missing while the log cannot be read is not given up, however long that
// lasts.
func TestFollowGapWithoutTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		log := newMemoryLog(t, connect(t, ns))
		log.holdBack()
		p := publisher{t, connect(t, ns)}
		p.data(1, 1, "a", FlagFirst)
		p.data(1, 2, "b", 0)
		p.flush()
		reader := NewClient(connect(t, ns), ClientConfig{})
		f := follow(t, reader, log, EventPoint{1, 1})
		// The log answers, but has not taken in the second one yet.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if words, _ := following(ctx, f); len(words) > 0 {
			t.Errorf("events %v", words)
		}
		p.data(1, 3, "c", 0)
		p.flush()
		down := errors.New("down")
		log.fail(down)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			if e, err := f.Next(within(t)); !errors.Is(err, down) {
				t.Fatalf("%s %v while the log is down", eventWord(e), err)
			}
		}
		log.fail(nil)
		log.release()
		wantEvents(t, f, "1/2:b 1/3:c")
	})
}

// A message of which only the log has heard is found, though nothing follows
// that would tell that it is missing.
func TestFollowLooksAtTheLogByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		log := newMemoryLog(t, connect(t, ns))
		log.holdBack()
		p := publisher{t, connect(t, ns)}
		p.data(1, 1, "a", FlagFirst)
		p.end(1, 2, 0)
		p.flush()
		f := follow(t, NewClient(connect(t, ns), ClientConfig{}), log, EventPoint{})
		timer := time.AfterFunc(time.Minute, log.release)
		defer timer.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if words, _ := following(ctx, f); strings.Join(words, " ") != "1/1:a 1/2!end" {
			t.Errorf("events %v", words)
		}
		if log.reads > 20 {
			t.Errorf("the log was read %d times in two minutes", log.reads)
		}
	})
}

// The END of a caller, whose way here is another one, does not overtake what the
// log has.
func TestFollowReadsTheLogBeforeTheEndOfACaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		log := newMemoryLog(t, connect(t, ns))
		reader := NewClient(connect(t, ns), ClientConfig{})
		f := follow(t, reader, log, EventPoint{})
		p := publisher{t, connect(t, ns)}
		p.data(1, 1, "a", FlagFirst)
		p.flush()
		if got := nextWords(t, f, 1); got != "1/1:a" {
			t.Errorf("events %s", got)
		}
		late := frame{kind: kindData, seq: 2, data: []byte("b")}
		log.mu.Lock()
		log.stored = append(log.stored, &nats.Msg{Subject: "mr.main.e.c1.ev.s.t.1", Data: late.appendTo(nil)})
		log.mu.Unlock()
		p.end(1, 0, 0)
		p.flush()
		if got := nextWords(t, f, 2); got != "1/2:b 1/3!end" {
			t.Errorf("events %s", got)
		}
	})
}

// However much is stored, a Follower holds little of it, and whoever does not
// read loses nothing.
func TestFollowHoldsLittle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		conn := connect(t, ns)
		log := newMemoryLog(t, connect(t, ns))
		reader := NewClient(connect(t, ns), ClientConfig{})
		live := follow(t, reader, log, EventPoint{})
		if err := flush(within(t), reader.conn.nc); err != nil {
			t.Fatal(err)
		}
		p := publisher{t, conn}
		body := strings.Repeat("x", 100_000)
		// There is room for the first round and nothing of the second.
		const rounds, n = 4, 41
		write := func(round uint32) {
			for i := range uint64(n) {
				p.data(round, i+1, body, FlagFirst*uint32(1-min(i, 1)))
			}
			p.end(round, n+1, 0)
			p.flush()
			synctest.Wait()
		}
		for round := range uint32(rounds - 1) {
			write(round + 1)
		}
		for _, f := range []*Follower{live, follow(t, reader, log, EventPoint{})} {
			for round := range uint32(rounds) {
				for i := range uint64(n + 1) {
					if f == live && round == 0 && i == 10 {
						write(rounds) // there is room now, but for what comes before
					}
					e, err := f.Next(within(t))
					if err != nil || e.EventPoint != (EventPoint{round + 1, i + 1}) || e.End != (i == n) || !e.End && len(e.Message) != len(body) {
						t.Fatalf("%v %v, want %d/%d", eventWord(e)[:10], err, round+1, i+1)
					}
					f.mu.Lock()
					if f.size > followRoom+len(body) {
						t.Errorf("%d bytes are held", f.size)
					}
					f.mu.Unlock()
				}
			}
		}
	})
}

// A log that cannot be read is an error, and nothing is lost by it.
func TestFollowWithoutTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		conn := connect(t, ns)
		log := newMemoryLog(t, connect(t, ns))
		down := errors.New("down")
		p := publisher{t, conn}
		p.data(1, 1, "a", FlagFirst)
		p.flush()
		log.fail(down)
		reader := NewClient(connect(t, ns), ClientConfig{})
		f := follow(t, reader, log, EventPoint{})
		for range 2 {
			if _, err := f.Next(within(t)); !errors.Is(err, down) {
				t.Errorf("%v", err)
			}
		}
		log.fail(nil)
		if e, err := f.Next(within(t)); err != nil || eventWord(e) != "1/1:a" {
			t.Errorf("%s %v", eventWord(e), err)
		}
		log.fail(down)
		p.data(1, 2, "b", 0)
		p.flush()
		if e, err := f.Next(within(t)); err != nil || eventWord(e) != "1/2:b" {
			t.Errorf("%s %v", eventWord(e), err)
		}
		// While nothing is missing, nobody needs it.
		timer := time.AfterFunc(time.Minute, func() { p.data(1, 3, "c", 0) })
		defer timer.Stop()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if e, err := f.Next(ctx); err != nil || eventWord(e) != "1/3:c" {
			t.Errorf("%s %v", eventWord(e), err)
		}
		p.end(1, 5, 0)
		if _, err := f.Next(ctx); !errors.Is(err, down) {
			t.Errorf("%v", err)
		}
	})
}

func TestFollowMistakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		conn := connect(t, ns)
		c := NewClient(conn, ClientConfig{})
		log := newMemoryLog(t, connect(t, ns))
		for _, err := range []error{
			func() error { _, err := c.Follow(nil, "s", "t", EventPoint{}); return err }(),
			func() error { _, err := c.Follow(log, "s.>", "t", EventPoint{}); return err }(),
			func() error { _, err := c.Follow(log, "s", "", EventPoint{}); return err }(),
		} {
			if err == nil {
				t.Error("a Follower of nothing")
			}
		}
		f := follow(t, c, log, EventPoint{})
		done := make(chan error, 1) // one result
		go func() {
			_, err := f.Next(context.WithoutCancel(t.Context()))
			done <- err
		}()
		synctest.Wait()
		f.Close()
		f.Close()
		if err := <-done; !errors.Is(err, ErrFollowerClosed) {
			t.Errorf("%v", err)
		}
		conn.Close()
		if _, err := c.Follow(log, "s", "t", EventPoint{}); err == nil {
			t.Error("following without a connection")
		}
	})
}
