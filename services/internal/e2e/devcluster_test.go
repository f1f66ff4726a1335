package e2e

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/services/devcluster/proxy"
)

// devCluster is a cluster of processes, three edges behind a proxy that sends
// each request to the next one: what passes here needs no sticky sessions.
type devCluster struct {
	*server
	processes map[string]clusterProcess // by name
}

// clusterProcess is a row of what dev-cluster prints.
type clusterProcess struct {
	role string
	pid  int
	url  string // "-" for workers
}

// serveDevCluster starts a cluster and waits until all of it is ready.
func serveDevCluster(t *testing.T, args ...string) *devCluster {
	t.Helper()
	c := &devCluster{serve(t, "dev-cluster", args...), map[string]clusterProcess{}}
	if c.stdout.await(`serving MCP at `+regexp.QuoteMeta(c.url)+"\n", c.done) == nil {
		t.Fatalf("it printed no table:\n%s", c.stdout.String())
	}
	for _, row := range regexp.MustCompile(`(?m)^(\w+) +(\S+) +(\d+) +(\S+)$`).FindAllStringSubmatch(c.stdout.String(), -1) {
		pid, err := strconv.Atoi(row[3])
		if err != nil {
			t.Fatal(err)
		}
		c.processes[row[2]] = clusterProcess{row[1], pid, row[4]}
	}
	return c
}

// kill kills one of the processes.
func (c *devCluster) kill(name string) {
	c.t.Helper()
	if err := syscall.Kill(c.processes[name].pid, syscall.SIGKILL); err != nil {
		c.t.Fatalf("kill %s: %v", name, err)
	}
}

// servedBy makes a request without a session and returns which edge answered.
func (c *devCluster) servedBy() string {
	c.t.Helper()
	resp := postStream(c.t, c.url, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, http.Header{})
	if resp.StatusCode != http.StatusOK {
		c.t.Errorf("status %s", resp.Status)
	}
	return resp.Header.Get(proxy.HeaderServedBy)
}

// TestDevCluster: what it prints is true, edges take turns, one that is killed
// is missed by nobody, and in the end all processes end.
func TestDevCluster(t *testing.T) {
	t.Parallel()
	c := serveDevCluster(t)
	var names []string
	for name, p := range c.processes {
		names = append(names, p.role+" "+name)
		if err := syscall.Kill(p.pid, 0); err != nil {
			t.Errorf("%s is not there: %v", name, err)
		}
	}
	slices.Sort(names)
	if want := []string{
		"edge edge-1", "edge edge-2", "edge edge-3", "nats nats-1", "nats nats-2", "nats nats-3", "proxy proxy",
		"worker everything-1", "worker everything-2", "worker glossary-1", "worker glossary-2",
	}; !slices.Equal(names, want) {
		t.Errorf("processes %q, want %q", names, want)
	}
	round := []string{c.servedBy(), c.servedBy(), c.servedBy()}
	slices.Sort(round)
	if !slices.Equal(round, []string{"edge-1", "edge-2", "edge-3"}) {
		t.Errorf("three requests were served by %q", round)
	}
	// The bus is reached through any of the nodes.
	nats := cluster{c.processes["nats-3"].url}
	eventually(t, "ls shows two instances of each pool", func() bool {
		l := nats.ls(t)
		return len(l.Instances) == 4
	})
	if failures := callMany(t, c.url, 60); len(failures) > 0 {
		t.Errorf("%d of 60 calls failed, such as %s", len(failures), failures[0])
	}
	c.kill("edge-2")
	c.log(`msg="process ended by itself" process=edge-2 `)
	for range 6 {
		if edge := c.servedBy(); edge == "edge-2" {
			t.Error("served by an edge that was killed")
		}
	}
	c.kill("nats-1") // two of three go on
	c.log(`msg="process ended by itself" process=nats-1 `)
	if failures := callMany(t, c.url, 60); len(failures) > 0 {
		t.Errorf("%d of 60 calls failed with an edge and a node away, such as %s", len(failures), failures[0])
	}
	c.signal(syscall.SIGTERM)
	if code := c.exitCode(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	for name, p := range c.processes {
		if err := syscall.Kill(p.pid, 0); err == nil {
			t.Errorf("%s is left behind", name)
		}
	}
}

// TestDevClusterUsage: what cannot be started is said before anything is.
func TestDevClusterUsage(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"--worker nobody":     `there is no worker "nobody"`,
		"--edges 0":           "at least one of each",
		"--workers -1":        "",
		"--nats three":        "--nats",
		"--edge-arg=--nobody": "edge-1 ended before it served",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			r := command(t, "", append([]string{"dev-cluster", "--listen", "127.0.0.1:0"}, strings.Fields(line)...)...)
			if r.code != 2 && (r.code != 5 || !strings.HasPrefix(line, "--edge-arg")) || !strings.Contains(r.stderr, says) || strings.Contains(r.stdout, "serving") {
				t.Errorf("ended with %d and said %s%s", r.code, r.stdout, r.stderr)
			}
		})
	}
}

// TestClusterSessions: a session that one edge has opened goes on at each.
func TestClusterSessions(t *testing.T) {
	t.Parallel()
	c := serveDevCluster(t, "--worker", "everything", "--workers", "1")
	resp := postStream(t, c.url, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+newestLegacy+`","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}`, http.Header{})
	session := http.Header{"Mcp-Session-Id": resp.Header["Mcp-Session-Id"], "Mcp-Protocol-Version": {newestLegacy}}
	served := map[string]bool{}
	for range 6 {
		resp := postStream(t, c.url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"n":1}}}`, session)
		if resp.StatusCode != http.StatusOK {
			t.Errorf("status %s by %s", resp.Status, resp.Header.Get(proxy.HeaderServedBy))
		}
		served[resp.Header.Get(proxy.HeaderServedBy)] = true
	}
	if len(served) != 3 {
		t.Errorf("served by %v, want all three", served)
	}
}

// TestClusterConformance: the suite does not notice that each of its requests
// is served by another edge.
func TestClusterConformance(t *testing.T) {
	t.Parallel()
	checkConformance(t, serveDevCluster(t).url)
}

// TestClusterClients: nor do clients, whether they call or are asked, told and
// sent progress.
func TestClusterClients(t *testing.T) {
	t.Parallel()
	c := serveDevCluster(t)
	// In the scenario features one call asks what has become of another one:
	// both have to reach the same worker.
	single := serveDevCluster(t, "--worker", "everything", "--workers", "1")
	glossary := []string{"get_term", "reindex", "search_term"}
	cases := clientCases()
	for i := range cases {
		client := &cases[i]
		t.Run(client.name, func(t *testing.T) {
			t.Parallel()
			r := runClient(t, *client, "http", c.url)
			r.Tools = slices.DeleteFunc(r.Tools, func(tool string) bool { return !slices.Contains(glossary, tool) })
			checkScenario(t, r)
			checkEverything(t, runClient(t, *client, "--scenario", "everything", "http", c.url))
			checkFeatures(t, client, "http", single.url)
		})
	}
}

// buildDemos builds the demonstrations once and returns their folder.
var buildDemos = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(scratch, "bin", "demos") + "/"
	return dir, goBuild(root, "-race", "-o", dir, "./services/internal/demos/edgekill", "./services/internal/demos/rolling")
})

// TestEdgeKill is the short form of `make demo-edge-kill`: calls survive the
// edge that holds their streams.
func TestEdgeKill(t *testing.T) {
	t.Parallel()
	binary := millrace(t)
	demos, err := buildDemos()
	if err != nil {
		t.Fatal(err)
	}
	checkDemo(t, exec.Command(demos+"edgekill", "-millrace", binary, "-calls", "10", "-duration", "3s", "-v"),
		`^ +10  results collected$`, `^ +10  executions counted`)
}

// TestRollingRestart is the short form of `make demo-rolling-restart`: nobody
// notices that all edges and workers are restarted.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	binary := millrace(t)
	demos, err := buildDemos()
	if err != nil {
		t.Fatal(err)
	}
	checkDemo(t, exec.Command(demos+"rolling", "-millrace", binary, "-rate", "10", "-long", "1s", "-pause", "500ms", "-v"),
		`^ +5  edges and workers restarted in order$`, `^ +0  requests that failed$`)
}

// checkDemo runs a demonstration, which must pass and have the lines in its report.
func checkDemo(t *testing.T, demo *exec.Cmd, lines ...string) {
	t.Helper()
	r := execute(t, "", demo)
	if r.code != 0 {
		t.Errorf("ended with %d:\n%s\n%s", r.code, r.stdout, r.stderr)
	}
	for _, line := range append(lines, `^PASS after `) {
		if !regexp.MustCompile("(?m)" + line).MatchString(r.stdout) {
			t.Errorf("the report has no line %s:\n%s", line, r.stdout)
		}
	}
}
