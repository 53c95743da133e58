#!/usr/bin/env bash
# make nightly: what takes hours, one after the other: the lab with everything that it has, a host that boots with systemd,
# pairs of bridges, chaos, long fuzzing, packages and images, mutations of the code under the conformance tests, the Helm chart,
# the formulas of sizes, and the packages whose tests measure time again and again beside other load.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/out/nightly
# shellcheck source=.ci/lib.sh
. .ci/lib.sh
gotestsum

step build make build
export RDMABRIDGE_BINARY=$PWD/bin/rdmabridge RDMABRIDGE_BENCH=$PWD/bin/rdmabridge-bench
RDMABRIDGE_LAB=1 RDMABRIDGE_LAB_FULL=1 tests lab 10s -tags lab -vet=off -count=1 -timeout 3h -run '^TestLab' ./internal/lab
RDMABRIDGE_LAB=1 tests boot 10s -tags lab -vet=off -count=1 -timeout 1h -run '^TestBootLab$' ./internal/lab
RDMABRIDGE_LAB=1 RDMABRIDGE_LAB_PAIR="tcp rdma" tests pair 10s -tags lab -vet=off -count=1 -timeout 1h -run '^TestPairLab$' ./internal/lab
RDMABRIDGE_LAB=1 RDMABRIDGE_LAB_IPVS=1 tests ipvs 10s -tags lab -vet=off -count=1 -timeout 1h -run '^TestIPVSLab$' ./internal/lab
CHAOS_TIME=${CHAOS_TIME:-30m} tests chaos 1m -vet=off -count=1 -timeout 0 -run '^TestChaos$' ./internal/chaos
RDMABRIDGE_LOCKS=10000 tests locks 10m -vet=off -count=1 -timeout 1h -run '^TestModel|^TestManyOwners$' ./internal/nlm
step fuzz .ci/fuzz.sh "${FUZZTIME:-1m}"
step packages make package-test
step reproduce make reproduce
step mutate make mutate
step chart make chart
step sizes make size-check

# A test that fails once in a while shows itself here.
load() { while :; do :; done; }
load &
burner=$!
tests again 1m -race -vet=off -count="${AGAIN:-20}" -timeout 0 ./proxy ./cmd/rdmabridge ./internal/chaos ./rdmaside/iwarp ./rdmaside ./pool ./tcpframe
kill "$burner"
verdict
