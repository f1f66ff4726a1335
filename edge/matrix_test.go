package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/sse"
)

// carrier is a way in. The format is what the client takes as an answer.
type carrier struct {
	name   string
	http2  bool
	accept string // empty on stdio
}

var carriers = []carrier{
	{"stdio", false, ""},
	{"HTTP1 JSON", false, "application/json"},
	{"HTTP1 SSE", false, "text/event-stream"},
	{"HTTP2 JSON", true, "application/json"},
	{"HTTP2 SSE", true, "text/event-stream"},
}

// behaviours are what a client can rely on whatever it speaks, and over
// whatever it speaks.
var behaviours = []struct {
	name string
	run  func(c *cell, t *testing.T)
}{
	{"begin", (*cell).begins},
	{"list", (*cell).lists},
	{"call", (*cell).calls},
	{"progress", (*cell).progresses},
	{"cancel", (*cell).cancels},
	{"elicit", (*cell).elicits},
	{"log", (*cell).logs},
	{"error", (*cell).fails},
}

// TestMatrix is one table: each behaviour over each carrier in each revision,
// each in a system of its own, in fake time. What leaves the edge is also
// checked by the schemas.
func TestMatrix(t *testing.T) {
	t.Parallel()
	for _, rev := range mcp.Supported() {
		for _, way := range carriers {
			for _, b := range behaviours {
				t.Run(strings.Join([]string{rev, way.name, b.name}, "/"), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { b.run(newCell(t, rev, way), t) })
				})
			}
		}
	}
}

// cell is one client.
type cell struct {
	*system

	way carrier
	rev *mcp.Revision
	// streams: the client sees what precedes an answer.
	streams bool
	session string
	// first is the answer to initialize or server/discover.
	first []byte
	// in takes lines, and lines has what came; both only on stdio.
	in    io.Writer
	lines chan string
}

const cellCapabilities = `{"elicitation":{}}`

func newCell(t *testing.T, rev string, way carrier) *cell {
	t.Helper()
	row, ok := mcp.Lookup(rev)
	if !ok {
		t.Fatalf("no revision %s", rev)
	}
	c := &cell{system: start(t, Config{}), way: way, rev: row, streams: way.accept != "application/json"}
	if way.http2 {
		c.client = c.http2Client()
	}
	if way.accept == "" {
		c.connect()
	}
	var call *cellCall
	if row.Modern {
		call = c.open(mcp.MethodDiscover, `{}`)
	} else {
		call = c.openAs(`"hello"`, mcp.MethodInitialize, `{"protocolVersion":"`+rev+`","capabilities":`+cellCapabilities+`,"clientInfo":{"name":"t","version":"1"}}`)
	}
	c.first = []byte(call.only(t))
	c.session = call.session
	if !row.Modern {
		c.notify(mcp.NotificationInitialized, `{}`)
	}
	return c
}

// connect opens a stdio connection.
func (c *cell) connect() {
	in, inW := io.Pipe()
	outR, out := io.Pipe()
	c.in, c.lines = inW, make(chan string, 100) // more than any behaviour has
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.serveStdio(context.Background(), in, out); err != nil {
			c.t.Error(err)
		}
		out.Close()
	}()
	go func() {
		defer close(c.lines)
		var rest []byte
		buf := make([]byte, 4096)
		for {
			n, err := outR.Read(buf)
			rest = append(rest, buf[:n]...)
			for {
				line, more, ok := bytes.Cut(rest, []byte("\n"))
				if !ok {
					break
				}
				c.lines <- string(line)
				rest = more
			}
			if err != nil {
				return
			}
		}
	}()
	c.t.Cleanup(func() {
		inW.Close()
		<-done
	})
}

// cellCall is a request that is under way.
type cellCall struct {
	messages <-chan string
	// status and session are set once there was a message, or the end.
	status  int
	session string
	leave   func()
}

// next returns the next message; "" at the end.
func (c *cellCall) next() string { return <-c.messages }

// only returns the one message there must be.
func (c *cellCall) only(t *testing.T) string {
	t.Helper()
	got := c.next()
	if got == "" {
		t.Fatal("no answer")
	}
	return got
}

// open sends a request with the id 1.
func (c *cell) open(method, params string) *cellCall { return c.openAs("1", method, params) }

// call sends a request and returns its answer, which nothing precedes.
func (c *cell) call(t *testing.T, method, params string) (answer string, status int) {
	t.Helper()
	call := c.open(method, params)
	return call.only(t), call.status
}

func (c *cell) openAs(id, method, params string) *cellCall {
	text := `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`
	if c.rev.Modern {
		text = (&door{modern: true}).message(id, method, params)
		text = strings.Replace(text, mcp.MetaClientCapabilities+`":{}`, mcp.MetaClientCapabilities+`":`+cellCapabilities, 1)
		// One _meta: that of params goes into that of the era.
		if strings.Count(text, `"_meta":{`) == 2 {
			i := strings.LastIndex(text, `,"_meta":{`)
			own := text[i+len(`,"_meta":{`):]
			end := strings.Index(own, "}")
			text = text[:i] + own[end+1:]
			text = strings.Replace(text, `"_meta":{`, `"_meta":{`+own[:end]+`,`, 1)
		}
	}
	if c.way.accept == "" {
		if _, err := io.WriteString(c.in, text+"\n"); err != nil {
			c.t.Fatal(err)
		}
		return &cellCall{messages: c.lines, status: http.StatusOK}
	}
	ctx, leave := context.WithCancel(context.Background())
	c.t.Cleanup(leave)
	messages := make(chan string, 100) // more than any behaviour has
	call := &cellCall{messages: messages, leave: leave}
	go func() {
		defer close(messages)
		resp, err := c.client.Do(c.request(ctx, text))
		if err != nil {
			return // the client left
		}
		defer resp.Body.Close()
		if want := map[bool]int{false: 1, true: 2}[c.way.http2]; resp.ProtoMajor != want {
			c.t.Errorf("served over HTTP/%d", resp.ProtoMajor)
		}
		call.status, call.session = resp.StatusCode, resp.Header.Get(mcp.HeaderSessionID)
		if resp.Header.Get("Content-Type") != "text/event-stream" {
			raw, err := io.ReadAll(resp.Body)
			if err != nil {
				return
			}
			messages <- string(raw)
			return
		}
		for events := sse.NewReader(resp.Body, 1<<20); ; {
			ev, err := events.Next()
			if err != nil {
				return
			}
			messages <- string(ev.Data)
		}
	}()
	return call
}

// request writes the POST of one message.
func (c *cell) request(ctx context.Context, text string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp", strings.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	headers := []string{"Content-Type: application/json", "Accept: " + c.way.accept}
	if c.rev.Modern {
		headers = append(headers, modernHeaders(text)...)
	} else if c.session != "" {
		headers = append(headers, mcp.HeaderSessionID+": "+c.session)
		if c.rev.ProtocolHeader {
			headers = append(headers, mcp.HeaderProtocolVersion+": "+c.rev.Date)
		}
	}
	for _, h := range headers {
		key, value, _ := strings.Cut(h, ": ")
		req.Header.Set(key, value)
	}
	return req
}

// notify sends a notification.
func (c *cell) notify(method, params string) {
	c.t.Helper()
	c.send(`{"jsonrpc":"2.0","method":"` + method + `","params":` + params + `}`)
}

// send sends a message that has no answer.
func (c *cell) send(text string) {
	c.t.Helper()
	if c.way.accept == "" {
		if _, err := io.WriteString(c.in, text+"\n"); err != nil {
			c.t.Fatal(err)
		}
		return
	}
	resp, err := c.client.Do(c.request(context.Background(), text))
	if err != nil {
		c.t.Fatal(err)
	}
	if got := body(c.t, resp); resp.StatusCode != http.StatusAccepted || got != "" {
		c.t.Errorf("%s: %d %s", text, resp.StatusCode, got)
	}
}

// pause lets fake time pass: every cell lives in a bubble.
func pause(d time.Duration) { <-time.After(d) }

// has reports a message in which a text is missing, or there.
func has(t *testing.T, message, text string, want bool) {
	t.Helper()
	if strings.Contains(message, text) != want {
		t.Errorf("%s is there: %v, want %v, in %.600s", text, !want, want, message)
	}
}

func (c *cell) begins(t *testing.T) {
	answer := string(c.first)
	has(t, answer, `"protocolVersion":"`+c.rev.Date+`"`, !c.rev.Modern)
	has(t, answer, `"supportedVersions":[`, c.rev.Modern)
	has(t, answer, `"tools":{"listChanged":true}`, true)
	has(t, answer, `"completions":{}`, c.rev.Completions)
	if overHTTP := c.way.accept != ""; (c.session != "") != (overHTTP && !c.rev.Modern) {
		t.Errorf("session %q", c.session)
	}
	ping, status := c.call(t, mcp.MethodPing, `{}`)
	has(t, ping, `"result":{}`, !c.rev.Modern)
	has(t, ping, `"code":-32601`, c.rev.Modern)
	c.wantStatus(t, status, map[bool]int{true: http.StatusNotFound, false: http.StatusOK}[c.rev.Modern])
}

// wantStatus compares an HTTP status; stdio has none.
func (c *cell) wantStatus(t *testing.T, got, want int) {
	t.Helper()
	if c.way.accept != "" && got != want {
		t.Errorf("status %d, want %d", got, want)
	}
}

func (c *cell) lists(t *testing.T) {
	for method, name := range map[string]string{
		mcp.MethodToolsList: `"name":"add"`, mcp.MethodPromptsList: `"name":"greeting"`,
		mcp.MethodResourcesList: `"uri":"memo://notes/one"`, mcp.MethodResourceTemplatesList: `"uriTemplate":"term://{slug}"`,
	} {
		answer, status := c.call(t, method, `{}`)
		has(t, answer, name, true)
		has(t, answer, `"ttlMs"`, c.rev.CacheHints)
		has(t, answer, `"outputSchema"`, c.rev.StructuredObjects && method == mcp.MethodToolsList)
		c.wantStatus(t, status, http.StatusOK)
	}
}

func (c *cell) calls(t *testing.T) {
	answer, status := c.call(t, mcp.MethodToolsCall, `{"name":"add","arguments":{"a":1,"b":2}}`)
	has(t, answer, `{\"sum\":3}`, true)
	has(t, answer, `"structuredContent":{"sum":3}`, c.rev.StructuredObjects)
	has(t, answer, `"resultType":"complete"`, c.rev.ResultType)
	c.wantStatus(t, status, http.StatusOK)
	answer, _ = c.call(t, mcp.MethodPromptsGet, `{"name":"greeting","arguments":{"name":"Ala"}}`)
	has(t, answer, "Greet Ala.", true)
	answer, _ = c.call(t, mcp.MethodResourcesRead, `{"uri":"term://known"}`)
	has(t, answer, "about known", true)
	answer, _ = c.call(t, mcp.MethodComplete, `{"ref":{"type":"ref/prompt","name":"greeting"},"argument":{"name":"name","value":"O"}}`)
	has(t, answer, `"values":["Ola"]`, true)
}

func (c *cell) progresses(t *testing.T) {
	begun := time.Now()
	call := c.open(mcp.MethodToolsCall, `{"name":"count","arguments":{"n":3,"delay_ms":1000},"_meta":{"progressToken":"p"}}`)
	for i := range 3 {
		if !c.streams {
			break
		}
		got := call.next()
		has(t, got, `"progressToken":"p","progress":`+[]string{"1", "2", "3"}[i]+`,"total":3`, true)
		has(t, got, `"message":"counting"`, c.rev.ProgressMessage)
		if at := time.Since(begun).Round(time.Second); at != time.Duration(i+1)*time.Second {
			t.Errorf("progress %d came after %v", i+1, at)
		}
	}
	has(t, call.only(t), `"text":"counted"`, true)
	// Without a token there is none.
	has(t, c.open(mcp.MethodToolsCall, `{"name":"count","arguments":{"n":3}}`).only(t), `"text":"counted"`, true)
}

func (c *cell) cancels(t *testing.T) {
	call := c.openAs(`"c"`, mcp.MethodToolsCall, `{"name":"hang","_meta":{"progressToken":"p"}}`)
	pause(time.Second)
	byLeaving := c.rev.Modern && c.way.accept != ""
	if byLeaving {
		call.leave()
	} else {
		c.notify(mcp.NotificationCancelled, `{"requestId":"c","reason":"enough"}`)
	}
	pause(time.Second)
	if n := c.ran.value(); n != 1 {
		t.Errorf("a second later %d handlers saw their context end, want 1", n)
	}
	if !c.streams && !byLeaving {
		has(t, call.next(), `"reason":"cancelled"`, true)
	}
	// Nothing more comes for it, and the client is served on.
	answer, _ := c.call(t, mcp.MethodToolsCall, `{"name":"add","arguments":{"a":1,"b":2}}`)
	has(t, answer, `"id":1`, true)
	if c.way.accept != "" {
		if got := call.next(); got != "" {
			t.Errorf("the cancelled call was answered: %s", got)
		}
	}
}

func (c *cell) elicits(t *testing.T) {
	const accepted = `{"action":"accept","content":{"name":"Ala"}}`
	call := c.open(mcp.MethodToolsCall, `{"name":"ask"}`)
	got := call.only(t)
	switch {
	case c.rev.Modern:
		_, state := inputRequired(t, got)
		got, _ = c.call(t, mcp.MethodToolsCall, `{"name":"ask","requestState":"`+state+`","inputResponses":{"who":`+accepted+`}}`)
		has(t, got, `"text":"Ala"`, true)
	case !c.rev.Elicitation:
		has(t, got, `"isError":true`, true)
	case !c.streams:
		has(t, got, `"reason":"no_input"`, true)
	default:
		id, _ := request(t, got, mcp.MethodElicit)
		pause(5 * time.Minute) // a person thinks longer than a call may take
		c.send(`{"jsonrpc":"2.0","id":"` + id + `","result":` + accepted + `}`)
		has(t, skipComments(call), `"text":"Ala"`, true)
	}
}

// skipComments returns the next message that is one.
func skipComments(call *cellCall) string {
	for {
		if got := call.next(); got != "" {
			return got
		}
	}
}

func (c *cell) logs(t *testing.T) {
	params := `{"name":"log"}`
	if c.rev.Modern {
		has(t, c.open(mcp.MethodToolsCall, params).only(t), `"text":"logged"`, true) // silent without a level
		params = `{"name":"log","_meta":{"` + mcp.MetaLogLevel + `":"critical"}}`
	} else {
		answer, _ := c.call(t, mcp.MethodSetLevel, `{"level":"critical"}`)
		has(t, answer, `"result":{}`, true)
	}
	call := c.open(mcp.MethodToolsCall, params)
	for _, level := range []string{"critical", "alert", "emergency"} {
		if c.streams {
			has(t, call.next(), `"params":{"level":"`+level+`","logger":"fixture","data":"at `+level+`"}`, true)
		}
	}
	has(t, call.only(t), `"text":"logged"`, true)
}

func (c *cell) fails(t *testing.T) {
	for _, f := range []struct {
		method, params, want string
		status               int
	}{
		{"no/such", `{}`, `"error":{"code":-32601`, map[bool]int{true: http.StatusNotFound, false: http.StatusOK}[c.rev.Modern]},
		{mcp.MethodToolsCall, `{"name":"no_such_tool"}`, `"error":{"code":-32602`, http.StatusOK},
		{mcp.MethodToolsCall, `{"name":"fail"}`, `"isError":true`, http.StatusOK},
		{mcp.MethodToolsCall, `{"name":"crash"}`, `"error":{"code":-32603,"message":"internal error"}`, http.StatusOK},
		{mcp.MethodToolsCall, `{"name":"refuse"}`, `"error":{"code":-1234,"message":"not on Sundays","data":{"day":"Sunday"}}`, http.StatusOK},
		{mcp.MethodResourcesRead, `{"uri":"none://x"}`, `"data":{"uri":"none://x"}`, http.StatusOK},
		{mcp.MethodPromptsGet, `{"name":"greeting","arguments":{}}`, `"error":{"code":-32602`, http.StatusOK},
	} {
		answer, status := c.call(t, f.method, f.params)
		has(t, answer, f.want, true)
		c.wantStatus(t, status, f.status)
	}
	answer, _ := c.call(t, mcp.MethodToolsCall, `{"name":"add","arguments":{"a":"x","b":1}}`)
	has(t, answer, `"isError":true`, c.rev.ArgumentErrorsAreResults)
	has(t, answer, `"error":{"code":-32602`, !c.rev.ArgumentErrorsAreResults)
	var m received
	answer, _ = c.call(t, mcp.MethodResourcesRead, `{"uri":"none://x"}`)
	if err := json.Unmarshal([]byte(answer), &m); err != nil || m.Error == nil || m.Error.Code != c.rev.ResourceNotFound {
		t.Errorf("an unknown resource: %s (%v)", answer, err)
	}
}
