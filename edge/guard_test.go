package edge

import (
	"net/http"
	"testing"
)

func TestGuard(t *testing.T) {
	t.Parallel()
	local, err := newGuard(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	public, err := newGuard([]string{"MCP.example.com"}, []string{"https://app.example"})
	if err != nil {
		t.Fatal(err)
	}
	open, err := newGuard([]string{"*"}, []string{"*"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		guard  guard
		host   string
		origin []string
		ok     bool
	}{
		{"loopback name", local, "localhost:8080", nil, true},
		{"loopback v4", local, "127.0.0.1", nil, true},
		{"loopback v6", local, "[::1]:8080", nil, true},
		{"loopback in capitals", local, "LocalHost:8080", nil, true},
		{"rebound name", local, "evil.example:8080", nil, false},
		{"rebound name that starts well", local, "localhost.evil.example", nil, false},
		{"no host", local, "", nil, false},
		{"loopback page", local, "localhost:8080", []string{"http://localhost:3000"}, true},
		{"loopback page v6", local, "localhost:8080", []string{"http://[::1]:3000"}, true},
		{"foreign page", local, "localhost:8080", []string{"https://app.example"}, false},
		{"configured host", public, "mcp.example.com", nil, true},
		{"configured host in capitals with port", public, "MCP.example.com:443", nil, true},
		{"configured host with final dot", public, "mcp.example.com.", nil, true},
		{"other host", public, "evil.example", nil, false},
		{"allowed origin", public, "mcp.example.com", []string{"https://app.example"}, true},
		{"allowed origin in capitals", public, "mcp.example.com", []string{"HTTPS://APP.EXAMPLE"}, true},
		{"allowed origin with default port", public, "mcp.example.com", []string{"https://app.example:443"}, true},
		{"other port", public, "mcp.example.com", []string{"https://app.example:8443"}, false},
		{"longer name", public, "mcp.example.com", []string{"https://app.example.evil.com"}, false},
		{"other scheme", public, "mcp.example.com", []string{"http://app.example"}, false},
		{"opaque origin", public, "mcp.example.com", []string{"null"}, false},
		{"file origin", public, "mcp.example.com", []string{"file://"}, false},
		{"empty origin", public, "mcp.example.com", []string{""}, false},
		{"origin with a path", public, "mcp.example.com", []string{"https://app.example/x"}, false},
		{"two origins", public, "mcp.example.com", []string{"https://app.example", "https://app.example"}, false},
		{"everything allowed", open, "any.example", []string{"https://any.example"}, true},
	} {
		r := &http.Request{Host: c.host, Header: http.Header{}}
		for _, o := range c.origin {
			r.Header.Add("Origin", o)
		}
		if reason := c.guard.check(r); (reason == "") != c.ok {
			t.Errorf("%s: check = %q, want ok %v", c.name, reason, c.ok)
		}
	}
	if _, err := newGuard(nil, []string{"app.example"}); err == nil {
		t.Error("an origin without a scheme is accepted as configuration")
	}
}

func TestParseAccept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []string
		want   accepted
	}{
		{nil, accepted{true, true, false}},
		{[]string{"*/*"}, accepted{true, true, false}},
		{[]string{"application/json, text/event-stream"}, accepted{true, true, true}},
		{[]string{"application/json", "text/event-stream"}, accepted{true, true, true}},
		{[]string{"application/* , text/*"}, accepted{true, true, false}},
		{[]string{"APPLICATION/JSON;q=0.9,text/event-stream;q=0.1"}, accepted{true, true, true}},
		{[]string{"application/json"}, accepted{true, false, false}},
		{[]string{"text/event-stream"}, accepted{false, true, true}},
		{[]string{"application/json;q=0, text/event-stream"}, accepted{false, true, true}},
		{[]string{"application/json; Q=0.0, */*"}, accepted{false, true, false}},
		{[]string{"*/*, text/event-stream;q=0"}, accepted{true, false, false}},
		{[]string{"text/html"}, accepted{}},
		{[]string{""}, accepted{}},
	} {
		h := http.Header{}
		for _, v := range c.values {
			h.Add("Accept", v)
		}
		if got := parseAccept(h); got != c.want {
			t.Errorf("parseAccept(%q) = %+v, want %+v", c.values, got, c.want)
		}
	}
}
