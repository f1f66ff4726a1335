package legacy

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/proto/bus"
	"github.com/millrace/millrace/proto/localnats"
)

// forgetfulLog keeps what it hears, after the first few messages, and cannot be
// read at first.
type forgetfulLog struct {
	mu     sync.Mutex
	heard  int
	stored []*nats.Msg
	reads  int
}

func (l *forgetfulLog) hear(m *nats.Msg) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard++; l.heard > 2 {
		l.stored = append(l.stored, m)
	}
}

func (l *forgetfulLog) Stored(_ context.Context, _ string, yield func(string, []byte) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reads++; l.reads == 1 {
		return errors.New("no leader")
	}
	for _, m := range l.stored {
		if err := yield(m.Subject, m.Data); err != nil {
			return err
		}
	}
	return nil
}

// What an edge says about the end of a call is published until it is stored, and
// not when the edge stops.
func TestEndsAreStored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stop         time.Duration
		heard, reads int
	}{
		"in the end":     {stop: time.Minute, heard: 3, reads: 4}, // unread, lost twice, found
		"until it stops": {stop: 2 * time.Second, heard: 1, reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ns, err := localnats.Start(localnats.Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer ns.Shutdown()
				conn, err := bus.Connect(t.Context(), bus.ConnConfig{InProcess: ns})
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				log := &forgetfulLog{}
				if _, err := conn.NATS().Subscribe("mr.main.e.*.ev.s.t.1", log.hear); err != nil {
					t.Fatal(err)
				}
				draining, drain := context.WithTimeout(t.Context(), c.stop)
				defer drain()
				e := &Era{
					Resumption: &Resumption{Bus: bus.NewClient(conn, bus.ClientConfig{}), Log: log},
					Draining:   draining, Stopping: t.Context(),
				}
				e.endEvents(bus.EventsKey{Session: "s", Stream: "t", Round: 1}, errors.New("it has failed"))
				e.Wait()
				synctest.Wait()
				if log.heard != c.heard || log.reads != c.reads || e.ends.Load() != 0 {
					t.Errorf("published %d times, read %d times, want %d and %d; %d are left", log.heard, log.reads, c.heard, c.reads, e.ends.Load())
				}
			})
		})
	}
}
