#!/bin/bash
# reproduce.sh makes a release of the commit twice, from archives of the sources in two directories without a
# repository, each with an empty build cache, and fails unless all files have the same checksums.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export VARIANTS=${VARIANTS:-rdmabridge rdmabridge-otel}
revision=$(git rev-parse HEAD) epoch=$(git log -1 --format=%ct)
for dir in one another/directory; do
    mkdir -p "$work/$dir"
    git archive HEAD | tar -x -C "$work/$dir"
    rm -rf "$work/cache"
    GOCACHE=$work/cache "$work/$dir/deploy/package/release.sh" "$work/$dir/out" "$(deploy/package/version.sh)" "$revision" "$epoch"
    (cd "$work/$dir/out" && find . -type f -exec sha256sum {} + | sort -k 2) > "$work/${dir%%/*}.sums"
done
diff "$work/one.sums" "$work/another.sums"
grep -E '/rdmabridge(-otel)?$|tar.gz$' "$work/one.sums"
echo "the same octets from two directories"
