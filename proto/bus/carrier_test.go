package bus

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"

	"github.com/millrace/millrace/proto/bus/bustest"
)

// The services and helpers of the battery under short names.
type (
	testService = bustest.Service
	waitService = bustest.WaitService
	funcService = bustest.FuncService
)

var _ reflection.GRPCServer = (*Server)(nil)

func newWaitService() *waitService { return bustest.NewWaitService() }

func sizes(n ...int32) []*grpc_testing.ResponseParameters { return bustest.Sizes(n...) }

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	bustest.WantCode(t, err, want)
}

func must[T any](t *testing.T) func(T, error) T { return bustest.Must[T](t) }

// startBus is the bus as a carrier of the battery.
func startBus(t *testing.T, s bustest.Setup) grpc.ClientConnInterface {
	t.Helper()
	ns := startNATS(t)
	server := NewServer(connect(t, ns), ServerConfig{
		Pool: "test", Grace: shortGrace, Logger: newLog(t).logger(),
		UnaryInterceptors: s.ServerUnary, StreamInterceptors: s.ServerStream, StatsHandlers: s.ServerStats,
	})
	s.Register(server)
	actor(t, server.Ready(), server.Run)
	return startClient(t, connect(t, ns), ClientConfig{
		UnaryInterceptors: s.ClientUnary, StreamInterceptors: s.ClientStream, StatsHandlers: s.ClientStats,
	}).Pool("test")
}

func TestBattery(t *testing.T) {
	t.Parallel()
	bustest.Run(t, startBus)
}
