package docs

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/proto/bus"
)

// Cells of the table.
const (
	served = "yes"
	absent = "–"  // the revision does not have it
	refuse = "no" // the revision has it, we do not
)

// tableRow is one row of the table of docs/protocol.md.
type tableRow struct {
	group, name string
	cells       map[string]string // by revision
	shownBy     string
}

// protocolTable reads the section about methods, notifications, headers and
// capabilities.
func protocolTable(t *testing.T) map[string]tableRow {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "docs", "protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(raw), "\n## Methods, notifications, headers and capabilities\n")
	if !found {
		t.Fatal("docs/protocol.md has no such section")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	dates := mcp.Supported()
	slices.Sort(dates)
	rows := map[string]tableRow{}
	group := ""
	for line := range strings.SplitSeq(section, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		switch {
		case !strings.HasPrefix(line, "| "):
			continue
		case len(cells) != len(dates)+2:
			t.Fatalf("a row of %d cells: %s", len(cells), line)
		case !strings.HasPrefix(cells[0], "`"):
			group = cells[0]
			if !slices.Equal(cells[1:len(cells)-1], dates) {
				t.Errorf("the revisions are %v, the table %s has others", dates, group)
			}
			continue
		}
		row := tableRow{group: group, name: strings.Trim(cells[0], "`"), cells: map[string]string{}, shownBy: cells[len(cells)-1]}
		for i, date := range dates {
			row.cells[date] = cells[i+1]
			if !slices.Contains([]string{served, absent, refuse}, cells[i+1]) {
				t.Errorf("%s in %s: %q", row.name, date, cells[i+1])
			}
		}
		// A method that both sides send has one row in each group.
		key := row.name
		if _, twice := rows[key]; twice {
			t.Errorf("%s has two rows", key)
		}
		rows[key] = row
	}
	return rows
}

// schemaOf reads the definitions of a revision's schema.
func schemaOf(t *testing.T, date string) map[string]definition {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "edge", "testdata", "schema", date+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Definitions map[string]definition `json:"definitions"`
		Defs        map[string]definition `json:"$defs"`
	}
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	if schema.Defs != nil {
		return schema.Defs
	}
	return schema.Definitions
}

type definition struct {
	Properties map[string]struct {
		Const      any                        `json:"const"`
		Properties map[string]json.RawMessage `json:"properties"`
	} `json:"properties"`
}

// TestProtocolTable compares the table with the schemas of the specification,
// with the tests it names, and with what an edge does.
func TestProtocolTable(t *testing.T) {
	t.Parallel()
	rows := protocolTable(t)
	names := shownNames(t)
	for _, row := range rows {
		shown := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row.shownBy, -1)
		if slices.Contains(slices.Collect(maps.Values(row.cells)), served) == (len(shown) == 0) {
			t.Errorf("%s: shown by %s", row.name, row.shownBy)
		}
		for _, s := range shown {
			if !names[s[1]] {
				t.Errorf("%s: %s is no test and no conversation", row.name, s[1])
			}
		}
	}
	ask := client(t)
	for _, date := range mcp.Supported() {
		known := map[string]bool{}
		definitions := schemaOf(t, date)
		for _, d := range definitions {
			if method, ok := d.Properties["method"].Const.(string); ok {
				known[method] = true
			}
		}
		for side, of := range map[string]string{"server": "ServerCapabilities", "client": "ClientCapabilities"} {
			for name, capability := range definitions[of].Properties {
				known[side+"."+name] = true
				for part := range capability.Properties {
					known[side+"."+name+"."+part] = true
				}
			}
		}
		for name := range known {
			if rows[name].cells == nil {
				t.Errorf("%s of %s has no row", name, date)
			}
		}
		for name, row := range rows {
			if strings.HasPrefix(row.group, "Headers") {
				continue // no schema has them
			}
			if (row.cells[date] == absent) == known[name] {
				t.Errorf("%s in %s: the table says %q, in the schema: %v", name, date, row.cells[date], known[name])
			}
			checkServed(t, ask, row, date)
		}
	}
	// Every header the edge knows has a row.
	source, err := os.ReadFile(filepath.Join(root, "edge", "mcp", "mcp.go"))
	if err != nil {
		t.Fatal(err)
	}
	headers := regexp.MustCompile(`Header\w+\s+= "([^"]+)"`).FindAllSubmatch(source, -1)
	if len(headers) < 4 {
		t.Errorf("found %d headers", len(headers))
	}
	for _, h := range headers {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(rows)), func(name string) bool { return http.CanonicalHeaderKey(name) == string(h[1]) }) {
			t.Errorf("the header %s has no row", h[1])
		}
	}
}

// checkServed asks an edge about one cell.
func checkServed(t *testing.T, ask func(date, method string) (answer, bool), row tableRow, date string) {
	t.Helper()
	capability, isCapability := strings.CutPrefix(row.name, "server.")
	switch {
	case row.group == "Requests of clients":
		got, ok := ask(date, row.name)
		if !ok {
			return
		}
		if missing := got.Error.Code == -32601; missing == (row.cells[date] == served) {
			t.Errorf("%s in %s: the table says %q, the edge %+v", row.name, date, row.cells[date], got.Error)
		}
	case isCapability:
		method := mcp.MethodInitialize
		if row, _ := mcp.Lookup(date); row.Modern {
			method = mcp.MethodDiscover
		}
		got, _ := ask(date, method)
		var value any = got.Result.Capabilities
		for part := range strings.SplitSeq(capability, ".") {
			object, _ := value.(map[string]any) // nil has no members
			value = object[part]
		}
		if declared := value != nil && value != false; declared != (row.cells[date] == served) {
			t.Errorf("%s in %s: the table says %q, the edge %v", row.name, date, row.cells[date], value)
		}
	}
}

// answer is what an edge says.
type answer struct {
	Result struct {
		Capabilities map[string]any `json:"capabilities"`
	} `json:"result"`
	Error struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// client returns a function that sends a request without params to an edge
// without workers; false: the era of the date is not the one that serves it.
func client(t *testing.T) func(date, method string) (answer, bool) {
	t.Helper()
	server := startNATS(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	conn, err := bus.Connect(ctx, bus.ConnConfig{URL: server.ClientURL(), Name: "edge"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	e, err := edge.New(conn, edge.Config{})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1) // one result
	go func() { done <- e.Run(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := e.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	post := func(body string, headers map[string]string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		for key, value := range headers {
			r.Header.Set(key, value)
		}
		e.Handler().ServeHTTP(w, r)
		return w
	}
	initialize := func(date string) *httptest.ResponseRecorder {
		return post(fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, date), nil)
	}
	return func(date, method string) (got answer, ok bool) {
		t.Helper()
		var w *httptest.ResponseRecorder
		row, _ := mcp.Lookup(date)
		switch {
		case !row.Modern && method == mcp.MethodDiscover, row.Modern && method == mcp.MethodInitialize:
			return answer{}, false // the method says which era it is of
		case row.Modern:
			// The stream of a subscription would not end: JSON only.
			w = post(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"_meta":{%q:%q,%q:{}}}}`, method, mcp.MetaProtocolVersion, date, mcp.MetaClientCapabilities),
				map[string]string{mcp.HeaderProtocolVersion: date, mcp.HeaderMethod: method, "Accept": "application/json"})
		case method == mcp.MethodInitialize:
			w = initialize(date)
		default:
			w = post(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{}}`, method),
				map[string]string{mcp.HeaderSessionID: initialize(date).Header().Get(mcp.HeaderSessionID)})
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatalf("%s in %s: %d %s", method, date, w.Code, w.Body)
		}
		return got, true
	}
}

// shownNames are the names of the tests of the repository and of the
// conversations, as era/name.
func shownNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	test := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, ok := strings.CutSuffix(path, ".txtar"); ok {
			names[filepath.Base(filepath.Dir(path))+"/"+filepath.Base(name)] = true
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		for _, m := range test.FindAllSubmatch(source, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
