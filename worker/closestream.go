package worker

import (
	"time"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// CloseStream ends the client's connection while the handler goes on, so that a
// long call does not hold one: the client comes back after about retry (0: the
// edge decides) and gets what was sent meanwhile, the result included
// (specification 2025-11-25, transports, "Sending Messages to the Server": a
// server may close the connection and be polled). Where the revision has no
// such thing, or the client cannot come back, it does nothing. Only tools have
// it.
func (c *Call) CloseStream(retry time.Duration) {
	closer, ok := c.sink.(streamCloser)
	if !ok || !c.take() {
		return
	}
	defer c.release()
	ms := min(max(retry.Milliseconds(), 0), int64(time.Hour/time.Millisecond))
	// An error means the call is over; its context says so to the handler.
	_ = closer.closeStream(&millracev1.CloseStream{RetryMs: uint32(ms)})
}

// streamCloser is a sink that can be told to end the connection of the client.
type streamCloser interface {
	closeStream(*millracev1.CloseStream) error
}

func (s toolStream) closeStream(c *millracev1.CloseStream) error {
	return s.Send(&millracev1.CallToolResponse{Event: &millracev1.CallToolResponse_CloseStream{CloseStream: c}})
}
