package exchange

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/millrace/millrace/edge/jsonrpc"
)

// Guard runs f for the request with the id, on a goroutine that the HTTP server has
// not started. A fault of ours ends this request, as it does there, and not the
// process. A nil logger discards.
func Guard(log *slog.Logger, id []byte, f func() Answer) (answer Answer) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if log != nil {
			log.Error("a request panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
		answer = Failed(id, &jsonrpc.Error{Code: jsonrpc.CodeInternal, Message: "internal error"})
	}()
	return f()
}
