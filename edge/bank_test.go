package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/jsonrpc"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/sse"
)

// These tests are reports from the field about other servers; the names are
// those of the bank of cases. Each runs through every door: HTTP in every
// revision, stdio, and HTTP+SSE.

// door is one way in. call sends a request whose id, method and params are raw
// JSON; it adds what the revision wants and returns the raw response.
type door struct {
	name   string
	modern bool
	raw    func(body string) (status int, reply string)
	sys    *system
}

// message writes a request as the door's revision wants it.
func (d *door) message(id, method, params string) string {
	if params == "" {
		params = "{}"
	}
	if d.modern {
		meta := `"_meta":{"` + mcp.MetaProtocolVersion + `":"` + mcp.Modern().Date + `","` + mcp.MetaClientCapabilities + `":{}}`
		if params != "{}" {
			meta += ","
		}
		params = "{" + meta + params[1:]
	}
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`
}

func (d *door) call(id, method, params string) (status int, reply string) {
	return d.raw(d.message(id, method, params))
}

// everyDoor runs a test through every door, each in its own system.
func everyDoor(t *testing.T, test func(t *testing.T, d *door)) {
	t.Helper()
	dates := append(mcp.Supported(), "stdio", "stdio modern", "HTTP+SSE")
	for _, name := range dates {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := start(t, Config{})
				d := &door{name: name, sys: s, modern: name == mcp.Modern().Date || name == "stdio modern"}
				switch {
				case strings.HasPrefix(name, "stdio"):
					d.raw = stdioDoor(t, s)
				case name == "HTTP+SSE":
					d.raw = s.openSSE().door
				case d.modern:
					d.raw = func(text string) (int, string) {
						resp := s.post(context.Background(), text, modernHeaders(text)...)
						return resp.StatusCode, body(t, resp)
					}
				default:
					resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+name+`","capabilities":{}}}`)
					id := resp.Header.Get(mcp.HeaderSessionID)
					body(t, resp)
					d.raw = func(text string) (int, string) {
						resp := s.post(context.Background(), text, mcp.HeaderSessionID+": "+id)
						return resp.StatusCode, body(t, resp)
					}
				}
				test(t, d)
			})
		})
	}
}

// modernHeaders mirrors a body as an honest client would.
func modernHeaders(text string) []string {
	headers := []string{mcp.HeaderProtocolVersion + ": " + mcp.Modern().Date}
	method, name := "tools/list", ""
	if m, err := jsonrpc.Decode([]byte(text), jsonrpc.Limits{}); err == nil {
		method = m.Method
		name, _ = jsonrpc.String(m.Params.Get("name"))
		if uri, ok := jsonrpc.String(m.Params.Get("uri")); ok {
			name = uri
		}
	}
	return append(headers, mcp.HeaderMethod+": "+method, mcp.HeaderName+": "+name)
}

// stdioDoor returns a function that writes a line and reads the next one.
func stdioDoor(t *testing.T, s *system) func(string) (int, string) {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.serveStdio(context.Background(), inR, outW); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		inW.Close()
		<-done
	})
	out := newLineReader(outR)
	return func(text string) (int, string) {
		if _, err := io.WriteString(inW, text+"\n"); err != nil {
			t.Fatal(err)
		}
		return http.StatusOK, out.next(t)
	}
}

// lineReader reads whole lines of any length.
type lineReader struct {
	r    io.Reader
	rest []byte
}

func newLineReader(r io.Reader) *lineReader { return &lineReader{r: r} }

func (l *lineReader) next(t *testing.T) string {
	t.Helper()
	buf := make([]byte, 64<<10)
	for {
		if line, rest, ok := bytes.Cut(l.rest, []byte("\n")); ok {
			l.rest = rest
			return string(line)
		}
		n, err := l.r.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		l.rest = append(l.rest, buf[:n]...)
	}
}

// decode decodes a response strictly.
func decode(t *testing.T, reply string) jsonrpc.Message {
	t.Helper()
	m, err := jsonrpc.Decode([]byte(reply), jsonrpc.Limits{})
	if err != nil {
		t.Fatalf("%v in %.200q", err, reply)
	}
	return m
}

// errorCode is the code of an error response, 0 for a result.
func errorCode(t *testing.T, m jsonrpc.Message) int {
	t.Helper()
	if m.Error == nil {
		return 0
	}
	var e struct{ Code int }
	if err := json.Unmarshal(m.Error, &e); err != nil {
		t.Fatal(err)
	}
	return e.Code
}

func TestB01IDsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		for _, id := range []string{`0`, `""`, `"1"`, `"007"`, `-1`, `9007199254740993`, `3100.0`, `"\u0061"`} {
			status, reply := d.call(id, "tools/list", "")
			m := decode(t, reply)
			if string(m.ID) != id || m.Result == nil || status != http.StatusOK {
				t.Errorf("id %s: status %d, reply %.200s", id, status, reply)
			}
		}
	})
}

func TestB01LookAlikeIDsAreTwo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		var wg sync.WaitGroup
		for _, id := range []string{`1`, `"1"`} {
			wg.Go(func() {
				resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"echo","arguments":{"asked":`+id+`}}}`)
				m := decode(t, body(t, resp))
				echoed := string(jsonrpc.Quote(`{"asked":` + id + `}`))
				if string(m.ID) != id || !strings.Contains(string(m.Result), echoed) {
					t.Errorf("the call with id %s got %s %s", id, m.ID, m.Result)
				}
			})
		}
		wg.Wait()
	})
}

func TestB02OddIDsAreRefused(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		for _, id := range []string{`null`, `true`, `[1]`, `{"a":1}`, `1.5`} {
			status, reply := d.call(id, "tools/call", `{"name":"danger","arguments":{}}`)
			var m struct {
				ID    json.RawMessage
				Error struct{ Code int }
			}
			if err := json.Unmarshal([]byte(reply), &m); err != nil {
				t.Fatalf("id %s: %v in %q", id, err, reply)
			}
			wantStatus := http.StatusBadRequest
			if strings.HasPrefix(d.name, "stdio") {
				wantStatus = http.StatusOK
			}
			if status != wantStatus || m.Error.Code != jsonrpc.CodeInvalidRequest || m.ID != nil && string(m.ID) != "null" {
				t.Errorf("id %s: status %d, %s", id, status, reply)
			}
		}
		if n := d.sys.ran.value(); n != 0 {
			t.Errorf("the tool ran %d times", n)
		}
	})
}

func TestB04NumbersKeepEveryDigit(t *testing.T) {
	t.Parallel()
	const arguments = `{"a":9007199254740993,"b":9223372036854775807,"c":1.10,"d":-0.0,"e":1e2,"f":0.30000000000000004,"g":123456789012345678901234567890}`
	everyDoor(t, func(t *testing.T, d *door) {
		_, reply := d.call("1", "tools/call", `{"name":"echo","arguments":`+arguments+`}`)
		var m struct {
			Result struct {
				Content           []struct{ Text string }
				StructuredContent json.RawMessage
			}
		}
		if err := json.Unmarshal([]byte(reply), &m); err != nil {
			t.Fatal(err)
		}
		if got := m.Result.Content[0].Text; got != arguments {
			t.Errorf("the worker received %s", got)
		}
		old := d.name == "2024-11-05" || d.name == "2025-03-26" || d.name == "stdio" || d.name == "HTTP+SSE"
		if old {
			return // these revisions have no structuredContent
		}
		sameNumbers(t, m.Result.StructuredContent, []byte(arguments))
	})
}

// sameNumbers compares two objects of numbers as decimals of any precision.
func sameNumbers(t *testing.T, got, want []byte) {
	t.Helper()
	var g, w map[string]json.Number
	for raw, into := range map[*[]byte]*map[string]json.Number{&got: &g, &want: &w} {
		if err := json.Unmarshal(*raw, into); err != nil {
			t.Fatalf("%v in %s", err, *raw)
		}
	}
	if len(g) != len(w) {
		t.Errorf("got %s", got)
	}
	for key := range w {
		a, okA := new(big.Rat).SetString(g[key].String())
		b, okB := new(big.Rat).SetString(w[key].String())
		if !okA || !okB || a.Cmp(b) != 0 {
			t.Errorf("%s: got %s, want %s", key, g[key], w[key])
		}
	}
}

func TestB05LookAlikeKeysSmuggleNothing(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		params := d.message("1", "tools/list", "")
		params = params[strings.Index(params, `"params":`) : len(params)-1]
		for name, c := range map[string]struct {
			text string
			want int
		}{
			"other case":    {`{"jsonrpc":"2.0","id":1,"method":"tools/list","Method":"tools/call",` + params[:len(params)-1] + `,"Name":"danger"}}`, 0},
			"long s":        {`{"jsonrpc":"2.0","id":1,"method":"tools/list",` + params + `,"param\u017f":{"name":"danger"}}`, 0},
			"key with NUL":  {`{"jsonrpc":"2.0","id":1,"method":"tools/list",` + params + `,"method\u0000":"tools/call"}`, 0},
			"repeated":      {`{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call",` + params + `}`, jsonrpc.CodeInvalidRequest},
			"repeated deep": {`{"jsonrpc":"2.0","id":1,"method":"tools/call",` + params[:len(params)-1] + `,"name":"echo","n\u0061me":"danger"}}`, jsonrpc.CodeInvalidRequest},
			"only other":    {`{"jsonrpc":"2.0","id":1,"METHOD":"tools/list"}`, jsonrpc.CodeInvalidRequest},
		} {
			text := strings.Replace(c.text, "{,", "{", 1)
			_, reply := d.raw(text)
			m := decode(t, reply)
			if got := errorCode(t, m); got != c.want || string(m.ID) != "1" {
				t.Errorf("%s: %s\ngot %.300s, want code %d", name, text, reply, c.want)
			}
		}
		if n := d.sys.ran.value(); n != 0 {
			t.Errorf("the tool ran %d times", n)
		}
	})
}

func TestB07DepthIsAnsweredAtEveryLevel(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		for _, depth := range []int{60, 126, 500, 508, 520, 9990, 100_000} {
			nested := strings.Repeat(`{"x":`, depth) + "1" + strings.Repeat("}", depth)
			_, reply := d.call(`"deep"`, "tools/call", `{"name":"echo","arguments":`+nested+`}`)
			m := decode(t, reply)
			// The message, params and the arguments themselves count too.
			want := 0
			if depth > 508 {
				want = jsonrpc.CodeInvalidRequest
			}
			if got := errorCode(t, m); got != want || string(m.ID) != `"deep"` {
				t.Errorf("depth %d: code %d, want %d: %.200s", depth, got, want, reply)
			}
			if want == 0 && !strings.Contains(string(m.Result), `\"x\":1`) {
				t.Errorf("depth %d: the innermost value is missing", depth)
			}
			if _, reply := d.call(`"after"`, "tools/list", ""); decode(t, reply).Result == nil {
				t.Errorf("after depth %d: %.200s", depth, reply)
			}
		}
	})
}

// tricky is text that breaks careless framing.
var tricky = "a\r\nb\rc\nd\u2028\u2029\u0085\u000b\u001cdata: x\n\nid: evil\n" + strings.Repeat("🦀", 75_000)

func TestB23FramingSurvivesAnyText(t *testing.T) {
	t.Parallel()
	everyDoor(t, func(t *testing.T, d *door) {
		if strings.HasPrefix(d.name, "stdio") || d.name == "HTTP+SSE" {
			_, reply := d.call("1", "tools/call", `{"name":"tricky","arguments":{}}`)
			checkTricky(t, reply)
			return
		}
		text := d.message("1", "tools/call", `{"name":"tricky","arguments":{}}`)
		text = strings.Replace(text, `"_meta":{`, `"_meta":{"progressToken":1,`, 1)
		if !d.modern {
			text = strings.Replace(text, `"params":{`, `"params":{"_meta":{"progressToken":1},`, 1)
		}
		headers := []string{"Accept: application/json, text/event-stream"}
		if d.modern {
			headers = append(headers, modernHeaders(text)...)
		} else {
			headers = append(headers, mcp.HeaderProtocolVersion+": "+d.name)
		}
		resp := d.sys.post(context.Background(), text, headers...)
		if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
			t.Fatalf("Content-Type %q", got)
		}
		wire := body(t, resp)
		for line := range strings.SplitSeq(wire, "\n") {
			if strings.ContainsRune(line, '\r') || line != "" && !strings.HasPrefix(line, "data: {") {
				t.Errorf("line on the wire: %.100q", line)
			}
		}
		for name, r := range map[string]io.Reader{
			"whole": strings.NewReader(wire), "cut every byte": iotest.OneByteReader(strings.NewReader(wire)), "cut every 7 bytes": &cutReader{strings.NewReader(wire)},
		} {
			events := sse.NewReader(r, 1<<21)
			var got []sse.Event
			for {
				ev, err := events.Next()
				if err != nil {
					break
				}
				got = append(got, ev)
			}
			if len(got) != 2 || got[0].Name != "" || got[0].ID != "" {
				t.Fatalf("%s: %d events", name, len(got))
			}
			checkTricky(t, string(got[1].Data))
		}
	})
}

func checkTricky(t *testing.T, reply string) {
	t.Helper()
	if fields := strings.FieldsFunc(reply, func(r rune) bool { return strings.ContainsRune("\u0085\u2028\u2029\v\f\x1c", r) }); len(fields) != 1 {
		t.Errorf("a reader that splits at Unicode separators sees %d lines", len(fields))
	}
	var m struct {
		Result struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal([]byte(reply), &m); err != nil {
		t.Fatal(err)
	}
	if len(m.Result.Content) != 1 || m.Result.Content[0].Text != tricky {
		t.Errorf("the text changed: %.200q", fmt.Sprint(m.Result.Content))
	}
}

// cutReader reads 7 bytes at a time.
type cutReader struct{ r io.Reader }

func (c *cutReader) Read(p []byte) (int, error) { return c.r.Read(p[:min(7, len(p))]) }

func TestDisconnect(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		headers []string
		meta    string
		ran     int
	}{
		{"legacy goes on", nil, `{"progressToken":1}`, 0},
		{"modern is cancelled", []string{"Mcp-Protocol-Version: " + mcp.Modern().Date, "Mcp-Method: tools/call", "Mcp-Name: hang"},
			`{"` + mcp.MetaProtocolVersion + `":"` + mcp.Modern().Date + `","` + mcp.MetaClientCapabilities + `":{}}`, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := start(t, Config{})
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				text := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang","_meta":` + c.meta + `}}`
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp", strings.NewReader(text))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				for _, h := range c.headers {
					key, value, _ := strings.Cut(h, ": ")
					req.Header.Set(key, value)
				}
				if _, err := s.client.Do(req); err == nil {
					t.Fatal("the client did not give up")
				}
				time.Sleep(time.Second)
				if got := s.ran.value(); got != c.ran {
					t.Errorf("one second after the client left %d handlers saw their context end, want %d", got, c.ran)
				}
				time.Sleep(time.Minute)
				if got := s.ran.value(); got != 1 {
					t.Errorf("after the deadline %d handlers saw their context end, want 1", got)
				}
			})
		})
	}
}
