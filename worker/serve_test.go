package worker_test

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/millrace/millrace/worker"
)

// Serve does not wait for a NATS server that refuses the worker for good.
func TestServeIsRefused(t *testing.T) {
	t.Parallel()
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, Username: "u", Password: "p"})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	defer func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = worker.New(worker.Config{Pool: "test"}).Serve(ctx, ns.ClientURL())
	if err == nil || !strings.Contains(err.Error(), "Authorization Violation") || ctx.Err() != nil {
		t.Errorf("Serve returned %v, and the context says %v", err, ctx.Err())
	}
}
