package edge

import (
	"context"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/proto/bus"
)

// Observer hears what an edge does, for metrics, traces and logs. It is called
// by many goroutines at a time and must not wait for anything.
type Observer interface {
	// Begin is told of a message before it is served. The context it returns,
	// which comes from ctx, is that of everything that is done for the message.
	// It may keep m until the end of the message, but none of the bytes in it.
	Begin(ctx context.Context, m *Message) (context.Context, Observation)
	// Rejected is told of an HTTP request that did not become a message, with
	// the status it was answered with.
	Rejected(status int)
	// Resumed is told when a client that had come back for the rest of a stream
	// has got it, or has left again: events is how many it was sent.
	Resumed(events int)
}

// Observation is told what becomes of one message.
type Observation interface {
	// Event: something was sent to the client before the answer.
	Event()
	// End is called once, when the message was answered or, without an answer,
	// was served. Revision is the one it was served under; nil: it is not known.
	End(a *exchange.Answer, rev *mcp.Revision)
}

// Transport is how a message came.
type Transport string

// The transports.
const (
	TransportHTTP  Transport = "http"  // Streamable HTTP
	TransportSSE   Transport = "sse"   // HTTP+SSE
	TransportStdio Transport = "stdio" // standard input and output
)

// Message is a message as an Observer sees it.
type Message struct {
	// Request is the message and what came with it.
	Request   *exchange.Request
	Transport Transport
	// Modern: it is of the era without a handshake.
	Modern bool
	// Tool and Prompt are what it names of the catalog; empty, where it names
	// nothing or what is not there.
	Tool, Prompt string
}

// Stats is what an edge has to do at a moment.
type Stats struct {
	// OpenStreams are the SSE streams that are open to clients.
	OpenStreams int
	// Calls are those to workers that run, by pool.
	Calls map[string]bus.PoolCalls
}

// Stats returns what the edge has to do now. It looks at every call, so it is
// for whoever asks every few seconds.
func (e *Edge) Stats() Stats {
	return Stats{OpenStreams: int(e.open.Load()), Calls: e.client.PoolCalls()}
}

// serveBy passes a message to its era, and tells the observer.
func (e *Edge) serveBy(ctx context.Context, era exchange.Era, req *exchange.Request, out exchange.Stream) exchange.Answer {
	if e.cfg.Observer == nil || req.Message.Kind() == jsonrpc.Response {
		return era.Serve(ctx, req, out)
	}
	m := &Message{Request: req, Transport: transportOf(req), Modern: era == e.modern}
	m.Tool, m.Prompt = e.subject(&req.Message)
	ctx, observed := e.cfg.Observer.Begin(ctx, m)
	if o, ok := out.(observable); ok {
		o.observe(observed)
	}
	answer := era.Serve(ctx, req, out)
	observed.End(&answer, req.Revision)
	return answer
}

// observable is a stream of one message that can tell when something is sent.
type observable interface{ observe(o Observation) }

// transportOf is how a request came.
func transportOf(req *exchange.Request) Transport {
	switch {
	case req.Peer == nil:
		return TransportHTTP
	case req.Peer.Revision != nil: // only there one is known beforehand
		return TransportSSE
	default:
		return TransportStdio
	}
}

// subject is what a request names, if the catalog has it: what is not there has
// endless names, and they are the client's.
func (e *Edge) subject(m *jsonrpc.Message) (tool, prompt string) {
	if m.Method != mcp.MethodToolsCall && m.Method != mcp.MethodPromptsGet {
		return "", ""
	}
	name, err := mcp.StringParam(m.Params, "name")
	if err != nil {
		return "", ""
	}
	if m.Method == mcp.MethodToolsCall {
		if t, ok := e.catalog.Snapshot().Tool(name); ok {
			return t.Name, ""
		}
		return "", ""
	}
	if p, ok := e.catalog.Snapshot().Prompt(name); ok {
		return "", p.Name
	}
	return "", ""
}
