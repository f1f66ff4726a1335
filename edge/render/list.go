package render

import (
	"sort"

	"github.com/millrace/millrace/edge/catalog"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
)

// List is a list of the catalog that clients can page through.
type List int

// The lists.
const (
	Tools List = iota
	Resources
	ResourceTemplates
	Prompts
)

// member is the name of the list in its result.
func (l List) member() string {
	switch l {
	case Tools:
		return "tools"
	case Resources:
		return "resources"
	case Prompts:
		return "prompts"
	default:
		return "resourceTemplates"
	}
}

// item is one entry of a list: its sort key and its JSON under a revision.
type item struct {
	key  string
	json []byte
}

// itemsKey and pageKey name what is derived once from a snapshot.
type (
	itemsKey struct {
		list List
		rev  byte
	}
	pageKey itemsKey
)

// items returns the entries of a list as the revision shows them.
func (l List) items(rev *mcp.Revision, s *catalog.Snapshot) []item {
	v := s.Memo(itemsKey{l, rev.Number}, func() any {
		var items []item
		switch l {
		case Tools:
			for i := range s.Tools {
				items = append(items, item{s.Tools[i].Name, l.fit(rev, s.Tools[i].Definition)})
			}
		case Resources:
			for i := range s.Resources {
				items = append(items, item{s.Resources[i].URI, l.fit(rev, s.Resources[i].Definition)})
			}
		case Prompts:
			for i := range s.Prompts {
				items = append(items, item{s.Prompts[i].Name, l.fit(rev, s.Prompts[i].Definition)})
			}
		case ResourceTemplates:
			for i := range s.Templates {
				items = append(items, item{s.Templates[i].URITemplate, l.fit(rev, s.Templates[i].Definition)})
			}
		}
		return items
	})
	items, _ := v.([]item)
	return items
}

// cursorPurpose separates the cursors of the lists from each other, from other
// tokens, and those of one caller from those of another.
func (l List) cursorPurpose(owner string) string { return "cursor/1/" + l.member() + "/" + owner }

// ListPage writes one page of a list for the caller that owner names; empty:
// nobody knows who calls. The cursor is the raw JSON of params.cursor, empty for
// the first page; a cursor names the last item the client has seen, so that it
// stays good when the list changes, and on every edge. A cursor that no edge of
// this deployment made for this caller is -32602 (pagination, "Error Handling").
func (r *Renderer) ListPage(rev *mcp.Revision, l List, s *catalog.Snapshot, owner string, cursor []byte) ([]byte, *jsonrpc.Error) {
	if len(cursor) == 0 {
		if owner != "" && len(l.items(rev, s)) > r.PageSize {
			return r.page(rev, l, s, owner, 0), nil // it has a cursor of the caller's
		}
		page, _ := s.Memo(pageKey{l, rev.Number}, func() any { return r.page(rev, l, s, "", 0) }).([]byte)
		return page, nil
	}
	invalid := &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "params.cursor is not a cursor of this list: start again without one"}
	token, ok := jsonrpc.String(cursor)
	if !ok {
		return nil, invalid
	}
	last, err := r.Cursors.Open(l.cursorPurpose(owner), token)
	if err != nil {
		return nil, invalid
	}
	items := l.items(rev, s)
	from := sort.Search(len(items), func(i int) bool { return items[i].key > string(last) })
	return r.page(rev, l, s, owner, from), nil
}

func (r *Renderer) page(rev *mcp.Revision, l List, s *catalog.Snapshot, owner string, from int) []byte {
	items := l.items(rev, s)
	to := min(from+r.PageSize, len(items))
	size := 0
	for _, it := range items[from:to] {
		size += len(it.json) + 1
	}
	o := r.begin(rev, nil, size+256)
	o.key(l.member())
	o.buf = append(o.buf, '[')
	for i, it := range items[from:to] {
		if i > 0 {
			o.buf = append(o.buf, ',')
		}
		o.buf = append(o.buf, it.json...)
	}
	o.buf = append(o.buf, ']')
	if to < len(items) {
		o.string("nextCursor", r.Cursors.Seal(l.cursorPurpose(owner), []byte(items[to-1].key)))
	}
	scope := cacheScope(s)
	if owner != "" && (from > 0 || to < len(items)) {
		scope = mcp.CachePrivate // the cursors are this caller's
	}
	o.cache(rev, r.ListTTL, scope)
	return o.end()
}
