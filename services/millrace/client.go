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
	"net"
	"net/http"
	"time"

	"github.com/millrace/millrace/edge"
	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/sse"
)

// client is the MCP client behind ls and call. It speaks the newest revision
// over Streamable HTTP, so it works with any edge.
type client struct {
	url  string
	http *http.Client
	// token is the bearer token; empty: none is sent.
	token string
}

// rpcError is a JSON-RPC error of the server.
type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *rpcError) Error() string {
	text := fmt.Sprintf("%s (code %d)", e.Message, e.Code)
	if len(e.Data) > 0 {
		text += " " + string(e.Data)
	}
	return text
}

// progress is one progress notification.
type progress struct {
	Progress float64  `json:"progress"`
	Total    *float64 `json:"total"`
	Message  string   `json:"message"`
}

// request sends one request and returns its result. Progress is asked for when
// onProgress is not nil, and reported before request returns. name is the
// mirrored Mcp-Name, empty for methods without one.
func (c *client) request(ctx context.Context, method, name string, params map[string]any, onProgress func(progress)) (json.RawMessage, error) {
	meta := map[string]any{
		mcp.MetaProtocolVersion:    mcp.Modern().Date,
		mcp.MetaClientInfo:         mcp.Implementation{Name: "millrace", Version: version()},
		mcp.MetaClientCapabilities: struct{}{},
	}
	if onProgress != nil {
		meta[mcp.MetaProgressToken] = 1
	}
	all := map[string]any{"_meta": meta}
	maps.Copy(all, params)
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": all})
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set(mcp.HeaderProtocolVersion, mcp.Modern().Date)
	req.Header.Set(mcp.HeaderMethod, method)
	if name != "" {
		req.Header.Set(mcp.HeaderName, name)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, &exitError{exitUnreachable, fmt.Errorf("no answer from %s: %w", c.url, errors.Unwrap(err))}
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is lost
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch mediaType {
	case "application/json":
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, &exitError{exitUnreachable, fmt.Errorf("answer cut off: %w", err)}
		}
		result, _, err := readMessage(raw, nil)
		return result, err
	case "text/event-stream":
		events := sse.NewReader(resp.Body, maxAnswer)
		for {
			ev, err := events.Next()
			if err != nil {
				return nil, &exitError{exitUnreachable, fmt.Errorf("the stream ended without an answer: %w", err)}
			}
			if result, final, err := readMessage(ev.Data, onProgress); final || err != nil {
				return result, err
			}
		}
	default:
		return nil, &exitError{exitUnreachable, fmt.Errorf("%s answered %s, which is no MCP answer", c.url, resp.Status)}
	}
}

// maxAnswer is the largest event that is read: the bound on results, 64 MiB,
// with room for what is around them.
const maxAnswer = 66 << 20

// readMessage reads one message of the server; final is true for the answer.
func readMessage(raw []byte, onProgress func(progress)) (result json.RawMessage, final bool, err error) {
	msg, decodeErr := jsonrpc.Decode(raw, jsonrpc.Limits{MaxBytes: maxAnswer})
	if decodeErr != nil {
		return nil, true, &exitError{exitUnreachable, fmt.Errorf("the answer is no JSON-RPC message: %w", decodeErr)}
	}
	switch {
	case msg.Error != nil:
		e := &rpcError{}
		if err := json.Unmarshal(msg.Error, e); err != nil {
			return nil, true, &exitError{exitUnreachable, fmt.Errorf("the error in the answer cannot be read: %w", err)}
		}
		return nil, true, &exitError{exitRefused, e}
	case msg.Result != nil:
		return msg.Result, true, nil
	}
	if msg.Method == mcp.NotificationProgress && onProgress != nil {
		var p progress
		if err := json.Unmarshal(msg.Params.Raw, &p); err == nil {
			onProgress(p)
		}
	}
	return nil, false, nil
}

// list reads all pages of a list.
func (c *client) list(ctx context.Context, method, member string) ([]json.RawMessage, error) {
	var items []json.RawMessage
	params := map[string]any{}
	for {
		raw, err := c.request(ctx, method, "", params, nil)
		if err != nil {
			return nil, err
		}
		var page map[string]json.RawMessage
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		var part []json.RawMessage
		if err := json.Unmarshal(page[member], &part); err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		items = append(items, part...)
		if page["nextCursor"] == nil {
			return items, nil
		}
		params["cursor"] = page["nextCursor"]
	}
}

// serverFlags say which server ls and call talk to.
type serverFlags struct {
	URL  string `default:"http://127.0.0.1:8080/mcp" env:"MILLRACE_URL" help:"MCP endpoint of an edge."`
	NATS string `name:"nats" env:"MILLRACE_NATS" placeholder:"URL" help:"NATS of a cluster to use instead, by an edge inside this process."`
	natsAccess
	namespaceFlag

	Token string `env:"MILLRACE_TOKEN" help:"Bearer token for the edge. Others on this machine can see flags: use the variable."`
}

// withEdge runs do against the server the flags name: over HTTP, or with an
// edge of its own on the cluster's NATS. e is nil over HTTP.
func (f *serverFlags) withEdge(ctx context.Context, a *app, do func(ctx context.Context, c *client, e *edge.Edge) error) error {
	if f.NATS == "" {
		return do(ctx, &client{url: f.URL, http: &http.Client{}, token: f.Token}, nil)
	}
	log := quiet(a.log)
	r := &roles{app: &app{stdin: a.stdin, stdout: a.stdout, stderr: a.stderr, log: log}}
	r.conn = f.access(f.NATS)
	e, edgeActor, err := r.edge(ctx, edge.Config{NamespaceConflicts: f.NamespaceConflicts, Logger: log})
	if err != nil {
		return &exitError{exitUnreachable, err}
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("no loopback port: %w", err)
	}
	server := &http.Server{Handler: e.Handler(), ReadHeaderTimeout: 10 * time.Second}
	p := newProcess(ctx, a.log)
	p.add(actor{"command", func(ctx context.Context) error {
		if err := e.WaitReady(ctx); err != nil {
			return err
		}
		return do(ctx, &client{url: "http://" + ln.Addr().String() + "/mcp", http: &http.Client{}}, e)
	}}, actor{"http", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() {
			server.Close() //nolint:errcheck,gosec // the command is over
		})
		defer stop()
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}}, edgeActor)
	return p.run()
}
