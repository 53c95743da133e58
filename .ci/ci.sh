#!/usr/bin/env bash
# make ci: all that make test runs, and lint, the whole lab, a short run of every fuzz target, sanitizers, allocation tests,
# and every Go test under the race detector.
#
# Several things happen at once, in three parts: first two test functions of the lab, each with an
# emulated guest and a network namespace of its own, and beside them, at the lowest priority, what
# compiles; then fuzzing and the tests of most packages; then, alone, the packages whose tests measure
# time.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/out/ci
# shellcheck source=.ci/lib.sh
. .ci/lib.sh
export CI=true # make install has installed what tests need, and none may skip for the lack of it

# The lab begins as soon as its own programs are compiled.
gotestsum
step build make build
step build go tool preprofile -i cmd/rdmabridge/default.pgo -o /dev/null # fails if go build would
step build go test -c -tags lab -o /dev/null ./internal/lab
export RDMABRIDGE_LAB_INITRD=$out/guest.cpio RDMABRIDGE_BINARY=$PWD/bin/rdmabridge RDMABRIDGE_BENCH=$PWD/bin/rdmabridge-bench
step build deploy/lab/mkinitrd.sh "$RDMABRIDGE_LAB_INITRD"

# golangci-lint vets every package, so go test need not (-vet=off).
allocating=$(git grep -lE '^func Test\w*(Alloc|WithoutPoison|InContainer)' -- '*_test.go' | xargs dirname | sort -u | sed 's|^|./|')
# The longest first, so that none is alone at the end.
timed=$(printf '%s\n' ./proxy ./pool ./cmd/rdmabridge ./internal/lab ./internal/chaos ./rdmaside/iwarp ./tcpframe ./rdmaside)
others=$(go list -f '{{.Dir}}' ./... | sed "s|^$PWD|.|" | grep -vxF "$timed")

# Compiling and lint use the processor time that the guests leave. Lint takes longest, and the tests of most
# packages do not wait for it.
linting() {
    renice -n 19 "$BASHPID" > /dev/null
    step lint make lint
}
# vulnerable fails if the bridge calls something with a known vulnerability: govulncheck ends with 3. Where it cannot
# look, as where the database cannot be reached, that counts as a skipped test. VULNDB names a mirror.
vulnerable() {
    local rc=0
    make -s vulnerabilities > "$out/govulncheck.log" 2>&1 || rc=$?
    cat "$out/govulncheck.log"
    case $rc in
    0) echo "1 0 0" >> "$out/tally" ;;
    *) ! grep -qE '^Your code is affected' "$out/govulncheck.log" || return 1
        echo "0 0 1" >> "$out/tally"
        echo SKIP ;;
    esac
}
compiling() {
    renice -n 19 "$BASHPID" > /dev/null
    step build sh -c 'go list -race -test -export ./... > /dev/null'
    step vulnerabilities vulnerable
    # shellcheck disable=SC2086 # one word for each package
    step build sh -c 'go list -tags ibverbs -test -export "$@" > /dev/null' sh $allocating
}
compiling &
compiler=$!
linting &
linter=$!

# Two guests use two CPUs nearly whole, and what compiles gets what they leave: there is room for a third when that is
# done. With more, none is ready sooner, and each waits so long that tests that give a client or a server a time to
# answer fail.
guests() {
    if jobs -rp | grep -qxE "$compiler|$linter"; then echo 2; else echo 3; fi
}
labs() { git grep -hoE '^func TestLab\w*' -- 'internal/lab/*_test.go' | cut -c6- | grep "$@" '^TestLab\(Verbs\|Doctor\|Sessions\)'; }
running=() # the process of each guest's test
for lab in $(labs -v) $(labs -e); do # the shortest last
    while [ "$(jobs -rp | grep -cvxE "$compiler|$linter")" -ge "$(guests)" ]; do wait -n || true; done
    RDMABRIDGE_LAB=1 tests "${lab#Test}" 1s -tags lab -vet=off -count=1 -timeout 25m -run "^$lab\$" ./internal/lab &
    running+=($!)
done
wait "${running[@]}" || true
rm -f "$RDMABRIDGE_LAB_INITRD"

# A fuzz target takes its time whatever it gets of the processors. Beside the guests it would get
# nothing; beside these tests, which often wait, it gets most.
step fuzz ./.ci/fuzz.sh "${FUZZTIME:-2s}" &
{
    # TestFabric and TestFabricWindows run in the guest, which has devices.
    tests verbs 10s -race -tags ibverbs -vet=off -count=1 -skip '^TestFabric(Windows)?$' ./rdmaside/ibverbs
    tests otel 5s -race -tags otel -vet=off -count=1 ./internal/tracing
    # The dashboard is outside of this module, so go test would not notice that it changed: -count=1.
    (cd internal/grafanatest && tests types 5s -count=1 ./...)
    # The C code under AddressSanitizer and UndefinedBehaviorSanitizer.
    CGO_CFLAGS="-O1 -g -fsanitize=undefined -fno-sanitize-recover=all" CGO_LDFLAGS=-fsanitize=undefined \
        tests sanitize 10s -asan -tags ibverbs -vet=off -count=1 -skip '^TestFabric(Windows)?$' ./rdmaside/ibverbs
} &
wait "$compiler"
# shellcheck disable=SC2086
tests race 10s -race -vet=off -count=1 -timeout 15m $others
wait

# shellcheck disable=SC2086
tests alloc 5s -tags ibverbs -vet=off -count=1 -timeout 10m -run 'Alloc|WithoutPoison|InContainer' $allocating
# shellcheck disable=SC2086
tests timed 5s -race -vet=off -count=1 -timeout 15m $timed

verdict
