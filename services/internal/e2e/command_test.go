package e2e

import (
	"encoding/json"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// TestCommands types the commands that people and scripts use: exit codes, and
// what goes to stdout and to stderr.
func TestCommands(t *testing.T) {
	t.Parallel()
	s := serve(t, "up", "--nats-listen", "127.0.0.1:0")
	nats := s.log(`msg="NATS takes workers[^"]*" url=(\S+)`)[0]
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + closed.Addr().String() + "/mcp"
	closed.Close()

	const silent = `^$`
	for _, c := range []struct {
		name, line     string // millrace and its arguments, as the shell reads them
		code           int
		stdout, stderr string // patterns
	}{
		{"call", `call get_term --arg slug=mcp`, 0, `^# MCP\n`, silent},
		{"call by the bus", `call get_term --arg slug=mcp --nats ` + nats + ` --log-level error`, 0, `^# MCP\n`, silent},
		{"typed arguments", `call search_term -a query='context engineering' -a limit=1`, 0, `^1 of \d+ matches`, silent},
		{"a string that looks like a number", `call search_term -a query=42`, 0, `42`, silent},
		{"commas stay", `call search_term -a query='session, state'`, 0, `session, state`, silent},
		{"json", `call get_term --json '{"slug":"mcp","lang":"pl"}'`, 0, `^# MCP\n\nMCP, czyli`, silent},
		{"json from stdin", `call get_term --json - <<<'{"slug":"mcp"}'`, 0, `^# MCP\n`, silent},
		{"raw", `call get_term --arg slug=mcp --raw`, 0, `^\{.*"structuredContent":\{.*\}\n$`, silent},
		{"progress", `call reindex`, 0, `^.*\d+ terms and \d+ notes?.*\n$`, `^(progress \d+/\d+ \d+ of \d+ files\n){5,}$`},
		{"progress by the bus", `call reindex --nats ` + nats + ` --log-level error`, 0, `^.*\d+ terms and \d+ notes?.*\n$`, `^(progress \d+/\d+ \d+ of \d+ files\n){5,}$`},
		{"tool error", `call get_term --arg slug=no-such-term`, 1, `there is no term "no-such-term"`, silent},
		{"wrong argument", `call get_term --arg sluk=mcp`, 1, `"slug"`, silent},
		{"no tool", `call`, 2, ``, `millrace: .*<tool>`},
		{"argument without value", `call get_term --arg slug`, 2, silent, `millrace: .*key=value`},
		{"argument twice", `call get_term --arg slug=a --arg slug=b`, 2, silent, `millrace: .*twice`},
		{"arg and json", `call get_term --arg slug=a --json {}`, 2, silent, `millrace: .*exclude`},
		{"no json", `call get_term --json '{"slug"'`, 2, silent, `millrace: .*--json`},
		{"json that is no object", `call get_term --json '[1]'`, 2, silent, `millrace: .*object`},
		{"unknown flag", `call get_term --slug mcp`, 2, ``, `millrace: .*--slug`},
		{"unknown command", `calll`, 2, ``, `millrace: .*calll`},
		{"no command", ``, 2, ``, `millrace: `},
		{"unknown worker", `up --listen 127.0.0.1:0 --worker nobody`, 2, silent, `millrace: .*"nobody".*glossary`},
		{"worker without bus", `glossary`, 2, ``, `millrace: .*--nats`},
		{"unknown tool", `call no_such_tool`, 3, silent, `millrace: unknown tool "no_such_tool".*-32602`},
		{"nobody there", `call get_term --arg slug=mcp --url ` + nobody, 4, silent, `millrace: no answer from `},
		{"nobody there to list", `ls --url ` + nobody, 4, silent, `millrace: no answer from `},
		{"no endpoint", `call reindex --url ` + strings.TrimSuffix(s.url, "mcp") + `healthz`, 4, silent, `millrace: .*no MCP answer`},
		{"ls", `ls`, 0, `(?s)^TOOL .*\nget_term .*\nreindex .*\nsearch_term .*\nmemo://notes/projekt .*\nterm://\{slug\} `, silent},
		{"ls by the bus", `ls --nats ` + nats + ` --log-level error`, 0, `(?s)^POOL +INSTANCE +VERSION +STATE +SLOTS\nglossary +\w+ +\S+ +ready +\d+/\d+\n.*\nget_term +glossary `, silent},
		{"version", `version`, 0, `^millrace \d+\.\d+\.\d+\S*\n$`, silent},
		{"help", `--help`, 0, `(?s)up .*edge .*glossary .*stdio .*ls .*call .*version `, silent},
		{"help of call", `call --help`, 0, `(?s)Exit codes: .*--arg`, silent},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := shell(t, t.TempDir(), `MILLRACE_URL=`+s.url+` exec millrace `+c.line)
			if r.code != c.code {
				t.Errorf("ended with %d, want %d", r.code, c.code)
			}
			if !regexp.MustCompile(c.stdout).MatchString(r.stdout) {
				t.Errorf("stdout does not match %s", c.stdout)
			}
			if !regexp.MustCompile(c.stderr).MatchString(r.stderr) {
				t.Errorf("stderr does not match %s", c.stderr)
			}
			if t.Failed() {
				t.Logf("stdout: %s\nstderr: %s", r.stdout, r.stderr)
			}
		})
	}
}

// TestListJSON: what scripts read.
func TestListJSON(t *testing.T) {
	t.Parallel()
	s := serve(t, "up", "--nats-listen", "127.0.0.1:0")
	nats := s.log(`msg="NATS takes workers[^"]*" url=(\S+)`)[0]
	l := cluster{nats}.ls(t)
	if len(l.Instances) != 1 || l.Instances[0].Pool != "glossary" || l.Instances[0].State != "ready" || l.Instances[0].Slots == 0 {
		t.Errorf("instances %+v", l.Instances)
	}
	if len(l.Tools) != 3 || l.Tools[0].Name != "get_term" || l.Tools[0].Pool != "glossary" {
		t.Errorf("tools %+v", l.Tools)
	}
	r := command(t, "", "ls", "--url", s.url, "--json")
	var plain map[string]json.RawMessage
	if err := json.Unmarshal([]byte(r.stdout), &plain); err != nil {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	for _, member := range []string{"tools", "resources", "resourceTemplates"} {
		if plain[member] == nil {
			t.Errorf("%s is missing: %s", member, r.stdout)
		}
	}
}

// TestNoBus: a role whose NATS is not there says so and ends.
func TestNoBus(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "nats://" + closed.Addr().String()
	closed.Close()
	// All wait for NATS for a while, so they do it side by side.
	var waiting sync.WaitGroup
	results := map[string]*result{}
	for name, args := range map[string][]string{
		"edge":     {"edge", "--listen", "127.0.0.1:0", "--nats", nobody},
		"glossary": {"glossary", "--nats", nobody},
		"stdio":    {"stdio", "--nats", nobody},
		"ls":       {"ls", "--nats", nobody},
	} {
		r := &result{}
		results[name] = r
		cmd := exec.Command(millrace(t), args...)
		waiting.Go(func() { *r = execute(t, "", cmd) })
	}
	waiting.Wait()
	for name, r := range results {
		want := 5
		if name == "ls" {
			want = 4
		}
		if r.code != want || r.stdout != "" || !strings.Contains(r.stderr, "bus: not connected") {
			t.Errorf("%s ended with %d, want %d, and said %s%s", name, r.code, want, r.stdout, r.stderr)
		}
	}
}
