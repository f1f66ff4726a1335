package backend

import (
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/proto/bus"
)

// Limit is the name of a limit of a deployment, as errors name it (data.limit).
type Limit string

// The limits that a call can come to.
const (
	// LimitResult bounds one result.
	LimitResult Limit = "max-result"
	// LimitResults bounds all results that are on their way through an edge.
	LimitResults Limit = "max-results-in-flight"
	// LimitRequest bounds a request at its worker.
	LimitRequest Limit = "max-request"
	// LimitTimeout, LimitTool and LimitCeiling bound the time of a call: without
	// a result or progress, the same for one tool, and as a whole.
	LimitTimeout Limit = "call-timeout"
	LimitTool    Limit = "tool-timeout"
	LimitCeiling Limit = "call-ceiling"
	// LimitSlots bounds the wait for a free slot of a worker.
	LimitSlots Limit = "slot-wait"
)

// Raise names the limit and says how to raise it, for the end of a message.
func (l Limit) Raise() string {
	how := "an operator raises it with --" + string(l)
	switch l {
	case LimitRequest:
		how = "its worker raises it with MaxRequest of worker.Config"
	case LimitTool:
		how = "the author of the tool raises it with Timeout of worker.Tool"
	case LimitSlots:
		how = "more workers or more slots help, and an operator lets calls wait longer with --" + string(l)
	case "":
		return ""
	default:
	}
	return " (limit " + string(l) + ": " + how + ")"
}

// tooLarge is the failure of a call that has met a limit of size.
func tooLarge(err error) *Failure {
	st := status.Convert(err)
	f := &Failure{Kind: TooLarge, Message: st.Message()}
	for _, d := range st.Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.GetReason() != bus.ReasonTooLarge {
			continue
		}
		switch m := info.GetMetadata(); m["limit"] {
		case "ClientConfig.MaxRecvMsgSize":
			f.Limit = LimitResult
			f.Message = fmt.Sprintf("the call was executed and its result is lost: it has %s bytes, and the edge takes %s", m["size"], m["max"]) + f.Limit.Raise()
		case "ServerConfig.MaxRecvMsgSize":
			f.Limit = LimitRequest
			f.Message = fmt.Sprintf("nothing was executed: the request has %s bytes, and the worker takes %s", m["size"], m["max"]) + f.Limit.Raise()
		default:
			f.Limit = Limit(m["limit"])
		}
	}
	return f
}
