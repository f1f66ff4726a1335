package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestClientsOnEverything runs every client in every mode through what the
// worker everything has: progress a hundred times, bytes, a prompt, completion,
// and tools that ask the client for something.
func TestClientsOnEverything(t *testing.T) {
	t.Parallel()
	s := serve(t, "up", "--worker", "glossary", "--worker", "everything")
	for _, c := range clientCases() {
		t.Run(c.name+"/http", func(t *testing.T) {
			t.Parallel()
			checkEverything(t, runClient(t, c, "--scenario", "everything", "http", s.url))
		})
		t.Run(c.name+"/stdio", func(t *testing.T) {
			t.Parallel()
			r := runClient(t, c, "--scenario", "everything", "stdio", millrace(t), "stdio", "--worker", "everything", "--log-level", "warn")
			checkEverything(t, r)
		})
	}
	// The bridge by which programs that only know stdio reach a URL. Behind it
	// the TypeScript client loses progress: the bridge writes it in one piece
	// with the answer, and that library then takes the answer first.
	bridged := clientCase{name: "go-sdk-legacy", command: func(p *programs) []string { return []string{p.goSDK, "--mode", newestLegacy} }, speaks: newestLegacy}
	p := clients(t)
	bridge := []string{p.node, filepath.Join(p.modules, "mcp-remote", "dist", "proxy.js"), s.url, "--allow-http", "--transport", "http-only"}
	t.Run("mcp-remote/everything", func(t *testing.T) {
		t.Parallel()
		checkEverything(t, runClient(t, bridged, append([]string{"--scenario", "everything", "stdio"}, bridge...)...))
	})
	t.Run("mcp-remote/glossary", func(t *testing.T) {
		t.Parallel()
		r := runClient(t, bridged, append([]string{"stdio"}, bridge...)...)
		r.Tools = slices.DeleteFunc(r.Tools, func(tool string) bool {
			return !slices.Contains([]string{"get_term", "reindex", "search_term"}, tool)
		})
		checkScenario(t, r)
	})
}

// checkEverything judges the scenario everything.
func checkEverything(t *testing.T, r clientReport) {
	t.Helper()
	const counts, n = 100, 20
	asked := []struct {
		tool    string
		elicits bool
		text    string
	}{
		{"test_elicitation", true, `ada@example.com`},
		{"test_sampling", false, "LLM response: answer to a question"},
		{"test_input_required_result_list_roots", false, "The client has 2 roots."},
		{"test_input_required_result_elicitation", true, "Hello, Ada!"},
		{"test_input_required_result_sampling", false, "The model says: answer to What is the capital of France?"},
		{"test_input_required_result_multi_round", true, "Ada likes green."},
		{"test_input_required_result_multiple_inputs", true, `action accept, content {"name":"Ada"}; greeting answer to Write a short greeting.; 2 roots`},
	}
	if !slices.Contains(r.Tools, "count") || len(r.Tools) < 30 {
		t.Errorf("tools %q", r.Tools)
	}
	if len(r.Calls) != counts+len(asked) {
		t.Fatalf("%d calls, want %d", len(r.Calls), counts+len(asked))
	}
	for i := range r.Calls[:counts] {
		c := &r.Calls[i]
		textContains(`{"count":20}`)(t, c)
		if !c.ProgressBeforeResult {
			t.Errorf("call %d: progress came after the result", i)
		}
		arrived := c.Arrived
		if arrived == nil {
			arrived = c.Progress
		}
		checkCount(t, fmt.Sprintf("call %d: read", i), arrived, n)
		if c.Dropped > 0 {
			t.Errorf("call %d: the library dropped %d progress notifications", i, c.Dropped)
		}
		checkCount(t, fmt.Sprintf("call %d: handed on", i), c.Progress, n-c.Dropped)
	}
	for i, want := range asked {
		c := &r.Calls[counts+i]
		switch {
		case c.Tool != want.tool:
			t.Errorf("call %d was %s, want %s", counts+i, c.Tool, want.tool)
		case want.elicits && r.ProtocolVersion < firstWithElicitation:
			if c.Result == nil || !c.Result.IsError || !strings.Contains(c.Result.Content[0].Text, "elicitation") {
				t.Errorf("%s: result %+v, error %+v, want an error that names elicitation, which the revision does not have", c.Tool, c.Result, c.Error)
			}
		default:
			textContains(want.text)(t, c)
		}
	}
	if len(r.Read.Contents) != 1 {
		t.Fatalf("read %+v", r.Read)
	}
	checkPixel(t, r.Read.Contents[0].Blob)
	if m := r.Prompt.Messages; len(m) != 1 || m[0].Role != "user" || !strings.Contains(m[0].Content.Text, "arg1='one', arg2='two'") {
		t.Errorf("prompt %+v", r.Prompt)
	}
	if got := r.Completion.Completion.Values; !slices.Equal(got, []string{"paris", "park", "party"}) {
		t.Errorf("completed to %q", got)
	}
}

// checkCount: progress counts from 1 to n and leaves nothing out.
func checkCount(t *testing.T, what string, progress []clientProgress, n int) {
	t.Helper()
	if len(progress) != n {
		t.Errorf("%s %d progress notifications, want %d", what, len(progress), n)
		return
	}
	for i, p := range progress {
		if p.Progress != float64(i+1) || p.Total != 20 {
			t.Errorf("%s %+v as progress %d", what, p, i+1)
		}
	}
}

// checkPixel: the bytes are those of the picture of one pixel.
func checkPixel(t *testing.T, data []byte) {
	t.Helper()
	picture, err := png.Decode(bytes.NewReader(data))
	if err != nil || picture.Bounds().Dx() != 1 || picture.Bounds().Dy() != 1 {
		t.Errorf("%d bytes of picture: %v", len(data), err)
	}
	if got := sum(data); got != pixelSum {
		t.Errorf("the bytes of the picture have the hash %s", got)
	}
}

// sum is the hash by which what was sent and what came are compared.
func sum[T []byte | string](data T) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(data))) }

// pixelSum is the hash of test://static-binary.
const pixelSum = "bc09c2590d2502c8ffaf1a3c09aa89df222e03d186a8daa0c7fce6321fb6e928"

// inspect runs the inspector in its command line mode and returns the result.
func inspect(t *testing.T, era string, target []string, args ...string) json.RawMessage {
	t.Helper()
	p := clients(t)
	argv := []string{filepath.Join(p.modules, "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js"), "--cli"}
	argv = append(append(argv, args...), "--protocol-era", era, "--format", "json", "--transport")
	cmd := exec.Command(p.node, append(argv, target...)...)
	cmd.Env = environment("HOME="+t.TempDir(), "PATH="+filepath.Dir(p.node))
	r := execute(t, "", cmd)
	var answer struct {
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &answer); err != nil || r.code != 0 {
		t.Fatalf("the inspector ended with %d (%v)\nstdout: %s\nstderr: %s", r.code, err, r.stdout, r.stderr)
	}
	return answer.Result
}

// TestInspector: the inspector of the protocol, in both eras.
func TestInspector(t *testing.T) {
	t.Parallel()
	s := serve(t, "up", "--worker", "glossary", "--worker", "everything")
	watched := watch(t, s.url)
	t.Run("clients", func(t *testing.T) {
		for _, era := range []string{"legacy", "modern"} {
			for transport, target := range map[string][]string{
				"http":  {"http", watched.url},
				"stdio": {"stdio", "--", millrace(t), "stdio", "--worker", "glossary", "--worker", "everything", "--log-level", "warn"},
			} {
				t.Run(era+"/"+transport, func(t *testing.T) {
					t.Parallel()
					checkInspector(t, era, target)
				})
			}
		}
	})
	// It does not show progress, so that is looked at on its way.
	if calls := watched.counted(t); calls != 2*100 {
		t.Errorf("%d calls of count had progress complete and in order, want all 200", calls)
	}
}

func checkInspector(t *testing.T, era string, target []string) {
	t.Helper()
	ask := func(into any, args ...string) {
		t.Helper()
		raw := inspect(t, era, target, args...)
		if err := json.Unmarshal(raw, into); err != nil {
			t.Fatalf("%v in %s", err, raw)
		}
	}
	var tools struct{ Tools []struct{ Name string } }
	// It refuses schemas that models cannot use.
	ask(&tools, "--method", "tools/list", "--strict")
	if len(tools.Tools) < 30 {
		t.Errorf("tools %+v", tools)
	}
	var called toolResult
	ask(&called, "--method", "tools/call", "--tool-name", "get_term", "--tool-arg", "slug=mcp")
	called.check(t, "# MCP")
	var read struct{ Contents []struct{ Blob []byte } }
	ask(&read, "--method", "resources/read", "--uri", "test://static-binary")
	if len(read.Contents) != 1 {
		t.Fatalf("read %+v", read)
	}
	checkPixel(t, read.Contents[0].Blob)
	var prompt struct {
		Messages []struct{ Content struct{ Text string } }
	}
	ask(&prompt, "--method", "prompts/get", "--prompt-name", "test_prompt_with_arguments", "--prompt-args", "arg1=one", "arg2=two")
	if len(prompt.Messages) != 1 || !strings.Contains(prompt.Messages[0].Content.Text, "arg1='one', arg2='two'") {
		t.Errorf("prompt %+v", prompt)
	}
	var load struct{ Requests, OK, ToolErrors, Errors int }
	ask(&load, "--method", "tools/call", "--tool-name", "count", "--tool-args-json", `{"n":20,"delay_ms":1}`,
		"--tool-metadata", "progressToken=watched", "--load", "--load-requests", "100", "--load-concurrency", "1")
	if load.Requests != 100 || load.OK != 100 || load.ToolErrors+load.Errors > 0 {
		t.Errorf("100 calls: %+v", load)
	}
}

// watchedServer is a proxy that keeps what it passes on.
type watchedServer struct {
	url string

	mu      sync.Mutex
	answers []*text // one for each request, in no order
}

// watch starts a proxy before a server.
func watch(t *testing.T, to string) *watchedServer {
	t.Helper()
	at, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	w := &watchedServer{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: at.Scheme, Host: at.Host}) },
		ModifyResponse: func(r *http.Response) error {
			kept := &text{}
			w.mu.Lock()
			w.answers = append(w.answers, kept)
			w.mu.Unlock()
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(r.Body, kept), r.Body}
			return nil
		},
		FlushInterval: -1,
		Transport:     &http.Transport{DisableKeepAlives: true},
	}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		// Read before the answer begins, since a server may not read after.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	w.url = server.URL + at.Path
	return w
}

// counted returns how many streams hold progress from 1 to 20 and then the
// result of count.
func (w *watchedServer) counted(t *testing.T) int {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	complete := 0
	for _, kept := range w.answers {
		stream := kept.String()
		if !strings.Contains(stream, `"structuredContent":{"count":20}`) {
			continue
		}
		var progress []clientProgress
		last := ""
		for line := range strings.Lines(stream) {
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok || strings.TrimSpace(data) == "" { // an event that only brings an id
				continue
			}
			last = data
			var m struct {
				Method string
				Params clientProgress
			}
			if err := json.Unmarshal([]byte(data), &m); err != nil {
				t.Fatalf("%v in %q", err, data)
			}
			if m.Method == "notifications/progress" {
				progress = append(progress, m.Params)
			}
		}
		if !strings.Contains(last, `"structuredContent":{"count":20}`) {
			t.Errorf("the result is not the last: %s", stream)
		}
		checkCount(t, "on its way", progress, 20)
		complete++
	}
	return complete
}
