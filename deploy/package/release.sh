#!/bin/bash
# release.sh OUT VERSION REVISION EPOCH makes OUT anew: for each architecture, a directory with the binaries, their
# bills of materials and notices, manual pages, completions, units, the example, and the documents with what their links
# lead to, and a tarball of it.
#
# Two runs over the same sources make the same octets, in whatever directory: no path, no time and no state of a
# repository gets in. EPOCH is the time of all files, in seconds. The binaries with ibverbs need a C compiler and
# rdma-core's headers, and depend on the compiler; an architecture without a compiler gets none.
set -euo pipefail
out=$(realpath -m "$1") version=$2 revision=$3 epoch=$4
cd "$(dirname "$0")/../.."
: "${GO:=go}" "${ARCHS:=amd64 arm64}" "${VARIANTS:=rdmabridge rdmabridge-otel rdmabridge-ibverbs rdmabridge-bench rdmabridge-bench-ibverbs}"
declare -A compilers=([amd64]=x86_64-linux-gnu-gcc [arm64]=aarch64-linux-gnu-gcc)
cli=github.com/rdmabridge/rdmabridge/internal/cli
# All by the profile of the bridge, unless GOFLAGS has another.
export GOAMD64=v1 GOARM64=v8.0 GOFLAGS="-pgo=cmd/rdmabridge/default.pgo ${GOFLAGS:-} -trimpath -buildvcs=false"

# compile FILE ARCH TAGS CGO PROGRAM compiles a program of cmd.
compile() {
    echo "$((SECONDS / 60))m$((SECONDS % 60))s  compiling $(basename "$1") for $2"
    GOOS=linux GOARCH=$2 CGO_ENABLED=$4 CC=${compilers[$2]} "$GO" build -tags "$3" \
        -ldflags "-s -w -X $cli.version=$version -X $cli.revision=$revision" -o "$1" "./cmd/$5"
}

rm -rf "$out"
mkdir -p "$out/tools"
host=$("$GO" env GOHOSTARCH)
"$GO" build -o "$out/tools/release" ./internal/release
shared=$out/tools/shared
mkdir -p "$shared/man" "$shared/completion"
for program in rdmabridge rdmabridge-bench; do
    compile "$out/tools/$program" "$host" "" 0 "$program" # writes what every architecture has
    "$out/tools/$program" man "$shared/man" > /dev/null
    for shell in bash zsh fish; do "$out/tools/$program" completion "$shell" > "$shared/completion/$program.$shell"; done
done
cp -r deploy/systemd "$shared/systemd"
cp LICENSE ./*.md configs/rdmabridge.yaml "$shared/"
mkdir -p "$shared/configs" "$shared/deploy/lab"
cp -r docs "$shared/"
cp -r configs/examples "$shared/configs/"
cp -r deploy/{compose,docker,grafana,helm,keepalived,kubernetes,prometheus} "$shared/deploy/"
cp deploy/lab/README.md "$shared/deploy/lab/"

for arch in $ARCHS; do
    name=rdmabridge-$version-linux-$arch
    dir=$out/$name
    cp -r "$shared" "$dir"
    for binary in $VARIANTS; do
        program=rdmabridge cgo=0
        case $binary in rdmabridge-bench*) program=rdmabridge-bench ;; esac
        tags=${binary#"$program"}
        if [ "$tags" = -ibverbs ]; then
            cgo=1
            command -v "${compilers[$arch]}" > /dev/null || { echo "release: no $binary for $arch: ${compilers[$arch]} is not installed"; continue; }
        fi
        compile "$dir/$binary" "$arch" "${tags#-}" $cgo "$program"
        "$out/tools/release" documents -version "$version" "$dir/$binary"
    done
    find "$dir" -exec touch -h -d "@$epoch" {} +
    find "$dir" -type f -exec chmod 644 {} +
    for binary in $VARIANTS; do [ ! -e "$dir/$binary" ] || chmod 755 "$dir/$binary"; done
    find "$dir" -type d -exec chmod 755 {} +
    tar -C "$out" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=ustar -c "$name" |
        gzip -9n > "$out/$name.tar.gz"
done
rm -r "$out/tools"
cd "$out" && sha256sum -- *.tar.gz > SHA256SUMS
