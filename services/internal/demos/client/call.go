package client

import (
	"bytes"
	"cmp"
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

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/sse"
	"github.com/millrace/millrace/services/devcluster/proxy"
)

// pause is how long a client waits before it reconnects, unless it was told.
const pause = 200 * time.Millisecond

// Work is what a call of the tool work is to do: so many steps, each with a pause
// before it and a report of progress after it.
type Work struct {
	Batch, Item string
	Steps       int
	Every       time.Duration
}

// Call is one call of the tool work. Run makes it; the other methods may be called
// meanwhile.
type Call struct {
	client  *Client
	session string
	id      int
	work    Work

	identified chan struct{} // closed when an event id has arrived

	mu     sync.Mutex
	seen   Seen
	lastID string
}

// Seen is what the client of a call has seen of it.
type Seen struct {
	// ServedBy is the edge that holds the stream, or in the end the one that gave
	// the result; empty: none.
	ServedBy string
	Progress []float64
	Results  int
	// Resumed is how often the stream was taken up again.
	Resumed int
	// Failed are the requests that got no orderly answer: no connection, a broken
	// one, or a status that is no success. A stream that ends in order before the
	// result is none.
	Failed []error
	// Failure is why no result came.
	Failure error
	// Took is the time from the call to its result.
	Took time.Duration
}

// Progressed counts, of the steps that a call has, those whose progress was lost,
// and notifications of progress that came twice or out of order, over all streams
// of the call.
func (s Seen) Progressed(steps int) (lost, repeated int) {
	seen := map[float64]bool{}
	for i, p := range s.Progress {
		if seen[p] || i > 0 && p < s.Progress[i-1] {
			repeated++
		}
		seen[p] = true
	}
	return max(steps-len(seen), 0), repeated
}

// NewCall returns a call in a session, or with session empty of the modern era. Its
// id is unique in the session.
func (c *Client) NewCall(session string, id int, work Work) *Call {
	return &Call{client: c, session: session, id: id, work: work, identified: make(chan struct{})}
}

// Work is what the call is to do.
func (c *Call) Work() Work { return c.work }

// Modern says whether the call is of the modern era.
func (c *Call) Modern() bool { return c.session == "" }

// ID is the id of the call.
func (c *Call) ID() int { return c.id }

// Identified says whether an event with an id has come, so that the stream can be
// taken up again.
func (c *Call) Identified() bool {
	select {
	case <-c.identified:
		return true
	default:
		return false
	}
}

// Seen is what has been seen of the call until now.
func (c *Call) Seen() Seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := c.seen
	seen.Progress, seen.Failed = append([]float64(nil), seen.Progress...), append([]error(nil), seen.Failed...)
	return seen
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

// Run makes the call and collects its result, reconnecting as often as needed.
func (c *Call) Run(ctx context.Context) {
	began := time.Now()
	meta := fmt.Sprintf(`"progressToken":%d`, c.id)
	call := request{session: c.session}
	if c.session == "" {
		call.modern = "work"
		meta += fmt.Sprintf(`,%q:%q,%q:{},%q:{"name":"demo","version":"1"}`, mcp.MetaProtocolVersion, mcp.Modern().Date, mcp.MetaClientCapabilities, mcp.MetaClientInfo)
	}
	call.body = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"work","arguments":{"batch":%q,"item":%q,"steps":%d,"delay_ms":%d},"_meta":{%s}}}`,
		c.id, c.work.Batch, c.work.Item, c.work.Steps, c.work.Every.Milliseconds(), meta)
	wait := pause
	err := c.follow(ctx, call, &wait)
	for !c.settled(ctx, began, err) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		c.mu.Lock()
		again := request{session: c.session, lastID: c.lastID}
		c.seen.Resumed++
		c.mu.Unlock()
		err = c.follow(ctx, again, &wait)
	}
}

// settled notes how the call stands when a stream has ended with err, and says
// whether nothing more can come.
func (c *Call) settled(ctx context.Context, began time.Time, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && !errors.Is(err, errEnded) {
		c.seen.Failed = append(c.seen.Failed, fmt.Errorf("%s: %w", cmp.Or(c.seen.ServedBy, "proxy"), err))
	}
	if c.seen.Results > 0 {
		c.seen.Took = time.Since(began)
		return true
	}
	c.seen.ServedBy = ""
	switch {
	case c.lastID == "":
		c.seen.Failure = fmt.Errorf("the stream ended before it had an event id: %w", err)
	case ctx.Err() != nil:
		c.seen.Failure = fmt.Errorf("no result in time: %w", err)
	case errors.Is(err, errRefused):
		c.seen.Failure = err
	default:
		return false
	}
	return true
}

var (
	errRefused = errors.New("refused")
	errEnded   = errors.New("the stream ended without a result")
)

// follow makes the call, or resumes it, and reads the answer to its end. wait
// becomes what the server asks for.
func (c *Call) follow(ctx context.Context, r request, wait *time.Duration) error {
	resp, err := c.client.do(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is lost
	c.mu.Lock()
	c.seen.ServedBy = resp.Header.Get(proxy.HeaderServedBy)
	c.mu.Unlock()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // for the report; part of it will do
		err := fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
		if resp.StatusCode == http.StatusBadGateway || resp.StatusCode == http.StatusServiceUnavailable {
			return err // the proxy has not noticed yet, or an edge is going
		}
		return fmt.Errorf("%w: %w", errRefused, err)
	}
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
				return c.ended()
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

// ended is the error of a stream that has ended in order.
func (c *Call) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen.Results > 0 {
		return nil
	}
	return errEnded
}

// note notes the id of an event.
func (c *Call) note(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteLocked(id)
}

func (c *Call) noteLocked(id string) {
	if id == "" {
		return
	}
	if c.lastID == "" {
		close(c.identified)
	}
	c.lastID = id
}

// take takes one message and the id of its event.
func (c *Call) take(raw []byte, id string) error {
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
		c.seen.Progress = append(c.seen.Progress, m.Params.Progress)
	case m.Method == "" && string(m.ID) == own && strings.Contains(string(m.Result), c.work.Batch+"/"+c.work.Item+" is done."):
		c.seen.Results++
	default:
		return fmt.Errorf("%w: the answer was %s", errRefused, raw)
	}
	return nil
}
