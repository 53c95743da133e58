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

.PHONY: build build-ibverbs build-otel test check lint unit conformance mutate fuzz chaos lab-test lab bench bench-peers bench-neighbours bench-sessions install clean

build: ## bin/rdmabridge, static
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/rdmabridge ./cmd/rdmabridge

build-ibverbs: ## bin/rdmabridge-ibverbs, which opens rdma-core at run time; needs a C compiler and rdma-core's headers
	CGO_ENABLED=1 $(GO) build -trimpath -tags ibverbs -o bin/rdmabridge-ibverbs ./cmd/rdmabridge

build-otel: ## bin/rdmabridge-otel, which sends traces: docs/tracing.md
	CGO_ENABLED=0 $(GO) build -trimpath -tags otel -o bin/rdmabridge-otel ./cmd/rdmabridge

test: install ## all tests, those against real peers included; about 15 minutes on two cores
	./.ci/test.sh

install: ## Debian packages, the lab's kernel, Go modules
	deploy/lab/install.sh
	$(GO) mod download

check: lint unit ## lint, and all tests except those against real peers

lint: ## gofumpt, vet of what handles octets for the other byte order, golangci-lint, which also vets, with the tag lab
	@bad=$$($(TOOL) gofumpt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "gofumpt: $$bad"; exit 1; }
	$(GO) vet -tags nodemo ./cmd/rdmabridge
	GOARCH=s390x $(GO) vet $$($(GO) list $(PKGS) | grep -vE '/(cmd|internal/(admin|tracing|testkit/browser))(/|$$)')
	$(TOOL) golangci-lint run --build-tags lab $(PKGS)
	$(TOOL) golangci-lint run --build-tags ibverbs ./rdmaside/ibverbs/...
	$(TOOL) golangci-lint run --build-tags otel ./internal/tracing/...
	$(GO) vet -tags otel ./cmd/rdmabridge

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
	RDMABRIDGE_LAB=1 $(GO) test -tags lab -count=1 -timeout 25m -v -run Lab ./cmd/rdmabridge

lab: install ## boots the guest with a shell; its NFS server listens at 127.0.0.1:20049 (RDMA) and :20048 (MOUNT)
	mkdir -p out
	deploy/lab/mkinitrd.sh out/guest.cpio
	deploy/lab/boot.sh out/guest.cpio --append "lab.rdma=siw lab.server=1 lab.shell=1" --fwd 20049:20049 --fwd 20048:20048

bench-neighbours: ## how much a bad client delays the others: docs/bench.md
	RDMABRIDGE_NEIGHBOURS=$(ROUNDS) $(GO) test -count=1 -timeout 0 -v -run '^TestNeighbours$$' ./cmd/rdmabridge

bench-sessions: ## ten thousand NFSv4.2 clients, and 500 that reconnect for ten minutes: docs/bench.md
	RDMABRIDGE_SESSIONS=$(SESSIONS) $(GO) test -count=1 -timeout 0 -v -run '^TestSessions' ./cmd/rdmabridge

bench: ## benchmarks of each layer, then of the whole bridge in one process, then bench-sessions
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) $(PKGS)
	$(MAKE) bench-sessions

bench-peers: build ## the same loads on the bridge, HAProxy, nginx and no proxy: docs/bench-peers.md
	[ -e /usr/lib/nginx/modules/ngx_stream_module.so ] && command -v haproxy nginx >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends haproxy nginx-light libnginx-mod-stream >/dev/null; }
	deploy/bench/peers.sh

clean:
	rm -rf bin out
