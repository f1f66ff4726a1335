package bus

import (
	"context"
	"errors"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// Reasons of errors that the carrier itself makes, as Reason returns them.
const (
	// ReasonNoResponders (Unavailable): no instance of the pool is there. No
	// handler ran.
	ReasonNoResponders = "NO_RESPONDERS"
	// ReasonDisconnected (Unavailable): the caller has no connection to the
	// bus. No handler ran.
	ReasonDisconnected = "DISCONNECTED"
	// ReasonNotAccepted (Unavailable): no instance answered within the accept
	// budget. The call may have started.
	ReasonNotAccepted = "NOT_ACCEPTED"
	// ReasonNotStarted (Unavailable): nobody accepted the call, and everybody who
	// may have been given it has said that it did not start and never will. No
	// handler ran.
	ReasonNotStarted = "NOT_STARTED"
	// ReasonFrameLost (Unavailable): a frame of the call was lost, or the
	// connection that carried it. The call had started.
	ReasonFrameLost = "FRAME_LOST"
	// ReasonGoesOn (Unavailable): the client has stopped or lost its connection,
	// and the call, which is resumable, goes on: see [Client.Follow].
	ReasonGoesOn = "GOES_ON"
	// ReasonWorkerLost (Unavailable): the instance that ran the call is gone.
	ReasonWorkerLost = "WORKER_LOST"
	// ReasonDraining (Unavailable): the instance stopped and the call outlived
	// its grace period.
	ReasonDraining = "DRAINING"
	// ReasonEventsLost (DataLoss): the call has ended, and its end and maybe more of
	// its events were lost for whoever follows it. The call had started.
	ReasonEventsLost = "EVENTS_LOST"
	// ReasonOverloaded (ResourceExhausted): every instance was busy for the
	// whole wait budget. No handler ran.
	ReasonOverloaded = "OVERLOADED"
	// ReasonTooLarge (ResourceExhausted): a message is larger than its receiver
	// takes. The details name the limit (metadata "limit", "max", "size"). The
	// call may have started.
	ReasonTooLarge = "TOO_LARGE"
)

// errorDomain marks the ErrorInfo details of this package.
const errorDomain = "millrace"

// failure makes an error of the carrier, with more details than its reason.
func failure(code codes.Code, reason, text string, more ...protoadapt.MessageV1) error {
	details := append([]protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: errorDomain}}, more...)
	st, err := status.New(code, text).WithDetails(details...)
	if err != nil {
		// Only for code OK, which is no failure.
		return status.Error(codes.Internal, text)
	}
	return st.Err()
}

// tooLarge refuses a message of size bytes or more. It says which limit it is, and
// where it is set.
func tooLarge(size uint64, limit int, server bool) error {
	what, who, name := "response", "caller", "ClientConfig.MaxRecvMsgSize"
	if server {
		what, who, name = "request", "instance", "ServerConfig.MaxRecvMsgSize"
	}
	st := status.Newf(codes.ResourceExhausted,
		"the %s has %d bytes or more, and its %s takes %d: the limit is %s of package bus there", what, size, who, limit, name)
	detailed, err := st.WithDetails(&errdetails.ErrorInfo{
		Reason: ReasonTooLarge, Domain: errorDomain,
		Metadata: map[string]string{"limit": name, "max": strconv.Itoa(limit), "size": strconv.FormatUint(size, 10)},
	})
	if err != nil {
		return st.Err()
	}
	return detailed.Err()
}

// Reason returns the reason of an error that the carrier made, one of the
// Reason constants; "" for every other error.
func Reason(err error) string {
	st, ok := status.FromError(err)
	if !ok {
		return ""
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info.GetReason()
		}
	}
	return ""
}

// contextError is the status of a context that ended.
func contextError(ctx context.Context) error { return status.FromContextError(ctx.Err()).Err() }

// handlerStatus is the status of the error that a handler returned.
func handlerStatus(err error) *status.Status {
	if err == nil {
		return nil
	}
	if st, ok := status.FromError(err); ok {
		if st.Code() == codes.OK {
			// An error that claims to be none.
			return status.New(codes.Unknown, st.Message())
		}
		return st
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err)
	}
	return status.New(codes.Unknown, err.Error())
}

// encodeStatus returns the bytes of a status; nothing for success.
func encodeStatus(st *status.Status) []byte {
	if st == nil || st.Code() == codes.OK {
		return nil
	}
	b, err := proto.Marshal(st.Proto())
	if err != nil {
		// A text that is no UTF-8 cannot travel.
		b, _ = proto.Marshal(&spb.Status{Code: int32(st.Code()), Message: "status text is not valid UTF-8"})
	}
	return b
}

// decodeStatus returns the error of the bytes of a status; nil for success.
func decodeStatus(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	var p spb.Status
	if err := proto.Unmarshal(b, &p); err != nil {
		return status.Error(codes.Internal, "malformed status")
	}
	return status.ErrorProto(&p)
}
