package edge

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/millrace/millrace/edge/mcp"
)

var update = flag.Bool("update", false, "write the answers into the conversation files")

// TestConversations plays the conversations in testdata: each file is one rule
// of the specification, with what a client sends and what it gets back. Each
// one runs in a system of its own, in fake time, so that "nothing more comes"
// is exact.
func TestConversations(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatalf("found %d conversations (%v)", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), ".txtar"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { converse(t, file) })
		})
	}
}

func converse(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^20\d\d-\d\d-\d\d|^JSON-RPC|^RFC`).Match(archive.Comment) {
		t.Errorf("the first line must name the section of the specification: %q", archive.Comment)
	}
	s := start(t, Config{PageSize: 4, CallTimeout: 50 * time.Second})
	if bytes.Contains(archive.Comment, []byte("\nwith the worker of pages to visit\n")) {
		s.visiting()
	}
	c := &conversation{system: s}
	var played []txtar.File
	for i := 0; i < len(archive.Files); i++ {
		section := archive.Files[i]
		var answer string
		switch section.Name {
		case "request":
			answer = c.request(string(section.Data))
		case "stdin":
			answer = c.stdin(string(section.Data))
		default:
			t.Fatalf("section %q is neither request nor stdin", section.Name)
		}
		want := txtar.File{Name: map[string]string{"request": "response", "stdin": "stdout"}[section.Name]}
		if i+1 < len(archive.Files) && archive.Files[i+1].Name == want.Name {
			i++
			want.Data = archive.Files[i].Data
		}
		if got := strings.TrimRight(answer, "\n") + "\n"; !*update && got != string(want.Data) {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", section.Data, got, want.Data)
		}
		played = append(played, section, txtar.File{Name: want.Name, Data: []byte(strings.TrimRight(answer, "\n") + "\n")})
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(&txtar.Archive{Comment: archive.Comment, Files: played}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// conversation is the client's side.
type conversation struct {
	*system
	session string
	cursor  string
	state   string

	in  *io.PipeWriter
	out bytes.Buffer
}

// shown are the response headers that conversations show.
var shown = []string{"Allow", "Content-Type", mcp.HeaderSessionID, "Retry-After"}

// request plays "METHOD path", header lines, an empty line and a body.
func (c *conversation) request(text string) string {
	head, sent, _ := strings.Cut(c.fill(text), "\n\n")
	lines := strings.Split(strings.TrimRight(head, "\n"), "\n")
	method, path, _ := strings.Cut(lines[0], " ")
	req, err := http.NewRequestWithContext(context.Background(), method, "http://localhost"+path, strings.NewReader(strings.TrimRight(sent, "\n")))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, line := range lines[1:] {
		key, value, _ := strings.Cut(line, ":")
		if key == "Host" {
			req.Host = strings.TrimSpace(value)
			continue
		}
		req.Header.Add(key, strings.TrimSpace(value))
	}
	if req.Header["Accept"] == nil {
		req.Header.Set("Accept", "application/json, text/event-stream")
	}
	if method == http.MethodPost && req.Header["Content-Type"] == nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	got := body(c.t, resp)
	if id := resp.Header.Get(mcp.HeaderSessionID); id != "" {
		c.session = id
		resp.Header.Set(mcp.HeaderSessionID, "${session}")
	}
	got = masked(got, "nextCursor", "${cursor}", &c.cursor)
	got = masked(got, "requestState", "${state}", &c.state)
	var out strings.Builder
	fmt.Fprintln(&out, resp.StatusCode)
	for _, key := range shown {
		if v := resp.Header.Values(key); len(v) > 0 {
			fmt.Fprintf(&out, "%s: %s\n", key, strings.Join(v, ", "))
		}
	}
	out.WriteString("\n" + got)
	return out.String()
}

// masked keeps the value of a member that is never the same, for later
// requests, and shows a name instead.
func masked(text, member, name string, value *string) string {
	m := regexp.MustCompile(`"` + member + `":"([^"]*)"`).FindStringSubmatch(text)
	if m == nil {
		return text
	}
	*value = m[1]
	return strings.Replace(text, m[1], name, 1)
}

func (c *conversation) fill(text string) string {
	return strings.NewReplacer("${session}", c.session, "${cursor}", c.cursor, "${state}", c.state).Replace(text)
}

// stdin writes lines and returns what came back until all is quiet, sorted,
// since answers may overtake each other.
func (c *conversation) stdin(text string) string {
	if c.in == nil {
		r, w := io.Pipe()
		c.in = w
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := c.serveStdio(context.Background(), r, &c.out); err != nil {
				c.t.Error(err)
			}
		}()
		c.t.Cleanup(func() {
			w.Close()
			<-done
		})
	}
	if _, err := io.WriteString(c.in, text); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
	lines := strings.Split(strings.TrimSpace(c.out.String()), "\n")
	c.out.Reset()
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
