package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Revisions of the protocol that the client speaks: the newest with sessions,
// and the one without.
const (
	legacy = "2025-11-25"
	modern = "2026-07-28"
)

// conn is one connection of a client that does no more than it must: HTTP/1.1
// with one request at a time, the same for all servers.
type conn struct {
	net    net.Conn
	reader *bufio.Reader
	// host and path are those of the endpoint.
	host, path string
	// session is the session that requests are in, if any.
	session string
	// out and body are reused.
	out, body []byte
}

// patience is how long an answer may take.
const patience = 30 * time.Second

// dial connects to an endpoint.
func dial(ctx context.Context, endpoint string) (*conn, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	return &conn{net: c, reader: bufio.NewReaderSize(c, 64<<10), host: u.Host, path: u.Path}, nil
}

func (c *conn) close() { _ = c.net.Close() } // nothing is buffered

// response is an answer. Its body is good until the next request.
type response struct {
	status  int
	session string // Mcp-Session-Id
	events  bool   // its body is a stream of events
	body    []byte
}

// header are the lines before a body; more are further ones.
func (c *conn) header(method, accept, revision, more string, length int) {
	b := c.out[:0]
	b = fmt.Appendf(b, "%s %s HTTP/1.1\r\nHost: %s\r\nAccept: %s\r\n", method, c.path, c.host, accept)
	if revision != "" {
		b = fmt.Appendf(b, "Mcp-Protocol-Version: %s\r\n", revision)
	}
	if c.session != "" {
		b = fmt.Appendf(b, "Mcp-Session-Id: %s\r\n", c.session)
	}
	if method == "POST" {
		b = fmt.Appendf(b, "Content-Type: application/json\r\nContent-Length: %d\r\n", length)
	}
	b = append(b, more...)
	b = append(b, "\r\n"...)
	c.out = b
}

// post sends a message and reads the whole answer.
func (c *conn) post(revision, more string, message []byte) (response, error) {
	c.header("POST", "application/json, text/event-stream", revision, more, len(message))
	c.out = append(c.out, message...)
	return c.send()
}

// send sends what is in out and reads the whole answer.
func (c *conn) send() (response, error) {
	if err := c.net.SetDeadline(time.Now().Add(patience)); err != nil {
		return response{}, err
	}
	if _, err := c.net.Write(c.out); err != nil {
		return response{}, err
	}
	r, length, err := c.head()
	if err != nil {
		return r, err
	}
	c.body = c.body[:0]
	switch length {
	case chunked:
		err = c.chunks()
	case none:
		err = errors.New("the answer has no length: the connection cannot be kept")
	default:
		err = c.read(length)
	}
	r.body = c.body
	return r, err
}

// Lengths of a body that are none.
const (
	chunked = -1
	none    = -2
)

// head reads the lines before the body of an answer, and the length of that.
func (c *conn) head() (r response, length int, err error) {
	status, err := c.line()
	if err != nil {
		return r, 0, err
	}
	if len(status) < len("HTTP/1.1 200") || !bytes.HasPrefix(status, []byte("HTTP/1.1 ")) {
		return r, 0, fmt.Errorf("this is no HTTP/1.1: %q", status)
	}
	if r.status, err = strconv.Atoi(string(status[9:12])); err != nil {
		return r, 0, err
	}
	length = none
	if r.status == 204 {
		length = 0
	}
	for {
		l, err := c.line()
		if err != nil {
			return r, 0, err
		}
		if len(l) == 0 {
			return r, length, nil
		}
		name, value, _ := bytes.Cut(l, []byte(":"))
		value = bytes.TrimSpace(value)
		// Few names are of interest, and these differ in length.
		switch {
		case len(name) == len("Content-Length") && strings.EqualFold(string(name), "Content-Length"):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return r, 0, err
			}
		case len(name) == len("Transfer-Encoding") && strings.EqualFold(string(name), "Transfer-Encoding"):
			length = chunked
		case len(name) == len("Content-Type") && strings.EqualFold(string(name), "Content-Type"):
			r.events = bytes.HasPrefix(value, []byte("text/event-stream"))
		case len(name) == len("Connection") && strings.EqualFold(string(name), "Connection"):
			if strings.EqualFold(string(value), "close") {
				return r, 0, errors.New("the server closes the connection")
			}
		case strings.EqualFold(string(name), "Mcp-Session-Id"):
			r.session = string(value)
		}
	}
}

// line reads a line without its end.
func (c *conn) line() ([]byte, error) {
	l, err := c.reader.ReadSlice('\n')
	return bytes.TrimSuffix(bytes.TrimSuffix(l, []byte("\n")), []byte("\r")), err
}

// chunks reads a body in chunks.
func (c *conn) chunks() error {
	for {
		l, err := c.line()
		if err != nil {
			return err
		}
		size, err := strconv.ParseUint(string(l), 16, 31)
		if err != nil {
			return err
		}
		if err := c.read(int(size)); err != nil {
			return err
		}
		if l, err = c.line(); err != nil {
			return err
		}
		if len(l) > 0 {
			return fmt.Errorf("a chunk ends with %q", l)
		}
		if size == 0 {
			return nil
		}
	}
}

// read appends n bytes to the body.
func (c *conn) read(n int) error {
	begin := len(c.body)
	if cap(c.body) < begin+n {
		grown := make([]byte, begin, 2*begin+n)
		copy(grown, c.body)
		c.body = grown
	}
	c.body = c.body[:begin+n]
	_, err := io.ReadFull(c.reader, c.body[begin:])
	return err
}

const (
	initialize  = `{"jsonrpc":"2.0","id":100000000,"method":"initialize","params":{"protocolVersion":"` + legacy + `","capabilities":{},"clientInfo":{"name":"bench","version":"1.0.0"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// open begins a session, as a client does.
func (c *conn) open() error {
	c.session = ""
	r, err := c.post("", "", []byte(initialize))
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	if r.status != 200 || r.session == "" || !bytes.Contains(r.body, []byte(`"protocolVersion":"`+legacy+`"`)) {
		return fmt.Errorf("initialize was answered with %d, session %q, %.300s", r.status, r.session, r.body)
	}
	c.session = r.session
	if r, err = c.post(legacy, "", []byte(initialized)); err != nil {
		return fmt.Errorf("initialized: %w", err)
	}
	if r.status != 202 || len(r.body) > 0 {
		return fmt.Errorf("initialized was answered with %d, %.300s", r.status, r.body)
	}
	return nil
}

// listen opens the GET stream of the session, and returns when it has begun.
func (c *conn) listen() error {
	c.header("GET", "text/event-stream", legacy, "", 0)
	if err := c.net.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.net.Write(c.out); err != nil {
		return err
	}
	r, _, err := c.head()
	if err != nil {
		return err
	}
	if r.status != 200 || !r.events {
		return fmt.Errorf("GET was answered with %d, events: %t", r.status, r.events)
	}
	return nil
}
