package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	legacyRevision = "2025-11-25"
	modernRevision = "2026-07-28"
	// measured is how long the capacity is measured, with as many clients.
	measured = 15 * time.Second
	clients  = 64
	// sessions are used at the same time, each for so many calls.
	sessions     = 32
	sessionCalls = 200
)

func names[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// load makes calls. Its methods may be called concurrently.
type load struct {
	url  string
	http *http.Client
	id   atomic.Int64

	mu       sync.Mutex
	open     []session
	outcomes map[string]int
	examples map[string]string // of what failed
}

// session is one that calls share.
type session struct {
	id    string
	calls int
}

func newLoad(url string) *load {
	return &load{
		url: url, http: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 4 * clients}},
		open: make([]session, sessions), outcomes: map[string]int{}, examples: map[string]string{},
	}
}

// capacity is how many calls a second are done when every client makes the next
// one as soon as it can.
func (l *load) capacity(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, measured)
	defer cancel()
	began := time.Now()
	var done atomic.Int64
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for ctx.Err() == nil {
				l.make(context.WithoutCancel(ctx))
				done.Add(1)
			}
		})
	}
	running.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.examples) > 0 {
		return 0, fmt.Errorf("calls fail before there is any load: %v", l.examples)
	}
	clear(l.outcomes)
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}

// run begins calls at a rate, whatever becomes of them, until ctx ends; it
// returns when all have ended.
func (l *load) run(ctx context.Context, rate float64) {
	var running sync.WaitGroup
	defer running.Wait()
	began := time.Now()
	for n := 0; ctx.Err() == nil; n++ {
		pause(ctx, time.Until(began.Add(time.Duration(float64(n)/rate*float64(time.Second)))))
		running.Go(func() { l.make(context.WithoutCancel(ctx)) })
	}
}

// report prints what became of the calls, and says whether none failed.
func (l *load) report(w io.Writer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, outcome := range names(l.outcomes) {
		_, _ = fmt.Fprintf(w, "%s: %d\n", outcome, l.outcomes[outcome]) // for people to read
	}
	for _, outcome := range names(l.examples) {
		_, _ = fmt.Fprintf(w, "failed: %s: %s\n", outcome, l.examples[outcome]) // the same
	}
	return len(l.examples) == 0
}

// count counts a call, and keeps an example of each way to fail.
func (l *load) count(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes[what]++
	if err != nil {
		l.examples[what] = err.Error()
	}
}

// make makes one call, of a kind left to chance, in either era.
func (l *load) make(ctx context.Context) {
	legacy := rand.IntN(2) == 0 //nolint:gosec // no secret
	era, id := "modern", ""
	if legacy {
		var err error
		if id, err = l.session(ctx); err != nil {
			l.count("initialize", err)
			return
		}
		era = "legacy"
	}
	switch n := rand.IntN(20); { //nolint:gosec // no secret
	case n < 13:
		text := strconv.FormatInt(l.id.Add(1), 10)
		l.count(era+" echo", l.call(ctx, id, "echo", `{"text":"`+text+`"}`, "", `"text":"`+text+`"`))
	case n < 17:
		token := strconv.FormatInt(l.id.Add(1), 10)
		l.count(era+" progress", l.call(ctx, id, "count", `{"n":4,"delay_ms":20}`, token, `"progressToken":`+token))
	case n < 19:
		l.count(era+" 2 KiB", l.call(ctx, id, "big", `{"bytes":2048}`, "", `"content"`))
	default:
		l.count(era+" cancelled", l.cancel(ctx, id))
	}
}

// session returns the id of an open session. Of those that were used long
// enough, half are ended and half are left.
func (l *load) session(ctx context.Context) (string, error) {
	l.mu.Lock()
	s := &l.open[rand.IntN(sessions)] //nolint:gosec // no secret
	s.calls++
	id, old := s.id, ""
	if s.calls > sessionCalls {
		s.id, s.calls, old, id = "", 0, id, ""
	}
	l.mu.Unlock()
	if old != "" && rand.IntN(2) == 0 { //nolint:gosec // no secret
		pause(ctx, time.Second) // its calls end
		if _, _, err := l.do(ctx, http.MethodDelete, old, nil, ""); err != nil {
			return "", err
		}
	}
	if id != "" {
		return id, nil
	}
	head, body, err := l.do(ctx, http.MethodPost, "", nil, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+legacyRevision+`","capabilities":{},"clientInfo":{"name":"soak","version":"1"}}}`)
	if err != nil {
		return "", err
	}
	if id = head.Get("Mcp-Session-Id"); id == "" {
		return "", fmt.Errorf("no session: %s", body)
	}
	if _, _, err = l.do(ctx, http.MethodPost, id, nil, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil {
		return "", err
	}
	if _, _, err = l.do(ctx, http.MethodPost, id, nil, `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"warning"}}`); err != nil {
		return "", err
	}
	l.mu.Lock()
	s.id = id
	l.mu.Unlock()
	return id, nil
}

// message is a tools/call with its headers; session "" is the modern era.
func (l *load) message(session, tool, arguments, token string) (http.Header, string) {
	headers, meta := http.Header{}, ""
	if token != "" {
		meta = `"progressToken":` + token
	}
	if session == "" {
		headers.Set("Mcp-Protocol-Version", modernRevision)
		headers.Set("Mcp-Method", "tools/call")
		headers.Set("Mcp-Name", tool)
		if meta != "" {
			meta += ","
		}
		meta += `"io.modelcontextprotocol/protocolVersion":"` + modernRevision + `","io.modelcontextprotocol/clientInfo":{"name":"soak","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`
	}
	return headers, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{%s}}}`, l.id.Add(1), tool, arguments, meta)
}

// call makes a call whose answer contains a text.
func (l *load) call(ctx context.Context, session, tool, arguments, token, contains string) error {
	headers, body := l.message(session, tool, arguments, token)
	_, answer, err := l.do(ctx, http.MethodPost, session, headers, body)
	if err != nil {
		return err
	}
	if !bytes.Contains(answer, []byte(`"result"`)) || !bytes.Contains(answer, []byte(contains)) || bytes.Contains(answer, []byte(`"isError":true`)) {
		return fmt.Errorf("%s answers %.500s", tool, answer)
	}
	return nil
}

// cancel begins a call and takes it back as its era does it.
func (l *load) cancel(ctx context.Context, session string) error {
	headers, body := l.message(session, "slow", `{"ms":20000}`, "")
	calling, hangUp := context.WithCancel(ctx)
	defer hangUp()
	ended := make(chan error, 1) // one result
	go func() {
		_, _, err := l.do(calling, http.MethodPost, session, headers, body)
		ended <- err
	}()
	pause(ctx, 50*time.Millisecond)
	if session == "" {
		hangUp()
		<-ended // with the error of calling
		return nil
	}
	_, id, _ := strings.Cut(body, `"id":`)
	id, _, _ = strings.Cut(id, ",")
	if _, _, err := l.do(ctx, http.MethodPost, session, nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+id+`}}`); err != nil {
		return err
	}
	// A call that was taken back has no answer; its stream ends at once, long
	// before the tool would.
	return <-ended
}

// do sends a message and reads all of the answer.
func (l *load) do(ctx context.Context, method, session string, headers http.Header, body string) (http.Header, []byte, error) {
	resp, err := l.send(ctx, method, session, headers, body)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it has been read
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return resp.Header, answer, err
}

// send sends a message.
func (l *load) send(ctx context.Context, method, session string, headers http.Header, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, l.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, headers)
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Content-Type", "application/json")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
		req.Header.Set("Mcp-Protocol-Version", legacyRevision)
	}
	return l.http.Do(req)
}
