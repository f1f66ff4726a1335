package localnats

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// A server that has given JetStream up, as it does when its disk is full, begins it
// again, with what was stored.
func TestJetStreamHeals(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]func(*Server) error{
		"all of it": func(s *Server) error { return s.ns.ShutdownJetStream() },
		"a stream": func(s *Server) error {
			s.healer.log.Errorf("JetStream stream '%s > %s' critical write error: %v", "$G", "s", errors.New("no space left"))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := Start(Config{DataDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Shutdown)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			nc, err := nats.Connect("", nats.InProcessServer(s))
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			js, err := nc.JetStream()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := js.AddStream(&nats.StreamConfig{Name: "s", Subjects: []string{"s"}}, nats.Context(ctx)); err != nil {
				t.Fatal(err)
			}
			if _, err := js.Publish("s", []byte("x"), nats.Context(ctx)); err != nil {
				t.Fatal(err)
			}
			if err := fill(s); err != nil {
				t.Fatal(err)
			}
			for s.ns.JetStreamEnabled() {
				select {
				case <-time.After(10 * time.Millisecond):
				case <-ctx.Done():
					t.Fatal("it was not given up")
				}
			}
			for !s.JetStreamReady() {
				select {
				case <-time.After(10 * time.Millisecond):
				case <-ctx.Done():
					t.Fatal("it does not begin again")
				}
			}
			ack, err := js.Publish("s", []byte("y"), nats.Context(ctx))
			if err != nil || ack.Sequence != 2 {
				t.Errorf("%+v, %v", ack, err)
			}
		})
	}
}
