package bus

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
)

// A call that is given to an instance which is parted from everybody ends soon, when
// it is known that the instance does not answer.
func TestACallIntoAPartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ns := startNATS(t)
		var parted atomic.Bool
		f := &faults{ns: ns, fate: func(_ bool, subject, _ string, _ []byte) time.Duration {
			if parted.Load() && strings.HasPrefix(subject, "mr.") {
				return lose
			}
			return 0
		}}
		startServer(t, connectFaulty(t, f), ServerConfig{}, testService{})
		conn := connect(t, ns)
		c := startClient(t, conn, ClientConfig{Members: startWatcher(t, conn, WatcherConfig{})})
		client := grpc_testing.NewTestServiceClient(c.Pool("test"))
		if _, err := client.EmptyCall(within(t), &grpc_testing.Empty{}); err != nil {
			t.Fatal(err)
		}
		parted.Store(true)
		time.Sleep(5 * time.Second)
		began := time.Now()
		_, err := client.EmptyCall(within(t), &grpc_testing.Empty{})
		wantReason(t, err, codes.Unavailable, ReasonNotAccepted)
		if took := time.Since(began); took > 2500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}
