// Package mcp holds the vocabulary of the Model Context Protocol: method names,
// error codes, header and _meta names, and the table of revisions.
//
// It knows neither HTTP nor protobuf; the two eras (edge/legacy and
// edge/stateless) and the door (package edge) share it.
package mcp

import "github.com/millrace/millrace/edge/jsonrpc"

// Methods of the protocol, as each revision names them.
const (
	MethodInitialize            = "initialize"
	MethodPing                  = "ping"
	MethodDiscover              = "server/discover"
	MethodToolsList             = "tools/list"
	MethodToolsCall             = "tools/call"
	MethodResourcesList         = "resources/list"
	MethodResourcesRead         = "resources/read"
	MethodResourceTemplatesList = "resources/templates/list"
	MethodPromptsList           = "prompts/list"
	MethodPromptsGet            = "prompts/get"
	MethodComplete              = "completion/complete"
	MethodSetLevel              = "logging/setLevel"
	MethodSubscribe             = "resources/subscribe"
	MethodUnsubscribe           = "resources/unsubscribe"
	MethodListen                = "subscriptions/listen"

	// Requests of a server to its client: sent as such up to 2025-11-25,
	// embedded in results since.

	MethodElicit        = "elicitation/create"
	MethodCreateMessage = "sampling/createMessage"
	MethodListRoots     = "roots/list"

	NotificationInitialized = "notifications/initialized"
	NotificationCancelled   = "notifications/cancelled"
	NotificationProgress    = "notifications/progress"
	NotificationMessage     = "notifications/message"

	NotificationToolsChanged     = "notifications/tools/list_changed"
	NotificationPromptsChanged   = "notifications/prompts/list_changed"
	NotificationResourcesChanged = "notifications/resources/list_changed"
	NotificationResourceUpdated  = "notifications/resources/updated"
	NotificationAcknowledged     = "notifications/subscriptions/acknowledged"

	NotificationElicitationComplete = "notifications/elicitation/complete" // see Revision.ElicitationIDs
)

// Keys of params._meta (specification 2026-07-28, basic/index, "_meta").
const (
	MetaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"
	MetaClientInfo         = "io.modelcontextprotocol/clientInfo"
	MetaClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaServerInfo         = "io.modelcontextprotocol/serverInfo"
	MetaLogLevel           = "io.modelcontextprotocol/logLevel"
	MetaSubscriptionID     = "io.modelcontextprotocol/subscriptionId"
	MetaProgressToken      = "progressToken"
	MetaTraceParent        = "traceparent"
	MetaTraceState         = "tracestate"
	MetaBaggage            = "baggage"
)

// Header names of Streamable HTTP, in the canonical form of net/http.
const (
	HeaderProtocolVersion = "Mcp-Protocol-Version"
	HeaderSessionID       = "Mcp-Session-Id"
	HeaderLastEventID     = "Last-Event-Id"
	HeaderMethod          = "Mcp-Method"
	HeaderName            = "Mcp-Name"
)

// Error codes of the protocol; JSON-RPC's own are in edge/jsonrpc. The range
// -32020 to -32099 belongs to the specification since 2026-07-28.
const (
	CodeResourceNotFound   = -32002 // legacy only, see Revision.ResourceNotFound
	CodeHeaderMismatch     = -32020
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022
	CodeURLRequired        = -32042 // see Revision.ElicitationIDs
)

// FitCode is the code under which an error that an author chose is sent in a
// revision (specification 2026-07-28, basic/index, "Error Codes").
func (r *Revision) FitCode(code int) int {
	const first, last = -32020, -32099
	switch {
	case !r.ReservedCodes || code == CodeHeaderMismatch || code == CodeMissingCapability || code == CodeUnsupportedVersion:
		return code
	case code == CodeResourceNotFound:
		return r.ResourceNotFound
	case code <= first && code >= last:
		return jsonrpc.CodeInternal
	default:
		return code
	}
}

// Values of resultType and cacheScope (specification 2026-07-28).
const (
	ResultComplete      = "complete"
	ResultInputRequired = "input_required"
	CachePublic         = "public"
	CachePrivate        = "private"
)

// Implementation names a piece of software (serverInfo, clientInfo).
type Implementation struct {
	Name    string `json:"name"`
	Title   string `json:"title,omitempty"`
	Version string `json:"version"`
}
