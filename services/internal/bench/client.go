package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/millrace/millrace/edge/sse"
)

// revision is the newest with sessions.
const revision = "2025-11-25"

const (
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + revision + `","capabilities":{},"clientInfo":{"name":"bench","version":"1.0.0"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// client is a client that does no more than it must, so that it costs the same
// whatever it talks to.
type client struct{ http *http.Client }

// connections is how many clients call at the same time.
const connections = 16

// newClient returns a client that keeps its connections.
func newClient() *client {
	return &client{&http.Client{Transport: &http.Transport{MaxIdleConns: 2 * connections, MaxIdleConnsPerHost: connections}}}
}

// call is the message of a tools/call; without a token there is no progress.
func call(id int, tool, arguments, token string) string {
	meta := ""
	if token != "" {
		meta = `,"_meta":{"progressToken":"` + token + `"}`
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s%s}}`, id, tool, arguments, meta)
}

func (c *client) do(ctx context.Context, method, url, session, lastEvent, text string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	} else {
		req.Header.Set("Accept", "text/event-stream")
	}
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
		req.Header.Set("Mcp-Protocol-Version", revision)
	}
	if lastEvent != "" {
		req.Header.Set("Last-Event-ID", lastEvent)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		answer, _ := io.ReadAll(resp.Body) // the status says enough
		resp.Body.Close()                  //nolint:errcheck,gosec // read
		return nil, fmt.Errorf("%s %s: %s %s", method, url, resp.Status, answer)
	}
	return resp, nil
}

// post sends a message and returns all of the answer.
func (c *client) post(ctx context.Context, url, session, text string) (string, error) {
	resp, err := c.do(ctx, http.MethodPost, url, session, "", text)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // read
	answer, err := io.ReadAll(resp.Body)
	return string(answer), err
}

// open begins a session.
func (c *client) open(ctx context.Context, url string) (string, error) {
	resp, err := c.do(ctx, http.MethodPost, url, "", "", initialize)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // read
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return "", err
	}
	session := resp.Header.Get("Mcp-Session-Id")
	if session == "" {
		return "", fmt.Errorf("%s gives no session", url)
	}
	_, err = c.post(ctx, url, session, initialized)
	return session, err
}

// stream is the stream of one request; it ends with cut.
type stream struct {
	reader *sse.Reader
	cut    func()
}

func (c *client) stream(ctx context.Context, method, url, session, lastEvent, text string) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	resp, err := c.do(ctx, method, url, session, lastEvent, text) //nolint:bodyclose // cut closes it
	if err != nil {
		cancel()
		return nil, err
	}
	return &stream{sse.NewReader(resp.Body, 1<<20), func() {
		cancel()
		resp.Body.Close() //nolint:errcheck,gosec // nothing more is read
	}}, nil
}

// progress returns the id of the next event that reports progress.
func (s *stream) progress() (id string, err error) {
	for {
		ev, err := s.reader.Next()
		if err != nil {
			return "", fmt.Errorf("instead of progress: %w", err)
		}
		if strings.Contains(string(ev.Data), "notifications/progress") {
			return ev.ID, nil
		}
	}
}

// listen opens the GET stream of a session on a connection that costs this
// program as little as possible, and returns when the stream has begun.
func listen(ctx context.Context, url, session string) (net.Conn, error) {
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp")
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(conn, "GET /mcp HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\nMcp-Session-Id: %s\r\nMcp-Protocol-Version: %s\r\n\r\n", address, session, revision)
	head := make([]byte, 1024)
	n := 0
	if err == nil {
		n, err = conn.Read(head)
	}
	if err == nil && !strings.HasPrefix(string(head[:n]), "HTTP/1.1 200") {
		err = fmt.Errorf("GET %s: %s", url, head[:n])
	}
	if err != nil {
		conn.Close() //nolint:errcheck,gosec // of no use
		return nil, err
	}
	return conn, nil
}
