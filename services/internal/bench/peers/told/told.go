// Package told is what the two servers share that are measured beside Millrace:
// how they are started, and how they report that a call has ended.
package told

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// Pace is the time between two reports of progress: one of the servers drops
// what comes faster than it writes.
const Pace = 500 * time.Microsecond

// Serve serves a handler on a free port of the loopback interface, and writes
// the URL of the endpoint as the first line of standard output. It returns when
// serving fails.
func Serve(handler http.Handler) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(os.Stdout, "http://%s/mcp\n", ln.Addr()); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", handler)
	return http.Serve(ln, mux) //nolint:gosec // serves one program on this machine
}

// Events reads the command line: whether the streams of calls are to be kept, so
// that they can be resumed.
func Events() bool {
	events := flag.Bool("events", false, "keep what is sent, so that streams can be resumed")
	flag.Parse()
	return *events
}

// Ended reports over UDP that the context of a call has ended: ctx.
func Ended(ctx context.Context, address, name string) error {
	conn, err := (&net.Dialer{}).DialContext(context.WithoutCancel(ctx), "udp", address)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is buffered
	_, err = conn.Write([]byte(name))
	return err
}
