package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/millrace/millrace/edge/mcp"
)

// schemas are the JSON Schemas of all revisions, as the specification has them
// (testdata/schema). They are safe for concurrent use.
type schemas struct {
	// open are the schemas as they are; closed refuse members they do not
	// name. Schemas of the specification allow further members nearly
	// everywhere, so that only the closed ones find a member that belongs to a
	// later revision.
	open, closed map[string]json.RawMessage

	mu    sync.Mutex
	types map[schemaType]*jsonschema.Resolved
}

type schemaType struct {
	rev, name string
	closed    bool
}

// theSchemas are loaded once: resolving them is most of the work.
var theSchemas struct {
	sync.Mutex

	loaded *schemas
}

func loadSchemas(t testing.TB) *schemas {
	t.Helper()
	theSchemas.Lock()
	defer theSchemas.Unlock()
	if theSchemas.loaded != nil {
		return theSchemas.loaded
	}
	s := &schemas{open: map[string]json.RawMessage{}, closed: map[string]json.RawMessage{}, types: map[schemaType]*jsonschema.Resolved{}}
	for _, rev := range mcp.Supported() {
		raw, err := os.ReadFile(filepath.Join("testdata", "schema", rev+".json"))
		if err != nil {
			t.Fatal(err)
		}
		s.open[rev] = raw
		var tree any
		if err := json.Unmarshal(raw, &tree); err != nil {
			t.Fatal(err)
		}
		closeObjects("", tree)
		if s.closed[rev], err = json.Marshal(tree); err != nil {
			t.Fatal(err)
		}
	}
	theSchemas.loaded = s
	return s
}

// closeObjects makes object types refuse members they do not name, except
// those that are there to be extended: tool schemas and _meta.
func closeObjects(name string, node any) {
	switch name {
	case "inputSchema", "outputSchema", "Result", "MetaObject", "ResultMetaObject", "NotificationMetaObject", "RequestMetaObject", "SubscriptionsListenResultMetaObject":
		return
	}
	switch n := node.(type) {
	case map[string]any:
		named, _ := n["properties"].(map[string]any)
		rest, restricted := n["additionalProperties"]
		anything, _ := rest.(map[string]any)
		if len(named) > 0 && (!restricted || anything != nil && len(anything) == 0) {
			n["additionalProperties"] = false
		}
		for key, sub := range n {
			closeObjects(key, sub)
		}
	case []any:
		for _, sub := range n {
			closeObjects("", sub)
		}
	}
}

// resolved returns the schema of one type of a revision; nil when the revision
// has no such type.
func (s *schemas) resolved(rev, name string, closed bool) (*jsonschema.Resolved, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := schemaType{rev, name, closed}
	if r, ok := s.types[key]; ok {
		return r, nil
	}
	raw := s.open[rev]
	if closed {
		raw = s.closed[rev]
	}
	root := &jsonschema.Schema{}
	if err := json.Unmarshal(raw, root); err != nil {
		return nil, fmt.Errorf("schema of %q: %w", rev, err)
	}
	defs, prefix := root.Defs, "#/$defs/"
	if defs == nil {
		defs, prefix = root.Definitions, "#/definitions/"
	}
	if defs[name] == nil {
		s.types[key] = nil
		return nil, nil
	}
	root.Ref = prefix + name
	r, err := root.Resolve(nil)
	if err != nil {
		return nil, fmt.Errorf("schema of %q: %w", rev, err)
	}
	s.types[key] = r
	return r, nil
}

// has reports whether a revision has a type.
func (s *schemas) has(rev, name string) bool {
	r, err := s.resolved(rev, name, false)
	return err == nil && r != nil
}

// batches reports whether answers may come in an array. 2024-11-05 has no type
// for that, but it rests on JSON-RPC 2.0 (section 6) without a word against it.
func (s *schemas) batches(rev string) bool {
	return rev == "2024-11-05" || s.has(rev, "JSONRPCBatchResponse")
}

// validate checks raw against a type of a revision.
func (s *schemas) validate(rev, name string, raw []byte) error { return s.run(rev, name, false, raw) }

// validateClosed also refuses members that the type does not name.
func (s *schemas) validateClosed(rev, name string, raw []byte) error {
	return errors.Join(s.run(rev, name, false, raw), s.run(rev, name, true, raw))
}

func (s *schemas) run(rev, name string, closed bool, raw []byte) error {
	r, err := s.resolved(rev, name, closed)
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("the revision has no type %s", name)
	}
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		if strings.Contains(err.Error(), "cannot unmarshal number") {
			return nil // one beyond float64, which the library cannot hold
		}
		return err
	}
	if err := r.Validate(value); err != nil {
		return fmt.Errorf("%s (closed: %v): %w", name, closed, err)
	}
	return nil
}

// resultTypes are the types of results by method: those of the eras with a
// handshake, and those of the stateless era.
var resultTypes = map[bool]map[string]string{
	false: {
		mcp.MethodInitialize:  "InitializeResult",
		mcp.MethodPing:        "EmptyResult",
		mcp.MethodSetLevel:    "EmptyResult",
		mcp.MethodSubscribe:   "EmptyResult",
		mcp.MethodUnsubscribe: "EmptyResult",
	},
	true: {
		mcp.MethodDiscover: "DiscoverResult",
		mcp.MethodListen:   "SubscriptionsListenResult",
	},
}

// commonResultTypes are the types of results that both eras have.
var commonResultTypes = map[string]string{
	mcp.MethodToolsList:             "ListToolsResult",
	mcp.MethodToolsCall:             "CallToolResult",
	mcp.MethodResourcesList:         "ListResourcesResult",
	mcp.MethodResourceTemplatesList: "ListResourceTemplatesResult",
	mcp.MethodResourcesRead:         "ReadResourceResult",
	mcp.MethodPromptsList:           "ListPromptsResult",
	mcp.MethodPromptsGet:            "GetPromptResult",
	mcp.MethodComplete:              "CompleteResult",
}

// result checks a response with a result against the type of the method.
func (s *schemas) result(rev string, raw []byte, m *received, requests []*sent) error {
	var err error
	for _, envelope := range []string{"JSONRPCResultResponse", "JSONRPCResponse"} {
		if s.has(rev, envelope) {
			err = s.validate(rev, envelope, raw)
			break
		}
	}
	if err != nil {
		return err
	}
	err = errors.New("a response to nothing that was asked")
	for _, r := range requests {
		// Requests may share an id; one of them must fit.
		if r.method == "" || !bytes.Equal(r.id, m.ID) {
			continue
		}
		if err = s.resultOf(rev, r.method, m.Result); err == nil {
			return nil
		}
	}
	return err
}

// resultOf checks the result of a method.
func (s *schemas) resultOf(rev, method string, result json.RawMessage) error {
	name := commonResultTypes[method]
	if name == "" {
		name = resultTypes[rev == mcp.Modern().Date][method]
	}
	if name == "" {
		return fmt.Errorf("a result for %q, which is no method of the revision", method)
	}
	var kind struct{ ResultType string }
	if err := json.Unmarshal(result, &kind); err != nil {
		return err
	}
	if kind.ResultType == mcp.ResultInputRequired {
		switch method {
		case mcp.MethodToolsCall, mcp.MethodResourcesRead, mcp.MethodPromptsGet:
			name = "InputRequiredResult"
		default:
			return fmt.Errorf("%s must not ask for input", method)
		}
	}
	if name == "EmptyResult" && string(result) != "{}" {
		return errors.New("not empty")
	}
	return s.validateClosed(rev, name, result)
}

// errorTypes are the errors that have a type of their own.
var errorTypes = map[int]string{
	mcp.CodeHeaderMismatch:     "HeaderMismatchError",
	mcp.CodeMissingCapability:  "MissingRequiredClientCapabilityError",
	mcp.CodeUnsupportedVersion: "UnsupportedProtocolVersionError",
	-32042:                     "URLElicitationRequiredError",
}

// failure checks an error response.
//
// One exception: where the id of a request cannot be read, JSON-RPC 2.0
// (section 5) says "id":null. The schemas up to 2025-06-18 demand an id and
// allow no null, so that no answer could satisfy them; later ones let the
// member be left out, which is what the edge does there.
func (s *schemas) failure(rev string, raw []byte, m *received) error {
	row, ok := mcp.Lookup(rev)
	if ok && row.NullErrorID && string(m.ID) == "null" {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(raw, &members); err != nil {
			return err
		}
		members["id"] = json.RawMessage("0")
		var err error
		if raw, err = json.Marshal(members); err != nil {
			return err
		}
	}
	var err error
	for _, envelope := range []string{"JSONRPCErrorResponse", "JSONRPCError"} {
		if s.has(rev, envelope) {
			err = s.validate(rev, envelope, raw)
			break
		}
	}
	if name := errorTypes[m.Error.Code]; name != "" && s.has(rev, name) {
		err = errors.Join(err, s.validate(rev, name, raw))
	}
	return err
}

// requestTypes are the requests of a server to its client.
var requestTypes = map[string]string{
	mcp.MethodPing:          "PingRequest",
	mcp.MethodElicit:        "ElicitRequest",
	mcp.MethodCreateMessage: "CreateMessageRequest",
	mcp.MethodListRoots:     "ListRootsRequest",
}

func (s *schemas) request(rev string, raw []byte, m *received) error {
	name := requestTypes[m.Method]
	if name == "" || rev == mcp.Modern().Date {
		return fmt.Errorf("a server sends no request %q in this revision", m.Method)
	}
	return errors.Join(s.validate(rev, "JSONRPCRequest", raw), s.typed(rev, name, raw))
}

// notificationTypes are the notifications of a server.
var notificationTypes = map[string]string{
	mcp.NotificationCancelled:            "CancelledNotification",
	mcp.NotificationProgress:             "ProgressNotification",
	mcp.NotificationMessage:              "LoggingMessageNotification",
	mcp.NotificationToolsChanged:         "ToolListChangedNotification",
	mcp.NotificationPromptsChanged:       "PromptListChangedNotification",
	mcp.NotificationResourcesChanged:     "ResourceListChangedNotification",
	mcp.NotificationResourceUpdated:      "ResourceUpdatedNotification",
	mcp.NotificationAcknowledged:         "SubscriptionsAcknowledgedNotification",
	"notifications/elicitation/complete": "ElicitationCompleteNotification",
}

func (s *schemas) notification(rev string, raw []byte, m *received) error {
	name := notificationTypes[m.Method]
	if name == "" {
		return fmt.Errorf("a server sends no notification %q", m.Method)
	}
	if m.Method == mcp.NotificationCancelled {
		// "For any other purpose" than the end of a subscription it must not be
		// sent in the stateless era, and before, we cancel no request of ours.
		var params struct {
			RequestID json.RawMessage            `json:"requestId"`
			Meta      map[string]json.RawMessage `json:"_meta"`
		}
		if err := json.Unmarshal(m.Params, &params); err != nil || !bytes.Equal(params.RequestID, params.Meta[mcp.MetaSubscriptionID]) {
			return errors.New("a cancellation of something else than a subscription")
		}
	}
	return errors.Join(s.validate(rev, "JSONRPCNotification", raw), s.typed(rev, name, raw))
}

// typed checks a request or notification. Up to 2025-06-18 the types leave out
// the members of the envelope, so that these are not for the closed schema.
//
// One exception: the fields of a form are JSON Schemas, and keywords that the
// first revision with forms does not name (a default, a pattern) are harmless
// there, so that they are sent as the author wrote them.
func (s *schemas) typed(rev, name string, raw []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return err
	}
	if bytes.Contains(s.open[rev], []byte(`"definitions": {`)) {
		delete(members, "jsonrpc")
		delete(members, "id")
	}
	bare, err := json.Marshal(members)
	if err != nil {
		return err
	}
	if row, _ := mcp.Lookup(rev); name == "ElicitRequest" && !row.ElicitationModes {
		return s.validate(rev, name, bare)
	}
	return s.validateClosed(rev, name, bare)
}

// TestSchemasAreThere guards the checks of all other tests: a schema that
// accepts everything would make them empty.
func TestSchemasAreThere(t *testing.T) {
	t.Parallel()
	s := loadSchemas(t)
	for _, rev := range mcp.Supported() {
		for what, c := range map[string]struct {
			message string
			sent    *sent
			ok      bool
		}{
			"a result":                {`{"jsonrpc":"2.0","id":1,"result":{` + modernMembers(rev) + `"content":[]}}`, &sent{id: []byte("1"), method: mcp.MethodToolsCall}, true},
			"content that is none":    {`{"jsonrpc":"2.0","id":1,"result":{` + modernMembers(rev) + `"content":7}}`, &sent{id: []byte("1"), method: mcp.MethodToolsCall}, false},
			"a member of no revision": {`{"jsonrpc":"2.0","id":1,"result":{` + modernMembers(rev) + `"content":[],"contentType":1}}`, &sent{id: []byte("1"), method: mcp.MethodToolsCall}, false},
			"an unknown block":        {`{"jsonrpc":"2.0","id":1,"result":{` + modernMembers(rev) + `"content":[{"type":"hologram"}]}}`, &sent{id: []byte("1"), method: mcp.MethodToolsCall}, false},
			"the wrong type":          {`{"jsonrpc":"2.0","id":1,"result":{` + modernMembers(rev) + `"content":[]}}`, &sent{id: []byte("1"), method: mcp.MethodToolsList}, false},
			"another id":              {`{"jsonrpc":"2.0","id":"1","result":{` + modernMembers(rev) + `"content":[]}}`, &sent{id: []byte("1"), method: mcp.MethodToolsCall}, false},
			"an error":                {`{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"m"}}`, nil, true},
			"an error without a text": {`{"jsonrpc":"2.0","id":1,"error":{"code":-32603}}`, nil, false},
			"progress":                {`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`, nil, true},
			"progress for nothing":    {`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}`, nil, false},
			"an unknown notification": {`{"jsonrpc":"2.0","method":"notifications/x"}`, nil, false},
			"an unknown request":      {`{"jsonrpc":"2.0","id":1,"method":"x"}`, nil, false},
		} {
			w := &wire{schemas: s}
			w.check(rev, []byte(c.message), []*sent{c.sent}[:map[bool]int{c.sent != nil: 1}[true]])
			if (len(w.faults) == 0) != c.ok {
				t.Errorf("%s in %s: valid %v, want %v %s", what, rev, !c.ok, c.ok, strings.Join(w.faults, "\n"))
			}
		}
	}
}

// modernMembers are those that every result of the stateless era has.
func modernMembers(rev string) string {
	if rev == mcp.Modern().Date {
		return `"resultType":"complete",`
	}
	return ""
}
