package bus

import "testing"

func TestAnnounce(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	s, _ := startServer(t, connect(t, ns), ServerConfig{}, testService{})
	heard := make(chan string, 10) // more than is announced
	var clients []*Client
	for range 2 {
		conn := connect(t, ns)
		c := NewClient(conn, ClientConfig{}) // it need not run
		stop, err := c.Hear("edge", func(payload []byte) {
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

func TestAnnounceMistakes(t *testing.T) {
	t.Parallel()
	ns := startNATS(t)
	conn := connect(t, ns)
	s, c := NewServer(conn, ServerConfig{Pool: "test"}), NewClient(conn, ClientConfig{})
	hear := func([]byte) {}
	for _, topic := range []Topic{"", "a.b", ">"} {
		if s.Announce(topic, nil) == nil || c.Announce(topic, nil) == nil {
			t.Errorf("topic %q is announced", topic)
		}
		if _, err := c.Hear(topic, hear); err == nil {
			t.Errorf("topic %q is heard", topic)
		}
	}
	if _, err := c.Hear("edge", nil); err == nil {
		t.Error("nobody hears")
	}
	conn.Close()
	if s.Announce("edge", nil) == nil || c.Announce("edge", nil) == nil {
		t.Error("an announcement without a connection")
	}
	if _, err := c.Hear("edge", hear); err == nil {
		t.Error("hearing without a connection")
	}
}
