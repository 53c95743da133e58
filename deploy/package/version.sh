#!/bin/bash
# version.sh prints the version of this work tree, as binaries and packages have it: 1.2.3 at the tag v1.2.3,
# 1.2.3+4.gABCDEF0 four commits later, 0.0.0+N.gABCDEF0 before the first tag, and .modified after that if files
# differ from the commit. It prints nothing without a repository of its own, such as in an archive of the sources.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -e .git ] || exit 0
if ! v=$(git describe --tags --long --match 'v[0-9]*' 2>/dev/null); then
    v=v0.0.0-$(git rev-list --count HEAD)-g$(git rev-parse --short HEAD)
fi
hash=${v##*-} tag=${v%-*-*}
count=${v#"$tag"-} count=${count%-*}
version=${tag#v}
suffix=
[ "$count" = 0 ] || suffix=$count.$hash
[ -z "$(git status --porcelain --untracked-files=no)" ] || suffix=${suffix:+$suffix.}modified
echo "$version${suffix:++$suffix}"
