package rules

import (
	"slices"
	"strings"
)

// law is one row of the import law. Patterns name import paths; ours are
// written "./edge/sse", and "/..." at the end stands for everything below too.
type law struct {
	from   []string // the packages that are bound
	except []string // of these, the packages that are not
	never  []string // what they must not import
	but    []string // of these, what they may
	tests  bool     // test code is bound as well
	why    string
}

const (
	natsClient = "github.com/nats-io/nats.go"
	natsServer = "github.com/nats-io/nats-server/v2"
)

// importLaw is the table of the layout document, read row by row. Packages that
// only exist on paper are not named: they enter together with their code.
func importLaw() []law {
	return []law{
		{
			from: []string{"./proto/..."}, never: []string{"./edge/...", "./worker/...", "./services/..."}, tests: true,
			why: "proto is what edges and workers agree on; it cannot depend on one of them",
		},
		{
			from: []string{"./proto/millrace/..."}, never: []string{"./..."}, but: []string{"./proto/millrace/..."},
			why: "these packages are generated from the schemas; logic does not belong beside them",
		},
		{
			from: []string{"./proto/bus/..."}, never: []string{"./proto/millrace/v1"},
			why: "the carrier carries any gRPC service; knowing ours, it would grow exceptions for it",
		},
		{
			from: []string{"./proto/localnats"}, never: []string{"./..."},
			why: "it is a NATS server in this process and nothing else",
		},
		{
			from: []string{"./..."}, except: []string{"./services/millrace"}, never: []string{"./proto/localnats"},
			why: "whether a NATS server runs inside is decided by the binary (and by each test), never by a library",
		},
		{
			from: []string{"./..."}, except: []string{"./proto/localnats"}, never: []string{natsServer + "/..."},
			why: "the edges and workers of a cluster must not carry a server that they never start",
		},
		{
			from: []string{"./..."}, except: []string{"./proto/bus/...", "./proto/localnats", "./edge/jetstream", "./services/millrace"},
			never: []string{natsClient + "/..."},
			why:   "one package owns subjects, options and back-pressure of the connection, proto/bus, and one owns what is stored, edge/jetstream",
		},
		{
			from: []string{"./..."}, except: []string{"./edge", "./edge/jetstream", "./services/millrace"}, never: []string{"./edge/jetstream"},
			why: "what needs a store says so in an interface, so that it runs without JetStream and is tested in fake time",
		},
		{
			from: []string{"./edge/..."}, never: []string{"./worker/..."},
			why: "an edge serves workers of any release and language; only the schemas are shared",
		},
		{
			from: []string{"./worker/..."}, never: []string{"./edge/..."}, tests: true,
			why: "tool authors import the SDK; the HTTP side must not come along",
		},
		{
			from: []string{"./edge/...", "./worker/..."}, never: []string{"./services/..."}, tests: true,
			why: "services are built from edge and worker; the other way round would be a circle",
		},
		{
			from: []string{"./edge/jsonrpc"}, never: []string{"./..."},
			why: "the codec is pure and fuzzed alone; it knows JSON-RPC and nothing of MCP",
		},
		{
			from: []string{"./edge/sse"}, never: []string{"./..."},
			why: "framing of events is pure and fuzzed alone; it knows bytes and nothing of what they say",
		},
		{
			from: []string{"./edge/mcp"}, never: []string{"google.golang.org/protobuf/...", "google.golang.org/grpc/...", "net/http", "./proto/..."},
			why: "facts of the specification must not bend to how we happen to carry them",
		},
		{
			from: []string{"./edge/legacy/..."}, never: []string{"./edge/stateless/..."},
			why: "an era knows nothing of the other: the older one is deleted with rm -r one day",
		},
		{
			from: []string{"./edge/stateless/..."}, never: []string{"./edge/legacy/...", "./edge/session/..."},
			why: "the modern era has no sessions, and must survive the legacy era",
		},
		{
			from: []string{"./edge/session/..."}, never: []string{"net/http", "./edge/stateless/..."},
			why: "a session is a record with rules; which transport carries its id is the era's matter",
		},
		{
			from: []string{"./edge/catalog"}, never: []string{"./edge/jsonrpc", "./edge/legacy/...", "./edge/stateless/..."},
			why: "the catalog is the same for all eras; each encodes it in its own way",
		},
		{
			from:  []string{"./edge/auth"},
			never: []string{"./edge/legacy/...", "./edge/stateless/...", "./edge/session/...", "./proto/...", "./worker/...", "google.golang.org/grpc/..."},
			why:   "who calls is settled before anything of the protocol is read, and is the same for all eras and carriers",
		},
		{
			from: []string{"./..."}, except: []string{"./services/telemetry"},
			never: []string{"github.com/prometheus/client_golang/...", "go.opentelemetry.io/otel/..."},
			why:   "what is measured is said in interfaces of the packages that do it; one package knows in which formats it leaves the process",
		},
		{
			// The examples are programs of their own, as a user writes them.
			from: []string{"./..."}, except: []string{"./services/millrace", "./docs/examples/..."},
			never: []string{"flag", "os/signal", "github.com/alecthomas/kong", "github.com/oklog/run"},
			why:   "one place reads flags and signals and starts actors: the binary; everything else is told",
		},
	}
}

// checkImportLaw holds every file against the table.
func checkImportLaw(t tree, found *findings) {
	for _, row := range importLaw() {
		for _, file := range t.files {
			if file.isTestCode() && !row.tests {
				continue
			}
			from := "./" + file.dir
			if !matchesAny(row.from, from) || matchesAny(row.except, from) {
				continue
			}
			for importPath, pos := range file.imports() {
				// The tests of a package may stand in a package beside it, which imports it.
				if importPath != from && matchesAny(row.never, importPath) && !matchesAny(row.but, importPath) {
					found.at(pos, "%s must not import %s: %s", from, importPath, row.why)
				}
			}
		}
	}
}

// checkLawNames finds names in the table that stand for nothing: a renamed
// package would otherwise be free of its law without a word.
func checkLawNames(t tree, found *findings) {
	known := map[string]bool{}
	for _, file := range t.files {
		known["./"+file.dir] = true
		for importPath := range file.imports() {
			known[importPath] = true
		}
	}
	reported := map[string]bool{}
	for _, row := range importLaw() {
		for _, pattern := range slices.Concat(row.from, row.except, row.never, row.but) {
			ofStandardLibrary := !strings.Contains(strings.SplitN(pattern, "/", 2)[0], ".")
			if ofStandardLibrary || reported[pattern] {
				continue
			}
			exists := false
			for importPath := range known {
				exists = exists || matches(pattern, importPath)
			}
			if !exists {
				reported[pattern] = true
				found.absent("the import law names %s, which does not exist or is imported nowhere", pattern)
			}
		}
	}
}

// checkServiceInsides keeps services apart: of another service only the binary
// imports anything, and only the top package. It binds services by their place,
// so that a new one needs no row in the table.
func checkServiceInsides(t tree, found *findings) {
	for _, file := range t.files {
		own, ok := serviceOf("./" + file.dir)
		if !ok || file.isTestCode() {
			continue
		}
		for importPath, pos := range file.imports() {
			other, ok := serviceOf(importPath)
			if !ok || other == own || own == "millrace" && importPath == "./services/"+other {
				continue
			}
			found.at(pos, "%s must not import %s: services meet on the bus, and only the binary constructs them", "./"+file.dir, importPath)
		}
	}
}

// serviceOf returns the name of the service that the package belongs to.
func serviceOf(importPath string) (string, bool) {
	rest, ok := strings.CutPrefix(importPath, "./services/")
	name, _, _ := strings.Cut(rest, "/")
	return name, ok
}

// checkLayout refuses packages outside the folders that are the architecture.
func checkLayout(t tree, found *findings) {
	for _, file := range t.files {
		top, _, _ := strings.Cut(file.dir, "/")
		if !slices.Contains([]string{"proto", "edge", "worker", "services", "deploy", "docs"}, top) {
			found.at(file.syntax.Package, "no package belongs in %q: proto, edge, worker and services are the architecture, deploy and docs hold programs beside it", top)
		}
	}
}
