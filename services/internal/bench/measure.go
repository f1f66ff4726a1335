package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/proto/bus"
)

// repeat runs an operation n times, on several connections, and returns the
// processor time of the target for each.
func repeat(ctx context.Context, t *target, n int, operation func(ctx context.Context) error) (time.Duration, error) {
	var begun atomic.Int64
	before := t.cpu()
	g, ctx := errgroup.WithContext(ctx)
	for range connections {
		g.Go(func() error {
			for begun.Add(1) <= int64(n) {
				if err := operation(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	return (t.cpu() - before) / time.Duration(n), err
}

// measureSessions begins sessions and reports what each takes.
func measureSessions(ctx context.Context, t *target, o options, r *results) error {
	stored, err := storedBytes(ctx, t)
	if err != nil {
		return err
	}
	c := newClient()
	cost, err := repeat(ctx, t, o.sessions, func(ctx context.Context) error {
		_, err := c.post(ctx, t.first(), "", initialize)
		return err
	})
	if err != nil {
		return err
	}
	r.add(t, "initialize, CPU-µs", micro(cost))
	memory := t.memory()
	cost, err = repeat(ctx, t, o.sessions, func(ctx context.Context) error {
		_, err := c.open(ctx, t.first())
		return err
	})
	if err != nil {
		return err
	}
	after, err := storedBytes(ctx, t)
	if err != nil {
		return err
	}
	r.add(t, "initialize + initialized, CPU-µs", micro(cost))
	r.add(t, "memory of the process grown a session, KiB", float64(t.memory()-memory)/1024/float64(o.sessions))
	if t.nats != "" {
		r.add(t, "stored a session, bytes", float64(after-stored)/float64(o.sessions))
	}
	return nil
}

// measureCalls makes short calls in a session, and without one where that is
// another thing.
func measureCalls(ctx context.Context, t *target, o options, r *results) error {
	c, arguments := newClient(), `{"text":"`+filler(100)+`"}`
	var id atomic.Int64 // some servers refuse one that is in use
	session, err := c.open(ctx, t.first())
	if err != nil {
		return err
	}
	post := func(session string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.post(ctx, t.first(), session, call(int(id.Add(1)), "echo", arguments, ""))
			return err
		}
	}
	if _, err := repeat(ctx, t, o.calls/5, post(session)); err != nil {
		return err // warms up
	}
	cost, err := repeat(ctx, t, o.calls, post(session))
	if err != nil {
		return err
	}
	r.add(t, "tools/call of 100 B in a session, CPU-µs", micro(cost))
	if t.nats == "" {
		return nil
	}
	if cost, err = repeat(ctx, t, o.calls, post("")); err != nil {
		return err
	}
	r.add(t, "tools/call of 100 B without a session, CPU-µs", micro(cost))
	return nil
}

// measureCancel times how long a call takes to its first progress, and how long
// its cancellation, on another edge where there is one, to the tool.
func measureCancel(ctx context.Context, t *target, o options, r *results) error {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it is only read
	c := newClient()
	session, err := c.open(ctx, t.first())
	if err != nil {
		return err
	}
	// The connection to the other edge is there already, as a client's is.
	if _, err := c.post(ctx, t.last(), session, initialized); err != nil {
		return err
	}
	for id := 1; id <= o.cancels; id++ {
		if err := cancelOne(ctx, t, r, c, conn, session, id); err != nil {
			return err
		}
	}
	return nil
}

// patience is how long a call may take to begin and to end.
const patience = 10 * time.Second

// cancelOne begins a call and cancels it.
func cancelOne(ctx context.Context, t *target, r *results, c *client, ends *net.UDPConn, session string, id int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	name := fmt.Sprintf("call-%d", id)
	began := time.Now()
	s, err := c.stream(ctx, http.MethodPost, t.first(), session, "",
		call(id, "wait", fmt.Sprintf(`{"name":%q,"report":%q}`, name, ends.LocalAddr()), name))
	if err != nil {
		return fmt.Errorf("call %d: %w", id, err)
	}
	defer s.cut()
	if _, err := s.progress(); err != nil {
		return fmt.Errorf("call %d: %w", id, err)
	}
	r.sample(t, "first progress, ms", time.Since(began))
	cancelled := time.Now()
	if _, err := c.post(ctx, t.last(), session, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id)); err != nil {
		return fmt.Errorf("cancelling call %d: %w", id, err)
	}
	if err := ends.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	heard := make([]byte, 64)
	n, err := ends.Read(heard)
	if err != nil || string(heard[:n]) != name {
		return fmt.Errorf("the end of %s was not reported: %q, %w", name, heard[:n], err)
	}
	r.sample(t, "cancel to the end of the tool's context, ms", time.Since(cancelled))
	// In some servers the end of this stream would take what belongs to the next.
	defer time.AfterFunc(drain, s.cut).Stop()
	for err == nil {
		_, err = s.reader.Next()
	}
	return nil
}

// drain is how long the stream of a call may take to end after it.
const drain = 200 * time.Millisecond

// measureReplay cuts the connection of a call that has reported progress, and
// comes back for all of it again and again.
func measureReplay(ctx context.Context, t *target, o options, r *results) error {
	c := newClient()
	session, err := c.open(ctx, t.first())
	if err != nil {
		return err
	}
	s, err := c.stream(ctx, http.MethodPost, t.first(), session, "", call(1, "count", fmt.Sprintf(`{"n":%d}`, o.events), "count"))
	if err != nil {
		return err
	}
	first := ""
	for i := range o.events {
		id, err := s.progress()
		if err != nil {
			return fmt.Errorf("event %d of %d: %w", i+1, o.events, err)
		}
		if first == "" {
			first = id
		}
	}
	s.cut()
	if first == "" {
		return fmt.Errorf("%s has no event ids", t.name)
	}
	var took time.Duration
	cost := t.cpu()
	for range o.replays {
		began := time.Now()
		var again *stream
		// A server may need a moment to see that the connection before is gone.
		if err := await(ctx, func() bool {
			began = time.Now()
			again, err = c.stream(ctx, http.MethodGet, t.last(), session, first, "")
			return err == nil || !strings.Contains(err.Error(), "409 Conflict")
		}); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		for i := 1; i < o.events; i++ {
			if _, err := again.progress(); err != nil {
				return fmt.Errorf("replayed event %d of %d: %w", i, o.events-1, err)
			}
		}
		took += time.Since(began)
		again.cut()
	}
	events := time.Duration(o.replays * (o.events - 1))
	r.add(t, "replay of an event, CPU-µs", micro((t.cpu()-cost)/events))
	r.add(t, "replay of an event, µs until it is read", micro(took/events))
	_, err = c.post(ctx, t.last(), session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	return err
}

// measureIdle opens streams that nothing is sent on.
func measureIdle(ctx context.Context, t *target, o options, r *results) error {
	c := newClient()
	sessions := make(chan string, o.idle) // all of them
	if _, err := repeat(ctx, t, o.idle, func(ctx context.Context) error {
		session, err := c.open(ctx, t.first())
		sessions <- session
		return err
	}); err != nil {
		return err
	}
	// What the sessions take, and the connections of those that began them, is
	// counted elsewhere.
	c.http.CloseIdleConnections()
	before := t.memory()
	var mu sync.Mutex
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			conn.Close() //nolint:errcheck,gosec // nothing was sent
		}
	}()
	if _, err := repeat(ctx, t, o.idle, func(ctx context.Context) error {
		conn, err := listen(ctx, t.first(), <-sessions)
		if err == nil {
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
		}
		return err
	}); err != nil {
		return err
	}
	rest := time.NewTimer(o.rest)
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	r.add(t, fmt.Sprintf("%d idle GET streams on one edge, KiB each", o.idle), float64(t.memory()-before)/1024/float64(o.idle))
	return nil
}

// storedBytes is what JetStream holds, in memory and in files.
func storedBytes(ctx context.Context, t *target) (int64, error) {
	if t.nats == "" {
		return 0, nil
	}
	conn, err := bus.Connect(ctx, bus.ConnConfig{URL: t.nats, Name: "bench-store"})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	answer, err := conn.NATS().RequestWithContext(ctx, "$JS.API.INFO", nil)
	if err != nil {
		return 0, err
	}
	var account struct {
		Memory  int64 `json:"memory"`
		Storage int64 `json:"storage"`
	}
	err = json.Unmarshal(answer.Data, &account)
	return account.Memory + account.Storage, err
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func filler(n int) string { return string(slices.Repeat([]byte("x"), n)) }
