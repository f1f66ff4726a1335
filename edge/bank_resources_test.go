package edge

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/seal"
	"github.com/millrace/millrace/worker"
)

// The reports about resources and lists; see bank_test.go.

// oddURIs are identifiers that a relay which parses and prints them changes.
func oddURIs() []string {
	return []string{
		"users/me", "https://example.com", "HTTP://Example.COM/a", "http://example.com/a", "file:///A%2fb%2Fc", "file:///x y",
		"custom://host", "custom://host/", "memo:1#frag?x", "file:///caf%C3%A9", "file:///café", "urn:isbn:1",
		"long:" + strings.Repeat("x", 1995),
	}
}

// offerURIs adds a resource for each URI, whose text names it.
func (s *system) offerURIs(uris []string) {
	s.offer(func(w *worker.Worker) {
		for i, uri := range uris {
			w.AddResource(worker.Resource{URI: uri, Name: fmt.Sprint("odd-", i)},
				func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
					return worker.TextContents("text/plain", fmt.Sprint("text of ", i)), nil
				})
		}
	})
}

// B43: the URI that is listed, read and told of is the one that was registered,
// byte for byte, and what differs in a byte is another resource.
func TestB43URIsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		uris := oddURIs()
		d.sys.offerURIs(uris)
		var list struct{ Resources []struct{ URI string } }
		if err := json.Unmarshal([]byte(d.result(t, "resources/list", "")), &list); err != nil {
			t.Fatal(err)
		}
		listed := map[string]int{}
		for _, r := range list.Resources {
			listed[r.URI]++
		}
		for i, uri := range uris {
			if listed[uri] != 1 {
				t.Errorf("%.50q is listed %d times", uri, listed[uri])
			}
			params := `{"uri":` + string(jsonrpc.Quote(uri)) + `}`
			var read struct {
				Contents []struct{ URI, Text string }
			}
			if err := json.Unmarshal([]byte(d.readOdd(t, uri, params)), &read); err != nil {
				t.Fatal(err)
			}
			if len(read.Contents) != 1 || read.Contents[0].URI != uri || read.Contents[0].Text != fmt.Sprint("text of ", i) {
				t.Errorf("read %.50q: %+v", uri, read)
			}
		}
		for _, other := range []string{"users/Me", "https://example.com/", "file:///A%2Fb%2Fc", "file:///x%20y", "URN:isbn:1"} {
			if got := d.readOdd(t, other, `{"uri":"`+other+`"}`); got != "" {
				t.Errorf("%q is taken for another one: %s", other, got)
			}
		}
	})
}

// readOdd reads a resource whose URI a header may not be able to carry; it
// returns the result, "" for an error.
func (d *door) readOdd(t *testing.T, uri, params string) string {
	t.Helper()
	if d.name != mcp.Modern().Date {
		_, reply := d.call("1", "resources/read", params)
		return string(decode(t, reply).Result)
	}
	text := d.message("1", "resources/read", params)
	resp := d.sys.post(context.Background(), text, append(modernHeaders(text), mcp.HeaderName+": "+mirrored(uri))...)
	return string(decode(t, body(t, resp)).Result)
}

// B43, the notifications: each names the resource as it was subscribed to.
func TestB43UpdatesNameTheURI(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		uris := oddURIs()
		s.offerURIs(uris)
		quoted := make([]string, len(uris))
		for i, uri := range uris {
			quoted[i] = string(jsonrpc.Quote(uri))
		}
		text := modernMessage("7", "subscriptions/listen", `{"notifications":{"resourceSubscriptions":[`+strings.Join(quoted, ",")+`]}}`)
		modern := readStream(s.post(context.Background(), text, append(modernHeaders(text), "Accept: application/json, text/event-stream")...))
		session := s.session("2025-11-25", `{}`)
		legacy := s.listen(session)
		for _, uri := range quoted {
			got := body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":`+uri+`}}`, mcp.HeaderSessionID+": "+session))
			if !strings.Contains(got, `"result":{}`) {
				t.Errorf("subscribe %.50s: %s", uri, got)
			}
		}
		modern.waiting()
		for _, uri := range uris {
			s.worker.ResourceUpdated(uri)
		}
		time.Sleep(2 * time.Second)
		for name, stream := range map[string]*callStream{"modern": modern, "legacy": legacy} {
			told := map[string]int{}
			for _, m := range stream.waiting() {
				var n struct{ Params struct{ URI string } }
				if err := json.Unmarshal([]byte(m), &n); err != nil {
					t.Fatalf("%v in %s", err, m)
				}
				told[n.Params.URI]++
			}
			for _, uri := range uris {
				if told[uri] != 1 {
					t.Errorf("%s: told %d times of %.50q", name, told[uri], uri)
				}
			}
		}
		s.edge.Drain()
	})
}

// B45: what is missing has the code of the revision, and never an empty result
// or HTTP 404; a fault is another thing.
func TestB45MissingResources(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		d.sys.offer(func(w *worker.Worker) {
			w.AddResource(worker.Resource{URI: "bad://disk", Name: "disk"},
				func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
					return nil, errors.New("the secret of the disk")
				})
		})
		missing := -32002
		if d.modern {
			missing = jsonrpc.CodeInvalidParams
		}
		// A resource of a template that has no such item, and none at all.
		for _, uri := range []string{"file:///nonexistent", "term://unknown"} {
			status, reply := d.call("1", "resources/read", `{"uri":"`+uri+`"}`)
			m := decode(t, reply)
			if status != http.StatusOK || m.Result != nil || errorCode(t, m) != missing || !strings.Contains(string(m.Error), `"uri":"`+uri+`"`) {
				t.Errorf("read %s: %d %s", uri, status, reply)
			}
		}
		status, reply := d.call("2", "resources/read", `{"uri":"bad://disk"}`)
		if m := decode(t, reply); status != http.StatusOK || errorCode(t, m) != jsonrpc.CodeInternal || strings.Contains(reply, "secret") {
			t.Errorf("a fault while reading: %d %s", status, reply)
		}
		if d.modern {
			return
		}
		status, reply = d.call("3", "resources/subscribe", `{"uri":"file:///nonexistent"}`)
		if m := decode(t, reply); status != http.StatusOK || errorCode(t, m) != missing {
			t.Errorf("subscribe to nothing: %d %s", status, reply)
		}
	})
}

// many is how many items each list of B46 has, besides those of the fixture.
const many = 250

// offerMany fills every list.
func (s *system) offerMany() {
	s.offer(func(w *worker.Worker) {
		for i := range many {
			name := fmt.Sprintf("item-%03d", i)
			w.AddRawTool(worker.Tool{Name: name}, answering(&worker.Result{}))
			read := func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
				return worker.TextContents("text/plain", name), nil
			}
			w.AddResource(worker.Resource{URI: "many://" + name, Name: name}, read)
			w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "many-" + name + "://{x}", Name: name}, read)
			w.AddPrompt(worker.Prompt{Name: name}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
				return &worker.PromptResult{}, nil
			})
		}
	})
}

// walker lists through two edges of one deployment, in turn.
type walker struct {
	t      *testing.T
	edges  [2]*system
	method string
	member string // of the result, where the items are
	key    string // of an item, by which it is known
}

// page asks the edge of the number for the page behind a cursor, which is raw
// JSON; nil: the first page.
func (p *walker) page(edge int, cursor json.RawMessage) (keys []string, next json.RawMessage, raw string) {
	p.t.Helper()
	params := "{}"
	if cursor != nil {
		params = `{"cursor":` + string(cursor) + `}`
	}
	text := modernMessage("1", p.method, params)
	raw = body(p.t, p.edges[edge%2].post(context.Background(), text, modernHeaders(text)...))
	var result struct{ Result map[string]json.RawMessage }
	if err := json.Unmarshal([]byte(raw), &result); err != nil {
		p.t.Fatal(err)
	}
	var items []map[string]json.RawMessage
	if list := result.Result[p.member]; list != nil {
		if err := json.Unmarshal(list, &items); err != nil {
			p.t.Fatal(err)
		}
	}
	for _, item := range items {
		keys = append(keys, string(item[p.key]))
	}
	return keys, result.Result["nextCursor"], raw
}

// walk goes through the list, each page from the other edge, and calls between
// after each page.
func (p *walker) walk(first int, between func(page int)) (keys []string) {
	p.t.Helper()
	var cursor json.RawMessage
	for page := range 100 { // far more than there are
		got, next, raw := p.page(first+page, cursor)
		keys = append(keys, got...)
		if next == nil { // absent, not "" and not null: the keys of the map say so
			if strings.Contains(raw, "nextCursor") {
				p.t.Errorf("%s: the last page has a cursor: %s", p.method, raw)
			}
			return keys
		}
		cursor = next
		between(page)
	}
	p.t.Fatalf("%s does not end", p.method)
	return nil
}

// B46: 250 items in each list, walked over two edges while the list changes;
// every cursor that was not given for this list is refused.
func TestB46Paging(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{PageSize: 20, Keys: []seal.Key{{ID: 1, Secret: []byte(strings.Repeat("k", 32))}}}
		s := start(t, cfg)
		s.offerMany()
		edges := [2]*system{s, s.secondEdge(cfg)}
		cursors := map[string]json.RawMessage{}
		lists := []*walker{
			{t, edges, "tools/list", "tools", "name"},
			{t, edges, "resources/list", "resources", "uri"},
			{t, edges, "resources/templates/list", "resourceTemplates", "uriTemplate"},
			{t, edges, "prompts/list", "prompts", "name"},
		}
		for _, p := range lists {
			quiet := func(int) {}
			before := p.walk(0, quiet)
			if again := p.walk(1, quiet); !slices.Equal(again, before) {
				t.Errorf("%s: another order the second time", p.method)
			}
			if n := len(before); n < many || n > many+20 || !slices.IsSorted(before) {
				t.Errorf("%s: %d items", p.method, n)
			}
			_, cursors[p.method], _ = p.page(0, nil)
		}
		tools := lists[0]
		before := tools.walk(0, func(int) {})
		during := tools.walk(0, func(page int) {
			switch page {
			case 3: // what has been seen goes, and comes before and behind
				s.worker.RemoveTool("item-000")
				s.worker.RemoveTool("item-200")
				s.addTool("aaa")
				s.addTool("zzz")
				time.Sleep(3 * time.Second)
			case 5:
				time.Sleep(5 * time.Minute) // a cursor stays good
			case 6:
				s.stopWorker()
				s.workerConn, s.stopWorker = s.startWorker() // also without the list of before
				s.offerMany()
				time.Sleep(time.Minute)
			}
		})
		seen := map[string]int{}
		for _, key := range during {
			seen[key]++
		}
		for _, key := range before {
			if n := seen[key]; n != 1 && !(n == 0 && key == `"item-200"`) {
				t.Errorf("%s was listed %d times during changes", key, n)
			}
		}
		refused := func(p *walker, what string, cursor json.RawMessage) {
			t.Helper()
			if _, _, raw := p.page(1, cursor); !strings.Contains(raw, `"error":{"code":-32602`) {
				t.Errorf("%s, %s: %.200s", p.method, what, raw)
			}
		}
		for i, p := range lists {
			own := cursors[p.method]
			if _, _, raw := p.page(1, own); !strings.Contains(raw, `"result"`) {
				t.Errorf("%s: its own cursor, six minutes and a worker later: %.200s", p.method, raw)
			}
			refused(p, "made up", json.RawMessage(`"bogus"`))
			refused(p, "a number", json.RawMessage(`7`))
			refused(p, "null", json.RawMessage(`null`))
			refused(p, "that of another list", cursors[lists[(i+1)%len(lists)].method])
			for at := 1; at < len(own)-1; at++ {
				flipped := slices.Clone(own)
				if flipped[at] = 'A'; own[at] == 'A' {
					flipped[at] = 'B'
				}
				refused(p, fmt.Sprintf("byte %d changed", at), flipped)
			}
		}
	})
}

// secondEdge starts another edge of the same deployment.
func (s *system) secondEdge(cfg Config) *system {
	s.t.Helper()
	second := &system{t: s.t, wire: s.wire, ran: s.ran, worker: s.worker, conn: s.conn}
	var err error
	if second.edge, err = New(s.conn("edge2"), cfg); err != nil {
		s.t.Fatal(err)
	}
	run(s.t, "edge2", second.edge.Run)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := second.edge.WaitReady(ctx, "fixture"); err != nil {
		s.t.Fatal(err)
	}
	second.serveHTTP()
	// It knows the pool; what the other edge knows of it comes as soon.
	for {
		changed := second.edge.Catalog().Changed()
		if len(second.edge.Catalog().Snapshot().Tools) == len(s.edge.Catalog().Snapshot().Tools) {
			return second
		}
		<-changed
	}
}

// mirrored is a value as a header carries it: as it is, or in Base64 where a
// header could not keep it.
func mirrored(value string) string {
	plain := strings.TrimSpace(value) == value && !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' })
	if plain {
		return value
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(value)) + "?="
}
