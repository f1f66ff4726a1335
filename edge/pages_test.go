package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/edge/session"
	"github.com/millrace/millrace/worker"
)

// visiting is a worker whose tool, prompt and resource "visit" need a page to be
// visited first; "finish" says that it was. "redeem" takes answers once.
type visiting struct {
	worker   *worker.Worker
	visited  atomic.Bool
	redeemed atomic.Int64

	mu    sync.Mutex
	scope string // of the latest call of the tool "visit"
}

func (s *system) visiting() *visiting {
	s.t.Helper()
	p := &visiting{worker: worker.New(worker.Config{Pool: "pages", Logger: slog.New(slog.DiscardHandler)})}
	type none struct{}
	visit := func(call *worker.Call) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.scope = call.Scope()
		if p.visited.Load() {
			return nil
		}
		return &worker.URLElicitationRequiredError{
			Message: "Sign in first.",
			Pages:   []worker.URLElicitation{{URL: "https://example.com/sign-in?visit=1", Message: "Please sign in.", ID: "visit-1"}},
		}
	}
	worker.AddTool(p.worker, worker.Tool{Name: "visit", Description: "Needs a page to be visited first."},
		func(_ context.Context, call *worker.Call, _ none) (string, error) { return "visited", visit(call) })
	worker.AddTool(p.worker, worker.Tool{Name: "finish", Description: "Says that the page was visited."},
		func(context.Context, *worker.Call, none) (string, error) {
			p.visited.Store(true)
			return "finished", p.worker.ElicitationComplete(p.asked(), "visit-1")
		})
	p.worker.AddPrompt(worker.Prompt{Name: "visit"}, func(_ context.Context, call *worker.Call, _ map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{}, visit(call)
	})
	p.worker.AddResource(worker.Resource{URI: "pages://visit", Name: "visit"}, func(_ context.Context, call *worker.Call, _ worker.ReadRequest) (*worker.Contents, error) {
		return worker.TextContents("text/plain", "visited"), visit(call)
	})
	worker.AddTool(p.worker, worker.Tool{Name: "unnamed", Description: "Needs two pages without a name."},
		func(context.Context, *worker.Call, none) (string, error) {
			return "", &worker.URLElicitationRequiredError{Pages: []worker.URLElicitation{{URL: "https://example.com/a"}, {URL: "https://example.com/b"}}}
		})
	type agreement struct {
		Sure bool `json:"sure"`
	}
	worker.AddTool(p.worker, worker.Tool{Name: "redeem", Description: "Redeems a voucher; the answer counts once.", OnceOnly: true},
		func(_ context.Context, call *worker.Call, _ none) (string, error) {
			if _, err := call.Ask(worker.ElicitFor[agreement]("sure", "Redeem it?")); err != nil {
				return "", err
			}
			return fmt.Sprintf("redeemed %d", p.redeemed.Add(1)), nil
		})
	s.serveWorker("pages", p.worker)
	return p
}

func (p *visiting) asked() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.scope
}

const visitsPages = `{"elicitation":{"form":{},"url":{}}}`

// What a client sees of a request that needs a page first, in each revision and
// with and without the capability.
func TestURLElicitationRequired(t *testing.T) {
	t.Parallel()
	const (
		data     = `"data":{"elicitations":[{"mode":"url","message":"Please sign in.","url":"https://example.com/sign-in?visit=1","elicitationId":"visit-1"}]}`
		required = `"error":{"code":-32042,"message":"Sign in first.",` + data + `}`
		isError  = `"isError":true`
		question = `"inputRequests":{"millrace/page/1":{"method":"elicitation/create","params":{"mode":"url","message":"Please sign in.","url":"https://example.com/sign-in?visit=1"}}}`
		lacks    = `"data":{"requiredCapabilities":{"elicitation":{"url":{}}}}`
	)
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		p := s.visiting()
		for _, c := range []struct {
			rev, capabilities      string
			status                 int
			tool, prompt, resource string
		}{
			{"2025-11-25", visitsPages, 200, required, required, required},
			{"2025-11-25", `{"elicitation":{}}`, 200, isError, `"code":-32603`, `"code":-32603`},
			{"2025-11-25", `{}`, 200, isError, `"code":-32603`, `"code":-32603`},
			{"2025-06-18", visitsPages, 200, isError, `"code":-32603`, `"code":-32603`},
			{"2024-11-05", visitsPages, 200, isError, `"code":-32603`, `"code":-32603`},
			{"2026-07-28", visitsPages, 200, question, question, question},
			{"2026-07-28", `{"elicitation":{"form":{}}}`, 400, lacks, lacks, lacks},
			{"2026-07-28", `{}`, 400, lacks, lacks, lacks},
		} {
			for method, want := range map[string]string{
				mcp.MethodToolsCall + ` {"name":"visit"}`:            c.tool,
				mcp.MethodPromptsGet + ` {"name":"visit"}`:           c.prompt,
				mcp.MethodResourcesRead + ` {"uri":"pages://visit"}`: c.resource,
			} {
				method, params, _ := strings.Cut(method, " ")
				text := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
				var headers []string
				if c.rev == mcp.Modern().Date {
					text = strings.Replace(modernMessage("1", method, params), mcp.MetaClientCapabilities+`":{}`, mcp.MetaClientCapabilities+`":`+c.capabilities, 1)
					headers = modernHeaders(text)
				} else {
					headers = []string{mcp.HeaderSessionID + ": " + s.session(c.rev, c.capabilities)}
				}
				resp := s.post(context.Background(), text, headers...)
				if got := body(t, resp); resp.StatusCode != c.status || !strings.Contains(got, want) ||
					want != required && want != question && strings.Contains(got, "example.com/sign-in") {
					t.Errorf("%s in %s with %s: %d %s\nwant %s", method, c.rev, c.capabilities, resp.StatusCode, got, want)
				}
			}
		}
		if p.visited.Load() {
			t.Error("visited")
		}
		// Pages without a name get one each.
		got := body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"unnamed"}}`,
			mcp.HeaderSessionID+": "+s.session("2025-11-25", visitsPages)))
		var answer struct {
			Error struct {
				Data struct {
					Elicitations []struct{ URL, ElicitationID, Message string }
				}
			}
		}
		if err := json.Unmarshal([]byte(got), &answer); err != nil {
			t.Fatal(err)
		}
		list := answer.Error.Data.Elicitations
		if len(list) != 2 || list[0].ElicitationID == list[1].ElicitationID || len(list[0].ElicitationID) < 16 || list[1].URL != "https://example.com/b" || list[0].Message == "" {
			t.Errorf("pages without a name: %s", got)
		}
	})
}

// In the stateless era the visit is a question: the request is made again, and
// goes on when the visit is over, or fails when the user declines.
func TestModernPages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		p := s.visiting()
		answer := func(state, action string) string {
			_, got := s.modernCall(visitsPages, `{"name":"visit","requestState":"`+state+`","inputResponses":{"millrace/page/1":{"action":"`+action+`"}}}`)
			return got
		}
		_, first := s.modernCall(visitsPages, `{"name":"visit"}`)
		_, state := inputRequired(t, first)
		_, state = inputRequired(t, answer(state, "accept")) // the visit takes its time
		if got := answer(state, "decline"); !strings.Contains(got, "did not agree") || !strings.Contains(got, `"isError":true`) {
			t.Errorf("declined: %s", got)
		}
		p.visited.Store(true)
		if got := answer(state, "accept"); !strings.Contains(got, `"text":"visited"`) {
			t.Errorf("visited: %s", got)
		}
	})
}

// A URL elicitation has an id only in the revision that has it.
func TestElicitationIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		w := worker.New(worker.Config{Pool: "asking", Logger: slog.New(slog.DiscardHandler)})
		for name, id := range map[string]string{"named": "author-1", "nameless": ""} {
			type none struct{}
			worker.AddTool(w, worker.Tool{Name: name}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
				_, err := call.Ask(worker.ElicitURL("page", "Go there.", "https://example.com/", id))
				return "", err
			})
		}
		s.serveWorker("asking", w)
		session := s.session("2025-11-25", visitsPages)
		for name, want := range map[string]string{"named": `"elicitationId":"author-1"`, "nameless": `"elicitationId":"`} {
			call := s.callStream(session, `{"name":"`+name+`"}`)
			id, params := request(t, call.next(), mcp.MethodElicit)
			if !strings.Contains(string(params), want) || strings.Contains(string(params), `"elicitationId":""`) {
				t.Errorf("%s: %s", name, params)
			}
			s.respond(session, `{"jsonrpc":"2.0","id":"`+id+`","result":{"action":"accept"}}`)
			call.next()
			if _, got := s.modernCall(visitsPages, `{"name":"`+name+`"}`); strings.Contains(got, "elicitationId") || !strings.Contains(got, `"mode":"url"`) {
				t.Errorf("%s in the stateless era: %s", name, got)
			}
		}
	})
}

// The end of a visit is told to the session that was sent there, on its GET
// stream, in the revision that has it.
func TestElicitationComplete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		s.visiting()
		call := func(session, tool string) string {
			return body(t, s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`"}}`, mcp.HeaderSessionID+": "+session))
		}
		asked, other := s.session("2025-11-25", visitsPages), s.session("2025-11-25", visitsPages)
		older := s.session("2025-06-18", `{"elicitation":{}}`)
		streams := map[string]*callStream{asked: s.listen(asked), other: s.listen(other), older: s.listen(older)}
		heard := func(session string) (messages []string) {
			synctest.Wait()
			for {
				select {
				case m := <-streams[session].events:
					if m != "" { // an event that only tells its place
						messages = append(messages, m)
					}
				default:
					return messages
				}
			}
		}
		for range 2 { // it may be said again
			call(asked, "visit")
			call(other, "finish")
		}
		const want = `{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"visit-1"}}`
		if got := heard(asked); len(got) != 2 || got[0] != want {
			t.Errorf("who was asked heard %q", got)
		}
		if got := append(heard(other), heard(older)...); len(got) > 0 {
			t.Errorf("others heard %q", got)
		}
		call(older, "visit")
		call(asked, "finish")
		if got := append(heard(asked), heard(older)...); len(got) > 0 {
			t.Errorf("in a revision without it: %q", got)
		}
		if got := call(asked, "visit"); !strings.Contains(got, `"text":"visited"`) {
			t.Errorf("after the visit: %s", got)
		}
	})
}

func TestElicitationCompleteOnStdio(t *testing.T) {
	t.Parallel()
	for rev, tells := range map[string]bool{"2025-11-25": true, "2025-06-18": false} {
		t.Run(rev, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := start(t, Config{})
				s.visiting()
				var out bytes.Buffer // read when all is quiet only
				in, inW := io.Pipe()
				done := make(chan error, 1) // one result
				go func() { done <- s.serveStdio(context.Background(), in, &out) }()
				say := func(text string) string {
					if _, err := io.WriteString(inW, text+"\n"); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					defer out.Reset()
					return out.String()
				}
				say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + rev + `","capabilities":` + visitsPages + `}}`)
				say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
				if got := say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"visit"}}`); strings.Contains(got, "-32042") != tells {
					t.Errorf("visit: %s", got)
				}
				got := say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"finish"}}`)
				if strings.Contains(got, `"params":{"elicitationId":"visit-1"}`) != tells || !strings.Contains(got, `"text":"finished"`) {
					t.Errorf("finish: %s", got)
				}
				inW.Close()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// moody is a store that can be made to fail.
type moody struct {
	session.Store
	down       atomic.Bool
	gets, puts atomic.Int64
}

func (m *moody) Get(ctx context.Context, key string) ([]byte, uint64, error) {
	m.gets.Add(1)
	if m.down.Load() {
		return nil, 0, fmt.Errorf("moody: %w", session.ErrUnavailable)
	}
	return m.Store.Get(ctx, key)
}

func (m *moody) Put(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	m.puts.Add(1)
	if m.down.Load() {
		return 0, fmt.Errorf("moody: %w", session.ErrUnavailable)
	}
	return m.Store.Put(ctx, key, value, revision, ttl)
}

const redeemed = `,"inputResponses":{"sure":{"action":"accept","content":{"sure":true}}}}`

// The answers of a round count once, by whichever edge they come, and never
// while that cannot be known.
func TestOnceOnlyState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &moody{Store: session.NewMemory()}
		s := start(t, Config{Store: store})
		p := s.visiting()
		call := func(params string) (int, string) { return s.modernCall(`{"elicitation":{}}`, params) }
		begin := func() string {
			_, first := call(`{"name":"redeem"}`)
			_, state := inputRequired(t, first)
			return `{"name":"redeem","requestState":"` + state + `"`
		}
		const used = `"error":{"code":-32602,"message":"params.requestState was used before, and counts once`
		first, second := begin(), begin()
		if store.puts.Load() != 0 {
			t.Error("a question was stored")
		}
		if _, got := call(first + redeemed); !strings.Contains(got, "redeemed 1") {
			t.Errorf("the first use: %s", got)
		}
		for range 3 {
			if status, got := call(first + redeemed); status != http.StatusOK || !strings.Contains(got, used) {
				t.Errorf("the second use: %d %s", status, got)
			}
		}
		// Answers without a state are none to a question of ours.
		_, got := call(`{"name":"redeem"` + redeemed)
		inputRequired(t, got)
		// While the store cannot be asked nobody goes on; then the state is as
		// good as before.
		store.down.Store(true)
		status, got := call(second + redeemed)
		if status != http.StatusServiceUnavailable || !strings.Contains(got, `"code":-32603`) || !strings.Contains(got, `"reason":"unavailable"`) || !strings.Contains(got, `"retryAfterMs":`) {
			t.Errorf("without the store: %d %s", status, got)
		}
		store.down.Store(false)
		if _, got := call(second + redeemed); !strings.Contains(got, "redeemed 2") {
			t.Errorf("with the store again: %s", got)
		}
		// Many at once: one goes on.
		third := begin()
		var wins atomic.Int64
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				if _, got := call(third + redeemed); strings.Contains(got, "redeemed") {
					wins.Add(1)
				} else if !strings.Contains(got, used) {
					t.Error(got)
				}
			})
		}
		wait.Wait()
		if wins.Load() != 1 || p.redeemed.Load() != 3 {
			t.Errorf("%d went on, %d were redeemed", wins.Load(), p.redeemed.Load())
		}
		// An old state is refused for its age, when its mark is gone.
		fourth := begin()
		call(fourth + redeemed)
		time.Sleep(16 * time.Minute)
		if _, got := call(fourth + redeemed); !strings.Contains(got, "has expired") {
			t.Errorf("an old state: %s", got)
		}
		if p.redeemed.Load() != 4 {
			t.Errorf("%d were redeemed", p.redeemed.Load())
		}
		// Other tools do not touch the store.
		puts, gets := store.puts.Load(), store.gets.Load()
		_, got = call(`{"name":"ask"}`)
		_, state := inputRequired(t, got)
		call(`{"name":"ask","requestState":"` + state + `","inputResponses":{"who":{"action":"decline"}}}`)
		if store.puts.Load() != puts || store.gets.Load() != gets {
			t.Error("a tool that has no need of it has used the store")
		}
	})
}

// A state is good again when it is certain that nothing ran: its client has no
// other one to try again with.
func TestOnceOnlyStateIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		p := &visiting{worker: worker.New(worker.Config{Pool: "busy", Slots: 1, Logger: slog.New(slog.DiscardHandler)})}
		type none struct{}
		type agreement struct {
			Sure bool `json:"sure"`
		}
		held, release := make(chan struct{}), make(chan struct{})
		worker.AddTool(p.worker, worker.Tool{Name: "hold"}, func(context.Context, *worker.Call, none) (string, error) {
			close(held)
			<-release
			return "", nil
		})
		worker.AddTool(p.worker, worker.Tool{Name: "redeem", OnceOnly: true}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
			if _, err := call.Ask(worker.ElicitFor[agreement]("sure", "Redeem it?")); err != nil {
				return "", err
			}
			return fmt.Sprintf("redeemed %d", p.redeemed.Add(1)), nil
		})
		s.serveWorker("busy", p.worker)
		call := func(params string) (int, string) { return s.modernCall(`{"elicitation":{}}`, params) }
		_, first := call(`{"name":"redeem"}`)
		_, state := inputRequired(t, first)
		again := `{"name":"redeem","requestState":"` + state + `"` + redeemed
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			call(`{"name":"hold"}`)
		}()
		<-held
		for range 2 {
			if status, got := call(again); status != http.StatusServiceUnavailable || !strings.Contains(got, `"reason":"overloaded"`) {
				t.Fatalf("the worker is not busy: %d %s", status, got)
			}
		}
		close(release)
		<-ended
		if _, got := call(again); !strings.Contains(got, "redeemed 1") {
			t.Errorf("after that: %s", got)
		}
		if _, got := call(again); !strings.Contains(got, "was used before") {
			t.Errorf("the second use: %s", got)
		}
	})
}
