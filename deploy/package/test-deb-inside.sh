#!/bin/bash
# test-deb-inside.sh is the part of test-deb.sh that runs in the container. It prints what it sees, and ends at the first
# thing that is wrong.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
rm -f /var/lib/man-db/auto-update # its index of all pages takes longer than this test
. ./test-lib.sh

# The guest is the kernel's NFS server, at 20050 (RDMA, siw) and 20048 (MOUNT) of the container, and a client that mounts
# through the unit rdmabridge@two, which it reaches at 10.0.2.2.
mkdir host
./boot.sh guest.cpio --share host --append 'lab.rdma=siw lab.server=1' --fwd 20050:20049 --fwd 20048:20048 --log guest.log < /dev/null > qemu.log 2>&1 &

dpkg -i rdmabridge_0.1.0*.deb > install.log 2>&1 || fail "$(cat install.log)"
grep -q 'rdmabridge doctor -c' install.log || fail "no hint: $(cat install.log)"
rdmabridge version | grep -q '^rdmabridge 0\.1\.0,' || fail "$(rdmabridge version)"
rdmabridge-bench version | grep -q '^rdmabridge-bench 0\.1\.0,' || fail "$(rdmabridge-bench version)"
getent passwd rdmabridge > /dev/null || fail "no user"
[ "$(stat -c '%U:%G %a' /etc/rdmabridge)" = 'root:rdmabridge 750' ] || fail "$(stat /etc/rdmabridge)"
[ "$(dpkg-query -W -f '${Conffiles}' rdmabridge | cut -d' ' -f2)" = /etc/rdmabridge/annotated.yaml ] || fail "no conffile"
for f in /usr/share/doc/rdmabridge/{copyright,{,rdmabridge-bench.}NOTICES.txt,rdmabridge{,-bench}.cdx.json} \
    /usr/share/man/man1/rdmabridge-{serve,bench-load}.1.gz /usr/share/bash-completion/completions/rdmabridge{,-bench}; do [ -s "$f" ] || fail "no $f"; done
systemd-analyze verify rdmabridge.service rdmabridge@two.service 2> verify.log || fail "$(cat verify.log)"
! grep rdmabridge verify.log || fail "systemd-analyze verify"
for unit in rdmabridge.service rdmabridge@two.service; do
    exposure=$(systemd-analyze security --no-pager "$unit" | sed -n 's/.*exposure level.*: \([0-9.]*\).*/\1/p')
    awk -v e="$exposure" 'BEGIN { exit !(e != "" && e <= 1.6) }' || fail "$unit has exposure $exposure"
done
[ "$(systemctl is-active rdmabridge || true)" = inactive ] || fail "installed and started"
say "installed, not started; units verified, exposure $exposure"

start_demo
cat > /etc/rdmabridge/two.yaml <<'YAML'
admin: {address: 127.0.0.1:9091}
listeners:
  - {name: nfs, address: 127.0.0.1:2050, upstream: knfsd, routes: [{program: mount, upstream: mountd}]}
upstreams:
  - {name: knfsd, transport: rdma, endpoints: ["127.0.0.1:20050"]}
  - {name: mountd, transport: tcp, endpoints: ["127.0.0.1:20048"]}
memory: {budget: 256MiB}
handover: {path: /run/rdmabridge-two/handover.sock}
YAML
rdmabridge doctor -c /etc/rdmabridge/rdmabridge.yaml > doctor.log 2>&1 || [ $? = 3 ] || fail "$(cat doctor.log)"
# A watchdog that expires within the test unless each process reports, also after a hand-over.
for d in rdmabridge.service.d rdmabridge@.service.d; do
    mkdir -p "/run/systemd/system/$d"
    printf '[Service]\nWatchdogSec=5s\n' > "/run/systemd/system/$d/watchdog.conf"
done
systemctl daemon-reload
systemctl enable --now rdmabridge > enable.log 2>&1 || fail "$(cat enable.log)"
systemctl start rdmabridge@two || fail "the instance does not start"
rdmabridge stats --socket /run/rdmabridge-two/control.sock > /dev/null || fail "the instance does not answer"
[ "$(stat -c %U "/proc/$(main rdmabridge)")" = rdmabridge ] || fail "the bridge runs as $(stat -c %U "/proc/$(main rdmabridge)")"
say "both units run as rdmabridge"

# A line of fstab starts a bridge for its storage, whether or not the kernel of this host can mount NFS.
bridge=rdmabridge-mount-127.0.0.1.service
echo '127.0.0.1:/ /mnt rdmabridge vers=3,mountport=12049 0 0' > /etc/fstab
mount /mnt 2> mount.log || grep -qx 'mount.rdmabridge: this kernel has no NFS client: try modprobe nfs' mount.log || fail "$(cat mount.log)"
old=$(main $bridge)
[ "$(stat -c %U "/proc/$old")" != root ] || fail "the bridge of a mount runs as root"
from=$(tr '\0' ' ' < "/proc/$old/cmdline")
kill -KILL "$old"
await 30 "systemd to replace the bridge of a mount" restarted $bridge
[ "$(tr '\0' ' ' < "/proc/$(main $bridge)/cmdline")" = "$from" ] || fail "the bridge of a mount has another port"
umount /mnt 2> /dev/null || true
systemctl stop $bridge
rm /etc/fstab
say "a mount starts a bridge, which systemd starts again with the same port"

# The kernel's client mounts with three versions of NFS at once. With each, fio writes and verifies, and meta makes and
# renames names; an error, or an operation that takes longer than MAXLAT seconds, ends this.
versions='3 4.0 4.2'
await 120 "the guest" grep -q READY guest.log
echo "MAXLAT=60 LOOPS=1 VERSIONS='$versions' /lab/rounds.sh 10.0.2.2 2050 2050" > host/load && mv host/load host/load.job
# octets prints how many octets the mount with the fewest has moved, since it was mounted.
octets() { awk -v n="$(wc -w <<< "$versions")" 'NF > n { m = $2; for (i = 3; i <= n + 1; i++) if ($i < m) m = $i } END { print m + 0 }' host/beat; }
kernel_load() { # MORE: succeeds when each mount has moved that many octets more than before
    [ ! -e host/load.rc ] && [ ! -e host/failed ] || fail "the kernel's client has failed"
    [ -e host/beat ] && [ "$(octets)" -gt $((moved + $1)) ]
}
moved=0
await 120 "the kernel's client" kernel_load 200000
start_loads 3
await 30 "the other clients" rounds_after 0
say "fio, NFSv${versions// /, } of Linux, and nfs-cp write and verify"

begun=$(rounds) moved=$(octets) old=$(main rdmabridge) old_two=$(main rdmabridge@two)
dpkg -i rdmabridge_0.1.1*.deb > upgrade.log 2>&1 || fail "$(cat upgrade.log)"
grep -q "rdmabridge.service handed over from process $old to $(main rdmabridge)" upgrade.log || fail "no hand-over: $(cat upgrade.log)"
grep -q "rdmabridge@two.service handed over from process $old_two to $(main rdmabridge@two)" upgrade.log || fail "no hand-over of the instance: $(cat upgrade.log)"
await 60 "load after the upgrade" rounds_after $((begun + 20))
end_loads
await 60 "the kernel's client after the upgrade" kernel_load 200000
await 60 "the end of the old processes" test ! -e "/proc/$old" -a ! -e "/proc/$old_two"
for unit in rdmabridge rdmabridge@two; do
    [ "$(restarts $unit)" = 0 ] || fail "systemd restarted $unit"
    [ "$(systemctl is-active $unit)" = active ] || fail "$unit is not active after the upgrade"
    rdmabridge stats --socket "/run/${unit/@/-}/control.sock" > stats.log || fail "$unit does not answer after the upgrade"
    grep -q '^rdmabridge 0\.1\.1,' stats.log || fail "$(head -1 stats.log) runs"
done
say "upgraded under load: $(rounds) files of nfs-cp, $begun of them before, and $((moved >> 10)) KiB of each mount before; no error, no wrong octet"

# A process that hangs cannot report to the watchdog. systemd ends it, and what the mounts waited for goes on.
hung=$(main rdmabridge@two) moved=$(octets)
kill -STOP "$hung"
await 60 "systemd to replace a bridge that hangs" restarted rdmabridge@two
[ ! -e "/proc/$hung" ] || fail "process $hung, which hung, is still there"
journalctl --no-pager -u rdmabridge@two > journal.log
grep -q 'Watchdog timeout (limit 5s)' journal.log || fail "the watchdog did not expire"
grep -q 'SIGABRT: abort' journal.log && grep -q 'goroutine 1 ' journal.log || fail "no dump of the goroutines"
await 60 "the kernel's client after the watchdog" kernel_load 200000
[ "$(restarts rdmabridge@two)" = 1 ] || fail "systemd started the bridge $(restarts rdmabridge@two) times"
say "systemd killed a bridge that hung and started it again, and the mounts went on"

new=$(main rdmabridge)
kill -KILL "$new"
await 30 "systemd to replace a successor that was killed" restarted rdmabridge
[ "$(main rdmabridge)" != "$new" ] && rdmabridge stats --socket /run/rdmabridge/control.sock > /dev/null || fail "no restart of a successor that was killed"
say "a successor that was killed was started again"

# A successor is given the time to drain.
/usr/lib/rdmabridge/hand-over rdmabridge.service > hand-over.log 2>&1 || fail "$(cat hand-over.log)"
new=$(main rdmabridge)
grep -q "handed over from process [0-9]* to $new" hand-over.log || fail "$(cat hand-over.log)"
systemctl stop rdmabridge
journalctl --no-pager -u rdmabridge > journal.log
grep "\"event\":\"stopped\",\"pid\":$new," journal.log > /dev/null || fail "systemd killed a successor that it was to stop"
! grep 'not our child' journal.log || fail "the successor is not systemd's child"
systemctl start rdmabridge
say "a successor that systemd stopped drained"

touch host/stop
await 120 "the kernel's client to end" test -e host/load.rc
[ "$(cat host/load.rc)" = 0 ] && grep -qx PASS host/load.out || fail "the kernel's client has failed"
for v in $versions; do
    [ "$(grep -c verify_only "host/fio-$v")" -gt 0 ] || fail "fio verified too little: $(cat "host/fio-$v")"
    ! grep -v ' ok$' "host/meta-$v-1" || fail "meta, NFSv$v: the lines above"
done
say "fio verified $(cat host/fio-* | grep -c verify_only) times through one cache, and again through new mounts; meta did $(cat host/meta-* | wc -l) operations: no error, no wrong octet"

dpkg -r rdmabridge > remove.log 2>&1 || fail "$(cat remove.log)"
[ -z "$(pgrep -x rdmabridge || true)" ] || fail "processes are left: $(pgrep -ax rdmabridge)"
[ -e /etc/rdmabridge/rdmabridge.yaml ] || fail "remove took the administrator's file"
[ ! -e /etc/systemd/system/multi-user.target.wants/rdmabridge.service ] || fail "still enabled"
rm /etc/rdmabridge/rdmabridge.yaml /etc/rdmabridge/two.yaml # what the administrator wrote, he removes
dpkg -P rdmabridge > purge.log 2>&1 || fail "$(cat purge.log)"
rm -r /run/systemd/system/rdmabridge*.d
after=$(find /run /etc/rdmabridge -iname '*rdmabridge*' 2> /dev/null || true)
[ -z "$after" ] || fail "purge leaves: $after"
say "removed and purged"
