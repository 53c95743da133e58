#!/bin/bash
# test-deb.sh PACKAGES installs a .deb on a Debian of its own, upgrades it under load, removes and purges it. It needs
# root. PACKAGES/0.1.0 and PACKAGES/0.1.1 are directories of packages.sh.
#
# The Debian is this host's root file system with a layer on top, in which every change ends, and runs in a container
# (systemd-nspawn) with a network of its own and a real systemd as process 1: test-deb-inside.sh is its only service.
# The lab's guest (deploy/lab) runs in the container, too: a kernel's NFS client and server, with the bridge between them.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=$1
# A mount namespace, so that nothing of this is left on the host, whatever ends the test.
[ -n "${PACKAGE_TEST_INSIDE:-}" ] || PACKAGE_TEST_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"

initrd=$(mktemp)
trap 'rm -f "$initrd"' EXIT
deploy/lab/mkinitrd.sh "$initrd"
mount -t tmpfs tmpfs /run # of systemd-nspawn, which leaves directories there
mount -t tmpfs tmpfs /mnt
mkdir /mnt/{upper,work,root}
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
root=/mnt/root
mkdir -p "$root/package-test"
cp "$packages"/0.1.[01]/*.deb deploy/package/test-deb-inside.sh deploy/lab/boot.sh "$root/package-test/"
mv "$initrd" "$root/package-test/guest.cpio"
cat > "$root/etc/systemd/system/package-test.service" <<'UNIT'
[Unit]
DefaultDependencies=no
After=systemd-journald.service systemd-tmpfiles-setup.service
Wants=systemd-journald.service
[Service]
Type=oneshot
ExecStart=/package-test/test-deb-inside.sh
ExecStopPost=/bin/sh -c 'echo "$EXIT_STATUS" > /package-test/status; systemctl exit'
StandardOutput=file:/package-test/output
StandardError=file:/package-test/output
UNIT
# The host's own services have no business here.
ln -sf /dev/null "$root/etc/systemd/system/network-online.target"
# A Debian 12 has cgroups v2, where systemd waits for all processes of a unit that it ends.
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout 500 systemd-nspawn -q --register=no --keep-unit --private-network -D "$root" --boot \
    systemd.unit=package-test.service < /dev/null > /mnt/boot.log 2>&1 || true
cat "$root/package-test/output" || cat /mnt/boot.log
[ "$(cat "$root/package-test/status")" = 0 ]
# The layer has every file that was made or changed; a character device in it stands for a file that is gone.
left=$(find /mnt/upper \( -path /mnt/upper/package-test -o -path /mnt/upper/var/log/journal \) -prune -o \
    -iname '*rdmabridge*' ! -type c -print)
[ -z "$left" ] || { echo "purge leaves files: $left" >&2; exit 1; }
echo "nothing is left on the file system"
