package main

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/deploy/bench/servers/payload"
)

// shape is a load that servers are put under, each in turn.
type shape struct {
	name        string
	connections int
	request     request
	need        need
	// targets are who can do it; nil: all.
	targets []string
}

// Names of shapes, by which goals find what was measured.
const (
	small       = "`tools/call` of 100 B, 64 connections"
	smallModern = "`tools/call` of 100 B in 2026-07-28, 64 connections"
	alone       = "`tools/call` of 100 B, 1 connection"
	big         = "result of 64 KiB, 16 connections"
	huge        = "result of 900 KiB, 16 connections"
	progress    = "10 reports of progress and a result, 1 connection"
	longList    = "`tools/list` of 1,000 tools, 16 connections"
	shortList   = "`tools/list` of one tool, 16 connections"
	handshake   = "`initialize`, 16 connections"
)

// shapes are what is measured, in the order of the table.
func shapes() []shape {
	say := request{
		method: "tools/call", name: "say", kind: payload.Say,
		params: fmt.Sprintf(`"name":"say","arguments":{"text":%q}`, payload.Text(payload.SaySize)),
		body:   contains(payload.SaySize),
	}
	sayModern := say
	sayModern.modern = true
	large := func(kind string, size int) request {
		return request{
			method: "tools/call", name: "big", kind: kind,
			params: fmt.Sprintf(`"name":"big","arguments":{"bytes":%d}`, size),
			body:   contains(size),
		}
	}
	count := request{
		method: "tools/call", name: "count", kind: payload.Count,
		params: fmt.Sprintf(`"name":"count","arguments":{"n":%d}`, payload.Steps),
		meta:   `"progressToken":` + idMark,
		body:   fmt.Appendf(nil, `"structuredContent":{"count":%d}`, payload.Steps), steps: payload.Steps,
	}
	list := func(n int) request {
		return request{method: "tools/list", kind: payload.List, body: fmt.Appendf(nil, `"name":%q`, payload.ToolName(n-1)), listed: n}
	}
	hello := request{
		method: "initialize", opens: true,
		params: `"protocolVersion":"` + legacy + `","capabilities":{},"clientInfo":{"name":"bench","version":"1.0.0"}`,
		body:   []byte(`"protocolVersion":"` + legacy + `"`),
	}
	const many, some = 64, 16
	return []shape{
		{name: small, connections: many, request: say},
		{name: smallModern, connections: many, request: sayModern, targets: []string{three, up, mcpgoStateless, gosdkStateless}},
		{name: alone, connections: 1, request: say},
		{name: big, connections: some, request: large(payload.Big, payload.BigSize)},
		{name: huge, connections: some, request: large(payload.Huge, payload.HugeSize)},
		{name: progress, connections: 1, request: count, need: need{events: true}},
		{name: longList, connections: some, request: list(payload.Tools), need: need{listed: payload.Tools}},
		{name: shortList, connections: some, request: list(1), need: need{listed: 1}, targets: []string{three, mcpgoStateless, gosdkStateless}},
		{name: handshake, connections: some, request: hello, need: need{listed: 1}, targets: []string{three + inSession, mcpgoStateful, gosdkStateful}},
	}
}

// contains is how a text of a size stands in a result.
func contains(size int) []byte {
	return fmt.Appendf(nil, `"text":%q`, payload.Text(size))
}

// of are the targets of a shape.
func (s *shape) of() []target {
	return slices.DeleteFunc(targets(), func(t target) bool {
		return s.targets != nil && !slices.Contains(s.targets, t.name)
	})
}
