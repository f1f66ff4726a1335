package bus

import (
	"errors"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Connect does not wait for a server that refuses it for good.
func TestConnectIsRefused(t *testing.T) {
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
	ctx := within(t)
	conn, err := Connect(ctx, ConnConfig{URL: ns.ClientURL(), Logger: newLog(t).logger()})
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, nats.ErrAuthorization) || ctx.Err() != nil {
		t.Errorf("got %v, and the context says %v", err, ctx.Err())
	}
}
