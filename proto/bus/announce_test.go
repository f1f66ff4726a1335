package bus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnnounce(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	s, _ := startServer(t, connect(t, ns), ServerConfig{}, testService{})
	heard := make(chan string, 10) // more than is announced
	var clients []*Client
	for range 2 {
		conn := connect(t, ns)
		c := NewClient(conn, ClientConfig{}) // it need not run
		stop, err := c.Hear("edge", func(payload []byte, answer func()) {
			answer() // nobody asks
			heard <- string(payload)
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
		if err := c.Sync(within(t)); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	for want, announce := range map[string]func(Topic, []byte) error{"by a client": clients[0].Announce, "by an instance": s.Announce} {
		if err := announce("other", []byte(want)); err != nil {
			t.Fatal(err)
		}
		if err := announce("edge", []byte(want)); err != nil {
			t.Fatal(err)
		}
		if one, other := told(t, heard), told(t, heard); one != want || other != want {
			t.Errorf("heard %q and %q, want %q", one, other, want)
		}
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		asker, one, other := NewClient(connect(t, ns), ClientConfig{}), NewClient(connect(t, ns), ClientConfig{}), NewClient(connect(t, ns), ClientConfig{})
		ask := func(payload string) bool {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
			defer cancel()
			answered, err := asker.Ask(ctx, "edge", []byte(payload))
			if err != nil {
				t.Error(err)
			}
			return answered
		}
		began := time.Now()
		if ask("nobody") || !time.Now().Equal(began) {
			t.Errorf("answered, or after %v", time.Since(began))
		}
		var stops []func()
		for name, c := range map[string]*Client{"one": one, "other": other} {
			stop, err := c.Hear("edge", func(payload []byte, answer func()) {
				switch string(payload) {
				case name, "both":
					answer()
				case "later " + name:
					time.AfterFunc(100*time.Millisecond, answer)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			stops = append(stops, stop)
		}
		synctest.Wait()
		for _, payload := range []string{"one", "other", "both", "later one"} {
			if !ask(payload) {
				t.Errorf("%q has no answer", payload)
			}
		}
		began = time.Now()
		if ask("neither") || time.Since(began) != 150*time.Millisecond {
			t.Errorf("answered, or after %v", time.Since(began))
		}
		for _, stop := range stops {
			stop()
		}
		synctest.Wait()
		if ask("both") {
			t.Error("who has stopped answers")
		}
	})
}

func TestAnnounceMistakes(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	conn := connect(t, ns)
	s, c := NewServer(conn, ServerConfig{Pool: "test"}), NewClient(conn, ClientConfig{})
	hear := func([]byte, func()) {}
	for _, topic := range []Topic{"", "a.b", ">"} {
		if s.Announce(topic, nil) == nil || c.Announce(topic, nil) == nil {
			t.Errorf("topic %q is announced", topic)
		}
		if _, err := c.Ask(within(t), topic, nil); err == nil {
			t.Errorf("topic %q is asked", topic)
		}
		if _, err := c.Hear(topic, hear); err == nil {
			t.Errorf("topic %q is heard", topic)
		}
	}
	if _, err := c.Hear("edge", nil); err == nil {
		t.Error("nobody hears")
	}
	// An answer goes to an inbox of the bus and to nothing else.
	asked := make(chan struct{}, 1) // one question
	stop, err := c.Hear("edge", func(_ []byte, answer func()) {
		answer()
		asked <- struct{}{}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	w := tap(t, connect(t, ns), "i")
	if err := conn.nc.PublishRequest("mr.main.x.edge", "mr.main.i.x.c1", nil); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := c.Sync(within(t)); err != nil || len(w.take()) != 0 {
		t.Errorf("an answer to an instance, %v", err)
	}
	conn.Close()
	if s.Announce("edge", nil) == nil || c.Announce("edge", nil) == nil {
		t.Error("an announcement without a connection")
	}
	if _, err := c.Ask(within(t), "edge", nil); err == nil {
		t.Error("a question without a connection")
	}
	if _, err := c.Hear("edge", hear); err == nil {
		t.Error("hearing without a connection")
	}
}
