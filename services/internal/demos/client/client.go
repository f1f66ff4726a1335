// Package client is the client of the demonstrations: it speaks the protocol as
// far as they need it, in both eras, takes up streams that end before the result,
// and keeps what it has seen, so that a report can count what was lost.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/millrace/millrace/edge/mcp"
)

// Client makes requests to one endpoint. Its methods may be called concurrently.
type Client struct {
	url  string
	http *http.Client
}

// New returns a client. Each request has a connection of its own, so that each
// may reach another edge, unless keep is set.
func New(url string, keep bool) *Client {
	return &Client{url, &http.Client{Transport: &http.Transport{DisableKeepAlives: !keep, MaxIdleConnsPerHost: 1000}}}
}

// CloseIdle closes connections that are kept and not used.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// request is one HTTP request. Body nil makes it a GET.
type request struct {
	body    []byte
	session string
	lastID  string
	// modern is the tool that a call of the modern era is about; empty: this is
	// the legacy era.
	modern string
}

func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	method := http.MethodGet
	if r.body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Content-Type", "application/json")
	if r.session != "" {
		req.Header.Set(mcp.HeaderSessionID, r.session)
		req.Header.Set(mcp.HeaderProtocolVersion, mcp.Legacy().Date)
	}
	if r.lastID != "" {
		req.Header.Set(mcp.HeaderLastEventID, r.lastID)
	}
	if r.modern != "" {
		req.Header.Set(mcp.HeaderProtocolVersion, mcp.Modern().Date)
		req.Header.Set(mcp.HeaderMethod, "tools/call")
		req.Header.Set(mcp.HeaderName, r.modern)
	}
	return c.http.Do(req)
}

// Initialize opens a session of the newest revision in which streams can be
// resumed, and returns its id.
func (c *Client) Initialize(ctx context.Context) (string, error) {
	resp, err := c.do(ctx, request{body: []byte(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + mcp.Legacy().Date + `","capabilities":{},"clientInfo":{"name":"demo","version":"1"}}}`)})
	if err != nil {
		return "", err
	}
	answer, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it has been read
	session := resp.Header.Get(mcp.HeaderSessionID)
	if err != nil || resp.StatusCode != http.StatusOK || session == "" {
		return "", fmt.Errorf("no session: %s: %s: %w", resp.Status, answer, err)
	}
	resp, err = c.do(ctx, request{body: []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), session: session})
	if err != nil {
		return "", err
	}
	_ = resp.Body.Close() // it has none
	if resp.StatusCode != http.StatusAccepted {
		return "", fmt.Errorf("initialized: %s", resp.Status)
	}
	return session, nil
}

// Runs asks until n workers have said how often they ran each item of a batch,
// and returns the sum over them.
func (c *Client) Runs(ctx context.Context, batch string, n int) (map[string]int, error) {
	seen, sum := map[string]bool{}, map[string]int{}
	for range 1000 { // who answers is chance
		resp, err := c.do(ctx, request{body: []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work_runs","arguments":{"batch":"` + batch + `"}}}`)})
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
