package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/edge/exchange"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	first  = "first-token-0123456789"
	second = "second-token-0123456789"
)

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// request carries a token; "" carries none.
func request(token string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/mcp", http.NoBody)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	entries, err := parse([]byte(`# People.
- token: ` + first + `
  subject: ala
  issuer: https://id.example
  scopes: [write, read, write]
- token_sha256: ` + strings.ToUpper(digest(second)) + `
  subject: "ola"
- {token: "1234567890123456", subject: "7", scopes: []}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, token := range []string{first, second, "1234567890123456", "none-of-them-0123456789"} {
		i := find(entries, sha256.Sum256([]byte(token)))
		if i < 0 {
			got = append(got, "-")
			continue
		}
		got = append(got, fmt.Sprintf("%v", entries[i].principal))
	}
	want := []string{"{https://id.example ala [read write]}", "{ ola []}", "{ 7 []}", "-"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if entries, err := parse([]byte("[]\n")); err != nil || len(entries) != 0 {
		t.Errorf("an empty list: %v, %v", entries, err)
	}
}

func TestFaultsOfTokenFiles(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                           {"line 1: the file is empty"},
		"# nothing\n":                {"line 1: the file is empty"},
		"token: " + first:            {"line 1: the file must be a list"},
		"- " + first:                 {"line 1: an item must have members"},
		"- token: " + first + "\n":   {"line 1: an item has no subject"},
		"\n- subject: ala":           {"line 2: an item must have either token or token_sha256"},
		"- {subject: a, token: abc}": {"line 1: token has fewer than 16"},
		"- subject: a\n  token: 1234567890123456\n":                                                   {"line 2: token must be a string"},
		"- subject: a\n  token: ąąąąąąąąąąąąąąąąąąąą\n":                                               {"line 2: token may have"},
		"- subject: a\n  token: \"" + first + " \"\n":                                                 {"line 2: token may have"},
		"- subject: a\n  token_sha256: " + digest(first)[1:] + "x\n":                                  {"line 2: token_sha256 must be 64"},
		"- subject: a\n  token_sha256: abcd\n":                                                        {"line 2: token_sha256 must be 64"},
		"- subject: a\n  token: " + first + "\n  token_sha256: " + digest(first):                      {"line 1: an item must have either"},
		"- subject: a\n  token: " + first + "\n  scope: [x]":                                          {"line 3: an item has members that are not known"},
		"- subject: a\n  token: " + first + "\n  token: " + second:                                    {"line 3: a member occurs twice"},
		"- subject: \"\"\n  token: " + first:                                                          {"line 1: subject is empty"},
		"- subject: 7\n  token: " + first:                                                             {"line 1: subject must be a string"},
		"- subject: [a]\n  token: " + first:                                                           {"line 1: subject must be a string"},
		"- subject: a\n  token: " + first + "\n  scopes: read":                                        {"line 3: scopes must be a list"},
		"- subject: a\n  token: " + first + "\n  scopes:\n  - read write\n  - \"\"\n  - 1\n  - \"ż\"": {"line 4: a scope", "line 5: a scope", "line 6: a scope", "line 7: a scope"},
		"- subject: a\n  token: " + first + "\n- subject: b\n  token_sha256: " + digest(first):        {"line 3: the token is that of line 1 again"},
		"- &x {subject: a, token: " + first + "}\n- *x\n":                                             {"line 2: an item must have members"},
		"- {subject: a, token: " + first + "}\n---\n[]\n":                                             {"line 2: the file must hold one document"},
		"- subject: a\n  token: *" + first:                                                            {"the YAML cannot be read"},
		"- subject: a\n\ttoken: " + first:                                                             {"line 2: the YAML cannot be read"},
		"- subject: a\n  token: !x " + first:                                                          {"line 2: token must be a string"},
		"- ? [a]\n  : " + first:                                                                       {"line 1: an item has members that are not known"},
		"- token: x\n- token: y\n  subject: a\n":                                                      {"line 1: token has fewer", "line 1: an item has no subject", "line 2: token has fewer"},
	} {
		entries, err := parse([]byte(text))
		if err == nil {
			t.Errorf("%q was taken: %v", text, entries)
			continue
		}
		for _, w := range want {
			if !strings.Contains("\n"+err.Error(), "\n"+w) {
				t.Errorf("%q: %v\nwant %s", text, err, w)
			}
		}
		for _, secret := range []string{first, second, digest(first)[1:20]} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q: the error shows a token: %v", text, err)
			}
		}
	}
}

// TestFindLooksAtEveryEntry: a search that stopped at the first match would
// return the first of two equal entries, and tell by its time where it stopped.
func TestFindLooksAtEveryEntry(t *testing.T) {
	t.Parallel()
	d := sha256.Sum256([]byte(first))
	for n := 1; n < 5; n++ {
		entries := make([]entry, n)
		for i := range entries {
			entries[i].digest = d
		}
		if got := find(entries, d); got != n-1 {
			t.Errorf("of %d equal entries it took number %d", n, got)
		}
	}
	if got := find(nil, d); got != -1 {
		t.Errorf("among none it found %d", got)
	}
}

// openTokens opens a file that has the first token, and runs the actor.
func openTokens(t *testing.T, file string, log *lines) *Tokens {
	t.Helper()
	tokens, err := OpenTokens(TokensConfig{File: file, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1) // one result
	go func() { done <- tokens.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return tokens
}

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// take returns the lines that were written since.
func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.buf.String()
	l.buf.Reset()
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")[:strings.Count(text, "\n")]
}

// known says which of the two tokens are let in.
func known(tokens *Tokens) string {
	var all []string
	for name, token := range map[string]string{"first": first, "second": second} {
		if p, _ := tokens.Authenticate(request(token)); p != nil {
			all = append(all, name+" as "+p.Subject)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func item(token, subject string) string {
	return "- {token: " + token + ", subject: " + subject + "}\n"
}

func TestReload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "tokens.yaml")
		write(t, file, item(first, "ala"))
		log := &lines{}
		tokens := openTokens(t, file, log)
		expect := func(step, want string, logged ...string) {
			t.Helper()
			time.Sleep(3 * time.Second)
			if got := known(tokens); got != want {
				t.Errorf("%s: let in are %q, want %q", step, got, want)
			}
			got := log.take()
			if len(got) != len(logged) {
				t.Errorf("%s: the log has %q, want %d lines", step, got, len(logged))
				return
			}
			for i, want := range logged {
				if !strings.Contains(got[i], want) || strings.Contains(got[i], first) || strings.Contains(got[i], second) {
					t.Errorf("%s: the log says %s, want %s and no token", step, got[i], want)
				}
			}
		}
		expect("unchanged", "first as ala")
		write(t, file, item(second, "ola"))
		expect("replaced", "second as ola", "tokens reloaded")
		write(t, file, item(second, "ola")+item(first, "ola")+"- "+first+"\n")
		expect("bad", "second as ola", "line 3: an item must have members")
		expect("still bad", "second as ola")
		write(t, file, item(first, "ala")+"- x: "+first+"\n")
		expect("bad in another way", "second as ola", "line 2: an item has members that are not known")
		write(t, file, "")
		expect("emptied", "second as ola", "the file is empty")
		write(t, file, item(second, "ewa"))
		expect("good again", "second as ewa", "tokens reloaded")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		expect("removed", "second as ewa", "no such file")
		expect("still removed", "second as ewa")
		write(t, file, item(second, "ewa"))
		expect("there again", "second as ewa")
		write(t, file+".new", item(first, "ala"))
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		expect("renamed into place", "first as ala", "tokens reloaded")
		write(t, file, "[]\n")
		expect("nobody", "", "tokens reloaded")
	})
}

// TestReloadOfAMountedSecret swaps files as Kubernetes does: the file is a link
// through a link, and only the inner one is exchanged.
func TestReloadOfAMountedSecret(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		at := func(name string) string { return filepath.Join(dir, name) }
		for version, text := range map[string]string{"..1": item(first, "ala"), "..2": item(second, "ola")} {
			if err := os.Mkdir(at(version), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(at(version), "tokens.yaml"), text)
		}
		link := func(target, name string) {
			if err := os.Symlink(target, at(name)); err != nil {
				t.Fatal(err)
			}
		}
		link("..1", "..data")
		link(filepath.Join("..data", "tokens.yaml"), "tokens.yaml")
		tokens := openTokens(t, at("tokens.yaml"), &lines{})
		if got := known(tokens); got != "first as ala" {
			t.Errorf("at first: %q", got)
		}
		link("..2", "..data_tmp")
		if err := os.Rename(at("..data_tmp"), at("..data")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if got := known(tokens); got != "second as ola" {
			t.Errorf("after the swap: %q", got)
		}
	})
}

// TestReloadWaitsUntilTheFileIsWritten: a list that ends early is a list, too.
func TestReloadWaitsUntilTheFileIsWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "tokens.yaml")
		write(t, file, item(first, "ala"))
		log := &lines{}
		tokens := openTokens(t, file, log)
		time.Sleep(250 * time.Millisecond) // between two looks
		write(t, file, "[]\n")
		time.Sleep(500 * time.Millisecond)
		write(t, file, item(first, "ala")+item(second, "ola"))
		time.Sleep(500 * time.Millisecond)
		if got := known(tokens); got != "first as ala" {
			t.Errorf("while the file is being written: %q", got)
		}
		time.Sleep(500 * time.Millisecond)
		if got := known(tokens); got != "first as ala, second as ola" {
			t.Errorf("after that: %q", got)
		}
		if got := log.take(); len(got) != 1 {
			t.Errorf("the log has %q", got)
		}
	})
}

func TestOpenTokensReportsFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	write(t, bad, "- x: 1\n- y: 2\n")
	for file, want := range map[string]string{
		bad:                         "bad.yaml:\nline 1: ",
		filepath.Join(dir, "none"):  "no such file",
		dir:                         "is not a regular file",
		filepath.Join(dir, "large"): "larger than 16 MiB",
	} {
		if strings.HasSuffix(file, "large") {
			write(t, file, strings.Repeat("#", maxFile+1))
		}
		if _, err := OpenTokens(TokensConfig{File: file}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestChallenges(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	write(t, file, "- {token: "+first+", subject: ala, scopes: [a, b, c]}\n"+item(second, "ola"))
	tokens, err := OpenTokens(TokensConfig{File: file})
	if err != nil {
		t.Fatal(err)
	}
	if got := Require(tokens); got != Authenticator(tokens) {
		t.Error("without scopes there is nothing to add")
	}
	guard := Require(tokens, "a", "c")
	for _, c := range []struct {
		token  string
		status int
		want   string
	}{
		{"", http.StatusUnauthorized, `Bearer realm="millrace"`},
		{"nobody-has-this-one", http.StatusUnauthorized, `Bearer realm="millrace", error="invalid_token", error_description="the token is not known"`},
		{second, http.StatusForbidden, `Bearer realm="millrace", error="insufficient_scope", scope="a c"`},
		{first, http.StatusOK, ""},
	} {
		p, refusal := guard.Authenticate(request(c.token))
		if c.status == http.StatusOK {
			if refusal != nil || p.Subject != "ala" {
				t.Errorf("%s: %v, %v", c.token, p, refusal)
			}
			continue
		}
		if p != nil || refusal == nil || refusal.Status != c.status || refusal.Challenge != c.want || refusal.Message == "" {
			t.Errorf("%q: %v, %+v\nwant %d %s", c.token, p, refusal, c.status, c.want)
		}
	}
}

func TestRequireKeepsRefusals(t *testing.T) {
	t.Parallel()
	for _, inner := range []fixed{{nil, missing()}, {nil, nil}} {
		if p, refusal := Require(inner, "a").Authenticate(request("")); p != inner.p || refusal != inner.refusal {
			t.Errorf("%v became %v, %v", inner, p, refusal)
		}
	}
}

// fixed always says the same.
type fixed struct {
	p       *exchange.Principal
	refusal *Refusal
}

func (f fixed) Authenticate(*http.Request) (*exchange.Principal, *Refusal) { return f.p, f.refusal }

func TestIsScope(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"read": true, "https://x/y?z=1": true, "!": true, "~": true, "a:b,c": true,
		"": false, "a b": false, `a"`: false, `a\`: false, "ż": false, "a\n": false, "\x7f": false,
	} {
		if got := IsScope(s); got != want {
			t.Errorf("IsScope(%q) = %v", s, got)
		}
	}
}

func FuzzTokenFile(f *testing.F) {
	f.Add([]byte(item(first, "ala")))
	f.Add([]byte("- {token_sha256: " + digest(first) + ", subject: a, scopes: [a, b]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := parse(data)
		if err != nil {
			return
		}
		for _, e := range entries {
			if e.principal.Subject == "" || e.digest == [sha256.Size]byte{} {
				t.Errorf("an entry without a subject or a token came of %q", data)
			}
		}
	})
}
