package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/edge/sse"
	"github.com/millrace/millrace/services/devcluster/proxy"
)

// The revisions that the calls are made in: the newest of each era.
const (
	legacyRevision = "2025-11-25"
	modernRevision = "2026-07-28"
)

// Kinds of outcomes of an attempt. What stands in JSON-RPC errors as
// data.reason is a kind, too.
const (
	outcomeResult      = "result"
	outcomeToolError   = "tool_error"
	outcomeOverloaded  = "overloaded"
	outcomeUnavailable = "unavailable"
	outcomeWorkerLost  = "worker_lost"
	outcomeEdgeLost    = "edge_lost"
	outcomeTimeout     = "timeout"
	outcomeCancelled   = "cancelled"
	outcomeNotKept     = "not_kept"
	outcomeTooLarge    = "too_large"
	outcomeResultLost  = "result_lost"
	outcomeMayHave     = "may_have_started"
	// No edge took the connection: the proxy says so.
	outcomeNoEdge = "no_edge"
	// The connection was lost, and nothing says what became of the call.
	outcomeConnectionLost = "connection_lost"
	// The session is unknown to the edge.
	outcomeSessionLost = "session_lost"
	// Nothing came in time. That is what must not be.
	outcomeUnanswered = "unanswered"
	// An answer that is none of these.
	outcomeOther = "other"
)

// notExecuted are the outcomes that promise that nothing was executed.
func notExecuted(outcome string) bool {
	switch outcome {
	case outcomeOverloaded, outcomeUnavailable, outcomeNoEdge, outcomeSessionLost:
		return true
	}
	return false
}

// attempt is one request of a call, with all streams that its answer came on.
type attempt struct {
	Outcome string    `json:"outcome"`
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Edge    string    `json:"edge,omitempty"`    // that answered first
	Resumed int       `json:"resumed,omitempty"` // how often its stream was taken up again
	Worker  string    `json:"worker,omitempty"`  // process that gave the result
	Run     int64     `json:"run,omitempty"`     // and its execution
	Detail  string    `json:"detail,omitempty"`  // of an outcome that says little
	Wrong   string    `json:"wrong,omitempty"`   // what is wrong with the answer
}

// reply is any message of a server.
type reply struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		ProgressToken json.RawMessage `json:"progressToken"`
		Progress      float64         `json:"progress"`
		Message       string          `json:"message"`
	} `json:"params"`
	Result *struct {
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
		IsError bool `json:"isError"`
	} `json:"result"`
	Error *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    struct {
			Reason       string `json:"reason"`
			RetryAfterMS int    `json:"retryAfterMs"`
		} `json:"data"`
	} `json:"error"`
}

// client speaks the protocol as far as this program needs it.
type client struct {
	url  string
	http *http.Client
}

func newClient(url string) *client {
	return &client{url, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000, IdleConnTimeout: 5 * time.Second}}}
}

// post sends a message; session "" is none.
func (c *client) post(ctx context.Context, session string, headers http.Header, body string) (*http.Response, error) {
	return c.do(ctx, http.MethodPost, session, headers, strings.NewReader(body))
}

func (c *client) do(ctx context.Context, method, session string, headers http.Header, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url, body)
	if err != nil {
		return nil, err
	}
	// A request with a body that can be sent again is repeated by the client
	// library on a connection that died idle. Only this program repeats.
	req.GetBody = nil
	maps.Copy(req.Header, headers)
	req.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
		req.Header.Set("Mcp-Protocol-Version", legacyRevision)
	}
	return c.http.Do(req)
}

// brief is a response that has been read.
type brief struct {
	code    int
	session string // that it names
	body    []byte
}

// short sends a message whose answer is short, and returns it.
func (c *client) short(ctx context.Context, session, body string) (brief, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.post(ctx, session, nil, body)
	if err != nil {
		return brief{}, err
	}
	raw, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it has been read
	return brief{resp.StatusCode, resp.Header.Get("Mcp-Session-Id"), raw}, err
}

// initialize opens a session. The level of its log is set, so that something of
// it is stored; level is how that ended.
func (c *client) initialize(ctx context.Context) (session, level string, err error) {
	got, err := c.short(ctx, "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+legacyRevision+`","capabilities":{},"clientInfo":{"name":"chaos","version":"1"}}}`)
	if err != nil {
		return "", "", err
	}
	if session = got.session; got.code != http.StatusOK || session == "" {
		return "", "", fmt.Errorf("no session: %d: %s", got.code, got.body)
	}
	if _, err = c.short(ctx, session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil {
		return "", "", err
	}
	got, err = c.short(ctx, session, `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"warning"}}`)
	var r reply
	switch {
	case err != nil || got.code == http.StatusBadGateway:
		level = outcomeConnectionLost
	case got.code == http.StatusServiceUnavailable:
		level = outcomeNoEdge
	case json.Unmarshal(got.body, &r) != nil:
		level = fmt.Sprintf("%s: %d: %s", outcomeOther, got.code, got.body)
	case r.Error != nil && r.Error.Data.Reason != "":
		level = r.Error.Data.Reason
	case r.Error != nil:
		level = outcomeOther + ": " + string(got.body)
	default:
		level = outcomeResult
	}
	return session, level, nil
}

// conversation is one attempt under way.
type conversation struct {
	client  *client
	call    *call
	number  int // of the attempt
	id      int // of the request; unique in the run
	session string
	a       *attempt

	lastID     string
	wait       time.Duration // before a stream is taken up again
	retryAfter time.Duration
	progress   float64
}

// run makes the attempt.
func (v *conversation) run(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if after := v.call.cancelAfter; after > 0 {
		timer := time.AfterFunc(after, func() { v.takeBack(ctx, cancel) })
		defer timer.Stop()
	}
	v.wait = 200 * time.Millisecond
	err := v.follow(v.open(ctx))
	for v.a.Outcome == "" && v.lastID != "" && ctx.Err() == nil && v.call.cancelAfter == 0 {
		pause(ctx, v.wait)
		v.a.Resumed++
		err = v.follow(v.client.do(ctx, http.MethodGet, v.session, http.Header{"Last-Event-Id": {v.lastID}}, nil))
	}
	v.a.End = time.Now()
	if v.a.Outcome != "" {
		return
	}
	switch {
	case v.call.cancelAfter > 0 && v.a.End.Sub(v.a.Start) >= v.call.cancelAfter && v.a.End.Sub(v.a.Start) < attemptTimeout:
		v.a.Outcome = outcomeCancelled
	case ctx.Err() != nil:
		v.a.Outcome = outcomeUnanswered
	default:
		v.a.Outcome = outcomeConnectionLost
	}
	if err != nil {
		v.a.Detail = err.Error()
	}
}

// open sends the request.
func (v *conversation) open(ctx context.Context) (*http.Response, error) {
	tool := toolOnce
	if v.call.Idempotent {
		tool = toolMany
	}
	meta := ""
	headers := http.Header{}
	if v.call.Progress {
		meta = fmt.Sprintf(`"progressToken":%d`, v.id)
	}
	if !v.call.Legacy {
		if meta != "" {
			meta += ","
		}
		meta += `"io.modelcontextprotocol/protocolVersion":"` + modernRevision + `","io.modelcontextprotocol/clientInfo":{"name":"chaos","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`
		headers.Set("Mcp-Protocol-Version", modernRevision)
		headers.Set("Mcp-Method", "tools/call")
		headers.Set("Mcp-Name", tool)
	}
	return v.client.post(ctx, v.session, headers, fmt.Sprintf(
		`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"token":%d,"attempt":%d,"ms":%d},"_meta":{%s}}}`,
		v.id, tool, v.call.Token, v.number, v.call.MS, meta))
}

// takeBack cancels the call as its era does it.
func (v *conversation) takeBack(ctx context.Context, cancel func()) {
	if !v.call.Legacy {
		cancel()
		return
	}
	// Whether it arrives is the cluster's business: without an answer the
	// call ends as any other.
	_, _ = v.client.short(ctx, v.session, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, v.id))
}

// errMore is the end of a stream that says to come again.
var errMore = errors.New("the stream ended without an answer")

// follow reads a response to its end. An answer becomes the outcome.
func (v *conversation) follow(resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is lost
	edge := resp.Header.Get(proxy.HeaderServedBy)
	if v.a.Edge == "" {
		v.a.Edge = edge
	}
	if mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); mediaType == "text/event-stream" {
		return v.events(resp.Body)
	}
	raw, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusBadGateway:
		return errors.New(resp.Status)
	case resp.StatusCode == http.StatusServiceUnavailable && edge == "":
		if v.lastID == "" { // else there is a call that goes on
			v.a.Outcome = outcomeNoEdge
			v.retryAfter = time.Second
		}
		return errMore
	case resp.StatusCode == http.StatusNotFound:
		v.a.Outcome, v.a.Detail = outcomeSessionLost, string(raw)
		return nil
	case resp.StatusCode == http.StatusMethodNotAllowed:
		v.a.Outcome, v.a.Detail = outcomeNotKept, string(raw)
		return nil
	case len(bytes.TrimSpace(raw)) == 0:
		return errors.New(resp.Status + " with nothing in it")
	}
	v.take(raw)
	return nil
}

// events reads a stream of events.
func (v *conversation) events(body io.Reader) error {
	events := sse.NewReader(body, 1<<20)
	for {
		e, err := events.Next()
		if id := events.LastID(); id != "" && v.call.Legacy {
			v.lastID = id
		}
		if events.Retry() > 0 {
			v.wait = events.Retry()
		}
		if err == io.EOF {
			return errMore
		}
		if err != nil {
			return err
		}
		if len(e.Data) > 0 {
			v.take(e.Data)
		}
	}
}

// wrong notes what is wrong with an answer; the first is enough.
func (v *conversation) wrong(format string, args ...any) {
	if v.a.Wrong == "" {
		v.a.Wrong = fmt.Sprintf(format, args...)
	}
}

// take takes one message.
func (v *conversation) take(raw []byte) {
	var m reply
	own := strconv.Itoa(v.id)
	if err := json.Unmarshal(raw, &m); err != nil {
		v.a.Outcome, v.a.Detail = outcomeOther, string(raw)
		v.wrong("no message: %s", raw)
		return
	}
	if m.Method != "" {
		switch {
		case m.Method != "notifications/progress":
			v.wrong("nobody asked for %s", raw)
		case string(m.Params.ProgressToken) != own || m.Params.Message != strconv.Itoa(v.call.Token):
			v.wrong("progress of another call: %s", raw)
		case m.Params.Progress <= v.progress:
			v.wrong("progress %v after %v", m.Params.Progress, v.progress)
		case v.a.Outcome != "":
			v.wrong("progress after the answer")
		}
		v.progress = m.Params.Progress
		return
	}
	if v.a.Outcome != "" {
		v.wrong("a second answer: %s", raw)
		return
	}
	if string(m.ID) != own {
		v.wrong("the answer to another request: %s", raw)
	}
	switch {
	case m.Result != nil && m.Result.IsError:
		v.a.Outcome, v.a.Detail = outcomeToolError, string(raw)
	case m.Result != nil:
		v.a.Outcome = outcomeResult
		v.result(m, raw)
	case m.Error != nil && m.Error.Data.Reason != "":
		v.a.Outcome, v.a.Detail = m.Error.Data.Reason, m.Error.Message
		v.retryAfter = time.Duration(m.Error.Data.RetryAfterMS) * time.Millisecond
	default:
		v.a.Outcome, v.a.Detail = outcomeOther, string(raw)
	}
}

// result reads what the tool returned.
func (v *conversation) result(m reply, raw []byte) {
	var token, number int
	text := ""
	if len(m.Result.Content) == 1 {
		text = m.Result.Content[0].Text
	}
	n, err := fmt.Sscanf(text, "%d %d %s %d", &token, &number, &v.a.Worker, &v.a.Run)
	if n != 4 || err != nil {
		v.wrong("an empty or broken result: %s", raw)
		return
	}
	if token != v.call.Token || number != v.number {
		v.wrong("the result of call %d attempt %d for call %d attempt %d", token, number, v.call.Token, v.number)
	}
}
