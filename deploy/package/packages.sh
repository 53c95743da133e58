#!/bin/bash
# packages.sh OUT VERSION EPOCH makes a .deb and an .rpm of each directory that release.sh has made in OUT, beside
# them, and writes OUT/SHA256SUMS anew. A directory with rdmabridge-ibverbs gets a second package of each format.
set -euo pipefail
out=$(realpath "$1") epoch=$3
version=$2
cd "$(dirname "$0")/../.."
: "${GO:=go}" "${FORMATS:=deb rpm}"
export SOURCE_DATE_EPOCH=$epoch # the time of all files in the packages
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for dir in "$out"/rdmabridge-"$version"-linux-*/; do
    dir=${dir%/}
    rm -rf "$work/man" && mkdir "$work/man"
    for page in "$dir"/man/*.1; do gzip -9nc "$page" > "$work/man/${page##*/}.gz"; done
    for package in nfpm nfpm-ibverbs; do
        [ $package = nfpm ] || [ -e "$dir/rdmabridge-ibverbs" ] || continue
        sed "s|\${DIR}|$dir|; s|\${WORK}|$work|; s|\${ARCH}|${dir##*-}|; s|\${VERSION}|$version|" deploy/package/$package.yaml > "$work/nfpm.yaml"
        for format in $FORMATS; do
            $GO tool -modfile=internal/tools/nfpm.mod nfpm package -f "$work/nfpm.yaml" -p "$format" -t "$out"
        done
    done
done
cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum -- > SHA256SUMS
