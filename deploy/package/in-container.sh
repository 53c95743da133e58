#!/bin/bash
# in-container.sh SCRIPT FILE... runs SCRIPT as root on a Debian of its own, beside copies of the FILEs, prints what it
# prints, and fails if it fails, or leaves a file of rdmabridge. It needs root.
#
# The Debian is this host's root file system with a layer on top, in which every change ends, and runs in a container
# (systemd-nspawn) with a network of its own and a real systemd as process 1: SCRIPT is its only service.
set -euo pipefail
script=$1
# A mount namespace, so that nothing of this is left on the host, whatever ends the test.
[ -n "${IN_CONTAINER:-}" ] || IN_CONTAINER=1 exec unshare --mount --propagation private "$0" "$@"

mount -t tmpfs tmpfs /run # of systemd-nspawn, which leaves directories there
mount -t tmpfs tmpfs /mnt
mkdir /mnt/{upper,work,root}
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
root=/mnt/root
mkdir -p "$root/package-test"
cp -L "$@" "$(dirname "$0")/test-lib.sh" "$root/package-test/"
cat > "$root/etc/systemd/system/package-test.service" <<UNIT
[Unit]
DefaultDependencies=no
After=systemd-journald.service systemd-tmpfiles-setup.service
Wants=systemd-journald.service
[Service]
Type=oneshot
WorkingDirectory=/package-test
ExecStart=/package-test/${script##*/}
ExecStopPost=/bin/sh -c 'echo "\$EXIT_STATUS" > /package-test/status; systemctl exit'
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
[ -z "$left" ] || { echo "these files are left: $left" >&2; exit 1; }
echo "nothing is left on the file system"
