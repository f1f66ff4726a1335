package main

import (
	"slices"
	"strings"
	"time"
)

// rule is one thing that must hold.
type rule struct {
	name  string
	why   string
	check func(m *manifests, wrong report)
}

// report takes a finding.
type report func(format string, args ...any)

// eachContainer makes a rule of one for containers.
func eachContainer(check func(p pod, c object) (wrong string)) func(*manifests, report) {
	return func(m *manifests, wrong report) {
		for _, p := range m.pods() {
			for _, c := range p.containers() {
				if text := check(p, c); text != "" {
					wrong("%s, container %s: %s", p.owner.name(), c.text("name"), text)
				}
			}
		}
	}
}

// eachPod makes a rule of one for templates of pods.
func eachPod(check func(m *manifests, p pod) (wrong string)) func(*manifests, report) {
	return func(m *manifests, wrong report) {
		for _, p := range m.pods() {
			if text := check(m, p); text != "" {
				wrong("%s: %s", p.owner.name(), text)
			}
		}
	}
}

// unless returns the text if the condition does not hold.
func unless(ok bool, text string) string {
	if ok {
		return ""
	}
	return text
}

func rules() []rule {
	return slices.Concat(securityRules(), operationRules(), wholeRules())
}

// securityRules are the restricted Pod Security Standard and more.
func securityRules() []rule {
	return []rule{
		{"non-root", "a fault in us must not be one of the node", eachPod(func(_ *manifests, p pod) string {
			c := p.spec().object("securityContext")
			return unless(c.is("runAsNonRoot") && c.number("runAsUser") > 0 && c.number("runAsGroup") > 0, "runs as root, or as whoever the image names")
		})},
		{"non-root-container", "a container overrides its pod", eachContainer(func(_ pod, c object) string {
			s := c.object("securityContext")
			return unless(!s.isNot("runAsNonRoot") && s.text("runAsUser") != "0", "is made root again")
		})},
		{"read-only-root", "what cannot be written cannot be replaced", eachContainer(func(_ pod, c object) string {
			return unless(c.object("securityContext").is("readOnlyRootFilesystem"), "can write its root")
		})},
		{"no-escalation", "a process never gets more rights than it began with", eachContainer(func(_ pod, c object) string {
			s := c.object("securityContext")
			return unless(s.isNot("allowPrivilegeEscalation") && !s.is("privileged"), "may gain privileges")
		})},
		{"no-capabilities", "we bind no low port and need nothing else", eachContainer(func(_ pod, c object) string {
			capabilities := c.object("securityContext", "capabilities")
			drop, _ := capabilities["drop"].([]any)
			return unless(slices.Contains(drop, any("ALL")) && capabilities["add"] == nil, "keeps capabilities")
		})},
		{"seccomp", "most calls of the kernel are never needed", eachPod(func(_ *manifests, p pod) string {
			return unless(p.spec().object("securityContext", "seccompProfile").text("type") == "RuntimeDefault", "has no seccomp profile RuntimeDefault")
		})},
		{"no-host", "a pod sees its node only through the kernel", eachPod(func(_ *manifests, p pod) string {
			for _, name := range []string{"hostNetwork", "hostPID", "hostIPC"} {
				if p.spec().is(name) {
					return "has " + name
				}
			}
			for _, volume := range p.spec().objects("volumes") {
				for kind := range volume {
					if !slices.Contains([]string{"name", "configMap", "secret", "emptyDir", "projected", "downwardAPI", "persistentVolumeClaim", "csi", "ephemeral"}, kind) {
						return "has a volume of kind " + kind
					}
				}
			}
			for _, c := range p.containers() {
				for _, port := range c.objects("ports") {
					if port["hostPort"] != nil {
						return "has a port of its node"
					}
				}
			}
			return ""
		})},
		{"no-token", "nothing of ours speaks to the API of Kubernetes", eachPod(func(_ *manifests, p pod) string {
			return unless(p.spec().isNot("automountServiceAccountToken"), "gets a token of Kubernetes")
		})},
		{"pinned-image", "a restart must not bring another version", eachContainer(func(_ pod, c object) string {
			image := c.text("image")
			_, tag, tagged := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
			return unless(tagged && tag != "latest", "has the image "+image+" without a version")
		})},
		{"no-secrets", "whoever may read a release or this repository must not read a secret", func(m *manifests, wrong report) {
			for _, o := range m.kind("Secret") {
				wrong("%s: is made by the chart", o.name())
			}
			for _, o := range m.kind("ConfigMap") {
				for key, value := range o.object("data") {
					if text, _ := value.(string); strings.Contains(text, "token:") || strings.Contains(text, "PRIVATE KEY") {
						wrong("%s: holds a secret under %s", o.name(), key)
					}
				}
			}
		}},
	}
}

// operationRules are for what happens while it runs.
func operationRules() []rule {
	return []rule{
		{"resources", "without requests it is placed anywhere, without limits it takes everything", eachContainer(func(_ pod, c object) string {
			for _, kind := range []string{"requests", "limits"} {
				for _, name := range []string{"cpu", "memory"} {
					if c.object("resources", kind).text(name) == "" {
						return "has no " + kind + " of " + name
					}
				}
			}
			return ""
		})},
		{"go-limits", "a Go process that does not know its limits is killed at them, or throttled", eachContainer(func(_ pod, c object) string {
			var memory, processors bool
			for _, variable := range c.objects("env") {
				switch variable.text("name") {
				case "GOMEMLIMIT":
					own, err := mebibytes(variable.text("value"))
					limit, limitErr := mebibytes(c.object("resources", "limits").text("memory"))
					memory = err == nil && limitErr == nil && own < limit && own > limit/2
				case "GOMAXPROCS":
					processors = variable.object("valueFrom", "resourceFieldRef").text("resource") == "limits.cpu"
				}
			}
			return unless(memory && processors, "has no GOMEMLIMIT below its limit of memory, or no GOMAXPROCS from its limit of processors")
		})},
		{"probes", "what hangs is restarted, and what is not ready gets no calls", eachContainer(func(p pod, c object) string {
			// Where there is no port, a process that cannot go on ends by itself.
			if len(c.objects("ports")) == 0 && p.component() != "edge" {
				return ""
			}
			for _, name := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
				if c.object(name, "httpGet").text("path") == "" {
					return "has no " + name
				}
			}
			if c.object("livenessProbe", "httpGet").text("path") == c.object("readinessProbe", "httpGet").text("path") {
				return "is restarted when it is only not ready"
			}
			return ""
		})},
		{"drain", "the kubelet must not kill what is still stopping in order", eachPod(func(m *manifests, p pod) string {
			grace := time.Duration(p.spec().number("terminationGracePeriodSeconds")) * time.Second
			if p.component() != "edge" {
				return unless(grace >= m.drainGrace+5*time.Second, "gets less than one drainGrace and 5 s to stop")
			}
			for _, c := range p.spec().objects("containers") {
				wait := time.Duration(c.object("lifecycle", "preStop", "sleep").number("seconds")) * time.Second
				if wait < 5*time.Second {
					return "does not wait until load balancers have learned that it leaves"
				}
				// The HTTP server, what authenticates, the edge with its store, and
				// what measures, one after another.
				if grace < wait+4*m.drainGrace {
					return "gets less than its preStop and four times drainGrace to stop"
				}
			}
			return ""
		})},
		{"rollout", "a new version comes before the old one goes", func(m *manifests, wrong report) {
			for _, o := range m.kind("Deployment") {
				if value, ok := o.object("spec", "strategy", "rollingUpdate")["maxUnavailable"].(int); !ok || value != 0 {
					wrong("%s: may be unavailable during an update", o.name())
				}
			}
		}},
		{"spread", "one node must not take all with it", eachPod(func(_ *manifests, p pod) string {
			for _, c := range p.spec().objects("topologySpreadConstraints") {
				if c.text("topologyKey") == "kubernetes.io/hostname" {
					return ""
				}
			}
			return "may be placed on one node altogether"
		})},
		{"disruption-budget", "a drained node must not take all with it", func(m *manifests, wrong report) {
			budgets := map[string]int{}
			for _, o := range m.kind("PodDisruptionBudget") {
				for _, p := range m.selected(o.object("spec", "selector", "matchLabels")) {
					budgets[p.owner.name()]++
				}
			}
			for _, p := range m.pods() {
				switch n := budgets[p.owner.name()]; {
				case n == 0 && p.component() == "edge":
					wrong("%s: has no PodDisruptionBudget", p.owner.name())
				case n > 1:
					wrong("%s: has %d PodDisruptionBudgets, and Kubernetes refuses to evict then", p.owner.name(), n)
				}
			}
		}},
		{"network-policy", "a worker that was taken over must not reach the rest of the cluster", eachPod(func(m *manifests, p pod) string {
			directions := map[any]bool{}
			for _, o := range m.kind("NetworkPolicy") {
				for _, found := range m.selected(o.object("spec", "podSelector", "matchLabels")) {
					if types, _ := o.object("spec")["policyTypes"].([]any); found.owner.name() == p.owner.name() {
						for _, direction := range types {
							directions[direction] = true
						}
					}
				}
			}
			return unless(directions["Ingress"] && directions["Egress"], "has no NetworkPolicy for both directions")
		})},
	}
}

// wholeRules are for what objects say of each other.
func wholeRules() []rule {
	return []rule{
		{"names", "the second of one name overwrites the first", func(m *manifests, wrong report) {
			seen := map[string]bool{}
			for _, o := range m.list {
				if seen[o.name()] {
					wrong("%s: is there twice", o.name())
				}
				seen[o.name()] = true
			}
		}},
		{"selectors", "a selector that finds nothing is no error to Kubernetes", func(m *manifests, wrong report) {
			for _, o := range m.list {
				var labels object
				switch o.text("kind") {
				case "Service":
					labels = o.object("spec", "selector")
				case "PodDisruptionBudget", "Deployment":
					labels = o.object("spec", "selector", "matchLabels")
				case "NetworkPolicy":
					labels = o.object("spec", "podSelector", "matchLabels")
				default:
					continue
				}
				found := m.selected(labels)
				if len(labels) == 0 || len(found) == 0 {
					wrong("%s: selects no pod", o.name())
				}
				if o.text("kind") == "Deployment" && (len(found) != 1 || found[0].owner.name() != o.name()) {
					wrong("%s: selects pods of others", o.name())
				}
			}
		}},
		{"ports", "a port that nobody has is no error to Kubernetes", func(m *manifests, wrong report) {
			for _, o := range m.kind("Service") {
				for _, p := range m.selected(o.object("spec", "selector")) {
					for _, port := range o.object("spec").objects("ports") {
						if !hasPort(p, port.text("targetPort")) {
							wrong("%s: %s has no port %s", o.name(), p.owner.name(), port.text("targetPort"))
						}
					}
				}
			}
			for _, p := range m.pods() {
				for _, c := range p.containers() {
					for _, name := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
						if port := c.object(name, "httpGet").text("port"); port != "" && !hasPort(p, port) {
							wrong("%s: %s looks at the port %s, which it has not", p.owner.name(), name, port)
						}
					}
				}
			}
		}},
		{"scaling", "two who set the number of replicas undo each other", func(m *manifests, wrong report) {
			scaled := map[string]int{}
			for _, o := range m.kind("HorizontalPodAutoscaler", "ScaledObject") {
				target := "Deployment " + o.object("spec", "scaleTargetRef").text("name")
				scaled[target]++
				if !slices.ContainsFunc(m.list, func(o object) bool { return o.name() == target }) {
					wrong("%s: scales %s, which is not there", o.name(), target)
				}
			}
			for _, o := range m.kind("Deployment") {
				if scaled[o.name()] > 0 && o.object("spec")["replicas"] != nil {
					wrong("%s: each update sets its replicas back", o.name())
				}
				if scaled[o.name()] > 1 {
					wrong("%s: is scaled by %d", o.name(), scaled[o.name()])
				}
			}
		}},
	}
}

func hasPort(p pod, name string) bool {
	for _, c := range p.containers() {
		for _, port := range c.objects("ports") {
			if port.text("name") == name || port.text("containerPort") == name {
				return true
			}
		}
	}
	return false
}
