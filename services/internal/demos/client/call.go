package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/edge/sse"
	"github.com/millrace/millrace/services/devcluster/proxy"
)

// revision is the newest one in which streams can be resumed.
const revision = "2025-11-25"

// pause is how long a client waits before it reconnects, unless it was told.
const pause = 200 * time.Millisecond

// client speaks the protocol as far as this program needs it.
type client struct {
	url  string
	http *http.Client
}

func newClient(url string) *client {
	return &client{url, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// message is any message of a server.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		ProgressToken json.RawMessage `json:"progressToken"`
		Progress      float64         `json:"progress"`
	} `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// do sends a request; body nil makes it a GET.
func (c *client) do(ctx context.Context, session, lastID string, body []byte) (*http.Response, error) {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Content-Type", "application/json")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
		req.Header.Set("Mcp-Protocol-Version", revision)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	return c.http.Do(req)
}

// initialize opens a session and returns its id.
func (c *client) initialize(ctx context.Context) (string, error) {
	resp, err := c.do(ctx, "", "", []byte(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+revision+`","capabilities":{},"clientInfo":{"name":"edgekill","version":"1"}}}`))
	if err != nil {
		return "", err
	}
	answer, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it has been read
	session := resp.Header.Get("Mcp-Session-Id")
	if err != nil || resp.StatusCode != http.StatusOK || session == "" {
		return "", fmt.Errorf("no session: %s: %s: %w", resp.Status, answer, err)
	}
	resp, err = c.do(ctx, session, "", []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	if err != nil {
		return "", err
	}
	_ = resp.Body.Close() // it has none
	if resp.StatusCode != http.StatusAccepted {
		return "", fmt.Errorf("initialized: %s", resp.Status)
	}
	return session, nil
}

// runs asks until n workers have said how often they ran each item of a batch,
// and returns the sum over them.
func (c *client) runs(ctx context.Context, batch string, n int) (map[string]int, error) {
	seen, sum := map[string]bool{}, map[string]int{}
	for range 1000 { // who answers is chance
		resp, err := c.do(ctx, "", "", []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work_runs","arguments":{"batch":"`+batch+`"}}}`))
		if err != nil {
			return nil, err
		}
		raw, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // it has been read
		if err != nil {
			return nil, err
		}
		if resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusBadGateway {
			continue
		}
		var answer struct {
			Result struct {
				Content []struct {
					Text string `json:"text"`
				} `json:"content"`
			} `json:"result"`
		}
		var ran struct {
			Instance string         `json:"instance"`
			Runs     map[string]int `json:"runs"`
		}
		if err := json.Unmarshal(raw, &answer); err != nil || len(answer.Result.Content) != 1 {
			return nil, fmt.Errorf("work_runs: %s: %s: %w", resp.Status, raw, err)
		}
		if err := json.Unmarshal([]byte(answer.Result.Content[0].Text), &ran); err != nil {
			return nil, fmt.Errorf("work_runs: %w", err)
		}
		if !seen[ran.Instance] {
			seen[ran.Instance] = true
			for item, n := range ran.Runs {
				sum[item] += n
			}
		}
		if len(seen) == n {
			return sum, nil
		}
	}
	return nil, fmt.Errorf("work_runs: %d workers answered, want %d", len(seen), n)
}

// call is one call and what its client has seen of it.
type call struct {
	client      *client
	session     string
	id          int
	batch, item string
	steps       int
	every       time.Duration

	identified chan struct{} // closed when an event id has arrived

	mu       sync.Mutex
	edge     string // that holds the stream; empty: none
	lastID   string
	progress []float64
	results  int
	resumed  int
	failure  error // why no result came
}

// run makes the call and collects its result, reconnecting as often as needed.
func (c *call) run(ctx context.Context) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"work","arguments":{"batch":%q,"item":%q,"steps":%d,"delay_ms":%d},"_meta":{"progressToken":%d}}}`,
		c.id, c.batch, c.item, c.steps, c.every.Milliseconds(), c.id)
	wait := pause
	err := c.follow(ctx, []byte(body), "", &wait)
	for !c.settled(ctx, err) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		c.mu.Lock()
		lastID := c.lastID
		c.resumed++
		c.mu.Unlock()
		err = c.follow(ctx, nil, lastID, &wait)
	}
}

// settled notes how the call stands when a stream has ended with err, and says
// whether nothing more can come.
func (c *call) settled(ctx context.Context, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.edge = ""
	switch {
	case c.results > 0:
		return true
	case c.lastID == "":
		c.failure = fmt.Errorf("the stream ended before it had an event id: %w", err)
	case ctx.Err() != nil:
		c.failure = fmt.Errorf("no result in time: %w", err)
	case errors.Is(err, errRefused):
		c.failure = err
	default:
		return false
	}
	return true
}

var (
	errRefused = errors.New("refused")
	errEnded   = errors.New("the stream ended without a result")
)

// follow makes the call, or with body nil resumes it, and reads the answer to
// its end. wait becomes what the server asks for.
func (c *call) follow(ctx context.Context, body []byte, lastID string, wait *time.Duration) error {
	resp, err := c.client.do(ctx, c.session, lastID, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is lost
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusBadGateway, http.StatusServiceUnavailable: // the proxy has not noticed yet, or an edge is going
		return errors.New(resp.Status)
	default:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // for the report; part of it will do
		return fmt.Errorf("%w: %s: %s", errRefused, resp.Status, text)
	}
	c.mu.Lock()
	c.edge = resp.Header.Get(proxy.HeaderServedBy)
	c.mu.Unlock()
	if mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); mediaType != "text/event-stream" {
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		return c.take(raw, "")
	}
	events := sse.NewReader(resp.Body, 1<<20)
	for {
		e, err := events.Next()
		if err != nil {
			c.note(events.LastID())
			if errors.Is(err, io.EOF) {
				return errEnded
			}
			return err
		}
		if events.Retry() > 0 {
			*wait = events.Retry()
		}
		if len(e.Data) == 0 {
			c.note(events.LastID())
			continue
		}
		if err := c.take(e.Data, events.LastID()); err != nil {
			return err
		}
	}
}

// note notes the id of an event.
func (c *call) note(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteLocked(id)
}

func (c *call) noteLocked(id string) {
	if id == "" {
		return
	}
	if c.lastID == "" {
		close(c.identified)
	}
	c.lastID = id
}

// take takes one message and the id of its event.
func (c *call) take(raw []byte, id string) error {
	var m message
	if err := json.Unmarshal(raw, &m); err != nil {
		return fmt.Errorf("%w: no message: %s", errRefused, raw)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteLocked(id)
	own := strconv.Itoa(c.id)
	switch {
	case m.Method == "notifications/progress" && string(m.Params.ProgressToken) == own:
		c.progress = append(c.progress, m.Params.Progress)
	case m.Method == "" && string(m.ID) == own && strings.Contains(string(m.Result), c.batch+"/"+c.item+" is done."):
		c.results++
	default:
		return fmt.Errorf("%w: the answer was %s", errRefused, raw)
	}
	return nil
}

// heldBy returns the edge that holds the stream of a call that runs.
func (c *call) heldBy() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.results > 0 {
		return ""
	}
	return c.edge
}
