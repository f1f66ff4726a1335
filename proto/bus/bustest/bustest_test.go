package bustest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/proto/bus/bustest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The battery holds for gRPC itself, or it would be a battery of our habits.
func TestGRPC(t *testing.T) {
	t.Parallel()
	bustest.Run(t, bustest.StartGRPC)
}
