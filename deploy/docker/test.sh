#!/bin/bash
# test.sh [static|ibverbs] builds the image of deploy/docker/Dockerfile, or of Dockerfile.ibverbs, with buildah, without a
# registry and without .git, and runs it as its configuration says: as nobody, with a root file system that cannot be
# written. It needs root, buildah and what deploy/lab/install.sh installs; for ibverbs also debootstrap, which
# downloads a Debian.
#
# The images to build with are made of this host's Go and busybox, or of a new Debian, and are named by their digests.
# The modules are those of this host. An engine is not needed: a chroot in name spaces of its own is what the image
# runs in.
set -euo pipefail
cd "$(dirname "$0")/../.."
variant=${1:-static}
work=${IMAGE_TEST_INSIDE:-$(mktemp -d)}
fail() { echo "FAIL: $*"; exit 1; }
b() { buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }

# image_of DIR NAME makes an image of a directory, removes that, and prints the image's digest.
image_of() {
    local c
    c=$(b from scratch)
    b add -q "$c" "$1" / > /dev/null
    rm -rf "$1"
    b config --env PATH=/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin --env GOTOOLCHAIN=local --env HOME=/root --env GOPATH=/go \
        --env GOPROXY=off --env GOFLAGS=-modcacherw "$c"
    b commit -q --rm "$c" "localhost/$2" > /dev/null
    b inspect --type image --format '{{.FromImageDigest}}' "localhost/$2"
}

build() {
    local file=deploy/docker/Dockerfile digest arguments=()
    mkdir -p "$work/base"
    if [ "$variant" = ibverbs ]; then
        file+=.ibverbs
        debootstrap --variant=minbase bookworm "$work/base" > "$work/build.log" || fail "debootstrap: $(tail "$work/build.log")"
        cp -r "$work/base" "$work/debian"
        digest=$(image_of "$work/debian" debian)
        arguments+=(--build-arg "BASE_IMAGE=localhost/debian@$digest")
    else
        mkdir -p "$work/base"/{bin,tmp,etc,root,usr/local}
        chmod 1777 "$work/base/tmp"
        cp /bin/busybox "$work/base/bin/"
        for applet in sh mkdir mv; do ln -s busybox "$work/base/bin/$applet"; done
    fi
    mkdir "$work/base/usr/local/go"
    cp -r "$(go env GOROOT)"/{VERSION,go.env,bin,pkg,src,lib} "$work/base/usr/local/go/"
    digest=$(image_of "$work/base" go)
    arguments+=(--build-arg "GO_IMAGE=localhost/go@$digest" --build-arg VERSION=0.1.0)
    mkdir "$work/context"
    git ls-files -z | tar -c --null -T - | tar -x -C "$work/context"
    b bud -q --isolation chroot --network host -v "$(go env GOMODCACHE):/go/pkg/mod" -v "$(go env GOCACHE):/root/.cache/go-build" \
        "${arguments[@]}" -f "$file" -t bridge "$work/context" > "$work/build.log" 2>&1 ||
        fail "build: $(tail -n 30 "$work/build.log")"
    echo "$file built with images named by their digests, ${digest:0:19}... for Go, from sources without .git"
}

if [ -z "${IMAGE_TEST_INSIDE:-}" ]; then
    trap 'rm -rf "$work"' EXIT
    build
    # Mounts and the network end with this.
    IMAGE_TEST_INSIDE=$work unshare --mount --propagation private --net "$0" "$@"
    exit
fi

ended() {
    local job
    for job in $(jobs -p); do kill "$job" 2> /dev/null || true; done
    wait
    ! mountpoint -q "$work/root" || umount -R "$work/root"
}
trap ended EXIT
ip link set lo up

config() { b inspect --type image --format "{{.OCIv1.Config.$1}}" bridge; }
[ "$(config User)" = 65534:65534 ] || fail "user $(config User)"
[ "$(config Entrypoint) $(config Cmd)" = '[/rdmabridge] [serve -c /etc/rdmabridge/rdmabridge.yaml]' ] || fail "command $(config Entrypoint) $(config Cmd)"
[ "$(config StopSignal)" = SIGTERM ] || fail "signal $(config StopSignal)"
environment=$(config Env)
environment=${environment//[\[\]]/}
container=$(b from bridge)
root=$(b mount "$container")
[ "$variant" != static ] || [ "$(cd "$root" && find . -type f ! -path './usr/share/doc/*' -printf '%p\n' | sort | xargs)" = './rdmabridge ./rdmabridge-bench' ] || fail "the image has other files than the programs and their documents"
[ -s "$root/usr/share/doc/rdmabridge/LICENSE" ] && [ -s "$root/usr/share/doc/rdmabridge/rdmabridge.cdx.json" ] &&
    [ -s "$root/usr/share/doc/rdmabridge/rdmabridge-bench.cdx.json" ] || fail "no documents"

# The root: read only, with a tmpfs for the control socket, as docs/kubernetes.md has it, and a configuration.
mkdir "$work/root" "$work/etc"
mount --bind "$root" "$work/root"
cat > "$work/etc/rdmabridge.yaml" <<'YAML'
listeners:
  - {name: nfs, address: 0.0.0.0:2049, upstream: storage, routes: [{program: mount, upstream: storage}]}
upstreams:
  - {name: storage, transport: rdma, endpoints: ["127.0.0.1:20049"]}
memory: {budget: 256MiB}
admin: {address: 127.0.0.1:9091}
YAML
mkdir -p "$root/etc/rdmabridge"
mount -t tmpfs -o mode=700,uid=65534,gid=65534 tmpfs "$work/root/run/rdmabridge"
mount --bind "$work/etc" "$work/root/etc/rdmabridge"
mount -o remount,bind,ro "$work/root"
image() { exec env -i $environment chroot --userspec="$(config User)" "$work/root" /rdmabridge "$@"; }
await() { # WHAT COMMAND...
    local what=$1
    shift
    for _ in $(seq 300); do
        ! "$@" 2> /dev/null || return 0
        sleep 0.1
    done
    fail "waited in vain for $what: $(cat "$work"/*.log)"
}
providers='[iwarp]'
[ "$variant" = static ] || providers='[ibverbs iwarp]'
(image version) | grep -F "rdmabridge 0.1.0, go" | grep -F "RDMA providers $providers" || fail "version: $( (image version) 2>&1)"
(image check -c /etc/rdmabridge/rdmabridge.yaml) || fail "check"
(exec env -i $environment chroot --userspec="$(config User)" "$work/root" /rdmabridge-bench version) | grep -F "rdmabridge-bench 0.1.0, go" ||
    fail "the version of rdmabridge-bench"

# A container of its own with the demo, and one that serves.
(
    exec unshare --mount sh -c 'mount -t tmpfs -o mode=700,uid=65534,gid=65534 tmpfs "$1" && shift && exec "$@"' sh "$work/root/run/rdmabridge" \
        env -i $environment chroot --userspec="$(config User)" "$work/root" /rdmabridge demo --admin none > "$work/demo.log" 2>&1
) &
await "the demo" grep -q nfs-cp "$work/demo.log"
(image serve -c /etc/rdmabridge/rdmabridge.yaml > "$work/serve.log" 2>&1) &
serve=$!
stats() { (image stats) > "$work/stats.log" 2>&1; }
await "the control socket" stats
grep -q '^rdmabridge 0\.1\.0,' "$work/stats.log" || fail "$(cat "$work/stats.log")"
[ "$(awk '/^(Uid|Gid):/ { print $2, $3, $4, $5 }' "/proc/$serve/status" | sort -u)" = '65534 65534 65534 65534' ] || fail "$(cat "/proc/$serve/status")"
[ "$(readlink "/proc/$serve/root")" = "$work/root" ] || fail "it does not run in the image"
! touch "$work/root/file" 2> /dev/null || fail "the root can be written"
head -c 5M /dev/urandom > "$work/in"
there='nfs://127.0.0.1//file?nfsport=2049&mountport=2049'
nfs-cp "$work/in" "$there" && nfs-cp "$there" "$work/out" || fail "nfs-cp: $(cat "$work/serve.log")"
cmp "$work/in" "$work/out" || fail "wrong octets"
kill -TERM $serve
wait $serve || fail "it ended with $?: $(cat "$work/serve.log")"
! grep -E '"level":"(warn|error|fatal)"' "$work/serve.log" || fail "the lines above"
echo "as user 65534 with a read-only root: 5 MiB there and back, stats, no warning; ended by SIGTERM"
