#!/bin/bash
# test.sh [PART...] makes packages of this tree, the versions 0.1.0 and 0.1.1, and runs test-PART.sh with each PART, or
# with all. It needs root, for containers, and what deploy/lab/install.sh installs.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] || { echo "test.sh needs root, for containers" >&2; exit 1; }
[ $# -gt 0 ] || set -- contents ibverbs rpm deb
packages=$PWD/out/package-test
rm -rf "$packages"
mkdir -p "$packages"
archs='amd64 arm64' # of 0.1.0
for version in 0.1.0 0.1.1; do
    ARCHS=$archs VARIANTS="rdmabridge rdmabridge-bench rdmabridge-ibverbs rdmabridge-bench-ibverbs" deploy/package/release.sh "$packages/$version" "$version" "" 1700000000
    deploy/package/packages.sh "$packages/$version" "$version" 1700000000
    archs=$(dpkg --print-architecture)
done
for part; do deploy/package/test-"$part".sh "$packages"; done
