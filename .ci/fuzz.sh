#!/usr/bin/env bash
# fuzz.sh TIME: runs every fuzz target of the tree for TIME, one after the other.
set -euo pipefail
cd "$(dirname "$0")/.."
n=0
while IFS=: read -r file target; do
    pkg=./$(dirname "$file")
    echo "fuzz $pkg $target"
    fuzz() { go test "$pkg" -run '^$' -fuzz "^$target\$" -fuzztime "$1" -parallel 2 > /tmp/fuzz.$$ 2>&1; }
    # On a busy machine go test may call the end of the time itself a failure. One
    # that was found comes with an input.
    fuzz "$1" || { ! grep -q 'Failing input written' /tmp/fuzz.$$ && grep -q 'context deadline exceeded' /tmp/fuzz.$$ && fuzz "$1"; } ||
        { cat /tmp/fuzz.$$; rm -f /tmp/fuzz.$$; exit 1; }
    n=$((n + 1))
done < <(git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's/func //')
rm -f /tmp/fuzz.$$
[ "$n" -gt 0 ]
echo "$n fuzz targets, $1 each"
