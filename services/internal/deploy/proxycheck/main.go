// Command proxycheck runs an edge behind nginx, with the configuration that we
// recommend, and checks what proxies like to break:
//
//	proxycheck MILLRACE NGINX.CONF
//
// MILLRACE is the binary. It needs nginx; everything listens on the loopback
// interface and in a folder that is removed.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// limit is how long all of it may take; only a fault takes longer.
const limit = 2 * time.Minute

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	err := run(ctx, os.Args[1:], os.Stdout)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "proxycheck:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, args []string, w io.Writer) (err error) {
	if len(args) != 2 {
		return errors.New("want MILLRACE NGINX.CONF")
	}
	dir, err := os.MkdirTemp("", "millrace-proxy-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it lies where the system cleans up
	edge, err := freePort()
	if err != nil {
		return err
	}
	proxy, err := freePort()
	if err != nil {
		return err
	}
	conf, err := configuration(dir, args[1], edge, proxy)
	if err != nil {
		return err
	}
	stopEdge, err := begin(ctx, args[0], "up", "--listen", edge, "--worker", "everything", "--log-format", "json")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopEdge()) }()
	// In the foreground, so that it ends with us.
	stopProxy, err := begin(ctx, "nginx", "-p", dir, "-e", filepath.Join(dir, "error.log"), "-c", conf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProxy()) }()

	c := &client{url: "http://" + proxy, http: &http.Client{}}
	if err := c.ready(ctx); err != nil {
		return err
	}
	for _, check := range []func(context.Context) error{c.progress, c.largeMessages, c.listening, c.otherPaths} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(w, "behind nginx events come when they are sent, 5 MiB go both ways, streams stay open, and nothing else is served")
	return err
}

// configuration writes a whole configuration around the one that is checked.
func configuration(dir, path, edge, proxy string) (conf string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	changed := string(text)
	for documented, here := range map[string]string{"server 127.0.0.1:8080;": "server " + edge + ";", "listen 80;": "listen " + proxy + ";"} {
		if strings.Count(changed, documented) != 1 {
			return "", fmt.Errorf("%s has not one %q", path, documented)
		}
		changed = strings.Replace(changed, documented, here, 1)
	}
	for _, setting := range []string{"proxy_read_timeout 3600s;", "proxy_send_timeout 3600s;"} {
		if !strings.Contains(changed, setting) {
			return "", fmt.Errorf("%s lacks %q, which nobody wants to wait for here", path, setting)
		}
	}
	whole := "daemon off;\nworker_processes 1;\npid " + dir + "/pid;\nevents {}\nhttp {\naccess_log off;\n"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		whole += kind + "_temp_path " + dir + "/" + kind + ";\n"
	}
	if os.Geteuid() == 0 {
		whole = "user root;\n" + whole // its folder is ours
	}
	conf = filepath.Join(dir, "nginx.conf")
	return conf, os.WriteFile(conf, []byte(whole+changed+"\n}\n"), 0o600)
}

// begin starts a program and returns what stops it as a supervisor does.
func begin(ctx context.Context, name string, args ...string) (stop func() error, err error) {
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, log.String())
		}
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, log.String())
		}
		return nil
	}, nil
}

func freePort() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// client is a client behind the proxy.
type client struct {
	url  string
	http *http.Client
}

func (c *client) request(ctx context.Context, method, path, body, accept string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", accept)
	for _, h := range headers {
		key, value, _ := strings.Cut(h, ": ")
		req.Header.Set(key, value)
	}
	return c.http.Do(req)
}

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	text   string
}

// String is what there is to say about an answer that is not the right one.
func (a answer) String() string { return fmt.Sprintf("status %d: %.200s", a.status, a.text) }

// answer sends a request and returns all of the answer.
func (c *client) answer(ctx context.Context, method, path, body string) (answer, error) {
	resp, err := c.request(ctx, method, path, body, "application/json, text/event-stream")
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is lost
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text)}, err
}

func call(tool, arguments, meta string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments + meta + `}}`
}

// ready waits until a call is answered.
func (c *client) ready(ctx context.Context) error {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		got, err := c.answer(ctx, http.MethodPost, "/mcp", call("test_simple_text", "{}", ""))
		if err == nil && got.status == http.StatusOK && strings.Contains(got.text, `"result"`) {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("no call is answered: %w, %v", err, got)
		}
	}
}

// progress checks that a report comes long before the call ends.
func (c *client) progress(ctx context.Context) error {
	const steps, pause = 5, 400 * time.Millisecond
	resp, err := c.request(ctx, http.MethodPost, "/mcp",
		call("count", fmt.Sprintf(`{"n":%d,"delay_ms":%d}`, steps, pause.Milliseconds()), `,"_meta":{"progressToken":"p"}`), "application/json, text/event-stream")
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is lost
	var first, last time.Time
	reports := 0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		switch text := lines.Text(); {
		case strings.Contains(text, `"notifications/progress"`):
			if reports++; reports == 1 {
				first = time.Now()
			}
		case strings.Contains(text, `"result"`):
			last = time.Now()
		}
	}
	if reports < steps || last.IsZero() {
		return fmt.Errorf("%s: %d reports of progress, and an answer: %t", resp.Status, reports, !last.IsZero())
	}
	// Collected events would come together.
	if ahead := last.Sub(first); ahead < (steps-2)*pause {
		return fmt.Errorf("the first event came only %v before the answer: they are collected on the way", ahead)
	}
	return nil
}

// largeMessages checks that the size of a message is a matter of the edge.
func (c *client) largeMessages(ctx context.Context) error {
	got, err := c.answer(ctx, http.MethodPost, "/mcp", call("echo", `{"text":"`+strings.Repeat("x", 5<<20)+`"}`, ""))
	if err != nil {
		return err
	}
	if got.status != http.StatusOK || len(got.text) < 5<<20 {
		return fmt.Errorf("5 MiB are answered with %d bytes, %v", len(got.text), got)
	}
	return nil
}

// listening checks that a stream without a request is open at once, and ended by
// the client and nobody else.
func (c *client) listening(ctx context.Context) error {
	got, err := c.answer(ctx, http.MethodPost, "/mcp", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"proxycheck","version":"1"}}}`)
	if err != nil {
		return err
	}
	session := "Mcp-Session-Id: " + got.header.Get("Mcp-Session-Id")
	if got.status != http.StatusOK {
		return fmt.Errorf("initialize: %v", got)
	}
	stream, err := c.request(ctx, http.MethodGet, "/mcp", "", "text/event-stream", session)
	if err != nil {
		return err
	}
	defer stream.Body.Close() //nolint:errcheck // this is its end
	if stream.StatusCode != http.StatusOK || !strings.HasPrefix(stream.Header.Get("Content-Type"), "text/event-stream") {
		return fmt.Errorf("a listening stream: %s %s", stream.Status, stream.Header.Get("Content-Type"))
	}
	// The older transport says at once where to post.
	older, err := c.request(ctx, http.MethodGet, "/sse", "", "text/event-stream")
	if err != nil {
		return err
	}
	defer older.Body.Close() //nolint:errcheck // this is its end
	if line, err := bufio.NewReader(older.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "event: endpoint") {
		return fmt.Errorf("the older transport begins with %q (%w)", line, err)
	}
	return nil
}

// otherPaths checks that what is not for clients does not go through.
func (c *client) otherPaths(ctx context.Context) error {
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/"} {
		got, err := c.answer(ctx, http.MethodGet, path, "")
		if err != nil {
			return err
		}
		if got.status != http.StatusNotFound {
			return fmt.Errorf("%s is served to clients: %v", path, got)
		}
	}
	return nil
}
