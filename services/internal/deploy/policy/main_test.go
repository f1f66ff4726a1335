package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	root      = "../../../.."
	manifest  = root + "/deploy/kubernetes/millrace.yaml"
	processes = root + "/services/millrace/process.go"
)

func TestCommittedManifests(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	if err := run([]string{processes, manifest}, &said); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(said.String(), "2 workloads in 1 files") {
		t.Errorf("said %s", said.String())
	}
}

// Each rule has a change of the committed manifests that it must find.
func TestRulesFindFaults(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.FromSlash(manifest))
	if err != nil {
		t.Fatal(err)
	}
	// replaced is a change of the first occurrence of a text.
	type replaced struct{ old, new string }
	secret := "---\nkind: Secret\nmetadata: {name: s}\n"
	cases := []struct {
		rule   string
		change replaced
	}{
		{"non-root", replaced{"runAsUser: 65532", "runAsUser: 0"}},
		{"non-root", replaced{"runAsGroup: 65532", "runAsGroup: 0"}},
		{"non-root-container", replaced{"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: true\n            runAsUser: 0"}},
		{"read-only-root", replaced{"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"}},
		{"no-escalation", replaced{"allowPrivilegeEscalation: false", "procMount: Default"}},
		{"no-escalation", replaced{"allowPrivilegeEscalation: false", "allowPrivilegeEscalation: false\n            privileged: true"}},
		{"no-capabilities", replaced{"drop: [ALL]", "drop: [NET_RAW]"}},
		{"no-capabilities", replaced{"drop: [ALL]", "drop: [ALL]\n              add: [SYS_ADMIN]"}},
		{"seccomp", replaced{"type: RuntimeDefault", "type: Unconfined"}},
		{"no-host", replaced{"enableServiceLinks: false", "hostNetwork: true"}},
		{"no-host", replaced{"enableServiceLinks: false", "volumes: [{name: a, hostPath: {path: /}}]"}},
		{"no-host", replaced{"containerPort: 8080", "containerPort: 8080, hostPort: 80"}},
		{"no-token", replaced{"      automountServiceAccountToken: false\n", ""}},
		{"pinned-image", replaced{"millrace:0.1.0-dev", "millrace"}},
		{"pinned-image", replaced{"millrace:0.1.0-dev", "localhost:5000/millrace:latest"}},
		{"no-secrets", replaced{"---\n", secret + "---\n"}},
		{"no-secrets", replaced{"---\n", "---\nkind: ConfigMap\nmetadata: {name: c}\ndata: {tokens.yaml: 'token: abc'}\n---\n"}},
		{"resources", replaced{"cpu: 250m", "ephemeral-storage: 1Gi"}},
		{"go-limits", replaced{"1415577KiB", "1572864KiB"}},
		{"go-limits", replaced{"resource: limits.cpu", "resource: requests.cpu"}},
		{"probes", replaced{"readinessProbe:", "otherProbe:"}},
		{"probes", replaced{"path: /readyz", "path: /healthz"}},
		{"drain", replaced{"terminationGracePeriodSeconds: 75", "terminationGracePeriodSeconds: 30"}},
		{"drain", replaced{"terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 15"}},
		{"drain", replaced{"seconds: 5\n", "seconds: 0\n"}},
		{"rollout", replaced{"maxUnavailable: 0", "maxUnavailable: 1"}},
		{"spread", replaced{"topologyKey: kubernetes.io/hostname", "topologyKey: kubernetes.io/arch"}},
		{"disruption-budget", replaced{"kind: PodDisruptionBudget", "kind: Other"}},
		{"disruption-budget", replaced{"---\n", "---\nkind: PodDisruptionBudget\nmetadata: {name: second}\nspec: {selector: {matchLabels: {app.kubernetes.io/component: edge}}}\n---\n"}},
		{"network-policy", replaced{"policyTypes: [Ingress, Egress]", "policyTypes: [Ingress]"}},
		{"names", replaced{"kind: ServiceAccount\nmetadata:\n  name: millrace", "kind: Service\nmetadata:\n  name: millrace"}},
		{"selectors", replaced{"    matchLabels:\n      app.kubernetes.io/name: millrace", "    matchLabels:\n      app.kubernetes.io/name: milrace"}},
		{"ports", replaced{"targetPort: http", "targetPort: web"}},
		{"ports", replaced{"path: /healthz, port: http", "path: /healthz, port: web"}},
		{"scaling", replaced{"---\n", "---\nkind: HorizontalPodAutoscaler\nmetadata: {name: h}\nspec: {scaleTargetRef: {name: millrace-edge}}\n---\n"}},
		{"scaling", replaced{"---\n", "---\nkind: ScaledObject\nmetadata: {name: h}\nspec: {scaleTargetRef: {name: nobody}}\n---\n"}},
	}
	proved := map[string]bool{}
	for _, c := range cases {
		changed := strings.Replace(string(text), c.change.old, c.change.new, 1)
		if changed == string(text) {
			t.Errorf("%s: the manifests have no %q", c.rule, c.change.old)
			continue
		}
		all, err := parse([]byte(changed))
		if err != nil {
			t.Errorf("%s: %v", c.rule, err)
			continue
		}
		all.drainGrace = 15 * time.Second
		found := all.findings()
		if !strings.Contains("\n"+strings.Join(found, "\n"), "\n"+c.rule+": ") {
			t.Errorf("%s finds nothing wrong with %q instead of %q; found: %q", c.rule, c.change.new, c.change.old, found)
		}
		proved[c.rule] = true
	}
	for _, r := range rules() {
		if !proved[r.name] {
			t.Errorf("the rule %s has no case that proves it can fail", r.name)
		}
	}
}

func TestNothingToCheck(t *testing.T) {
	t.Parallel()
	if err := run([]string{processes, root + "/deploy/kubernetes/namespace.yaml"}, &bytes.Buffer{}); err == nil {
		t.Error("manifests without a workload pass")
	}
	if err := run([]string{"main.go", manifest}, &bytes.Buffer{}); err == nil {
		t.Error("a source without drainGrace passes")
	}
}
