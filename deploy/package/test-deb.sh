#!/bin/bash
# test.sh installs the .deb on a Debian of its own, upgrades it under load, removes and purges it. It needs root.
#
# The Debian is this host's root file system with a layer on top, in which every change ends, and runs in a container
# (systemd-nspawn) with a network of its own and a real systemd as process 1: test-inside.sh is its only service.
# Without arguments it makes two packages of this tree, the versions 0.1.0 and 0.1.1.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -z "${PACKAGE_TEST_INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] || { echo "test.sh needs root, for a container" >&2; exit 1; }
    packages=$PWD/out/package-test
    rm -rf "$packages"
    arch=$(dpkg --print-architecture)
    for version in 0.1.0 0.1.1; do
        ARCHS=$arch VARIANTS=rdmabridge deploy/package/release.sh "$packages" "$version" "" 1700000000
        FORMATS=deb deploy/package/packages.sh "$packages" "$version" 1700000000
        mv "$packages" "$packages.$version"
    done
    mkdir "$packages"
    for version in 0.1.0 0.1.1; do mv "$packages.$version"/*.deb "$packages/" && rm -rf "$packages.$version"; done
    # A mount namespace, so that nothing of this is left on the host, whatever ends the test.
    PACKAGE_TEST_INSIDE=$packages exec unshare --mount --propagation private "$0"
fi

mount -t tmpfs tmpfs /run # of systemd-nspawn, which leaves directories there
mount -t tmpfs tmpfs /mnt
mkdir /mnt/{upper,work,root}
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
root=/mnt/root
mkdir -p "$root/package-test"
cp "$PACKAGE_TEST_INSIDE"/*.deb deploy/package/test-inside.sh "$root/package-test/"
cat > "$root/etc/systemd/system/package-test.service" <<'UNIT'
[Unit]
DefaultDependencies=no
After=systemd-journald.service systemd-tmpfiles-setup.service
Wants=systemd-journald.service
[Service]
Type=oneshot
ExecStart=/package-test/test-inside.sh
ExecStopPost=/bin/sh -c 'echo "$EXIT_STATUS" > /package-test/status; systemctl exit'
StandardOutput=file:/package-test/output
StandardError=file:/package-test/output
UNIT
# The host's own services have no business here.
ln -sf /dev/null "$root/etc/systemd/system/network-online.target"
timeout 120 systemd-nspawn -q --register=no --keep-unit --private-network -D "$root" --boot \
    systemd.unit=package-test.service < /dev/null > /mnt/boot.log 2>&1 || true
cat "$root/package-test/output" || cat /mnt/boot.log
[ "$(cat "$root/package-test/status")" = 0 ]
# The layer has every file that was made or changed; a character device in it stands for a file that is gone.
left=$(find /mnt/upper \( -path /mnt/upper/package-test -o -path /mnt/upper/var/log/journal \) -prune -o \
    -iname '*rdmabridge*' ! -type c -print)
[ -z "$left" ] || { echo "purge leaves files: $left" >&2; exit 1; }
echo "nothing is left on the file system"
