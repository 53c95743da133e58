# CI runs make test. It needs root on Debian 12, where it installs what it uses.

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
LDFLAGS = -ldflags '-X main.version=$(VERSION) -X main.revision=$(REVISION)'

.PHONY: help build build-ibverbs build-otel release packages package-test reproduce vulnerabilities test check lint unit conformance mutate fuzz chaos lab-test lab pair ipvs size-check chart site bench bench-tools bench-peers bench-chain bench-gateways bench-neighbours bench-sessions bench-tls profile install clean

build: ## bin/rdmabridge, static
	CGO_ENABLED=0 $(GO) build -trimpath $(LDFLAGS) -o bin/rdmabridge ./cmd/rdmabridge

build-ibverbs: ## bin/rdmabridge-ibverbs, which opens rdma-core at run time; needs a C compiler and rdma-core's headers
	CGO_ENABLED=1 $(GO) build -trimpath $(LDFLAGS) -tags ibverbs -o bin/rdmabridge-ibverbs ./cmd/rdmabridge

build-otel: ## bin/rdmabridge-otel, which sends traces: docs/tracing.md
	CGO_ENABLED=0 $(GO) build -trimpath $(LDFLAGS) -tags otel -o bin/rdmabridge-otel ./cmd/rdmabridge

release: ## out/release: tarballs for amd64 and arm64, with bills of materials, notices and SHA256SUMS; needs what build-ibverbs needs
	deploy/package/release.sh out/release "$(or $(VERSION),0.0.0)" "$(REVISION)" "$(SOURCE_DATE_EPOCH)"

packages: release ## a .deb and an .rpm of each architecture, in out/release
	deploy/package/packages.sh out/release "$(or $(VERSION),0.0.0)" "$(SOURCE_DATE_EPOCH)"

package-test: install ## the packages: their contents, the .rpm and the .deb installed, upgraded under load and removed under a systemd in a container, the binary for arm64; and the image
	command -v rpm qemu-aarch64-static buildah >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends rpm qemu-user-static buildah >/dev/null; }
	deploy/package/test.sh
	deploy/docker/test.sh

reproduce: ## makes the release of the commit and its packages twice, in two directories, and compares the octets
	deploy/package/reproduce.sh

vulnerabilities: ## known vulnerabilities that the bridge calls, by the database $(VULNDB), which may be file:///DIRECTORY
	$(GO) run ./internal/release vulnerabilities -db $(VULNDB)

test: install ## all tests, those against real peers included; about 20 minutes on two cores
	./.ci/test.sh

install: ## Debian packages, the lab's kernel, Go modules
	deploy/lab/install.sh
	$(GO) mod download

# Without the profile of cmd/rdmabridge, with which each package would be looked at twice.
lint unit fuzz: export GOFLAGS := $(GOFLAGS) -pgo=off

check: lint unit ## lint, and all tests except those against real peers

lint: ## gofumpt, vet of what handles octets for the other byte order, golangci-lint, which also vets, with all tags, and of what is left out then
	@bad=$$($(TOOL) gofumpt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "gofumpt: $$bad"; exit 1; }
	$(GO) vet -tags nodemo ./cmd/rdmabridge
	GOARCH=s390x $(GO) vet $$($(GO) list $(PKGS) | grep -vE '/(cmd|internal/(admin|tracing|release|testkit/browser))(/|$$)')
	$(TOOL) golangci-lint run --build-tags lab,ibverbs,otel $(PKGS)
	$(TOOL) golangci-lint run --build-tags lab $$(git grep -lE '^//go:build !(ibverbs|otel)$$' -- '*.go' | xargs dirname | sort -u | sed 's|^|./|')

unit: ## all Go tests, with the race detector
	$(GO) test -race $(PKGS)
	$(GO) test -race -tags otel ./internal/tracing

conformance: ## rule by rule, how the Responder and the Requester keep RFC 8166: docs/conformance.md
	@mkdir -p out && rm -f out/conformance.md
	@RDMABRIDGE_CONFORMANCE=$(CURDIR)/out/conformance.md $(GO) test -count=1 -run '^TestConformance' ./rdmaside || failed=1; \
		cat out/conformance.md; exit $${failed:-0}

mutate: ## changes the code under every row of the conformance tests and lists the rows that do not notice; not part of make test
	./.ci/mutate.sh

fuzz: ## every fuzz target for $(FUZZTIME)
	./.ci/fuzz.sh $(FUZZTIME)

chaos: ## a bridge among faulty servers, wires and clients for $(CHAOS_TIME); CHAOS_SEED repeats a run: docs/faults.md
	CHAOS_TIME=$(CHAOS_TIME) $(GO) test -count=1 -timeout 0 -v -run '^TestChaos$$' ./internal/chaos

lab-test: build ## the tests against Linux in the guest
	RDMABRIDGE_LAB=1 RDMABRIDGE_BINARY=$(CURDIR)/bin/rdmabridge $(GO) test -tags lab -count=1 -timeout 25m -v -run Lab ./internal/lab

lab: install ## boots the guest with a shell; its NFS server listens at 127.0.0.1:20049 (RDMA) and :20048 (MOUNT)
	mkdir -p out
	deploy/lab/mkinitrd.sh out/guest.cpio
	deploy/lab/boot.sh out/guest.cpio --append "lab.rdma=siw lab.server=1 lab.shell=1" --fwd 20049:20049 --fwd 20048:20048

pair: install ## a kernel's client between two bridges with floating addresses, by keepalived: docs/scaling.md; ten minutes
	RDMABRIDGE_LAB=1 RDMABRIDGE_LAB_PAIR="tcp rdma" $(GO) test -tags lab -count=1 -timeout 40m -v -run '^TestPairLab$$' ./internal/lab

ipvs: install ## a kernel's clients before two active bridges behind IPVS, by keepalived: docs/scaling.md; minutes
	RDMABRIDGE_LAB=1 RDMABRIDGE_LAB_IPVS=1 $(GO) test -tags lab -count=1 -timeout 25m -v -run '^TestIPVSLab$$' ./internal/lab

chart: ## lints and renders deploy/helm, compares the objects with the schemas of three versions of Kubernetes, and runs the pods without a cluster, as root; compiles Helm, which takes minutes at first
	cd internal/charttest && $(GO) test -count=1 -timeout 15m ./...

site: ## out/site: README.md, docs and what they link to as HTML, with every link checked; open out/site/index.html
	cd internal/site && $(GO) test -count=1 . && $(GO) run . ../.. ../../out/site

size-check: ## the formulas of docs/scaling.md beside measurements
	RDMABRIDGE_SIZE_CHECK=1 $(GO) test -count=1 -v -run '^TestSizeModel$$' ./cmd/rdmabridge

bench-tls: build ## the bridge against HAProxy, both with TLS: docs/bench.md
	deploy/bench/tls.sh

bench-neighbours: ## how much a bad client delays the others: docs/bench.md
	RDMABRIDGE_NEIGHBOURS=$(ROUNDS) $(GO) test -count=1 -timeout 0 -v -run '^TestNeighbours$$' ./cmd/rdmabridge

bench-sessions: ## ten thousand NFSv4.2 clients, and 500 that reconnect for ten minutes: docs/bench.md
	RDMABRIDGE_SESSIONS=$(SESSIONS) $(GO) test -count=1 -timeout 0 -v -run '^TestSessions' ./cmd/rdmabridge

bench: ## benchmarks of each layer, then of the whole bridge in one process, then bench-sessions
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) $(PKGS)
	$(MAKE) bench-sessions

bench-gateways: build install ## HAProxy, the bridge, nfs-ganesha and a re-exporting knfsd in front of one server, in the guest: docs/bench-gateways.md
	deploy/bench/gateways.sh $(GATEWAY_ROUNDS)

# The other proxies for deploy/bench/peers.sh.
bench-tools:
	[ -e /usr/lib/nginx/modules/ngx_stream_module.so ] && command -v haproxy nginx >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends haproxy nginx-light libnginx-mod-stream >/dev/null; }

bench-peers: build bench-tools ## the same loads on the bridge, HAProxy, nginx and no proxy: docs/bench-peers.md
	deploy/bench/peers.sh

bench-chain: build bench-tools ## two bridges one behind the other, and two HAProxy: docs/bench-chain.md
	deploy/bench/peers.sh chain

profile: build ## cmd/rdmabridge/default.pgo, by which go build inlines: docs/bench.md
	deploy/bench/profile.sh

clean:
	rm -rf bin out

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
