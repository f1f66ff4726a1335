package edge

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/edge/exchange"
)

// panickingEra is an era with a fault.
type panickingEra struct{ exchange.Era }

func (panickingEra) Serve(_ context.Context, req *exchange.Request, _ exchange.Stream) exchange.Answer {
	panic("secret " + req.Message.Method)
}

// TestPanicOnAConnection: a fault of ours ends the request that met it, and neither
// its connection nor the process. A notification that meets it is not answered.
func TestPanicOnAConnection(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	for i, era := range s.edge.eras {
		s.edge.eras[i] = panickingEra{era}
	}
	var out bytes.Buffer
	in := strings.NewReader(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}
{"jsonrpc":"2.0","id":1,"method":"tools/list"}
{"jsonrpc":"2.0","id":2,"method":"ping"}
`)
	if err := s.serveStdio(t.Context(), in, &out); err != nil {
		t.Error(err)
	}
	got := out.String()
	for _, id := range []string{`"id":1,"error":{"code":-32603`, `"id":2,"error":{"code":-32603`} {
		if !strings.Contains(got, id) {
			t.Errorf("%s is missing in %s", id, got)
		}
	}
	if strings.Contains(got, "secret") || strings.Count(got, "\n") != 2 {
		t.Errorf("the client got %s", got)
	}
}
