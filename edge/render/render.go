// Package render writes what the catalog and the workers have as the JSON of a
// revision. JSON that workers sent is spliced, never decoded and encoded again:
// numbers, unknown members and their order stay as the author wrote them.
package render

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace/edge/catalog"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/seal"
	millracev1 "github.com/millrace/millrace/proto/millrace/v1"
)

// Renderer writes results. It is immutable and safe for concurrent use.
type Renderer struct {
	// Server is serverInfo, a JSON object.
	Server []byte
	// PageSize is the most items of one list page.
	PageSize int
	// ListTTL is how long a client may keep a list or a discovery.
	ListTTL time.Duration
	// Cursors authenticates list cursors.
	Cursors *seal.Ring
}

// object builds a JSON object member by member.
type object struct {
	buf   []byte
	begun bool
	// before is what precedes buf: large values and what is between them.
	before jsonrpc.Pieces
}

func newObject(size int) *object { return &object{buf: append(make([]byte, 0, size), '{')} }

// raw adds a member with a JSON value; an empty value is left out.
func (o *object) raw(key string, value []byte) {
	if len(value) == 0 {
		return
	}
	o.key(key)
	o.buf = append(o.buf, value...)
}

// large adds a member like raw. A large value is not copied: an object with one
// ends with pieces.
func (o *object) large(key string, value []byte) {
	if len(value) < jsonrpc.LargeBytes {
		o.raw(key, value)
		return
	}
	o.key(key)
	o.before = append(o.before, o.buf, value)
	o.buf = make([]byte, 0, 256)
}

func (o *object) string(key, value string) {
	o.key(key)
	o.buf = jsonrpc.AppendString(o.buf, value)
}

func (o *object) int(key string, value int64) {
	o.key(key)
	o.buf = strconv.AppendInt(o.buf, value, 10)
}

// members adds the members of an object, except the named ones.
func (o *object) members(raw []byte, except ...string) {
	if len(raw) == 0 {
		return
	}
	rest, err := jsonrpc.Without(raw, except...)
	if err != nil {
		return
	}
	rest = bytes.TrimSpace(rest)
	rest = bytes.TrimSpace(rest[1 : len(rest)-1])
	if len(rest) == 0 {
		return
	}
	o.comma()
	o.buf = append(o.buf, rest...)
}

func (o *object) comma() {
	if o.begun {
		o.buf = append(o.buf, ',')
	}
	o.begun = true
}

// key opens a member; keys are ours and need no escape.
func (o *object) key(key string) {
	o.comma()
	o.buf = append(o.buf, '"')
	o.buf = append(o.buf, key...)
	o.buf = append(o.buf, '"', ':')
}

func (o *object) end() []byte { return append(o.buf, '}') }

func (o *object) pieces() jsonrpc.Pieces { return append(o.before, o.end()) }

// room is what values take in the buffer of an object that they are added to by
// large.
func room(values ...[]byte) int {
	n := 0
	for _, v := range values {
		if len(v) < jsonrpc.LargeBytes {
			n += len(v)
		}
	}
	return n
}

// begin opens a result with what the revision wants in every result.
func (r *Renderer) begin(rev *mcp.Revision, meta []byte, size int) *object {
	return r.beginAs(rev, mcp.ResultComplete, meta, size)
}

func (r *Renderer) beginAs(rev *mcp.Revision, resultType string, meta []byte, size int) *object {
	o := newObject(size + len(meta) + len(r.Server) + 128)
	if !rev.ResultType {
		o.raw("_meta", meta)
		return o
	}
	o.string("resultType", resultType)
	m := newObject(len(meta) + len(r.Server) + 64)
	m.raw(mcp.MetaServerInfo, r.Server)
	m.members(meta, mcp.MetaServerInfo)
	o.raw("_meta", m.end())
	return o
}

// cache adds the caching hints where the revision has them (specification
// 2026-07-28, server/utilities/caching).
func (o *object) cache(rev *mcp.Revision, ttl time.Duration, scope string) {
	if rev.CacheHints {
		o.int("ttlMs", ttl.Milliseconds())
		o.string("cacheScope", scope)
	}
}

// cacheScope is who may keep what was made of s.
func cacheScope(s *catalog.Snapshot) string {
	if s.Private {
		return mcp.CachePrivate
	}
	return mcp.CachePublic
}

// Empty is the result that says nothing more than that it is one.
func (r *Renderer) Empty(rev *mcp.Revision) []byte { return r.begin(rev, nil, 0).end() }

// ToolResult writes the result of a tool call (tools, "Tool Result").
func (r *Renderer) ToolResult(rev *mcp.Revision, res *millracev1.ToolResult) jsonrpc.Pieces {
	size := room(res.GetContent(), res.GetStructuredContent()) + len(res.GetExtra())
	o := r.begin(rev, res.GetMeta(), size)
	content := res.GetContent()
	if len(content) == 0 {
		content = []byte("[]")
	}
	o.large("content", fitContent(rev, content))
	if structuredFits(rev, res.GetStructuredContent()) {
		o.large("structuredContent", res.GetStructuredContent())
	}
	if res.GetIsError() {
		o.raw("isError", []byte("true"))
	}
	o.members(res.GetExtra(), "content", "structuredContent", "isError", "_meta", "resultType")
	return o.pieces()
}

// structuredFits reports whether the revision can carry the value.
func structuredFits(rev *mcp.Revision, value []byte) bool {
	return rev.StructuredValues || rev.StructuredObjects && isObject(value)
}

func isObject(raw []byte) bool {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	return len(raw) > 0 && raw[0] == '{'
}

// ToolError writes a tool result that shows a model what it did wrong.
func (r *Renderer) ToolError(rev *mcp.Revision, text string) jsonrpc.Pieces {
	content := append([]byte(`[{"type":"text","text":`), jsonrpc.AppendString(nil, text)...)
	content = append(content, `}]`...)
	return r.ToolResult(rev, &millracev1.ToolResult{Content: content, IsError: true})
}

// ResourceResult writes what resources/read found.
func (r *Renderer) ResourceResult(rev *mcp.Revision, res *millracev1.ResourceResult) jsonrpc.Pieces {
	o := r.begin(rev, res.GetMeta(), room(res.GetContents()))
	o.large("contents", fitContents(rev, res.GetContents()))
	scope := mcp.CachePrivate
	if res.GetPublic() {
		scope = mcp.CachePublic
	}
	o.cache(rev, time.Duration(res.GetTtlMs())*time.Millisecond, scope)
	return o.pieces()
}

// Progress writes a progress notification for the token of a request.
func Progress(rev *mcp.Revision, token []byte, p *millracev1.Progress) []byte {
	o := newObject(128 + len(p.GetMessage()))
	o.raw("progressToken", token)
	o.raw("progress", p.GetProgress())
	o.raw("total", p.GetTotal())
	if rev.ProgressMessage && p.GetMessage() != "" {
		o.string("message", p.GetMessage())
	}
	return jsonrpc.AppendNotification(nil, mcp.NotificationProgress, o.end())
}

// LogMessage writes a log notification.
func LogMessage(l *millracev1.LogMessage) []byte {
	o := newObject(64 + len(l.GetData()))
	o.string("level", l.GetLevel())
	if l.GetLogger() != "" {
		o.string("logger", l.GetLogger())
	}
	o.raw("data", l.GetData())
	return jsonrpc.AppendNotification(nil, mcp.NotificationMessage, o.end())
}

// PromptResult writes a prompt, filled in.
func (r *Renderer) PromptResult(rev *mcp.Revision, res *millracev1.PromptResult) jsonrpc.Pieces {
	o := r.begin(rev, res.GetMeta(), room(res.GetMessages())+len(res.GetDescription()))
	if res.GetDescription() != "" {
		o.string("description", res.GetDescription())
	}
	o.large("messages", fitMessages(rev, res.GetMessages()))
	return o.pieces()
}

// maxCompletions is the most values one completion may have ("Completion
// Results").
const maxCompletions = 100

// Completion writes suggestions for an argument.
func (r *Renderer) Completion(rev *mcp.Revision, res *millracev1.CompleteResponse) []byte {
	values := res.GetValues()
	more := res.GetHasMore() || len(values) > maxCompletions
	values = values[:min(len(values), maxCompletions)]
	c := newObject(256)
	c.key("values")
	c.buf = append(c.buf, '[')
	for i, v := range values {
		if i > 0 {
			c.buf = append(c.buf, ',')
		}
		c.buf = jsonrpc.AppendString(c.buf, v)
	}
	c.buf = append(c.buf, ']')
	if res.Total != nil {
		c.key("total")
		c.buf = strconv.AppendUint(c.buf, res.GetTotal(), 10)
	}
	c.key("hasMore")
	c.buf = strconv.AppendBool(c.buf, more)
	o := r.begin(rev, nil, len(c.buf)+32)
	o.raw("completion", c.end())
	return o.end()
}

// InputRequired writes the result that asks the client for input (basic/
// patterns/mrtr, "InputRequiredResult").
func (r *Renderer) InputRequired(rev *mcp.Revision, needs *millracev1.NeedsInput, state string) []byte {
	o := r.beginAs(rev, mcp.ResultInputRequired, nil, 512+len(state))
	if len(needs.GetRequests()) > 0 {
		requests := newObject(512)
		for _, key := range slices.Sorted(maps.Keys(needs.GetRequests())) {
			requests.comma()
			requests.buf = jsonrpc.AppendString(requests.buf, key)
			requests.buf = append(requests.buf, ':')
			request := needs.GetRequests()[key]
			if !rev.ElicitationIDs {
				request = withoutElicitationID(request)
			}
			requests.buf = append(requests.buf, request...)
		}
		o.raw("inputRequests", requests.end())
	}
	o.string("requestState", state)
	return o.end()
}

// Capabilities writes what the server declares.
func Capabilities(rev *mcp.Revision) []byte {
	o := newObject(128)
	if rev.Completions {
		o.raw("completions", []byte("{}"))
	}
	o.raw("logging", []byte("{}"))
	o.raw("prompts", []byte(`{"listChanged":true}`))
	o.raw("resources", []byte(`{"listChanged":true,"subscribe":true}`))
	o.raw("tools", []byte(`{"listChanged":true}`))
	return o.end()
}

// Discovery writes the result of server/discover for whoever sees s.
func (r *Renderer) Discovery(rev *mcp.Revision, s *catalog.Snapshot) []byte {
	o := r.begin(rev, nil, 256+len(s.Instructions))
	o.key("supportedVersions")
	o.buf = append(o.buf, supportedVersions(true)...)
	o.raw("capabilities", Capabilities(rev))
	if s.Instructions != "" {
		o.string("instructions", s.Instructions)
	}
	o.cache(rev, r.ListTTL, cacheScope(s))
	return o.end()
}

// Initialization writes the result of initialize.
func (r *Renderer) Initialization(rev *mcp.Revision, instructions string) []byte {
	o := newObject(256 + len(instructions))
	o.string("protocolVersion", rev.Date)
	o.raw("capabilities", Capabilities(rev))
	o.raw("serverInfo", fitServer(rev, r.Server))
	if instructions != "" {
		o.string("instructions", instructions)
	}
	return o.end()
}

// supportedVersions writes the revisions there are, newest first, as a JSON
// array. perRequest: only those that a request can name for itself.
func supportedVersions(perRequest bool) []byte {
	b := []byte{'['}
	for _, date := range mcp.Supported() {
		if rev, ok := mcp.Lookup(date); !ok || perRequest && !rev.Modern {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = jsonrpc.AppendString(b, date)
	}
	return append(b, ']')
}

// UnsupportedVersion is the error for a revision that is not served
// (specification 2026-07-28, basic/versioning). perRequest tells whether the
// request named it for itself, so that only revisions of that kind help; to
// others all there are is named, for the handshake or the header.
func UnsupportedVersion(requested string, perRequest bool) *jsonrpc.Error {
	o := newObject(128)
	o.raw("supported", supportedVersions(perRequest))
	o.string("requested", requested)
	return &jsonrpc.Error{
		Code:    mcp.CodeUnsupportedVersion,
		Message: "unsupported protocol version: use one of data.supported",
		Data:    o.end(),
	}
}
