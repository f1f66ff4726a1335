package exchange

import (
	"context"
	"time"
)

// Event is a message with its place in the stream of a call. A client that has
// lost its connection names the last place it has seen and gets what follows
// (specification 2025-11-25, transports, "Resumability and Redelivery").
type Event struct {
	// ID is the place; empty: none.
	ID string
	// Retry is how long the client should wait before it comes back; 0: it
	// decides.
	Retry time.Duration
	// Data is the message; nil: the event only tells the place or the retry.
	Data []byte
}

// EventStream is a Stream that can tell places. Streams of transports without
// them, such as stdio, do not implement it.
type EventStream interface {
	Stream
	// SendEvents is Send for events; those of one call go out together.
	SendEvents(events ...Event) error
}

// Leaver is a Stream whose connection may end before the answer, because its
// client comes back for the rest.
type Leaver interface {
	// Leave ends the connection, if the client can come back, and tells it to
	// wait as long; 0: as long as the stream thinks right.
	Leave(retry time.Duration)
}

// Resumer is an era whose streams can be resumed: a GET that names a place asks
// for what follows it.
type Resumer interface {
	// Resume sends what follows the place until the call has ended. It is
	// called with the value of Last-Event-ID; ok is false when the value is no
	// place of a call, and then nothing has been sent.
	Resume(ctx context.Context, req *Request, place string, out EventStream) (answer Answer, ok bool)
}
