package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/edge/auth"
	"github.com/millrace/millrace/edge/exchange"
	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/worker"
)

// The tokens of the tests. Ala has two; Ola may see what is hidden.
const (
	alaToken  = "token-of-ala-0123456789"
	alaToken2 = "another-token-of-ala-0123456789"
	olaToken  = "token-of-ola-0123456789"
	ewaToken  = "token-of-ewa-0123456789"

	tokenFile = `
- {token: ` + alaToken + `, subject: ala, issuer: "https://id.example", scopes: [use]}
- {token: ` + alaToken2 + `, subject: ala, issuer: "https://id.example", scopes: [use, vault]}
- {token: ` + olaToken + `, subject: ola, issuer: "https://id.example", scopes: [use, vault, audit]}
- {token: ` + ewaToken + `, subject: ewa, issuer: "https://id.example"}
`
)

// guarded starts a system that asks for tokens, and offers what only some may
// see.
func guarded(t *testing.T, cfg Config) *system {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(file, []byte(tokenFile), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := auth.OpenTokens(auth.TokensConfig{File: file})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "tokens", tokens.Run)
	cfg.Authenticator = tokens
	s := start(t, cfg)
	s.offerHidden()
	return s
}

// offerHidden adds items that need scopes and waits until they are known.
func (s *system) offerHidden() {
	type none struct{}
	text := func(what string) worker.ReadFunc {
		return func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
			c := worker.TextContents("text/plain", what)
			c.Public = true
			return c, nil
		}
	}
	w := s.worker
	worker.AddTool(w, worker.Tool{Name: "whoami", Description: "Says who calls."}, func(_ context.Context, call *worker.Call, _ none) (string, error) {
		p := call.Principal()
		if p == nil {
			return "nobody", nil
		}
		return fmt.Sprintf("%s %s %v", p.Issuer, p.Subject, p.Scopes), nil
	})
	worker.AddTool(w, worker.Tool{Name: "vault-a", Scopes: []string{"vault"}}, func(context.Context, *worker.Call, none) (string, error) {
		s.ran.add()
		return "treasure", nil
	})
	w.AddRawTool(worker.Tool{
		Name: "vault-h", Scopes: []string{"audit", "vault"},
		InputSchema: json.RawMessage(`{"type":"object","required":["region"],"properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`),
	}, func(context.Context, *worker.Call, json.RawMessage) (*worker.Result, error) {
		s.ran.add()
		return &worker.Result{}, nil
	})
	w.AddPrompt(worker.Prompt{
		Name: "vault-p", Scopes: []string{"vault"},
		Arguments: []worker.PromptArgument{{Name: "word", Complete: worker.CompleteFrom("secret")}},
	}, func(context.Context, *worker.Call, map[string]string) (*worker.PromptResult, error) {
		return &worker.PromptResult{Messages: []worker.PromptMessage{{Content: worker.Text("treasure")}}}, nil
	})
	w.AddResource(worker.Resource{URI: "vault://one", Name: "vault-one", Scopes: []string{"vault"}}, text("treasure"))
	w.AddResource(worker.Resource{URI: "term://vault-known", Name: "vault-term", Scopes: []string{"vault"}}, text("treasure"))
	w.AddResourceTemplate(worker.ResourceTemplate{
		URITemplate: "vault://box/{n}", Name: "vault-boxes", Scopes: []string{"vault"},
		Complete: map[string]worker.CompleteFunc{"n": worker.CompleteFrom("secret")},
	}, text("treasure"))
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "files://{+path}", Name: "files"}, text("open to all"))
	w.AddResourceTemplate(worker.ResourceTemplate{URITemplate: "files://vault/{name}", Name: "vault-files", Scopes: []string{"vault"}}, text("treasure"))
	for {
		changed := s.edge.Catalog().Changed()
		if _, ok := s.edge.Catalog().Snapshot().Template("files://vault/{name}"); ok {
			return
		}
		<-changed
	}
}

// user is a client with a token.
type user struct {
	*system
	token   string
	session string
}

// as returns the user of a token, with a session.
func (s *system) as(token, date, capabilities string) *user {
	s.t.Helper()
	u := &user{system: s, token: token}
	resp := u.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + date + `","capabilities":` + capabilities + `}}`)
	if text := body(s.t, resp); resp.StatusCode != http.StatusOK {
		s.t.Fatalf("initialize: %d %s", resp.StatusCode, text)
	}
	u.session = resp.Header.Get(mcp.HeaderSessionID)
	return u
}

// send posts a message in the user's session.
func (u *user) send(text string, headers ...string) *http.Response {
	u.t.Helper()
	headers = append(headers, "Authorization: Bearer "+u.token)
	if u.session != "" {
		headers = append(headers, mcp.HeaderSessionID+": "+u.session)
	}
	return u.post(context.Background(), text, headers...)
}

// request sends a request of the legacy era and returns all of its answer.
func (u *user) request(method, params string) string {
	u.t.Helper()
	return whole(u.t, u.send(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`))
}

// modern sends a request of the stateless era and returns all of its answer.
func (u *user) modern(method, params string, headers ...string) string {
	u.t.Helper()
	text := modernMessage("1", method, params)
	about := modernHeaders(text)
	if uri := regexp.MustCompile(`"uri":"([^"]*)"`).FindStringSubmatch(params); uri != nil && method == mcp.MethodResourcesRead {
		about[2] = mcp.HeaderName + ": " + uri[1]
	}
	return whole(u.t, u.send(text, append(headers, about...)...))
}

// whole writes a response down to the last header that is not the time.
func whole(t testing.TB, resp *http.Response) string {
	t.Helper()
	text := body(t, resp)
	resp.Header.Del("Date")
	var b strings.Builder
	fmt.Fprintln(&b, resp.StatusCode)
	_ = resp.Header.Write(&b) // a builder takes everything
	return b.String() + "\n" + text
}

func TestWhoIsLetIn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := guarded(t, Config{RequiredScopes: []string{"use"}})
		const (
			ask     = `Bearer realm="millrace"`
			invalid = `Bearer realm="millrace", error="invalid_token", error_description="`
			lacking = `Bearer realm="millrace", error="insufficient_scope", scope="use"`
		)
		for _, c := range []struct {
			name          string
			authorization []string
			query         string
			status        int
			challenge     string
		}{
			{"none", nil, "", 401, ask},
			{"in the query", nil, "?access_token=" + alaToken, 401, ask},
			{"empty", []string{""}, "", 401, ask},
			{"another scheme", []string{"Basic " + alaToken}, "", 401, ask},
			{"no scheme", []string{alaToken}, "", 401, ask},
			{"no token", []string{"Bearer "}, "", 401, ask},
			{"not well-formed", []string{"Bearer " + alaToken + " x"}, "", 401, invalid + `the Authorization header carries no well-formed bearer token"`},
			{"two in one header", []string{"Bearer " + alaToken + ", Bearer " + alaToken}, "", 401, invalid + `the Authorization header carries no well-formed bearer token"`},
			{"two headers", []string{"Bearer " + alaToken, "Bearer " + alaToken}, "", 401, invalid + `there is more than one Authorization header"`},
			{"not known", []string{"Bearer " + alaToken + "x"}, "", 401, invalid + `the token is not known"`},
			{"a part", []string{"Bearer " + alaToken[:20]}, "", 401, invalid + `the token is not known"`},
			{"without the scope", []string{"Bearer " + ewaToken}, "", 403, lacking},
			{"good", []string{"Bearer " + alaToken}, "", 200, ""},
			{"in lower case", []string{"bearer  " + alaToken}, "", 200, ""},
		} {
			for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete, http.MethodPut} {
				req, err := http.NewRequestWithContext(context.Background(), method, "http://localhost/mcp"+c.query,
					strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
				if err != nil {
					t.Fatal(err)
				}
				req.Header["Authorization"] = c.authorization
				req.Header.Set("Content-Type", "application/json")
				resp, err := s.client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				text := body(t, resp)
				want := c.status
				if want == http.StatusOK {
					// Let in, a request without a session has its usual answer.
					want = map[string]int{http.MethodPost: 200, http.MethodGet: 405, http.MethodDelete: 400, http.MethodPut: 405}[method]
				}
				if resp.StatusCode != want || resp.Header.Get("WWW-Authenticate") != c.challenge {
					t.Errorf("%s %s: %d %q, want %d %q", method, c.name, resp.StatusCode, resp.Header.Get("WWW-Authenticate"), want, c.challenge)
				}
				if c.status != http.StatusOK && (!strings.HasPrefix(text, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"`) && !strings.HasPrefix(text, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"`)) {
					t.Errorf("%s %s: %s", method, c.name, text)
				}
				if strings.Contains(text, alaToken) {
					t.Errorf("%s %s shows a token: %s", method, c.name, text)
				}
			}
		}
		for _, open := range []struct{ method, path string }{{"GET", "/healthz"}, {"GET", "/readyz"}, {"OPTIONS", "/mcp"}} {
			req, err := http.NewRequestWithContext(context.Background(), open.method, "http://localhost"+open.path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := s.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if text := body(t, resp); resp.StatusCode == http.StatusUnauthorized {
				t.Errorf("%s %s needs a token: %s", open.method, open.path, text)
			}
		}
	})
}

func TestConfigOfAuthentication(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		for name, cfg := range map[string]Config{
			"scopes without an authenticator": {RequiredScopes: []string{"use"}},
			"a scope that is none":            {Authenticator: broken{}, RequiredScopes: []string{`a" b`}},
		} {
			if _, err := New(s.conn("edge"), cfg); err == nil {
				t.Errorf("%s was taken", name)
			}
		}
	})
}

// broken is an authenticator that does not decide.
type broken struct{}

func (broken) Authenticate(*http.Request) (*exchange.Principal, *auth.Refusal) { return nil, nil }

func TestUndecidedAuthenticatorLetsNobodyIn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{Authenticator: broken{}, Logger: slog.New(slog.DiscardHandler)})
		resp := s.post(context.Background(), `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		if text := body(t, resp); resp.StatusCode != http.StatusInternalServerError {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
	})
}

func TestPrincipalReachesTheWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := guarded(t, Config{})
		for token, want := range map[string]string{
			alaToken: "https://id.example ala [use]",
			olaToken: "https://id.example ola [audit use vault]",
			ewaToken: "https://id.example ewa []",
		} {
			u := s.as(token, "2025-11-25", `{}`)
			for era, got := range map[string]string{
				"legacy": u.request(mcp.MethodToolsCall, `{"name":"whoami"}`), "modern": u.modern(mcp.MethodToolsCall, `{"name":"whoami"}`),
			} {
				if !strings.Contains(got, `"text":"`+want+`"`) {
					t.Errorf("%s: the worker should see %q: %s", era, want, got)
				}
			}
		}
		batch := s.as(alaToken, "2025-03-26", `{}`).send(`[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"whoami"}},{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"vault-a"}}]`)
		if got := body(t, batch); !strings.Contains(got, "ala [use]") || !strings.Contains(got, `unknown tool \"vault-a\"`) {
			t.Errorf("in a batch: %s", got)
		}
		r := serveText(context.Background(), s, stdioInit+`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"whoami"}}`+"\n"+
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"vault-a"}}`+"\n")
		if got := strings.Join(r.lines(), "\n"); !strings.Contains(got, `"text":"nobody"`) || !strings.Contains(got, "treasure") {
			t.Errorf("on stdio nobody is asked: %s", got)
		}
	})
}

// hiddenItems are requests about items that exist and are hidden, and the same
// about items that do not exist. Names have the same length, so that even
// Content-Length can be compared.
var hiddenItems = []struct{ method, params, hidden, unknown string }{
	{mcp.MethodToolsCall, `{"name":"NAME"}`, "vault-a", "vault-x"},
	{mcp.MethodToolsCall, `{"name":"NAME","arguments":{"wrong":1}}`, "vault-a", "vault-x"},
	{mcp.MethodToolsCall, `{"name":"NAME","arguments":{"region":"eu"}}`, "vault-h", "vault-x"},
	{mcp.MethodToolsCall, `{"name":"NAME","requestState":"AAAA"}`, "vault-a", "vault-x"},
	{mcp.MethodPromptsGet, `{"name":"NAME"}`, "vault-p", "vault-x"},
	{mcp.MethodComplete, `{"ref":{"type":"ref/prompt","name":"NAME"},"argument":{"name":"word","value":"s"}}`, "vault-p", "vault-x"},
	{mcp.MethodComplete, `{"ref":{"type":"ref/prompt","name":"NAME"},"argument":{"name":"none","value":"s"}}`, "vault-p", "vault-x"},
	{mcp.MethodComplete, `{"ref":{"type":"ref/resource","uri":"NAME"},"argument":{"name":"n","value":"s"}}`, "vault://box/{n}", "vault://fox/{n}"},
	{mcp.MethodComplete, `{"ref":{"type":"ref/resource","uri":"NAME"},"argument":{"name":"n","value":"s"}}`, "vault://box/7", "vault://fox/7"},
	{mcp.MethodComplete, `{"ref":{"type":"ref/resource","uri":"NAME"},"argument":{"name":"n","value":"s"}}`, "vault://one", "vault://two"},
	{mcp.MethodResourcesRead, `{"uri":"NAME"}`, "vault://one", "vault://two"},
	{mcp.MethodResourcesRead, `{"uri":"NAME"}`, "vault://box/7", "vault://fox/7"},
	// Listed and hidden, though a template that all see matches it.
	{mcp.MethodResourcesRead, `{"uri":"NAME"}`, "term://vault-known", "term://vault-knowx"},
	// The template that serves it is hidden, though a wider one matches too.
	{mcp.MethodResourcesRead, `{"uri":"NAME"}`, "files://vault/a", "nofil://vault/a"},
	{mcp.MethodSubscribe, `{"uri":"NAME"}`, "vault://one", "vault://two"},
	{mcp.MethodSubscribe, `{"uri":"NAME"}`, "files://vault/a", "nofil://vault/a"},
}

// TestB38HiddenIsUnknown is a report from the field: names that a caller may not
// see could be told from those that do not exist.
func TestB38HiddenIsUnknown(t *testing.T) {
	t.Parallel()
	for _, date := range mcp.Supported() {
		t.Run(date, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := guarded(t, Config{})
				ask := func(token string) func(method, params string) string {
					u := &user{system: s, token: token}
					if date == mcp.Modern().Date {
						return func(method, params string) string { return u.modern(method, params) }
					}
					return s.as(token, date, `{}`).request
				}
				ala, ola := ask(alaToken), ask(olaToken)
				for _, c := range hiddenItems {
					if date == mcp.Modern().Date && c.method == mcp.MethodSubscribe {
						continue // see TestHiddenSubscriptions
					}
					about := func(name string) string { return strings.Replace(c.params, "NAME", name, 1) }
					unknown := ala(c.method, about(c.unknown))
					ran := s.ran.value()
					hidden := ala(c.method, about(c.hidden))
					if s.ran.value() != ran {
						t.Errorf("%s %s ran", c.method, about(c.hidden))
					}
					if got := strings.ReplaceAll(hidden, c.hidden, c.unknown); len(c.hidden) == len(c.unknown) && got != unknown {
						t.Errorf("%s %s:\nhidden  %s\nunknown %s", c.method, about(c.hidden), got, unknown)
					}
					if !strings.Contains(hidden, `"error":{"code":-32`) {
						t.Errorf("%s %s: %s", c.method, about(c.hidden), hidden)
					}
					if got := ola(c.method, about(c.hidden)); got == hidden && !strings.Contains(c.params, "requestState") {
						t.Errorf("%s %s: the caller with the scopes gets the same: %s", c.method, about(c.hidden), got)
					}
				}
				if got := ala(mcp.MethodResourcesRead, `{"uri":"files://public/a"}`); !strings.Contains(got, "open to all") {
					t.Errorf("the wider template is not hidden: %s", got)
				}
				// Lists: of two callers, and of the second one again, each from
				// what is kept of the first.
				for _, list := range []string{mcp.MethodToolsList, mcp.MethodPromptsList, mcp.MethodResourcesList, mcp.MethodResourceTemplatesList} {
					for range 2 {
						if got := ola(list, `{}`); !strings.Contains(got, "vault") || strings.Contains(got, `"cacheScope":"public"`) {
							t.Errorf("%s with the scopes: %s", list, got)
						}
						if got := ala(list, `{}`); strings.Contains(got, "vault") || strings.Contains(got, "scopes") ||
							strings.Contains(got, `"cacheScope":"private"`) != (date == mcp.Modern().Date) {
							t.Errorf("%s without the scopes: %s", list, got)
						}
					}
				}
			})
		})
	}
}

func TestHiddenInTheStatelessEra(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := guarded(t, Config{})
		ala, ola := &user{system: s, token: alaToken}, &user{system: s, token: olaToken}
		// Headers that mirror arguments would betray that the tool has some.
		for _, headers := range [][]string{nil, {"Mcp-Param-Region: us"}, {"Mcp-Param-Region: =?base64?!?="}} {
			hidden := ala.modern(mcp.MethodToolsCall, `{"name":"vault-h","arguments":{"region":"eu"}}`, headers...)
			unknown := ala.modern(mcp.MethodToolsCall, `{"name":"vault-x","arguments":{"region":"eu"}}`, headers...)
			if strings.ReplaceAll(hidden, "vault-h", "vault-x") != unknown {
				t.Errorf("headers %q:\nhidden  %s\nunknown %s", headers, hidden, unknown)
			}
			if got := ola.modern(mcp.MethodToolsCall, `{"name":"vault-h","arguments":{"region":"eu"}}`, headers...); !strings.Contains(got, `"code":-32020`) {
				t.Errorf("headers %q with the scopes: %s", headers, got)
			}
		}
		if got := ala.modern(mcp.MethodDiscover, `{}`); !strings.Contains(got, `"cacheScope":"private"`) {
			t.Errorf("discovery: %s", got)
		}
		if got := ala.modern(mcp.MethodResourcesRead, `{"uri":"files://public/a"}`); !strings.Contains(got, `"cacheScope":"private"`) {
			t.Errorf("a resource that its author calls public: %s", got)
		}
	})
}

func TestInstructionsOfHiddenPools(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := guarded(t, Config{})
		type none struct{}
		w := worker.New(worker.Config{Pool: "cellar", Instructions: "About the cellar.", Logger: slog.New(slog.DiscardHandler)})
		worker.AddTool(w, worker.Tool{Name: "wine", Scopes: []string{"vault"}}, func(context.Context, *worker.Call, none) (string, error) { return "", nil })
		conn := s.conn("cellar")
		run(t, "cellar", func(ctx context.Context) error { return w.Run(ctx, conn) })
		time.Sleep(3 * time.Second)
		for token, want := range map[string]bool{alaToken: false, olaToken: true} {
			u := &user{system: s, token: token}
			for era, got := range map[string]string{
				"legacy": u.request(mcp.MethodInitialize, `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}`),
				"modern": u.modern(mcp.MethodDiscover, `{}`),
			} {
				if strings.Contains(got, "cellar") != want || !strings.Contains(got, "For tests.") {
					t.Errorf("%s: %s", era, got)
				}
			}
		}
	})
}

// A cursor is its caller's, whatever token the caller has now (B46).
func TestB46CursorsOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := guarded(t, Config{PageSize: 3})
		next := regexp.MustCompile(`"nextCursor":"([^"]*)"`)
		walk := func(first, second *user) (names []string, last string) {
			u, cursor := first, ""
			for range 20 {
				last = u.modern(mcp.MethodToolsList, `{`+cursor+`}`)
				for _, m := range regexp.MustCompile(`\{"name":"([^"]*)"`).FindAllStringSubmatch(last, -1) {
					if m[1] != "millrace" {
						names = append(names, m[1])
					}
				}
				m := next.FindStringSubmatch(last)
				if m == nil {
					return names, last
				}
				// What has a cursor of somebody's is nobody else's.
				if !strings.Contains(last, `"cacheScope":"private"`) {
					t.Errorf("a page with a cursor may be kept for everybody: %s", last)
				}
				cursor, u = `"cursor":"`+m[1]+`"`, second
			}
			t.Fatal("the walk does not end")
			return nil, ""
		}
		ala, again, ola := &user{system: s, token: alaToken}, &user{system: s, token: alaToken2}, &user{system: s, token: olaToken}
		seen, _ := walk(ala, ala)
		every, _ := walk(ola, ola)
		if len(every) != len(seen)+2 || !slices.IsSorted(every) {
			t.Errorf("ala sees %q, ola %q", seen, every)
		}
		// The second token of ala sees the vault, so the rest of the list is longer.
		if names, last := walk(ala, again); len(names) < len(seen) || strings.Contains(last, `"error"`) {
			t.Errorf("ala goes on with another token: %q, %s", names, last)
		}
		for _, others := range [][2]*user{{ala, ola}, {ola, ala}} {
			if _, last := walk(others[0], others[1]); !strings.Contains(last, `"error":{"code":-32602`) {
				t.Errorf("another user's cursor: %s", last)
			}
		}
	})
}

// TestB20SessionsOfOthers is a report from the field: the id of a session was
// enough to use it, or a new token of its owner was not.
func TestB20SessionsOfOthers(t *testing.T) {
	t.Parallel()
	for _, date := range []string{"2025-06-18", "2025-11-25"} {
		t.Run(date, func(t *testing.T) {
			t.Parallel()
			testSessionsOfOthers(t, date)
		})
	}
}

func testSessionsOfOthers(t *testing.T, date string) {
	synctest.Test(t, func(t *testing.T) {
		s := guarded(t, Config{SessionMaxAge: 10 * time.Minute})
		ala := s.as(alaToken, date, `{"elicitation":{}}`)
		bearer := func(token string) string { return "Authorization: Bearer " + token }
		resp := s.do(context.Background(), http.MethodGet, "", bearer(alaToken), mcp.HeaderSessionID+": "+ala.session, "Accept: text/event-stream")
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("GET: %d %s", resp.StatusCode, body(t, resp))
		}
		stream := readStream(resp)
		const elicitor = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask"}}`
		call := readStream(ala.send(elicitor, "Accept: application/json, text/event-stream"))
		question, _ := request(t, call.next(), "elicitation/create")
		decline := `{"jsonrpc":"2.0","id":"` + question + `","result":{"action":"decline"}}`

		// Everything that another user can do with the id.
		attempt := func(method, text string, headers ...string) {
			t.Helper()
			all := func(session string) string {
				return whole(t, s.do(context.Background(), method, text, append(headers, mcp.HeaderSessionID+": "+session,
					"Content-Type: application/json", "Accept: application/json, text/event-stream")...))
			}
			theirs, unknown := all(ala.session), all("no-such-session")
			want := "404\n"
			if len(headers) == 0 {
				want = "401\n"
			}
			if theirs != unknown || !strings.HasPrefix(theirs, want) {
				t.Errorf("%s %s with %q:\nan id of ala's %s\nan unknown id  %s", method, text, headers, theirs, unknown)
			}
		}
		for _, headers := range [][]string{{bearer(olaToken)}, {bearer(ewaToken), "Last-Event-ID: 1"}, {}} {
			attempt(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, headers...)
			attempt(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}`, headers...)
			attempt(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, headers...)
			attempt(http.MethodPost, decline, headers...)
			attempt(http.MethodPost, `[`+decline+`]`, headers...)
			attempt(http.MethodGet, "", headers...)
			attempt(http.MethodDelete, "", headers...)
		}
		// In a session of its own, another user answers nothing of ala's either.
		ola := s.as(olaToken, date, `{"elicitation":{}}`)
		resp = ola.send(decline)
		if text := body(t, resp); resp.StatusCode != http.StatusAccepted {
			t.Errorf("an answer to nothing: %d %s", resp.StatusCode, text)
		}
		resp = s.post(context.Background(), decline, bearer(olaToken)) // nor without any
		body(t, resp)

		// Ala is unharmed, and goes on with a new token.
		s.addTool("news")
		time.Sleep(2 * time.Second)
		wantMessages(t, "ala's stream", stream.waiting(), toolsChanged)
		ala.token = alaToken2
		resp = ala.send(`{"jsonrpc":"2.0","id":"` + question + `","result":{"action":"accept","content":{"name":"Ala"}}}`)
		if text := body(t, resp); resp.StatusCode != http.StatusAccepted {
			t.Errorf("ala's answer: %d %s", resp.StatusCode, text)
		}
		if got := call.next(); !strings.Contains(got, `"text":"Ala"`) {
			t.Errorf("ala's call ended with %s", got)
		}
		if got := ala.request(mcp.MethodToolsCall, `{"name":"whoami"}`); !strings.Contains(got, "ala [use vault]") {
			t.Errorf("with the new token: %s", got)
		}
		// The owner may end a session, with either token.
		ending := s.as(alaToken, date, `{}`)
		resp = s.do(context.Background(), http.MethodDelete, "", bearer(alaToken2), mcp.HeaderSessionID+": "+ending.session)
		if text := body(t, resp); resp.StatusCode != http.StatusNoContent {
			t.Errorf("DELETE by the owner: %d %s", resp.StatusCode, text)
		}
		// Nor does the session outlive its age, whoever asks.
		time.Sleep(10 * time.Minute)
		if got := ala.request(mcp.MethodToolsList, `{}`); !strings.HasPrefix(got, "404\n") {
			t.Errorf("after the session has expired: %s", got)
		}
		s.edge.Drain()
	})
}

func TestRequestStateOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := guarded(t, Config{})
		ask := func(token, params string) string {
			u := &user{system: s, token: token}
			text := strings.Replace(modernMessage("1", mcp.MethodToolsCall, params), `clientCapabilities":{}`, `clientCapabilities":{"elicitation":{}}`, 1)
			return body(t, u.send(text, modernHeaders(text)...))
		}
		_, state := inputRequired(t, ask(alaToken, `{"name":"ask"}`))
		answer := `{"name":"ask","requestState":"` + state + `","inputResponses":{"who":{"action":"accept","content":{"name":"Ala"}}}}`
		if got := ask(olaToken, answer); !strings.Contains(got, `"error":{"code":-32602`) {
			t.Errorf("another user goes on with ala's request: %s", got)
		}
		if n := s.ran.value(); n != 0 {
			t.Error("another user's answer was taken")
		}
		if got := ask(alaToken2, answer); !strings.Contains(got, `"text":"Ala"`) {
			t.Errorf("ala goes on with a new token: %s", got)
		}
	})
}

func TestHiddenSubscriptions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := guarded(t, Config{})
		open := func(token string) *callStream {
			u := &user{system: s, token: token}
			text := modernMessage(`"sub"`, mcp.MethodListen, `{"notifications":{"toolsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["vault://one","none://x","files://vault/a","memo://notes/one"]}}`)
			return readStream(u.send(text, append(modernHeaders(text), "Accept: application/json, text/event-stream")...))
		}
		ala, ola := open(alaToken), open(olaToken)
		// A session whose stream is opened with fewer scopes than it had.
		legacy := s.as(alaToken2, "2025-11-25", `{}`)
		if got := legacy.request(mcp.MethodSubscribe, `{"uri":"vault://one"}`); !strings.Contains(got, `"result":{}`) {
			t.Errorf("subscribe with the scopes: %s", got)
		}
		poorer := readStream(s.do(context.Background(), http.MethodGet, "", "Authorization: Bearer "+alaToken,
			mcp.HeaderSessionID+": "+legacy.session, "Accept: text/event-stream"))
		if got := ala.next(); !strings.Contains(got, `"resourceSubscriptions":["memo://notes/one"]`) {
			t.Errorf("acknowledged to ala: %s", got)
		}
		if got := ola.next(); !strings.Contains(got, `"resourceSubscriptions":["vault://one","files://vault/a","memo://notes/one"]`) {
			t.Errorf("acknowledged to ola: %s", got)
		}
		s.worker.ResourceUpdated("vault://one")
		s.worker.ResourceUpdated("memo://notes/one")
		type none struct{}
		worker.AddTool(s.worker, worker.Tool{Name: "vault-new", Scopes: []string{"vault"}}, func(context.Context, *worker.Call, none) (string, error) { return "", nil })
		s.worker.RemoveResource("term://vault-known")
		time.Sleep(3 * time.Second)
		kinds := func(c *callStream) string {
			var all []string
			for _, m := range c.waiting() {
				all = append(all, regexp.MustCompile(`"method":"notifications/([^"]*)"`).FindStringSubmatch(m)[1])
			}
			slices.Sort(all)
			return strings.Join(all, " ")
		}
		if got := kinds(ala); got != "resources/updated" {
			t.Errorf("ala is told of %q", got)
		}
		if got := kinds(poorer); got != "" {
			t.Errorf("ala's session is told of %q", got)
		}
		if got := kinds(ola); got != "resources/list_changed resources/updated resources/updated tools/list_changed" {
			t.Errorf("ola is told of %q", got)
		}
		// What is closed later is closed for those who follow it already.
		s.worker.AddResource(worker.Resource{URI: "memo://notes/one", Name: "one", Scopes: []string{"vault"}},
			func(context.Context, *worker.Call, worker.ReadRequest) (*worker.Contents, error) {
				return worker.TextContents("text/plain", ""), nil
			})
		time.Sleep(3 * time.Second)
		s.worker.ResourceUpdated("memo://notes/one")
		time.Sleep(time.Second)
		if got := kinds(ala); got != "resources/list_changed" {
			t.Errorf("after it was hidden from her ala is told of %q", got)
		}
		if got := kinds(ola); got != "resources/list_changed resources/updated" {
			t.Errorf("ola is told of %q", got)
		}
		s.edge.Drain()
		time.Sleep(time.Second)
	})
}

func TestScopesWithoutAuthentication(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, Config{})
		s.offerHidden()
		text := modernMessage("1", mcp.MethodToolsCall, `{"name":"vault-a"}`)
		if got := body(t, s.post(context.Background(), text, modernHeaders(text)...)); !strings.Contains(got, "treasure") {
			t.Errorf("an edge that asks nobody hides from everybody: %s", got)
		}
		text = modernMessage("1", mcp.MethodToolsList, `{}`)
		if got := body(t, s.post(context.Background(), text, modernHeaders(text)...)); !strings.Contains(got, "vault-a") || !strings.Contains(got, `"cacheScope":"public"`) {
			t.Errorf("list: %s", got)
		}
	})
}

// TestTokensAreNotShown follows a token through everything that writes: the log
// of the edge and every answer.
func TestTokensAreNotShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, logged := io.Pipe()
		seen := make(chan string, 1)
		go func() {
			all, _ := io.ReadAll(log)
			seen <- string(all)
		}()
		s := guarded(t, Config{Logger: slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		u := s.as(alaToken, "2025-11-25", `{}`)
		for _, name := range []string{"whoami", "crash", "fail", "refuse", "none"} {
			if got := u.request(mcp.MethodToolsCall, `{"name":"`+name+`"}`) + u.modern(mcp.MethodToolsCall, `{"name":"`+name+`"}`); strings.Contains(got, alaToken) {
				t.Errorf("%s shows the token: %s", name, got)
			}
		}
		t.Cleanup(func() {
			logged.Close()
			if strings.Contains(<-seen, alaToken) {
				t.Error("the log shows the token")
			}
		})
	})
}
