package accounts

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// The committed permissions of a pool are those of the template.
func TestTemplateIsUsed(t *testing.T) {
	t.Parallel()
	if got, want := read(t, folder+"/pool-glossary.conf"), permissions(t, "glossary"); got != want {
		t.Errorf("pool-glossary.conf is not what deploy/nats/pool writes:\n%s\nwant\n%s", got, want)
	}
}

// client is a plain NATS client as whoever has stolen a password has one.
type client struct {
	t  *testing.T
	nc *nats.Conn
	// refused gets the errors of the server; what does not fit is dropped.
	refused chan error
}

func (n *node) client(t *testing.T, user string) *client {
	t.Helper()
	c := &client{t: t, refused: make(chan error, 16)}
	nc, err := nats.Connect(n.url(user), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case c.refused <- err:
		default:
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	c.nc = nc
	return c
}

// subscribe tries to and reports whether it was refused.
func (c *client) subscribe(subject, queue string) (refused bool) {
	c.t.Helper()
	sub, err := c.nc.QueueSubscribe(subject, queue, func(*nats.Msg) {})
	if err != nil {
		c.t.Fatal(err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // a refused one has ended
	return c.wasRefused("subscription", subject)
}

// publish tries to and reports whether it was refused.
func (c *client) publish(subject string) (refused bool) {
	c.t.Helper()
	if err := c.nc.Publish(subject, []byte("x")); err != nil {
		c.t.Fatal(err)
	}
	return c.wasRefused("publish", subject)
}

// wasRefused waits for what the server says to what was sent last: the errors
// come before the answer to a ping.
func (c *client) wasRefused(what, subject string) bool {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.nc.FlushWithContext(ctx); err != nil {
		c.t.Fatal(err)
	}
	// The client hands errors to another goroutine, in order: the error of
	// something that is always refused comes after the one that is waited for.
	const probe = "never.allowed.to.anybody"
	if err := c.nc.Publish(probe, nil); err != nil {
		c.t.Fatal(err)
	}
	refused := false
	for {
		select {
		case err := <-c.refused:
			if !errors.Is(err, nats.ErrPermissionViolation) {
				c.t.Fatalf("%s to %s: %v", what, subject, err)
			}
			if strings.Contains(err.Error(), probe) {
				return refused
			}
			if strings.Contains(strings.ToLower(err.Error()), what) && strings.Contains(err.Error(), `"`+subject+`"`) {
				refused = true
			}
		case <-ctx.Done():
			c.t.Fatalf("%s to %s: the server says nothing", what, subject)
		}
	}
}

// attempt is something that a user tries.
type attempt struct {
	what, user string
	publish    string // a subject
	subscribe  string // a subject
	queue      string
	allowed    bool
}

func TestRights(t *testing.T) {
	t.Parallel()
	n := start(t)
	const (
		open  = "mr.main.rpc.fixture._.CallTool"
		calls = "mr.main.rpc.fixture.*.*"
	)
	for _, a := range []attempt{
		// The five attacks.
		{what: "a worker joins the queue group of another pool", user: "other", subscribe: calls, queue: "w"},
		{what: "a worker reads what edges are told", user: "other", subscribe: "mr.main.e.>"},
		{what: "a worker reads the answers to one edge", user: "other", subscribe: "mr.main.e.someedge01.*"},
		{what: "a worker calls another pool", user: "other", publish: open},
		{what: "an edge reads calls", user: "edge", subscribe: calls},
		{what: "an edge takes calls as a worker", user: "edge", subscribe: calls, queue: "w"},
		{what: "a worker sends frames as an edge", user: "other", publish: "mr.main.i.someworker.c1"},
		{what: "a worker answers a call that it does not have", user: "other", publish: "mr.main.e.someedge01.c1"},

		// And what else a worker has no business with.
		{what: "a worker reads all calls of its pool", user: "fixture", subscribe: calls},
		{what: "a worker makes a group of its own for its pool", user: "fixture", subscribe: calls, queue: "mine"},
		{what: "a worker calls its own pool", user: "fixture", publish: open},
		{what: "a worker reads everything", user: "other", subscribe: ">"},
		{what: "a worker reads everything of Millrace", user: "other", subscribe: "mr.main.>"},
		{what: "a worker serves as an edge", user: "other", subscribe: "mr.main.rpc._edge.*.*", queue: "w"},
		{what: "a worker reads what is kept of sessions", user: "other", publish: "$JS.API.STREAM.MSG.GET.KV_mr_main_sessions"},
		{what: "a worker reads the keys", user: "other", publish: "$JS.API.STREAM.MSG.GET.KV_mr_main_keys"},
		{what: "a worker reads the keys directly", user: "other", publish: "$JS.API.DIRECT.GET.KV_mr_main_keys.$KV.mr_main_keys.seal"},
		{what: "a worker makes a stream of calls", user: "other", publish: "$JS.API.STREAM.CREATE.mine"},
		{what: "a worker writes a key", user: "other", publish: "$KV.mr_main_keys.seal"},
		{what: "a worker reads keys as they are written", user: "other", subscribe: "$KV.mr_main_keys.>"},
		{what: "a worker takes calls over", user: "other", publish: "mr.main.cont.session.stream"},
		{what: "a worker hears what edges announce", user: "other", subscribe: "mr.main.x.edge"},
		{what: "a worker reads another tenant", user: "other", subscribe: "mr.another.rpc.other.*.*", queue: "w"},

		// Nor an edge.
		{what: "an edge removes what is kept", user: "edge", publish: "$JS.API.STREAM.DELETE.KV_mr_main_keys"},
		{what: "an edge empties what is kept", user: "edge", publish: "$JS.API.STREAM.PURGE.KV_mr_main_sessions"},
		{what: "an edge makes another stream", user: "edge", publish: "$JS.API.STREAM.CREATE.mine"},
		{what: "an edge makes a consumer", user: "edge", publish: "$JS.API.CONSUMER.CREATE.mr_main_events"},
		{what: "an edge reads everything", user: "edge", subscribe: ">"},

		// Nor an operator.
		{what: "an operator makes a call", user: "operator", publish: open},
		{what: "an operator reads calls", user: "operator", subscribe: calls},
		{what: "an operator reads answers", user: "operator", subscribe: "mr.main.e.>"},
		{what: "an operator reads the keys", user: "operator", publish: "$JS.API.STREAM.MSG.GET.KV_mr_main_keys"},
		{what: "an operator removes what is kept", user: "operator", publish: "$JS.API.STREAM.DELETE.KV_mr_main_keys"},

		// The same words where they are allowed, so that a refusal above is not
		// one of everything.
		{what: "a worker serves its pool", user: "fixture", subscribe: calls, queue: "w", allowed: true},
		{what: "an edge calls a pool", user: "edge", publish: open, allowed: true},
		{what: "an edge reads answers", user: "edge", subscribe: "mr.main.e.>", allowed: true},
		{what: "an edge serves as an edge", user: "edge", subscribe: "mr.main.rpc._edge.*.*", queue: "w", allowed: true},
		{what: "an operator sees who is there", user: "operator", subscribe: "mr.main.hb.*", allowed: true},
		{what: "an operator asks who is there", user: "operator", publish: "mr.main.hello", allowed: true},
		{what: "an operator sees what is kept", user: "operator", publish: "$JS.API.STREAM.LIST", allowed: true},
	} {
		t.Run(a.what, func(t *testing.T) {
			t.Parallel()
			c := n.client(t, a.user)
			var refused bool
			if a.publish != "" {
				refused = c.publish(a.publish)
			} else {
				refused = c.subscribe(a.subscribe, a.queue)
			}
			if refused == a.allowed {
				t.Errorf("refused: %t, want %t", refused, !a.allowed)
			}
		})
	}
}

func TestPasswords(t *testing.T) {
	t.Parallel()
	n := start(t)
	addr := n.ns.Addr().String()
	for _, url := range []string{"nats://" + addr, "nats://edge:wrong@" + addr, "nats://nobody:x@" + addr, "nats://edge@" + addr} {
		nc, err := nats.Connect(url, nats.Timeout(5*time.Second))
		if err == nil {
			nc.Close()
			t.Errorf("%s is let in", url)
		} else if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, user := range users() {
		nc, err := nats.Connect(n.url(user))
		if err != nil {
			t.Errorf("%s: %v", user, err)
			continue
		}
		nc.Close()
	}
}
