package edge

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/edge/sse"
)

// sseClient is a client of HTTP+SSE. It reads all the time, as callStream does.
type sseClient struct {
	t      testing.TB
	client *http.Client
	header []string
	// endpoint is where its messages go.
	endpoint *url.URL
	// events are those after the first one; closed at the end of the stream.
	events chan sse.Event
	// hangUp ends the connection from the client's side.
	hangUp context.CancelFunc
}

// openSSE opens a connection at a URL, with headers, "Key: value" each, which
// are sent with each message too.
func openSSE(t testing.TB, client *http.Client, at string, headers ...string) *sseClient {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &sseClient{t: t, client: client, header: headers, events: make(chan sse.Event, 1000), hangUp: cancel} // more than any test has
	resp := c.do(ctx, http.MethodGet, at, "")
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		cancel()
		t.Fatalf("GET %s: %d %s", at, resp.StatusCode, body(t, resp))
	}
	events := sse.NewReader(resp.Body, 1<<26)
	first, err := events.Next()
	if err != nil || first.Name != "endpoint" {
		cancel()
		t.Fatalf("the first event is %+v (%v)", first, err)
	}
	if c.endpoint, err = resp.Request.URL.Parse(string(first.Data)); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer resp.Body.Close()
		defer close(c.events)
		for {
			ev, err := events.Next()
			if err != nil {
				return
			}
			c.events <- ev
		}
	})
	t.Cleanup(func() {
		cancel()
		reading.Wait()
	})
	return c
}

// openSSE opens a connection to the edge.
func (s *system) openSSE(headers ...string) *sseClient {
	s.t.Helper()
	return openSSE(s.t, s.client, "http://localhost/sse", headers...)
}

// handshake opens a connection and agrees on a revision.
func (s *system) handshake(date, capabilities string, headers ...string) *sseClient {
	s.t.Helper()
	c := s.openSSE(headers...)
	c.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"` + date + `","capabilities":` + capabilities + `}}`)
	if got := c.next(); !strings.Contains(got, `"protocolVersion":"`+date+`"`) {
		s.t.Fatalf("initialize: %s", got)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

func (c *sseClient) do(ctx context.Context, method, at, text string, headers ...string) *http.Response {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, at, strings.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, h := range append(c.header, headers...) {
		key, value, _ := strings.Cut(h, ": ")
		req.Header.Set(key, value)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

// post sends a body and returns the HTTP answer.
func (c *sseClient) post(text string) (status int, reply string) {
	c.t.Helper()
	resp := c.do(context.Background(), http.MethodPost, c.endpoint.String(), text, "Content-Type: application/json")
	return resp.StatusCode, body(c.t, resp)
}

// send sends a message, which must be accepted.
func (c *sseClient) send(text string) {
	c.t.Helper()
	if status, reply := c.post(text); status != http.StatusAccepted || reply != "" {
		c.t.Fatalf("%.200s: %d %s", text, status, reply)
	}
}

// next returns the next message; "" at the end of the stream.
func (c *sseClient) next() string {
	c.t.Helper()
	ev, ok := <-c.events
	if ok && ev.Name != "message" {
		c.t.Errorf("an event %q: %s", ev.Name, ev.Data)
	}
	return string(ev.Data)
}

// door makes the client one of those of everyDoor. What is refused with 400 is
// refused by an event too, when its id can be read.
func (c *sseClient) door(text string) (status int, reply string) {
	c.t.Helper()
	status, reply = c.post(text)
	if status == http.StatusAccepted {
		return http.StatusOK, c.next()
	}
	var m struct{ ID json.RawMessage }
	if err := json.Unmarshal([]byte(reply), &m); err != nil {
		c.t.Fatalf("%v in %q", err, reply)
	}
	if status == http.StatusBadRequest && m.ID != nil && string(m.ID) != "null" {
		if event := c.next(); event != reply {
			c.t.Errorf("refused with\n%s\nand by the event\n%s", reply, event)
		}
	}
	return status, reply
}
