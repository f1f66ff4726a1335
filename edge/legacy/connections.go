package legacy

import "sync"

// connections are those of this edge on which the streams of calls are sent, so
// that a client has one for each stream: when it opens another one, the one
// before is half open. The zero value is ready; it is safe for concurrent use.
type connections struct {
	mu       sync.Mutex
	byStream map[streamKey]*connection
}

type streamKey struct{ scope, stream string }

// connection is that of the stream of a call: of the one that runs it, or of one
// that follows it.
type connection struct {
	call *resumable // nil: it follows
	end  func()     // ends one that follows
	// holder names one that follows among those on all edges; of two, the one
	// that sorts higher is the newer one.
	holder string
}

// drop ends the connection as it is.
func (c *connection) drop() {
	if c.call != nil {
		c.call.drop()
		return
	}
	c.end()
}

// take makes a connection that of a stream and drops the one before. It must be
// released when it is over; it may be dropped before or after that.
func (c *connections) take(key streamKey, taken *connection) {
	c.mu.Lock()
	before := c.byStream[key]
	if c.byStream == nil {
		c.byStream = map[streamKey]*connection{}
	}
	c.byStream[key] = taken
	c.mu.Unlock()
	if before != nil {
		before.drop()
	}
}

// release forgets a connection, unless the stream has another one.
func (c *connections) release(key streamKey, taken *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byStream[key] == taken {
		delete(c.byStream, key)
	}
}

// calls returns the calls that run here with a connection.
func (c *connections) calls() (running []*resumable) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.byStream {
		if conn.call != nil {
			running = append(running, conn.call)
		}
	}
	return running
}

// taken ends the connection of a stream if that of another edge is newer. The
// one on which the call was made is the oldest of all.
func (c *connections) taken(scope, stream, holder string) {
	c.mu.Lock()
	before := c.byStream[streamKey{scope, stream}]
	c.mu.Unlock()
	if before != nil && (before.call != nil || before.holder < holder) {
		before.drop()
	}
}

// endAll ends the connections of a session.
func (c *connections) endAll(scope string) {
	var ended []*connection
	c.mu.Lock()
	for key, conn := range c.byStream {
		if key.scope == scope {
			ended = append(ended, conn)
		}
	}
	c.mu.Unlock()
	for _, conn := range ended {
		conn.drop()
	}
}
