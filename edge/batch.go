package edge

import (
	"context"
	"net/http"
	"sync"

	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// serveBatch serves a JSON array of messages, where the revision has batches
// (2025-03-26, basic, "Batching"). Requests run side by side; the answer is one
// array of their responses, or nothing when there are none. head is the request
// without a message; elements and err are what startBatch has returned.
func (e *Edge) serveBatch(ctx context.Context, head exchange.Request, elements []batchElement, err *jsonrpc.Error, out exchange.Stream) exchange.Answer {
	defer func() {
		for i := range elements {
			elements[i].stop()
		}
	}()
	era, refusal := e.batcher(ctx, &head)
	if refusal != nil {
		return *refusal
	}
	if err != nil {
		return exchange.Refused(mcp.Assumed(), http.StatusBadRequest, nil, err)
	}
	// A place in the stream belongs to one call: where several share a stream,
	// messages have none.
	out = struct{ exchange.Stream }{out}
	responses := make([]jsonrpc.Pieces, len(elements))
	var running sync.WaitGroup
	for i := range elements {
		running.Go(func() { responses[i] = e.serveElement(era, head, &elements[i], out) })
	}
	running.Wait()
	var array jsonrpc.Pieces
	for _, r := range responses {
		if r == nil {
			continue
		}
		sep := ","
		if array == nil {
			sep = "["
		}
		array = append(append(array, []byte(sep)), r...)
	}
	if array == nil {
		return exchange.Answer{}
	}
	return exchange.Answer{Body: append(array, []byte("]"))}
}

// batchElement is one message of a batch.
type batchElement struct {
	msg jsonrpc.Message
	err *jsonrpc.Error // why it is none
	// ctx ends when the message is cancelled; stop ends that it can be.
	ctx  context.Context //nolint:containedctx // each has its own
	stop func()
}

// startBatch reads the messages of a batch, and makes the requests among them known
// to those who cancel calls of the scope.
func (e *Edge) startBatch(ctx context.Context, scope string, body []byte) ([]batchElement, *jsonrpc.Error) {
	raw, err := jsonrpc.DecodeBatch(body, e.cfg.Limits)
	if err != nil {
		return nil, err
	}
	elements := make([]batchElement, len(raw))
	for i := range raw {
		elements[i] = e.startElement(ctx, scope, raw[i])
	}
	return elements, nil
}

func (e *Edge) startElement(ctx context.Context, scope string, raw []byte) batchElement {
	msg, err := jsonrpc.Decode(raw, e.cfg.Limits)
	stop := func() {}
	if err == nil && msg.Kind() == jsonrpc.Request {
		ctx, stop = e.calls.Start(ctx, scope, msg.ID)
	}
	return batchElement{msg: msg, err: err, ctx: ctx, stop: stop}
}

// batcher finds the era that takes batches, or says why there is none.
func (e *Edge) batcher(ctx context.Context, head *exchange.Request) (exchange.Era, *exchange.Answer) {
	rev, known := mcp.Lookup(head.Header.Get(mcp.HeaderProtocolVersion))
	if !known || !rev.Modern {
		for _, era := range e.eras {
			b, ok := era.(exchange.Batcher)
			if !ok {
				continue
			}
			var refusal *exchange.Answer
			if rev, refusal = b.RevisionOf(ctx, head); refusal != nil || rev.Batches {
				return era, refusal
			}
		}
	}
	refusal := exchange.Refused(rev, http.StatusBadRequest, nil, &jsonrpc.Error{
		Code: jsonrpc.CodeInvalidRequest, Message: "this revision has no batches: send one JSON-RPC object",
	})
	return nil, &refusal
}

// serveElement serves one message of a batch and returns its response, if any.
func (e *Edge) serveElement(era exchange.Era, head exchange.Request, element *batchElement, out exchange.Stream) jsonrpc.Pieces {
	msg, err := element.msg, element.err
	if err != nil {
		if isNotification(&msg, err) {
			return nil
		}
		return jsonrpc.Whole(jsonrpc.AppendError(nil, err.ID, err))
	}
	req := head
	req.Message = msg
	refuse := func(message string) jsonrpc.Pieces {
		return jsonrpc.Whole(jsonrpc.AppendError(nil, msg.ID, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: message}))
	}
	switch {
	case msg.Method == mcp.MethodInitialize:
		return refuse("initialize must not be part of a batch: send it alone")
	case e.claims(&req) != era:
		return refuse("a message of a revision without batches: send it alone")
	}
	answer := exchange.Guard(e.cfg.Logger, msg.ID, func() exchange.Answer { return e.serveBy(element.ctx, era, &req, out) })
	if answer.Withheld || msg.Kind() != jsonrpc.Request {
		return nil
	}
	return answer.Body
}

// isNotification reports whether what could not be decoded was a notification,
// which is never answered, not even a bad one.
func isNotification(m *jsonrpc.Message, err *jsonrpc.Error) bool {
	return err.ID == nil && m.Kind() == jsonrpc.Notification && m.Method != ""
}
