package exchange_test

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/edge/exchange"
)

// What runs beside the connection of its request must not take the process with
// it when it panics.
func TestGuard(t *testing.T) {
	t.Parallel()
	answer := exchange.Guard(nil, []byte("7"), func() exchange.Answer { panic("secret") })
	if got := string(answer.Body.Join()); !strings.Contains(got, `"id":7`) || !strings.Contains(got, "-32603") || strings.Contains(got, "secret") {
		t.Errorf("after a panic: %s", got)
	}
	if got := exchange.Guard(nil, nil, func() exchange.Answer { return exchange.Answer{Status: 202} }); got.Status != 202 || got.Body != nil {
		t.Errorf("without: %+v", got)
	}
}
