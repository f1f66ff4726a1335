package bus

// What operators want to know is counted where it happens anyway, or found out
// when somebody asks: a call pays nothing for it.

// PoolCalls counts the calls of a Client to one pool.
type PoolCalls struct {
	// Queued have not been accepted by an instance yet, Running have.
	Queued, Running int
	// Stalled are the running ones whose instance may send nothing more until
	// what it has sent is read.
	Stalled int
}

// PoolCalls returns the calls that run now, by pool. Pools without any are left
// out. It looks at every call, so it is for whoever asks every few seconds.
func (c *Client) PoolCalls() map[string]PoolCalls {
	counts := map[string]PoolCalls{}
	for _, call := range c.snapshot() {
		n := counts[call.cc.pool]
		call.mu.Lock()
		switch {
		case call.ended:
		case !call.accepted:
			n.Queued++
		default:
			n.Running++
			if call.in.used+call.in.owed >= call.in.window {
				n.Stalled++
			}
		}
		call.mu.Unlock()
		counts[call.cc.pool] = n
	}
	return counts
}

// ConnCounts is what a connection has seen since it was opened.
type ConnCounts struct {
	// InMessages and OutMessages are NATS messages, InBytes and OutBytes their
	// payloads.
	InMessages, OutMessages, InBytes, OutBytes uint64
	// Disconnects is how often the connection was lost, Errors how many errors
	// the server or the client library has reported, Slow how many of them said
	// that messages were dropped because nobody read them in time.
	Disconnects, Errors, Slow uint64
}

// Counts returns what the connection has seen.
func (c *Conn) Counts() ConnCounts {
	nats := c.nc.Stats()
	return ConnCounts{
		InMessages: nats.InMsgs, OutMessages: nats.OutMsgs, InBytes: nats.InBytes, OutBytes: nats.OutBytes,
		Disconnects: c.disconnects.Load(), Errors: c.faults.Load(), Slow: c.slow.Load(),
	}
}
