package mcp

import (
	"slices"

	"github.com/millrace/millrace/edge/jsonrpc"
)

// Revision is one row of the table of protocol revisions: what a revision has
// and how it wants things done. Everything that differs between revisions of
// the legacy era is a field here, so that no other code compares dates.
type Revision struct {
	// Date names the revision on the wire.
	Date string
	// Number is the revision in stored tokens; it never changes.
	Number byte
	// Modern: requests carry their own metadata and there is no handshake.
	Modern bool
	// ProtocolHeader: clients send MCP-Protocol-Version after initialize.
	ProtocolHeader bool

	// Batches: an array of messages is received as one. 2024-11-05 says
	// nothing, and JSON-RPC 2.0, on which it rests, says yes.
	Batches bool
	// Annotations: tools have annotations.
	Annotations bool
	// ProgressMessage: progress notifications may carry a message.
	ProgressMessage bool
	// Titles: tools and resources have a title.
	Titles bool
	// StructuredObjects: results have structuredContent, tools outputSchema,
	// both about JSON objects.
	StructuredObjects bool
	// StructuredValues: structuredContent may be any JSON value and
	// outputSchema any schema.
	StructuredValues bool
	// Icons: tools, resources and implementations have icons.
	Icons bool
	// ItemMeta: tools, resources and templates have _meta.
	ItemMeta bool
	// ResourceLinks: content blocks of type resource_link exist.
	ResourceLinks bool
	// Audio: content blocks of type audio exist.
	Audio bool
	// Completions: completion is a declared capability.
	Completions bool
	// Elicitation: a server may ask the user to fill in a form.
	Elicitation bool
	// ElicitationModes: elicitation requests say form or url, and a form may
	// let the user choose several of a list.
	ElicitationModes bool
	// ElicitationIDs: a page that a user is sent to has an id, a request can be
	// refused until pages were visited, and the client can be told that a visit
	// is over.
	ElicitationIDs bool

	// Resumes: a stream that broke can be resumed at an event.
	Resumes bool
	// Polls: a stream begins with an event that only tells where it can be
	// resumed, and a server may end the connection before the answer.
	Polls bool

	// ArgumentErrorsAreResults: arguments that do not fit the schema make a
	// result with isError, so that a model sees them; before, they are a
	// protocol error -32602.
	ArgumentErrorsAreResults bool
	// ResourceNotFound is the error code for an unknown resource.
	ResourceNotFound int
	// ReservedCodes: no error has a code of the range that belongs to the
	// specification, unless the revision defines it.
	ReservedCodes bool
	// NullErrorID: an error to a message without a readable id has "id":null
	// (JSON-RPC 2.0); later schemas leave the member out.
	NullErrorID bool
	// ResultType: every result says what it is, and who made it in _meta.
	ResultType bool
	// CacheHints: list, read and discover results carry ttlMs and cacheScope.
	CacheHints bool
}

// The table, oldest first. Dates stand here and nowhere else.
var revisions = [...]Revision{
	{
		Date: "2024-11-05", Number: 1, Batches: true,
		ResourceNotFound: CodeResourceNotFound, NullErrorID: true,
	},
	{
		Date: "2025-03-26", Number: 2, Batches: true,
		Annotations: true, ProgressMessage: true, Audio: true, Completions: true,
		Resumes:          true,
		ResourceNotFound: CodeResourceNotFound, NullErrorID: true,
	},
	{
		Date: "2025-06-18", Number: 3, ProtocolHeader: true,
		Annotations: true, ProgressMessage: true, Audio: true, Completions: true,
		Titles: true, StructuredObjects: true, ItemMeta: true, ResourceLinks: true, Elicitation: true,
		Resumes:          true,
		ResourceNotFound: CodeResourceNotFound, NullErrorID: true,
	},
	{
		Date: "2025-11-25", Number: 4, ProtocolHeader: true,
		Annotations: true, ProgressMessage: true, Audio: true, Completions: true,
		Titles: true, StructuredObjects: true, ItemMeta: true, ResourceLinks: true, Icons: true, Elicitation: true, ElicitationModes: true, ElicitationIDs: true,
		Resumes: true, Polls: true,
		ArgumentErrorsAreResults: true,
		ResourceNotFound:         CodeResourceNotFound,
	},
	{
		Date: "2026-07-28", Number: 5, Modern: true, ProtocolHeader: true,
		Annotations: true, ProgressMessage: true, Audio: true, Completions: true,
		Titles: true, StructuredObjects: true, StructuredValues: true, ItemMeta: true, ResourceLinks: true, Icons: true, Elicitation: true, ElicitationModes: true,
		ArgumentErrorsAreResults: true,
		ResourceNotFound:         jsonrpc.CodeInvalidParams,
		ReservedCodes:            true,
		ResultType:               true, CacheHints: true,
	},
}

// Lookup finds the revision of a date; ok is false when there is none.
func Lookup(date string) (rev *Revision, ok bool) {
	for i := range revisions {
		if revisions[i].Date == date {
			return &revisions[i], true
		}
	}
	return nil, false
}

// Numbered finds the revision of a stored number; ok is false when there is
// none.
func Numbered(n byte) (rev *Revision, ok bool) {
	for i := range revisions {
		if revisions[i].Number == n {
			return &revisions[i], true
		}
	}
	return nil, false
}

// Legacy returns the newest revision with a handshake: the counter-offer to a
// client that asks for a revision the server does not have (specification
// 2025-11-25, lifecycle, "Version Negotiation").
func Legacy() *Revision { return newest(false) }

// Oldest returns the first revision: that of clients of HTTP+SSE, which later
// ones replaced, until they agree on another one.
func Oldest() *Revision { return &revisions[0] }

// Modern returns the newest revision without a handshake.
func Modern() *Revision { return newest(true) }

func newest(modern bool) *Revision {
	for i := len(revisions) - 1; i >= 0; i-- {
		if revisions[i].Modern == modern {
			return &revisions[i]
		}
	}
	return nil
}

// Assumed returns the revision of a legacy HTTP request that names none
// (specification 2025-06-18, transports, "Protocol Version Header": the newest
// revision that had no such header).
func Assumed() *Revision {
	for i := len(revisions) - 1; i >= 0; i-- {
		if !revisions[i].ProtocolHeader {
			return &revisions[i]
		}
	}
	return &revisions[0]
}

// Supported returns the dates of all revisions, newest first.
func Supported() []string {
	dates := make([]string, 0, len(revisions))
	for i := range revisions {
		dates = append(dates, revisions[i].Date)
	}
	slices.Reverse(dates)
	return dates
}
