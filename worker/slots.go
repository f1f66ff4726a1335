package worker

import (
	"context"
	"sync/atomic"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/proto/bus"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// slots are those of one tool. Nil: it has no limit of its own.
type slots struct {
	limit int32
	used  atomic.Int32
}

func newSlots(limit int) *slots {
	if limit == 0 {
		return nil
	}
	return &slots{limit: int32(limit)}
}

// take takes a slot, if one is free.
func (s *slots) take() bool {
	if s.used.Add(1) <= s.limit {
		return true
	}
	s.used.Add(-1)
	return false
}

func (s *slots) leave() { s.used.Add(-1) }

// errorDomain marks errors of the carrier, see bus.Reason.
const errorDomain = "millrace"

// slotKey is the key of the slots that a call got before it began.
type slotKey struct{}

// admit decides, before a call is accepted, whether its tool has a slot: a
// refusal at this point costs nothing and sends the call to another instance.
// The name of the tool is the name of the limit: calls that wait for it do not
// hold up others. It runs on the goroutine that reads from the bus.
func (w *Worker) admit(ctx context.Context, method string, head []byte) (context.Context, func(), string, bool) {
	if !w.limited.Load() || method != millracev1.WorkerService_CallTool_FullMethodName {
		return ctx, nil, "", true
	}
	name := string(toolOf(head))
	t := w.tool(name)
	if t == nil || t.slots == nil {
		return ctx, nil, "", true
	}
	if !t.slots.take() {
		return ctx, nil, name, false
	}
	return context.WithValue(ctx, slotKey{}, t.slots), t.slots.leave, name, true
}

// toolOf returns the name in the beginning of a CallToolRequest; nil if it is
// not there.
func toolOf(head []byte) []byte {
	const nameField = 2
	for len(head) > 0 {
		number, kind, n := protowire.ConsumeTag(head)
		if n < 0 {
			return nil
		}
		head = head[n:]
		if number == nameField && kind == protowire.BytesType {
			name, n := protowire.ConsumeBytes(head)
			if n < 0 {
				return nil
			}
			return name
		}
		n = protowire.ConsumeFieldValue(number, kind, head)
		if n < 0 {
			return nil
		}
		head = head[n:]
	}
	return nil
}

// enter takes a slot for a call that has begun, unless it has one already. It
// has none where there was nothing to decide by: the name of the tool was not
// in the beginning of the request, or the call came by another carrier.
func (t *tool) enter(ctx context.Context) (leave func(), err error) {
	if t.slots == nil || ctx.Value(slotKey{}) == t.slots {
		return func() {}, nil
	}
	if t.slots.take() {
		return t.slots.leave, nil
	}
	st, err := status.New(codes.ResourceExhausted, "all slots of the tool are taken").
		WithDetails(&errdetails.ErrorInfo{Reason: bus.ReasonOverloaded, Domain: errorDomain})
	if err != nil {
		return nil, status.Error(codes.ResourceExhausted, "all slots of the tool are taken")
	}
	return nil, st.Err()
}
