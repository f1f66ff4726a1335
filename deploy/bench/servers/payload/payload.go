// Package payload is what the servers of the benchmark answer, the same for all
// of them, and how each is started.
package payload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
)

// Answers of servers that know nothing of the protocol are chosen by the last
// element of the path.
const (
	Say   = "say"   // 100 bytes
	Big   = "big"   // 64 KiB
	Huge  = "huge"  // 900 KiB
	List  = "list"  // a list of Tools tools
	Count = "count" // Steps reports of progress and a result
)

// Sizes of what is answered.
const (
	SaySize  = 100
	BigSize  = 64 << 10
	HugeSize = 900 << 10
	Tools    = 1000
	Steps    = 10
)

// Text is a text of a number of bytes, none of which JSON has to escape. It is
// that of the tool big of services/everything.
func Text(n int) string {
	const line = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
	return strings.Repeat(line, n/len(line)+1)[:n]
}

// Description and Schema are those of every tool of the long list.
const (
	Description = "One of many tools, so that a list is as long as those of large organisations are."
	Schema      = `{"type":"object","properties":{"query":{"type":"string","description":"what to look for"},"limit":{"type":"integer","description":"how many to return at most"}},"required":["query"]}`
)

// ToolName is the name of a tool of the long list. It sorts before those of
// services/everything.
func ToolName(i int) string { return fmt.Sprintf("a_tool_%04d", i) }

// Result is a result of tools/call with a text.
func Result(text string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":%q}]}}`, text)
}

// Progress is the report of a step.
func Progress(step int) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,"progress":%d,"total":%d}}`, step, Steps)
}

// Counted is the result after Steps reports.
func Counted() []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":0,"result":{"content":[{"type":"text","text":"{\"count\":%d}"}],"structuredContent":{"count":%d}}}`, Steps, Steps)
}

// Event frames a message as a Server-Sent Event.
func Event(message []byte) []byte {
	return fmt.Appendf(nil, "data: %s\n\n", message)
}

// LongList is a result of tools/list.
func LongList() []byte {
	var b bytes.Buffer
	b.WriteString(`{"jsonrpc":"2.0","id":0,"result":{"tools":[`)
	for i := range Tools {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":%q,"description":%q,"inputSchema":%s}`, ToolName(i), Description, Schema)
	}
	b.WriteString(`]}}`)
	return b.Bytes()
}

// Fixed are the answers that are one message, by the element of the path.
func Fixed() map[string][]byte {
	return map[string][]byte{
		Say: Result(Text(SaySize)), Big: Result(Text(BigSize)), Huge: Result(Text(HugeSize)), List: LongList(),
	}
}

// ready is the line that a server begins with.
type ready struct {
	Message string `json:"msg"`
	URL     string `json:"url"`
}

// Ready is the message of that line, as Millrace writes it.
const Ready = "serving MCP"

// Serve serves a handler on a free port of the loopback interface, and writes
// the URL of the endpoint as a line of JSON to standard error, as Millrace does.
// It returns when serving fails.
func Serve(handler http.Handler) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", handler)
	mux.Handle("/mcp/", handler)
	if err := Announce("http://" + ln.Addr().String() + "/mcp"); err != nil {
		return err
	}
	return http.Serve(ln, mux) //nolint:gosec // serves one program on this machine
}

// Announce says that the process serves, and at which URL; empty: at none.
func Announce(url string) error {
	return json.NewEncoder(os.Stderr).Encode(ready{Ready, url})
}
