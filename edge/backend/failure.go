package backend

import (
	"cmp"
	"time"

	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Kind is a kind of failure.
type Kind int

// The kinds of failure. The comment says what the client may be told.
const (
	// Internal: something broke inside. Nothing of it is shown.
	Internal Kind = iota
	// UnknownTool: no such tool; Subject is its name.
	UnknownTool
	// InvalidArguments: Detail says what does not fit the schema.
	InvalidArguments
	// ResourceNotFound: no such resource; Subject is its URI.
	ResourceNotFound
	// Unavailable: no instance of Pool is there; nothing ran.
	Unavailable
	// Overloaded: every instance of Pool was busy for too long; nothing ran.
	Overloaded
	// WorkerLost: the instance that ran the call is gone; it may have
	// started.
	WorkerLost
	// Timeout: nothing came for Timeout, or the call took as long as any may
	// (LimitCeiling); it was cancelled.
	Timeout
	// Cancelled: the caller left or took the request back; Cause says which.
	Cancelled
	// TooLarge: a message went over a limit; Message says which.
	TooLarge
	// UnknownPrompt and UnknownTemplate: no such prompt or resource template;
	// Subject is its name.
	UnknownPrompt
	UnknownTemplate
	// MissingCapability: the client lacks capabilities; Data is the JSON
	// object of those that are missing.
	MissingCapability
	// NoInput: the client did not give the input that the author asked for;
	// Message says why.
	NoInput
	// URLRequired: the user has to visit pages first; Input asks for the visits,
	// and Message says why.
	URLRequired
	// ResultLost: the call has ended, and how was lost on the way here; it may
	// have been executed.
	ResultLost
	// Moved: this edge has lost the call, which goes on without it.
	Moved
	// Custom: the author's own JSON-RPC error: Code, Message and Data.
	Custom
)

// Failure is an outcome that is no result.
type Failure struct {
	Kind Kind
	// Subject is the name of the tool or the URI of the resource.
	Subject string
	// Pool is set for Unavailable, Overloaded and WorkerLost.
	Pool string
	// Message is the author's text (Custom, ResourceNotFound, InvalidArguments,
	// URLRequired, MissingCapability), that of the limit (TooLarge), or why there is no input
	// (NoInput) or nobody (Unavailable, where it is not the pool).
	Message string
	// Detail is set for InvalidArguments.
	Detail string
	// Timeout is set for Timeout.
	Timeout time.Duration
	// After is when a slot is expected; may be set for Overloaded.
	After time.Duration
	// Limit is the one that was met: of Timeout, Overloaded and TooLarge; it may be
	// empty.
	Limit Limit
	// Code is set for Custom, Data for Custom and MissingCapability; Data is
	// raw JSON and may be empty.
	Code int
	Data []byte
	// Input is set for URLRequired.
	Input *millracev1.NeedsInput
	// Cause is set for Cancelled.
	Cause error

	// moved: the instance has the item not, or not as the caller has seen it;
	// nobody: no instance that could have it was there. Nothing ran.
	moved, nobody bool
}

// Reason is the machine-readable name of the failure, as data.reason shows it;
// empty for kinds that have a JSON-RPC code of their own.
func (f *Failure) Reason() string {
	switch f.Kind {
	case Unavailable:
		return "unavailable"
	case Overloaded:
		return "overloaded"
	case WorkerLost:
		return "worker_lost"
	case Timeout:
		return "timeout"
	case Cancelled:
		return "cancelled"
	case TooLarge:
		return "too_large"
	case NoInput:
		return "no_input"
	case ResultLost:
		return "result_lost"
	case Moved:
		return "edge_lost"
	default:
		return ""
	}
}

// nothingRan reports whether the failure says that nothing was executed.
func (f *Failure) nothingRan() bool {
	return f.Kind == Unavailable || f.Kind == Overloaded || f.moved
}

// RetryAfter is how long a client should wait before it tries again; 0 when
// trying again is not known to help.
func (f *Failure) RetryAfter() time.Duration {
	switch f.Kind {
	case Overloaded:
		return cmp.Or(f.After, time.Second)
	case Unavailable:
		return 2 * time.Second
	default:
		return 0
	}
}

// Text is the message for the client: what happened and, where something can
// be done about it, what.
func (f *Failure) Text() string {
	switch f.Kind {
	case UnknownTool:
		return "unknown tool " + quote(f.Subject) + ": tools/list shows those there are"
	case UnknownPrompt:
		return "unknown prompt " + quote(f.Subject) + ": prompts/list shows those there are"
	case UnknownTemplate:
		return "unknown resource template " + quote(f.Subject) + ": resources/templates/list shows those there are"
	case InvalidArguments:
		return "invalid arguments for " + quote(f.Subject) + ": " + f.Detail
	case MissingCapability:
		if f.Message != "" {
			return f.Message
		}
		return "the client does not declare a capability that this request needs: " + string(f.Data)
	case ResourceNotFound:
		if f.Message != "" {
			return f.Message
		}
		return "resource not found: " + f.Subject
	case Unavailable:
		if f.Message != "" {
			return f.Message
		}
		return "no worker of the pool " + quote(f.Pool) + " is running; nothing was executed, try again shortly"
	case Overloaded:
		return "every worker of the pool " + quote(f.Pool) + " is busy; nothing was executed, try again shortly" + f.Limit.Raise()
	case WorkerLost:
		return "the worker of the pool " + quote(f.Pool) + " that took the call is gone; the call may have been executed"
	case Timeout:
		if f.Limit == LimitCeiling {
			return "the call took " + f.Timeout.String() + ", and none may take longer, whatever progress it reports; it was cancelled" + f.Limit.Raise()
		}
		return "the worker gave no result or progress within " + f.Timeout.String() + "; the call was cancelled" + f.Limit.Raise()
	case Cancelled:
		return "the request was cancelled"
	case ResultLost:
		return "the call has ended, but what it sent last was lost on the way; the call may have been executed"
	case Moved:
		return "the edge has lost its connection to the worker; the call goes on and may have been executed"
	case TooLarge, NoInput, URLRequired, Custom:
		return f.Message
	default:
		return "internal error"
	}
}

// quote shows a name from outside, cut so that an error stays readable.
func quote(s string) string {
	const most = 120
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return `"` + s + `"`
}

// workerFailure translates the error outcome of a worker.
func workerFailure(e *millracev1.Error) *Failure {
	switch e.GetKind() {
	case millracev1.Error_KIND_INVALID_ARGUMENTS:
		return &Failure{Kind: InvalidArguments, Message: e.GetMessage(), Detail: e.GetDetail()}
	case millracev1.Error_KIND_UNKNOWN_TOOL:
		return &Failure{Kind: UnknownTool, moved: true}
	case millracev1.Error_KIND_OTHER_CONTRACT:
		return &Failure{Kind: Unavailable, moved: true, Message: "the tool has just been replaced by another version; nothing was executed, try again shortly"}
	case millracev1.Error_KIND_UNKNOWN_PROMPT:
		return &Failure{Kind: UnknownPrompt, moved: true}
	case millracev1.Error_KIND_MISSING_CAPABILITY:
		return &Failure{Kind: MissingCapability, Data: e.GetData()}
	case millracev1.Error_KIND_RESOURCE_NOT_FOUND:
		return &Failure{Kind: ResourceNotFound, Message: e.GetMessage()}
	case millracev1.Error_KIND_URL_ELICITATION_REQUIRED:
		if len(e.GetInput().GetRequests()) == 0 {
			return &Failure{Kind: Internal}
		}
		return &Failure{Kind: URLRequired, Message: e.GetMessage(), Input: e.GetInput()}
	case millracev1.Error_KIND_CUSTOM:
		return &Failure{Kind: Custom, Code: int(e.GetCode()), Message: e.GetMessage(), Data: e.GetData()}
	default:
		return &Failure{Kind: Internal}
	}
}
