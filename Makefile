# CI runs make ci. That and make test need root on Debian 12, where they install what they use.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GO ?= go
TOOL := $(GO) tool -modfile=internal/tools/go.mod
PKGS := ./...
FUZZTIME ?= 2s
CHAOS_TIME ?= 10m
BENCHTIME ?= 1s
ROUNDS ?= 9
SESSIONS ?= 10000
GATEWAY_ROUNDS ?= 3
VULNDB ?= https://vuln.go.dev
ifndef VERSION
# Once, so that all files of a release have one version whatever changes while make runs.
VERSION := $(shell deploy/package/version.sh)
endif
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
CLI := github.com/rdmabridge/rdmabridge/internal/cli
LDFLAGS = -ldflags '-X $(CLI).version=$(VERSION) -X $(CLI).revision=$(REVISION)'

.PHONY: help build build-ibverbs build-otel release packages package-test reproduce vulnerabilities test ci nightly check lint unit conformance mutate fuzz chaos lab-test lab pair ipvs size-check chart bench bench-tools bench-peers bench-chain bench-gateways bench-neighbours bench-sessions bench-tls profile install clean

##@ Build
# Both programs by the profile of the bridge, unless GOFLAGS has another: load and server have the bridge's roads, too.
build build-ibverbs build-otel: export GOFLAGS := -pgo=cmd/rdmabridge/default.pgo $(GOFLAGS)
build: ## bin/rdmabridge and bin/rdmabridge-bench, static
	CGO_ENABLED=0 $(GO) build -trimpath $(LDFLAGS) -o bin/ ./cmd/rdmabridge ./cmd/rdmabridge-bench

build-ibverbs: ## bin/rdmabridge-ibverbs and bin/rdmabridge-bench-ibverbs, for RDMA devices; needs a C compiler and rdma-core
	CGO_ENABLED=1 $(GO) build -trimpath $(LDFLAGS) -tags ibverbs -o bin/rdmabridge-ibverbs ./cmd/rdmabridge
	CGO_ENABLED=1 $(GO) build -trimpath $(LDFLAGS) -tags ibverbs -o bin/rdmabridge-bench-ibverbs ./cmd/rdmabridge-bench

build-otel: ## bin/rdmabridge-otel, which sends traces: docs/tracing.md
	CGO_ENABLED=0 $(GO) build -trimpath $(LDFLAGS) -tags otel -o bin/rdmabridge-otel ./cmd/rdmabridge

install: ## Debian packages, the lab's kernel, Go modules
	deploy/lab/install.sh
	$(GO) mod download

clean: ## removes bin and out
	rm -rf bin out

help: ## this list
	@awk -F':.*## ' '/^##@/ { print substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Test
test: ## all Go tests, and one guest with Linux's client and server; 10 minutes at most
	./.ci/test.sh

ci: install ## what CI runs: lint, the whole lab, sanitizers, everything under the race detector
	./.ci/ci.sh

nightly: install ## what takes hours: long rounds, packages, pairs of bridges, mutations, the chart
	./.ci/nightly.sh

# Packages of octets, which are looked at for the other byte order, too.
CODECS := ./internal/rpc/... ./rdmaside/rpcrdma ./rdmaside/iwarp/wire ./internal/proxyheader

lint: ## gofumpt, golangci-lint with the table of imports, whether the mutations fit
	@bad=$$($(TOOL) gofumpt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "gofumpt: $$bad"; exit 1; }
	$(GO) vet -tags nodemo ./cmd/...
	GOARCH=s390x $(GO) vet $(CODECS)
	$(GO) tool -modfile=internal/tools/actionlint.mod actionlint
	./.ci/mutate.sh --fit
	$(TOOL) golangci-lint run --build-tags lab,ibverbs,otel $(PKGS)
	$(GO) vet $$(git grep -lE '^//go:build !(ibverbs|otel)$$' -- '*.go' | xargs dirname | sort -u | sed 's|^|./|')

# Without the profile of cmd/rdmabridge, with which each package would be looked at twice.
unit fuzz: export GOFLAGS := $(GOFLAGS) -pgo=off
# With -trimpath, the cache may have what cgo made in another clone, and golangci-lint looks for its sources there.
lint: export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS)) -pgo=off
check: lint unit ## lint, and all Go tests under the race detector

unit:
	$(GO) test -race $(PKGS)
	$(GO) test -race -tags otel ./internal/tracing

fuzz: ## every fuzz target for $(FUZZTIME)
	./.ci/fuzz.sh $(FUZZTIME)

chaos: ## faults around a bridge for $(CHAOS_TIME); CHAOS_SEED repeats a run: docs/faults.md
	CHAOS_TIME=$(CHAOS_TIME) $(GO) test -count=1 -timeout 0 -v -run '^TestChaos$$' ./internal/chaos

conformance: ## RFC 8166, sentence by sentence: docs/conformance.md
	@mkdir -p out && rm -f out/conformance.md
	@RDMABRIDGE_CONFORMANCE=$(CURDIR)/out/conformance.md $(GO) test -count=1 -run '^TestConformance' ./rdmaside || failed=1; \
		cat out/conformance.md; exit $${failed:-0}

mutate: ## the rows of the conformance tests that notice no change of the code
	./.ci/mutate.sh

lab: install ## boots the guest with a shell: deploy/lab/README.md
	mkdir -p out
	deploy/lab/mkinitrd.sh out/guest.cpio
	deploy/lab/boot.sh out/guest.cpio --append "lab.rdma=siw lab.server=1 lab.shell=1" --fwd 20049:20049 --fwd 20048:20048

lab-test: build ## the tests against Linux in the guest
	RDMABRIDGE_LAB=1 RDMABRIDGE_BINARY=$(CURDIR)/bin/rdmabridge RDMABRIDGE_BENCH=$(CURDIR)/bin/rdmabridge-bench $(GO) test -tags lab -count=1 -timeout 25m -v -run Lab ./internal/lab

# A kernel's client between two bridges with floating addresses, by keepalived: docs/scaling.md; ten minutes.
pair: install
	RDMABRIDGE_LAB=1 RDMABRIDGE_LAB_PAIR="tcp rdma" $(GO) test -tags lab -count=1 -timeout 40m -v -run '^TestPairLab$$' ./internal/lab

# A kernel's clients before two active bridges behind IPVS, by keepalived: docs/scaling.md; minutes.
ipvs: install
	RDMABRIDGE_LAB=1 RDMABRIDGE_LAB_IPVS=1 $(GO) test -tags lab -count=1 -timeout 25m -v -run '^TestIPVSLab$$' ./internal/lab

chart: ## the Helm chart: lint, schemas, its pods without a cluster
	cd internal/charttest && $(GO) test -count=1 -timeout 15m ./...

size-check: ## the formulas of docs/scaling.md beside measurements
	RDMABRIDGE_SIZE_CHECK=1 $(GO) test -count=1 -v -run '^TestSizeModel$$' ./internal/measure

##@ Measure
bench: ## benchmarks of each layer and of the whole bridge
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) $(PKGS)
	$(MAKE) bench-sessions

bench-peers: build bench-tools ## beside HAProxy and nginx. Others: bench-chain, -gateways, -neighbours, -sessions, -tls: docs/bench.md
	deploy/bench/peers.sh

bench-chain: build bench-tools
	deploy/bench/peers.sh chain

bench-gateways: build install
	deploy/bench/gateways.sh $(GATEWAY_ROUNDS)

bench-neighbours:
	RDMABRIDGE_NEIGHBOURS=$(ROUNDS) $(GO) test -count=1 -timeout 0 -v -run '^Test(Neighbours|HealthySlots)$$' ./internal/measure ./proxy

bench-sessions:
	RDMABRIDGE_SESSIONS=$(SESSIONS) $(GO) test -count=1 -timeout 0 -v -run '^TestSessions' ./internal/measure

bench-tls: build
	deploy/bench/tls.sh

# The other proxies for deploy/bench/peers.sh.
bench-tools:
	[ -e /usr/lib/nginx/modules/ngx_stream_module.so ] && command -v haproxy nginx >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends haproxy nginx-light libnginx-mod-stream >/dev/null; }

profile: build ## cmd/rdmabridge/default.pgo, by which go build inlines: docs/bench.md
	deploy/bench/profile.sh

##@ Release
release: ## out/release: tarballs, bills of materials, notices, SHA256SUMS
	deploy/package/release.sh out/release "$(or $(VERSION),0.0.0)" "$(REVISION)" "$(SOURCE_DATE_EPOCH)"

packages: release ## a .deb and an .rpm of each architecture, in out/release
	deploy/package/packages.sh out/release "$(or $(VERSION),0.0.0)" "$(SOURCE_DATE_EPOCH)"

package-test: install ## installs, upgrades and removes the packages and the image
	command -v rpm qemu-aarch64-static buildah >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends rpm qemu-user-static buildah >/dev/null; }
	deploy/package/test.sh
	deploy/docker/test.sh

reproduce: ## makes the release twice and compares the octets
	deploy/package/reproduce.sh

vulnerabilities: ## known vulnerabilities that the programs call, by $(VULNDB)
	$(TOOL) govulncheck -show version -db $(VULNDB) -tags ibverbs,otel ./cmd/...
