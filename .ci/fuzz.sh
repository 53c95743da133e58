#!/usr/bin/env bash
# fuzz.sh TIME [plain]: runs every fuzz target of the tree for TIME, two at a time, each with one
# worker. With plain, the packages are those of all other tests, and are not compiled again: inputs come from chance, and
# not from which code an input has reached. The targets of a package share one binary, which has the tag ibverbs if they need it.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fuzztime=$1 plain=${2:-} cache=$(go env GOCACHE)/fuzz

# run PACKAGE TARGET shows what a target printed only when it fails. On a busy machine a
# target may count the end of its time as a failure, and has up to five tries; one that it found comes with an input.
run() {
    local log=$dir/$2.log pkg=$1 target=$2 tries=1 execs
    until (cd "$pkg" && "$dir/${pkg//\//_}.test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$fuzztime" \
        -test.parallel 1 -test.fuzzcachedir "$cache/github.com/rdmabridge/rdmabridge/$pkg") > "$log" 2>&1; do
        if ((tries++ == 5)) || grep -q 'Failing input written' "$log" || ! grep -q 'context deadline exceeded' "$log"; then
            echo "FAIL  $pkg $target"
            cat "$log"
            return 1
        fi
    done
    execs=$(sed -n 's/.*\(execs: [0-9]*\).*/\1/p' "$log" | tail -1)
    echo "ok    $pkg $target: ${execs:-its seeds}"
}
export -f run
export dir fuzztime cache

git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's|/[^/]*:func | |' > "$dir/targets"
[ -s "$dir/targets" ]
for pkg in $(cut -d' ' -f1 "$dir/targets" | sort -u); do
    echo "build $pkg"
    build=(go test -c -fuzz .)
    [ -z "$plain" ] || build=(go test -c)
    if git grep -q '^//go:build ibverbs$' -- "$pkg/*fuzz*_test.go"; then build=(env CGO_ENABLED=1 "${build[@]}" -tags ibverbs); fi
    "${build[@]}" -o "$dir/${pkg//\//_}.test" "./$pkg"
done
xargs -P 2 -n 2 bash -euo pipefail -c 'run "$@"' run < "$dir/targets"
echo "$(wc -l < "$dir/targets") fuzz targets, $fuzztime each"
