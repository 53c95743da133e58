#!/usr/bin/env bash
# make test: every Go test but that of pairs of bridges, those of the packages whose code is concurrent under the race
# detector, each parser fuzzed for half a second, and one guest with Linux's NFS client and server on both sides of the
# bridge.
#
# The guest, which waits for Debian's packages first, runs beside what compiles and the tests of most packages. The packages
# whose tests measure time come last, when the guest has ended.
#
# A package whose code and tests have not changed is not tested again: TESTFLAGS=-count=1 tests all.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/out/test
# shellcheck source=.ci/lib.sh
. .ci/lib.sh

# The code of these is concurrent, and they are compiled once, with the race detector. The longest first.
timed=$(printf './%s\n' proxy pool cmd/rdmabridge internal/chaos rdmaside/iwarp tcpframe rdmaside)
racing=$(printf './%s\n' metrics internal/{accesslog,admin,audit,control,crowd,loglimit,loop,nlm,regmem,rpcbind,status,tap,tlsconf})
others=$(go list -f '{{.Dir}}' ./... | sed "s|^$PWD|.|" | grep -vxF -e "$timed" -e "$racing" -e ./internal/lab) # make ci has TestPair
allocating=$(git grep -lE '^func Test\w*(Alloc|WithoutPoison)' -- '*_test.go' | xargs dirname | sort -u | sed 's|^|./|' | grep -xF -e "$timed" -e "$racing")
export CI= # with CI=true, tests fail that need a package which only make install installs; here they skip, and say so
read -ra flags <<< "${TESTFLAGS:-} -vet=off -timeout=15m"

# Two variants of each package are compiled at most: the one of make build, and the one with the race detector.
export CGO_ENABLED=0 RDMABRIDGE_LAB_INITRD=$out/guest.cpio RDMABRIDGE_BINARY=$PWD/bin/rdmabridge
guest() {
    step install deploy/lab/install.sh smoke
    touch "$out/installed"
    step install deploy/lab/mkinitrd.sh --smoke "$RDMABRIDGE_LAB_INITRD"
    step build make build
    until [ -e "$out/gotestsum" ] || [ -e "$out/failures" ]; do sleep 1; done
    RDMABRIDGE_LAB=1 tests lab 10s -tags lab -vet=off -count=1 -timeout 15m -run '^TestLabSmoke$' ./internal/lab
    rm -f "$RDMABRIDGE_LAB_INITRD"
}
guest &
guest=$!
gotestsum
step build sh -c 'go list -test -export ./... > /dev/null'
# Some tests need Debian's packages, and the race detector a C compiler.
until [ -e "$out/installed" ] || ! kill -0 $guest 2> /dev/null; do sleep 1; done
# shellcheck disable=SC2086 # one word for each package
{
    tests unit 10s "${flags[@]}" $others
    tests alloc 10s "${flags[@]}" -run 'Alloc|WithoutPoison' $allocating
    step fuzz .ci/fuzz.sh "${FUZZTIME:-500ms}" plain
    export CGO_ENABLED=1
    step build sh -c 'go list -race -test -export "$@" > /dev/null' sh $timed $racing
    tests race 10s -race "${flags[@]}" $racing
    wait $guest || true
    # Three packages and four tests at once, because these wait as often as they compute; and with fewer rounds of what is
    # random than in make ci.
    tests timed 10s -race -short -p 3 -parallel 4 "${flags[@]}" $timed
}
verdict
