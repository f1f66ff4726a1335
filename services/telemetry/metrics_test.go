package telemetry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/millrace/millrace/edge/mcp"
	"github.com/millrace/millrace/proto/bus"
)

// root is the folder of the repository.
const root = "../.."

// scrape reads /metrics of the admin listener: values by name and labels as they
// stand there.
func scrape(t *testing.T, m *Telemetry) map[string]string {
	t.Helper()
	recorder := httptest.NewRecorder()
	m.Handler().ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if recorder.Code != http.StatusOK {
		t.Fatalf("/metrics: %d %s", recorder.Code, recorder.Body)
	}
	values := map[string]string{}
	for line := range strings.Lines(recorder.Body.String()) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && !strings.HasPrefix(line, "#") {
			values[name+"}"] = value
		} else if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			values[name] = value
		}
	}
	return values
}

// TestMetrics: what happens is counted where it should be, for the edge and the
// worker.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Metrics: true, Version: "1.2.3"})
	call := func(name string) string {
		return message(false, "tools/call", map[string]any{"name": name, "arguments": map[string]any{"a": 1}}, map[string]any{"progressToken": 1})
	}
	s.post(call("add"))
	s.post(message(true, "tools/call", map[string]any{"name": "add", "arguments": map[string]any{"a": 1}}, nil), modernHeaders("tools/call", "add")...)
	s.post(message(false, "tools/call", map[string]any{"name": "fail"}, nil))
	s.post(message(false, "tools/call", map[string]any{"name": "crash"}, nil))
	s.post(call("unknown"))
	s.post(message(false, "tools/list", nil, nil))
	s.post(message(false, "prompts/get", map[string]any{"name": "greeting"}, nil))
	s.post(message(false, "resources/read", map[string]any{"uri": "term://x"}, nil))
	initialize := message(false, "initialize", map[string]any{"protocolVersion": mcp.Legacy().Date, "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "t", "version": "1"}}, nil)
	s.post(initialize)
	s.stdio(initialize)
	s.post("{")
	s.post(message(false, "what/ever", nil, nil))

	got := scrape(t, s.edgeT)
	for name, want := range map[string]string{
		`millrace_edge_requests_total{era="legacy",method="tools/call",outcome="ok"}`:          "1",
		`millrace_edge_requests_total{era="modern",method="tools/call",outcome="ok"}`:          "1",
		`millrace_edge_requests_total{era="legacy",method="tools/call",outcome="tool_error"}`:  "1",
		`millrace_edge_requests_total{era="legacy",method="tools/call",outcome="internal"}`:    "1",
		`millrace_edge_requests_total{era="legacy",method="tools/call",outcome="refused"}`:     "1",
		`millrace_edge_requests_total{era="legacy",method="tools/list",outcome="ok"}`:          "1",
		`millrace_edge_requests_total{era="legacy",method="other",outcome="refused"}`:          "1",
		`millrace_edge_request_duration_seconds_count{era="legacy",method="tools/call"}`:       "4",
		`millrace_edge_first_event_seconds_count{era="legacy",method="tools/call"}`:            "1",
		`millrace_edge_rejections_total{status="400"}`:                                         "1",
		`millrace_edge_sessions_total{revision="` + mcp.Legacy().Date + `",transport="http"}`:  "1",
		`millrace_edge_sessions_total{revision="` + mcp.Legacy().Date + `",transport="stdio"}`: "1",
		`millrace_edge_open_streams`: "0",
		`millrace_pool_calls_total{method="tools/call",outcome="ok",pool="fixture"}`:     "2",
		`millrace_pool_calls_total{method="prompts/get",outcome="ok",pool="fixture"}`:    "1",
		`millrace_pool_calls_total{method="resources/read",outcome="ok",pool="fixture"}`: "1",
		`millrace_tool_calls_total{outcome="ok",pool="fixture",tool="add"}`:              "2",
		`millrace_tool_calls_total{outcome="tool_error",pool="fixture",tool="fail"}`:     "1",
		`millrace_pool_calls_queued{pool="fixture"}`:                                     "0",
		`millrace_pool_calls_running{pool="fixture"}`:                                    "0",
		`millrace_pool_instances{pool="fixture",state="ready"}`:                          "1",
		`millrace_pool_slots{pool="fixture"}`:                                            "64",
		`millrace_catalog_items{kind="tool"}`:                                            "4",
		`millrace_catalog_conflicts`:                                                     "0",
		`millrace_catalog_ready`:                                                         "1",
		`millrace_bus_connected{connection="edge"}`:                                      "1",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %s", name, got[name], want)
		}
	}
	for name := range got {
		if strings.Contains(name, "unknown") || strings.Contains(name, "what/ever") {
			t.Errorf("%s: a client has made a series", name)
		}
	}
	got = scrape(t, s.workerT)
	for name, want := range map[string]string{
		`millrace_pool_busy_ratio{pool="fixture"}`:                                             "0",
		`millrace_worker_slots{pool="fixture"}`:                                                "64",
		`millrace_worker_refusals_total{pool="fixture"}`:                                       "0",
		`millrace_worker_calls_total{method="tools/call",outcome="result",pool="fixture"}`:     "2",
		`millrace_worker_calls_total{method="tools/call",outcome="tool_error",pool="fixture"}`: "1",
		`millrace_worker_calls_total{method="tools/call",outcome="internal",pool="fixture"}`:   "1",
		`millrace_worker_call_duration_seconds_count{method="resources/read",pool="fixture"}`:  "1",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %s", name, got[name], want)
		}
	}
	for _, m := range []*Telemetry{s.edgeT, s.workerT} {
		problems, err := testutil.GatherAndLint(m.metrics.registry)
		if err != nil {
			t.Error(err)
		}
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "millrace_") {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
	}
}

// TestLostPool: a pool that vanishes is there with no instance, and one that
// leaves is not there any more.
func TestLostPool(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Metrics: true})
	const series = `millrace_pool_instances{pool="gone",state="ready"}`
	lost := bus.Member{Instance: "i", Pool: "gone"}
	s.edgeT.Lost(lost)
	got := scrape(t, s.edgeT)
	if got[series] != "0" || got[`millrace_pool_instances_lost_total{pool="gone"}`] != "1" || got[`millrace_pool_calls_queued{pool="gone"}`] != "0" {
		t.Errorf("a pool that vanished has %q instances", got[series])
	}
	lost.Draining = true
	s.edgeT.Lost(lost)
	got = scrape(t, s.edgeT)
	if value, there := got[series]; there || got[`millrace_pool_instances_lost_total{pool="gone"}`] != "1" {
		t.Errorf("a pool that has left has %q instances", value)
	}
}

// TestNames: a label has so many values, and then one for the rest.
func TestNames(t *testing.T) {
	t.Parallel()
	n := names{most: 2}
	var got []string
	for _, name := range []string{"a", "b\xff", "c", "a", "d", "b\xff"} {
		got = append(got, n.label(name))
	}
	if want := []string{"a", "b?", "other", "a", "other", "b?"}; !slices.Equal(got, want) {
		t.Errorf("labels %q, want %q", got, want)
	}
}

// TestDefinedIsRegistered: Metrics lists what the registry has, and nothing else.
func TestDefinedIsRegistered(t *testing.T) {
	t.Parallel()
	m := newMetrics("")
	described := make(chan *prometheus.Desc, 1000)
	m.registry.Describe(described)
	close(described)
	var registered, defined []string
	for d := range described {
		if name := regexp.MustCompile(`fqName: "(millrace_[a-z_]+)"`).FindStringSubmatch(d.String()); name != nil {
			registered = append(registered, name[1])
		}
	}
	for _, metric := range Metrics() {
		defined = append(defined, metric.Name)
	}
	slices.Sort(registered)
	slices.Sort(defined)
	if !slices.Equal(registered, defined) {
		t.Errorf("registered\n%q\ndefined\n%q", registered, defined)
	}
}

// TestMetricsAreDocumented compares docs/metrics.md with the registry: every
// metric has its row, with its kind and labels, and every row its metric.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/metrics.md")
	rows := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(millrace_[a-z_]+)(?:\\{([a-z,]*)\\})?` \\| ([a-z]+) \\|").FindAllStringSubmatch(page, -1) {
		rows[row[1]] = row[3] + "{" + row[2] + "}"
	}
	for _, m := range Metrics() {
		want := m.Kind + "{" + strings.Join(m.Labels, ",") + "}"
		if rows[m.Name] != want {
			t.Errorf("docs/metrics.md says %q of %s, want %s", rows[m.Name], m.Name, want)
		}
		delete(rows, m.Name)
	}
	for name := range rows {
		t.Errorf("docs/metrics.md explains %s, which does not exist", name)
	}
}

// TestUsedMetricsExist: dashboards, alerts, the chart and the documentation name
// metrics that exist.
func TestUsedMetricsExist(t *testing.T) {
	t.Parallel()
	exists := map[string]bool{}
	for _, m := range Metrics() {
		exists[m.Name] = true
		if m.Kind == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				exists[m.Name+suffix] = true
			}
		}
	}
	pattern := regexp.MustCompile(`\bmillrace_(edge|pool|tool|catalog|bus|worker|build)_[a-z_]+`)
	found := 0
	for _, dir := range []string{"deploy/observability", "deploy/helm", "docs"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, name := range pattern.FindAllString(string(text), -1) {
				found++
				if !exists[name] {
					t.Errorf("%s names %s, which does not exist", path, name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 50 {
		t.Errorf("%d names found: the test looks at the wrong place", found)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAdmin: the admin listener serves health over HTTP and gRPC, reflection,
// and profiles only when asked to.
func TestAdmin(t *testing.T) {
	t.Parallel()
	for _, profiles := range []bool{false, true} {
		t.Run(fmt.Sprint(profiles), func(t *testing.T) {
			t.Parallel()
			m, err := New(t.Context(), Config{Metrics: true, Pprof: profiles})
			if err != nil {
				t.Fatal(err)
			}
			ln := listenLocal(t)
			stop := run(t, "admin", func(ctx context.Context) error { return m.Run(ctx, ln) })
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			get := func(path string) (int, string) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ln.Addr().String()+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp.StatusCode, string(text)
			}
			ready := false
			var conn *grpc.ClientConn
			if conn, err = grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			health := healthv1.NewHealthClient(conn)
			check := func(wantStatus int, wantText string, want healthv1.HealthCheckResponse_ServingStatus) {
				t.Helper()
				if status, text := get("/readyz"); status != wantStatus || text != wantText+"\n" {
					t.Errorf("/readyz: %d %q, want %d %q", status, text, wantStatus, wantText)
				}
				resp, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{})
				if err != nil || resp.GetStatus() != want {
					t.Errorf("gRPC health: %v %v, want %v", resp, err, want)
				}
			}
			m.AddPart("part", func() (bool, string) { return ready, "not yet" })
			check(http.StatusServiceUnavailable, "part: not yet", healthv1.HealthCheckResponse_NOT_SERVING)
			ready = true
			check(http.StatusOK, "ok", healthv1.HealthCheckResponse_SERVING)

			watch, err := health.Watch(t.Context(), &healthv1.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if resp, err := watch.Recv(); err != nil || resp.GetStatus() != healthv1.HealthCheckResponse_SERVING {
				t.Errorf("watch: %v %v", resp, err)
			}
			m.Stopping()
			check(http.StatusServiceUnavailable, "stopping", healthv1.HealthCheckResponse_NOT_SERVING)
			if resp, err := watch.Recv(); err != nil || resp.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
				t.Errorf("watch: %v %v", resp, err)
			}

			list, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
			if err == nil {
				err = list.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
			}
			if err != nil {
				t.Fatal(err)
			}
			services, err := list.Recv()
			if err != nil || !strings.Contains(services.String(), "grpc.health.v1.Health") {
				t.Errorf("reflection: %v %v", services, err)
			}
			if status, text := get("/healthz"); status != http.StatusOK || text != "ok\n" {
				t.Errorf("/healthz: %d %q", status, text)
			}
			if status, text := get("/metrics"); status != http.StatusOK || !strings.Contains(text, "go_goroutines") {
				t.Errorf("/metrics: %d %q", status, text)
			}
			status, _ := get("/debug/pprof/cmdline")
			if (status == http.StatusOK) != profiles {
				t.Errorf("/debug/pprof/cmdline: %d with profiles %v", status, profiles)
			}
			stop()
		})
	}
}

// TestOff: without metrics, traces and debug lines nobody observes anything, so
// nothing is paid for it.
func TestOff(t *testing.T) {
	t.Parallel()
	m, err := New(t.Context(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	if m.Observer() != nil || m.CallObserver() != nil || m.CallStats() != nil || m.ServerStats() != nil {
		t.Error("somebody observes")
	}
	m.Lost(bus.Member{Pool: "p"})
	m.AddEdge(nil)
	m.AddConn("c", nil)
}

// TestAlerts: each alert has its runbook, the chart has the same alerts, and each
// selector can be narrowed to a namespace.
func TestAlerts(t *testing.T) {
	t.Parallel()
	text := read(t, "deploy/observability/alerts.yaml")
	if chart := read(t, "deploy/helm/millrace/files/alerts.yaml"); chart != text {
		t.Error("the chart has other alerts: copy deploy/observability/alerts.yaml to deploy/helm/millrace/files")
	}
	runbooks := read(t, "docs/operations.md")
	tests := read(t, "deploy/observability/alerts_test.yaml")
	names := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(text, -1)
	if len(names) < 10 {
		t.Fatalf("%d alerts found", len(names))
	}
	for _, name := range names {
		if !strings.Contains(runbooks, "\n### "+name[1]+"\n") {
			t.Errorf("docs/operations.md does not say what %s means", name[1])
		}
		if !strings.Contains(text, "docs/operations.md#"+strings.ToLower(name[1])+"\n") {
			t.Errorf("%s does not link to its runbook", name[1])
		}
		if !strings.Contains(tests, "alertname: "+name[1]+"\n") {
			t.Errorf("%s is not tested", name[1])
		}
	}
	for _, section := range regexp.MustCompile(`(?m)^### (Millrace\w+)$`).FindAllStringSubmatch(runbooks, -1) {
		if !strings.Contains(text, "alert: "+section[1]+"\n") {
			t.Errorf("docs/operations.md explains %s, which is no alert", section[1])
		}
	}
	for _, selector := range regexp.MustCompile(`millrace_[a-z_]+.`).FindAllString(text, -1) {
		if !strings.HasSuffix(selector, "{") {
			t.Errorf("%q has no braces: the chart cannot narrow it", selector)
		}
	}
}
