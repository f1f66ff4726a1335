package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTokens: a server with a token file asks for tokens, its own client sends
// one, and an edited file is used without a restart.
func TestTokens(t *testing.T) {
	t.Parallel()
	const ala, ola, ewa = "token-of-ala-0123456789", "token-of-ola-0123456789", "token-of-ewa-0123456789"
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	item := func(token, subject, scopes string) string {
		return "- token: " + token + "\n  subject: " + subject + "\n  scopes: [" + scopes + "]\n"
	}
	write(item(ala, "ala", "use") + item(ewa, "ewa", ""))
	s := serve(t, "up", "--tokens", file, "--require-scope", "use")
	status := func(token string) (int, string) {
		t.Helper()
		header := http.Header{}
		if token != "" {
			header.Set("Authorization", "Bearer "+token)
		}
		resp, _ := post(t, s.url, door{}.request("1", "tools/list", ""), header)
		return resp.StatusCode, resp.Header.Get("WWW-Authenticate")
	}
	for token, want := range map[string]struct {
		status    int
		challenge string
	}{
		"":  {http.StatusUnauthorized, `Bearer realm="millrace"`},
		ola: {http.StatusUnauthorized, `Bearer realm="millrace", error="invalid_token", error_description="the token is not known"`},
		ewa: {http.StatusForbidden, `Bearer realm="millrace", error="insufficient_scope", scope="use"`},
		ala: {http.StatusOK, ""},
	} {
		if got, challenge := status(token); got != want.status || challenge != want.challenge {
			t.Errorf("token %q: %d %q, want %d %q", token, got, challenge, want.status, want.challenge)
		}
	}
	refused := command(t, "", "ls", "--url", s.url)
	if refused.code != 3 || !strings.Contains(refused.stderr, "authentication is needed") {
		t.Errorf("ls without a token: %+v", refused)
	}
	if r := command(t, "", "ls", "--url", s.url, "--token", ala); r.code != 0 || !strings.Contains(r.stdout, "get_term") {
		t.Errorf("ls with a token: %+v", r)
	}
	write(item(ola, "ola", "use"))
	eventually(t, "a new token is good", func() bool { got, _ := status(ola); return got == http.StatusOK })
	if got, _ := status(ala); got != http.StatusUnauthorized {
		t.Errorf("a token that was taken out: %d", got)
	}
	write(item(ola, "ola", "use") + "- " + ala + "\n")
	s.log(`level=ERROR .*the file cannot be used.*line 4: an item must have members`)
	if got, _ := status(ola); got != http.StatusOK {
		t.Errorf("after a bad edit: %d", got)
	}
	if said := s.stderr.String(); strings.Contains(said, ala) || strings.Contains(said, ola) || strings.Contains(said, ewa) {
		t.Errorf("the log shows a token:\n%s", said)
	}
	broken := command(t, "", "up", "--listen", "127.0.0.1:0", "--tokens", file)
	if broken.code == 0 || !strings.Contains(broken.stderr, "line 4: ") || strings.Contains(broken.stderr, ala) {
		t.Errorf("started with a bad file: %+v", broken)
	}
	lonely := command(t, "", "up", "--listen", "127.0.0.1:0", "--require-scope", "use")
	if lonely.code == 0 || !strings.Contains(lonely.stderr, "nothing authenticates") {
		t.Errorf("scopes without tokens: %+v", lonely)
	}
}
