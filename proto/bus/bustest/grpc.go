package bustest

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// StartGRPC is gRPC itself as a carrier, through memory: what every other
// carrier is held against.
func StartGRPC(t *testing.T, s Setup) grpc.ClientConnInterface {
	t.Helper()
	serverOptions := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(s.ServerUnary...),
		grpc.ChainStreamInterceptor(s.ServerStream...),
	}
	for _, h := range s.ServerStats {
		serverOptions = append(serverOptions, grpc.StatsHandler(h))
	}
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(serverOptions...)
	s.Register(server)
	served := make(chan error, 1) // the goroutine below sends once
	go func() { served <- server.Serve(listener) }()

	dialOptions := []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(s.ClientUnary...),
		grpc.WithChainStreamInterceptor(s.ClientStream...),
	}
	for _, h := range s.ClientStats {
		dialOptions = append(dialOptions, grpc.WithStatsHandler(h))
	}
	conn, err := grpc.NewClient("passthrough:///memory", dialOptions...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close() // nothing can fail: the test has its results
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return conn
}
