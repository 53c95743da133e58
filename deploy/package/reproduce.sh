#!/bin/bash
# reproduce.sh makes a release of the commit twice, with its packages, from archives of the sources in two directories
# without a repository, and fails unless all files have the same checksums. Each has an empty build cache. The second
# has another umask, time zone, language, path of the modules' cache, and files of another time.
#
# The variant ibverbs depends on the C compiler, of which both use the same.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(deploy/package/version.sh)
version=${version%[+.]modified} # the archives have no changes that are not in the commit
revision=$(git rev-parse HEAD) epoch=$(git log -1 --format=%ct)

make_release() { # DIR
    GOCACHE=$work/cache "$work/$1/deploy/package/release.sh" "$work/$1/out" "$version" "$revision" "$epoch"
    GOCACHE=$work/cache "$work/$1/deploy/package/packages.sh" "$work/$1/out" "$version" "$epoch"
    rm -rf "$work/cache"
    (cd "$work/$1/out" && find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2) > "$work/${1%%/*}.sums"
}

mkdir -p "$work/one"
git archive HEAD | tar -x -C "$work/one"
make_release one
(
    umask 077
    mkdir -p "$work/another/directory"
    git archive HEAD | tar -x --no-same-permissions -C "$work/another/directory"
    find "$work/another/directory" -exec touch -h -d 2001-02-03 {} +
    ln -s "$(go env GOMODCACHE)" "$work/modules"
    export TZ=Asia/Kathmandu LC_ALL=C.UTF-8 GOMODCACHE=$work/modules
    make_release another/directory
)
diff "$work/one.sums" "$work/another.sums"
grep -E '/rdmabridge(-otel|-ibverbs)?$|(tar\.gz|deb|rpm)$' "$work/one.sums"
echo "the same octets from two directories"
