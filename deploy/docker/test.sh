#!/bin/bash
# test.sh builds the image of deploy/docker/Dockerfile with buildah, without a registry and without .git, and runs it as
# its configuration says: as nobody, with a root file system that cannot be written. It needs root, buildah and what
# deploy/lab/install.sh installs.
#
# The image to build with is made of this host's Go and busybox, and is named by its digest. The modules are those of
# this host. An engine is not needed: a chroot in name spaces of its own is what the image runs in.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
ended() {
    local job
    for job in $(jobs -p); do kill "$job" 2> /dev/null || true; done
    wait
    ! mountpoint -q "$work/root" || umount -R "$work/root"
    rm -rf "$work"
}
fail() { echo "FAIL: $*"; exit 1; }

if [ -z "${IMAGE_TEST_INSIDE:-}" ]; then
    # Mounts and the network end with this.
    IMAGE_TEST_INSIDE=1 unshare --mount --propagation private --net "$0" "$@"
    exit
fi
trap ended EXIT
ip link set lo up
b() { buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }

# What the Dockerfile expects of GO_IMAGE: go, a shell, mkdir and mv.
base=$(b from scratch)
mkdir -p "$work/base"/{bin,tmp,etc,root,src,go,usr/local}
chmod 1777 "$work/base/tmp"
cp /bin/busybox "$work/base/bin/"
for applet in sh mkdir mv rm; do ln -s busybox "$work/base/bin/$applet"; done
mkdir "$work/base/usr/local/go"
cp -r "$(go env GOROOT)"/{VERSION,go.env,bin,pkg,src,lib} "$work/base/usr/local/go/"
b add -q "$base" "$work/base" / > /dev/null
b config --env PATH=/usr/local/go/bin:/bin --env GOTOOLCHAIN=local --env HOME=/root --env GOPATH=/go \
    --env GOPROXY=off --env GOFLAGS=-modcacherw "$base"
b commit -q --rm "$base" localhost/go > /dev/null
rm -rf "$work/base"
digest=$(b inspect --type image --format '{{.FromImageDigest}}' localhost/go)

mkdir "$work/context"
git ls-files -z | tar -c --null -T - | tar -x -C "$work/context"
b bud -q --isolation chroot --network host -v "$(go env GOMODCACHE):/go/pkg/mod" -v "$(go env GOCACHE):/root/.cache/go-build" \
    --build-arg "GO_IMAGE=localhost/go@$digest" --build-arg VERSION=0.1.0 -f deploy/docker/Dockerfile -t bridge "$work/context" > "$work/build.log" 2>&1 ||
    fail "build: $(tail -n 30 "$work/build.log")"
echo "built with an image named by its digest, ${digest:0:19}..., from sources without .git"

config() { b inspect --type image --format "{{.OCIv1.Config.$1}}" bridge; }
[ "$(config User)" = 65534:65534 ] || fail "user $(config User)"
[ "$(config Entrypoint) $(config Cmd)" = '[/rdmabridge] [serve -c /etc/rdmabridge/rdmabridge.yaml]' ] || fail "command $(config Entrypoint) $(config Cmd)"
[ "$(config StopSignal)" = SIGTERM ] || fail "signal $(config StopSignal)"
environment=$(config Env)
environment=${environment//[\[\]]/}
container=$(b from bridge)
root=$(b mount "$container")
[ "$(cd "$root" && find . -type f ! -path './usr/share/doc/*' -printf '%p ')" = './rdmabridge ' ] || fail "the image has other files than the binary and its documents"
[ -s "$root/usr/share/doc/rdmabridge/LICENSE" ] && [ -s "$root/usr/share/doc/rdmabridge/rdmabridge.cdx.json" ] || fail "no documents"

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
(image version) | grep '^rdmabridge 0\.1\.0, ' || fail "version"
(image check -c /etc/rdmabridge/rdmabridge.yaml) || fail "check"

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
