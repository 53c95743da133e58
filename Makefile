# make test is what CI runs; it installs what it needs (as root, on Debian 12).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GO ?= go
TOOL := $(GO) tool -modfile=tools/go.mod
PKGS := ./...
FUZZTIME ?= 3s
BENCHTIME ?= 1s

.PHONY: build test check lint unit fuzz lab-test lab bench install clean

build: ## bin/rdmabridge, static
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/rdmabridge ./cmd/rdmabridge

test: install ## everything, real peers included
	./.ci/test.sh

install: ## Debian packages, the lab's kernel, Go modules
	deploy/lab/install.sh
	$(GO) mod download

check: lint unit ## without real peers

lint: ## gofumpt, vet for both byte orders, golangci-lint
	@bad=$$($(TOOL) gofumpt -l $$(git ls-files '*.go')); [ -z "$$bad" ] || { echo "gofumpt: $$bad"; exit 1; }
	$(GO) vet $(PKGS)
	GOARCH=s390x $(GO) vet $(PKGS)
	$(TOOL) golangci-lint run $(PKGS)

unit: ## all Go tests with the race detector
	$(GO) test -race $(PKGS)

fuzz: ## every fuzz target for $(FUZZTIME)
	./.ci/fuzz.sh $(FUZZTIME)

lab-test: build ## the tests against Linux in the guest
	RDMABRIDGE_LAB=1 $(GO) test -tags lab -count=1 -timeout 25m -v -run Lab ./cmd/rdmabridge

lab: build ## boots the guest with a shell
	deploy/lab/shell.sh

bench: ## each layer, then the whole bridge in one process
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) $(PKGS)

clean:
	rm -rf bin out
