// Package bustest is what a carrier of gRPC calls has to pass: one battery that
// runs over proto/bus and over gRPC itself with the same cases, so that a stub
// cannot tell the two apart. Besides what was needed on the way it holds the
// interoperability cases of the gRPC project under their official names, the
// health and reflection services of grpc-go as they are, and interceptors and
// stats handlers on both sides.
//
// The cases of google.golang.org/grpc/interop are written again here over the
// same TestService, because that package brings OAuth and xDS along.
//
// It also has what only tests need of the bus: [Cluster], three NATS servers
// that can die. Only tests import this package.
package bustest

import (
	"context"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// Setup is what a case wants of its carrier. Of each list the first element is
// the outermost.
type Setup struct {
	// Register adds the services. It is never nil.
	Register func(reflection.GRPCServer)

	ClientUnary  []grpc.UnaryClientInterceptor
	ClientStream []grpc.StreamClientInterceptor
	ServerUnary  []grpc.UnaryServerInterceptor
	ServerStream []grpc.StreamServerInterceptor

	ClientStats, ServerStats []stats.Handler
}

// Start starts a server as s says and returns a connection to it. Both work
// until the test ends, and everything of theirs has stopped when its cleanups
// have run.
type Start func(t *testing.T, s Setup) grpc.ClientConnInterface

// testCase is one promise of a carrier.
type testCase struct {
	name string
	// impl makes the implementation of TestService; nil is Service.
	impl func() grpc_testing.TestServiceServer
	run  func(e env)
}

// env is what a case runs in.
type env struct {
	*testing.T

	client grpc_testing.TestServiceClient
	conn   grpc.ClientConnInterface
	impl   grpc_testing.TestServiceServer
}

// Run runs every case over the carrier, in parallel, each on a server of its
// own.
func Run(t *testing.T, start Start) {
	t.Helper()
	for _, group := range [][]testCase{carrierCases(), interopCases()} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				var impl grpc_testing.TestServiceServer = Service{}
				if c.impl != nil {
					impl = c.impl()
				}
				conn := start(t, Setup{Register: func(s reflection.GRPCServer) {
					grpc_testing.RegisterTestServiceServer(s, impl)
				}})
				c.run(env{T: t, client: grpc_testing.NewTestServiceClient(conn), conn: conn, impl: impl})
			})
		}
	}
	for name, run := range map[string]func(*testing.T, Start){
		"health check":        healthCheck,
		"health watch":        healthWatch,
		"reflection":          reflectionInfo,
		"client interceptors": clientInterceptors,
		"server interceptors": serverInterceptors,
		"interceptor refuses": interceptorRefuses,
		"stats":               statsEvents,
		"stats of a cancel":   statsOfACancel,
		"stats tags":          statsTags,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, start)
		})
	}
}

// Within returns a context for what must end long before.
func Within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// Sizes are the parameters of responses with payloads of n bytes.
func Sizes(n ...int32) []*grpc_testing.ResponseParameters {
	p := make([]*grpc_testing.ResponseParameters, 0, len(n))
	for _, s := range n {
		p = append(p, &grpc_testing.ResponseParameters{Size: s})
	}
	return p
}

// Body is a payload of n bytes.
func Body(n int) *grpc_testing.Payload { return &grpc_testing.Payload{Body: make([]byte, n)} }

// WantCode demands that err has a code.
func WantCode(t testing.TB, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
}

// Must returns the first of two results and ends the test when the second is
// an error.
func Must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// wantEnd demands that a stream ends with success now.
func wantEnd[T any](t testing.TB, stream interface{ Recv() (*T, error) }) {
	t.Helper()
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("got %v instead of the end", err)
	}
}

// drain reads a stream to its end and returns what came before.
func drain[T any](stream interface{ Recv() (*T, error) }) ([]*T, error) {
	var got []*T
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		got = append(got, m)
	}
}
