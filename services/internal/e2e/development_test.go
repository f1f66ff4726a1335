package e2e

import (
	"strings"
	"testing"
)

// TestDevelopmentMode: what breaks the contract of a tool never passes as a
// success (B40), and by default whoever serves a client from one process sees
// why.
func TestDevelopmentMode(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"--development":    `"isError":true`,
		"--no-development": `"error":{"code":-32603,"message":"internal error"}`,
	} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			args := []string{"--worker", "everything"}
			if flag != "--development" { // which is the default
				args = append(args, flag)
			}
			s := serveStdio(t, args...)
			s.exchange(t, initializeLine(newestLegacy))
			got := s.exchange(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"broken_contract"}}`)
			if !strings.Contains(got, want) || strings.Contains(got, "must be a string") != (flag == "--development") {
				t.Errorf("got %s", got)
			}
			s.log("must be a string") // whoever runs it sees it in any case
		})
	}
}
