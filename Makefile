# What a developer runs. `make` alone prints the targets that carry a ## text.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

# What is built or fetched once for all checkouts of this machine.
MILLRACE_CACHE ?= $(HOME)/.cache/millrace
# Arguments of `make run`, for example ARGS='--nats-listen 127.0.0.1:4222'.
ARGS ?=
# How long each fuzz target runs.
FUZZTIME ?= 60s
# Which benchmarks run, a regular expression.
BENCH ?= .
# What `make image` makes: its version, for which architecture, and of which commit.
VERSION ?= 0.1.0-dev
IMAGE_ARCH ?= $(shell go env GOARCH)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# Which load tests `make load` runs, of the files in deploy/k6.
SCRIPT ?= calls
# Tests share two cores with race detection; only a deadlock takes longer.
TEST_TIMEOUT ?= 15m

# --- Tools -------------------------------------------------------------------
# The one place where versions of tools are written. A tool lies in a folder of
# its version, so a new version is built beside the old one, and checkouts of
# different age work on one machine. They stay out of go.mod: what a linter
# imports must not decide which versions our users get.
TOOLS := $(abspath $(MILLRACE_CACHE))/tools

BUF                := $(TOOLS)/buf@v1.75.0/buf
PROTOC_GEN_GO      := $(TOOLS)/protoc-gen-go@v1.36.12/protoc-gen-go
PROTOC_GEN_GO_GRPC := $(TOOLS)/protoc-gen-go-grpc@v1.6.2/protoc-gen-go-grpc
GOLANGCI_LINT      := $(TOOLS)/golangci-lint@v2.15.0/golangci-lint
HELM               := $(TOOLS)/helm@v3.22.0/helm
KUBECTL_VALIDATE   := $(TOOLS)/kubectl-validate@v0.0.4/kubectl-validate
K6_PINNED          := $(TOOLS)/k6@v1.8.1/k6

$(BUF):                PACKAGE := github.com/bufbuild/buf/cmd/buf
$(PROTOC_GEN_GO):      PACKAGE := google.golang.org/protobuf/cmd/protoc-gen-go
$(PROTOC_GEN_GO_GRPC): PACKAGE := google.golang.org/grpc/cmd/protoc-gen-go-grpc
$(GOLANGCI_LINT):      PACKAGE := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(HELM):               PACKAGE := helm.sh/helm/v3/cmd/helm
$(KUBECTL_VALIDATE):   PACKAGE := sigs.k8s.io/kubectl-validate
$(K6_PINNED):          PACKAGE := go.k6.io/k6

GO_TOOLS := $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) $(GOLANGCI_LINT) $(HELM) $(KUBECTL_VALIDATE) $(K6_PINNED)

# Who tests load has a k6, perhaps with extensions; without one it is built.
K6 = $(or $(shell command -v k6),$(K6_PINNED))

# Modules of others whose custom resources the chart makes: their schemas are in
# them. Only make check-deploy reads them.
CRD_MODULES := \
	sigs.k8s.io/gateway-api@v1.4.1 \
	github.com/prometheus-operator/prometheus-operator@v0.85.0 \
	github.com/kedacore/keda/v2@v2.18.1

# Built aside and moved, so that an interrupted build never looks finished.
# GOFLAGS is emptied: flags meant for this module (-race, -mod) are not the
# tool's.
$(GO_TOOLS):
	@tool=$(notdir $(patsubst %/,%,$(@D))); version=$${tool##*@}; \
	echo "building $$tool (once; kept in $(TOOLS))"; \
	mkdir -p "$(@D)"; \
	GOBIN="$(@D)/.building.$$$$" GOFLAGS= go install "$(PACKAGE)@$$version"; \
	mv "$(@D)/.building.$$$$/$(@F)" "$@"; \
	rmdir "$(@D)/.building.$$$$"

# buf finds the plugins by name.
WITH_PLUGINS := PATH="$(dir $(PROTOC_GEN_GO)):$(dir $(PROTOC_GEN_GO_GRPC)):$$PATH"

# --- Modules -----------------------------------------------------------------
# The folders that hold a go.mod; "." first. A nested module keeps what only
# tests need out of the module that users import.
MODULES := $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path '*/node_modules/*' -not -path '*/testdata/*')))

# $(call each-module,COMMAND) runs COMMAND in every module.
each-module = for module in $(MODULES); do (cd "$$module" && $(1)) || { echo "failed in module $$module: $(strip $(1))" >&2; exit 1; }; done

GO_FILES = find . -name '*.go' -not -path '*/node_modules/*' -not -path './.git/*'

# --- Targets -----------------------------------------------------------------
.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: ## Run everything in one process: NATS, the edge on 127.0.0.1:8080/mcp, the glossary (ARGS=...)
	go run ./services/millrace up $(ARGS)

.PHONY: dev-cluster
dev-cluster: ## Run a cluster of processes on this machine, behind a proxy on 127.0.0.1:8080/mcp (ARGS=...)
	go run ./services/millrace dev-cluster $(ARGS)

.PHONY: demo-edge-kill
demo-edge-kill: ## Kill an edge under 100 running calls and count what is lost (ARGS='-calls 10 -duration 3s')
	@bin=$$(mktemp -d); trap 'rm -rf "$$bin"' EXIT; \
	go build -o "$$bin/millrace" ./services/millrace; \
	go run ./services/internal/demos/edgekill -millrace "$$bin/millrace" $(ARGS)

.PHONY: demo-rolling-restart
demo-rolling-restart: ## Restart all edges and workers under calls in both eras and count what is lost (ARGS='-rate 20 -long 1s')
	@bin=$$(mktemp -d); trap 'rm -rf "$$bin"' EXIT; \
	go build -o "$$bin/millrace" ./services/millrace; \
	go run ./services/internal/demos/rolling -millrace "$$bin/millrace" $(ARGS)

.PHONY: load
# Variables of make's command line are in the environment of k6.
load: $(K6) ## Run load tests of deploy/k6 against BASE_URL (SCRIPT='calls mixed' RATE=50 DURATION=1m TOKEN=...), summaries in out/load
	@mkdir -p out/load; failed=; \
	for script in $(SCRIPT); do \
		SUMMARY="out/load/$$script" "$(K6)" run --quiet --no-usage-report --address '' "deploy/k6/$$script.js" || failed="$$failed $$script"; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

# The binaries are built anew, with the overlay that lets the suite count
# goroutines; flags that come later win.
CHAOS = bin=$$(mktemp -d); trap 'rm -rf "$$bin"' EXIT; \
	go build -o "$$bin/chaos" ./services/internal/chaos; \
	go build -overlay services/internal/chaos/overlay/overlay.json -o "$$bin/millrace" ./services/millrace; \
	"$$bin/chaos" -millrace "$$bin/millrace"

.PHONY: chaos
chaos: ## Break a cluster in every way 20 times under 100,000 calls and judge the answers, 45 minutes; needs root (ARGS='-faults edge-kill -v')
	@$(CHAOS) $(ARGS)

.PHONY: chaos-short
chaos-short: ## The same with every fault once, in two minutes; part of test
	@$(CHAOS) -rounds 1 -calls 2000 -long 2s $(ARGS)

.PHONY: soak
soak: ## Run a cluster at half of its capacity for 10 minutes and report how its processes grow, 17 minutes in all (ARGS='-large': what 50 MiB results take)
	@bin=$$(mktemp -d); trap 'rm -rf "$$bin"' EXIT; \
	go build -o "$$bin/" ./services/millrace ./services/internal/soak; \
	"$$bin/soak" -millrace "$$bin/millrace" $(ARGS)

.PHONY: test
test: clients ## Run all tests with the race detector, and chaos-short
	@$(call each-module,go test -race -timeout $(TEST_TIMEOUT) ./...)
	@$(MAKE) chaos-short

.PHONY: check
check: check-generated check-proto check-go check-modules check-deploy check-observability check-image check-load ## Everything that must hold before a commit, besides the tests

.PHONY: generate
generate: $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) ## Generate the Go code of proto/
	$(WITH_PLUGINS) $(BUF) generate

.PHONY: tools
tools: $(GO_TOOLS) ## Build the pinned tools into the cache

.PHONY: image
image: ## Make the container image as an OCI layout in out/image, without a daemon (VERSION, IMAGE_ARCH); needs umoci
	deploy/image/build out/image "$(VERSION)" "$(REVISION)" "$(IMAGE_ARCH)"

.PHONY: kubernetes
kubernetes: $(HELM) ## Render deploy/kubernetes from the Helm chart
	deploy/kubernetes/render "$(HELM)" deploy/kubernetes

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (60s)
	@grep -rEo '^func Fuzz[A-Z][A-Za-z0-9_]*' --include='*_test.go' --exclude-dir=node_modules . | sort | \
	while IFS=: read -r file name; do \
		name=$${name#func }; echo "== $$name in $$(dirname "$$file")"; \
		(cd "$$(dirname "$$file")" && go test -run='^$$' -fuzz="^$$name\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=1x . </dev/null); \
	done

.PHONY: bench
bench: ## Run the benchmarks that match BENCH (all), without the tests
	@$(call each-module,go test -run='^$$' -bench='$(BENCH)' -benchmem ./...)

.PHONY: bench-peers
bench-peers: ## Measure Millrace beside a bare relay, go-sdk and mcp-go, 9 minutes on a quiet machine (ARGS='-only 64.KiB')
	cd deploy/bench && go run . $(ARGS)

.PHONY: baseline
baseline: $(BUF) ## Accept the schemas as they are into proto/baseline.binpb (BREAKING=yes also accepts a break)
	@if [ "$(BREAKING)" != yes ] && [ -e proto/baseline.binpb ]; then $(BUF) breaking --against proto/baseline.binpb; fi
	$(BUF) build --exclude-source-info -o proto/baseline.binpb

# --- Clients -----------------------------------------------------------------
# What the end-to-end tests need beside Go is prepared by this target, pinned
# and kept in $(MILLRACE_CACHE) like the tools, so that no test skips.
.PHONY: clients
clients: ## Install the MCP clients that the end-to-end tests run
	@go test -race -count=1 -timeout $(TEST_TIMEOUT) -run '^TestClientsAreInstalled$$' ./services/internal/e2e

# --- Parts of check ----------------------------------------------------------
# Generated into a folder of its own and compared both ways: this finds stale
# and orphaned files, and says nothing about other files that are not committed.
.PHONY: check-generated
check-generated: $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) ## Generated code is what the schemas give
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	$(WITH_PLUGINS) $(BUF) generate -o "$$fresh"; \
	generated() { (cd "$$1" && find . -name '*.pb.go' | sort); }; \
	diff -u <(generated proto) <(generated "$$fresh/proto") || { echo "generated files are missing or left over: run make generate" >&2; exit 1; }; \
	generated proto | while read -r file; do \
		diff -u "proto/$$file" "$$fresh/proto/$$file" || { echo "proto/$$file is stale: run make generate" >&2; exit 1; }; \
	done

.PHONY: check-proto
check-proto: $(BUF) ## Schemas are linted, formatted and compatible with the committed baseline
	$(BUF) lint
	$(BUF) format -d --exit-code
	$(BUF) breaking --against proto/baseline.binpb
	@image=$$(mktemp -d); trap 'rm -rf "$$image"' EXIT; \
	$(BUF) build --exclude-source-info -o "$$image/now.binpb"; \
	cmp -s "$$image/now.binpb" proto/baseline.binpb || { echo "proto/baseline.binpb does not know the newest schemas: run make baseline" >&2; exit 1; }

.PHONY: check-go
check-go: $(GOLANGCI_LINT) ## gofmt, go vet and golangci-lint have nothing to say
	@unformatted=$$($(GO_FILES) -print0 | xargs -0 -r gofmt -l); \
	[ -z "$$unformatted" ] || { printf 'run gofmt -w on:\n%s\n' "$$unformatted" >&2; exit 1; }
	@$(call each-module,go vet ./...)
	@$(call each-module,$(GOLANGCI_LINT) run --config "$(CURDIR)/.golangci.yml" ./...)

.PHONY: check-modules
check-modules: ## go.mod and go.sum are tidy, and the modules are the ones that were reviewed
	@$(call each-module,go mod tidy -diff)
	@$(call each-module,go mod verify)

.PHONY: check-image
check-image: IMAGE_ARCH := $(shell go env GOARCH)
check-image: image ## The image is what it should be, runs as nobody and answers; behind nginx too. Needs root, umoci, runc, nginx
	go run ./services/internal/deploy/imagecheck out/image "$(VERSION)"
	go run ./services/internal/deploy/proxycheck out/image/root/millrace deploy/ingress/nginx.conf

.PHONY: check-deploy
check-deploy: $(HELM) $(KUBECTL_VALIDATE) ## The chart renders to valid and safe manifests, and those in deploy/kubernetes are fresh
	deploy/check "$(HELM)" "$(KUBECTL_VALIDATE)" $(CRD_MODULES)

.PHONY: check-observability
check-observability: ## Alerts and dashboard are valid, and alerts come when they should. Needs promtool
	promtool check rules deploy/observability/alerts.yaml
	cd deploy/observability && promtool test rules alerts_test.yaml
	@rules=$$(mktemp); trap 'rm -f "$$rules"' EXIT; \
	go run ./services/internal/deploy/dashboard deploy/observability/dashboard.json >"$$rules"; \
	promtool check rules "$$rules"

.PHONY: check-load
check-load: $(K6) ## Every load test of deploy/k6 passes in a brief form, and fails when it should
	@bin=$$(mktemp -d); trap 'rm -rf "$$bin"' EXIT; \
	go build -o "$$bin/millrace" ./services/millrace; \
	go run ./services/internal/deploy/loadcheck "$(K6)" "$$bin/millrace" deploy/k6
