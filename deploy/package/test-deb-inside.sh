#!/bin/bash
# test-inside.sh is the part of test.sh that runs in the container. It prints what it sees, and ends at the first
# thing that is wrong.
set -euo pipefail
cd /package-test
export DEBIAN_FRONTEND=noninteractive
rm -f /var/lib/man-db/auto-update # its index of all pages takes longer than this test
say() { printf '%4d s  %s\n' "$SECONDS" "$*"; }
fail() { say "FAIL: $*"; journalctl --no-pager -u 'rdmabridge*' | tail -40; exit 1; }
main() { systemctl show -P MainPID rdmabridge; }

dpkg -i rdmabridge_0.1.0*.deb > install.log 2>&1 || fail "$(cat install.log)"
grep -q 'rdmabridge doctor -c' install.log || fail "no hint: $(cat install.log)"
rdmabridge version | grep -q '^rdmabridge 0\.1\.0,' || fail "$(rdmabridge version)"
getent passwd rdmabridge > /dev/null || fail "no user"
[ "$(stat -c '%U:%G %a' /etc/rdmabridge)" = 'root:rdmabridge 750' ] || fail "$(stat /etc/rdmabridge)"
[ "$(dpkg-query -W -f '${Conffiles}' rdmabridge | cut -d' ' -f2)" = /etc/rdmabridge/annotated.yaml ] || fail "no conffile"
for f in /usr/share/doc/rdmabridge/{copyright,NOTICES.txt,rdmabridge.cdx.json} /usr/share/man/man1/rdmabridge-serve.1.gz \
    /usr/share/bash-completion/completions/rdmabridge; do [ -s "$f" ] || fail "no $f"; done
systemd-analyze verify rdmabridge.service rdmabridge@two.service 2> verify.log || fail "$(cat verify.log)"
! grep rdmabridge verify.log || fail "systemd-analyze verify"
for unit in rdmabridge.service rdmabridge@two.service; do
    exposure=$(systemd-analyze security --no-pager "$unit" | sed -n 's/.*exposure level.*: \([0-9.]*\).*/\1/p')
    awk -v e="$exposure" 'BEGIN { exit !(e != "" && e <= 1.6) }' || fail "$unit has exposure $exposure"
done
[ "$(systemctl is-active rdmabridge || true)" = inactive ] || fail "installed and started"
say "installed, not started; units verified, exposure $exposure"

# A server, reached by RDMA: the demo's. As nobody it has no control socket, which the bridge would miss.
cp /usr/bin/rdmabridge ./demo
setpriv --reuid nobody --regid nogroup --clear-groups ./demo demo --admin none > demo.log 2>&1 &
cat > /etc/rdmabridge/rdmabridge.yaml <<'YAML'
listeners:
  - {name: nfs, address: 127.0.0.1:2049, upstream: storage, routes: [{program: mount, upstream: storage}]}
upstreams:
  - {name: storage, transport: rdma, endpoints: ["127.0.0.1:20049"]}
memory: {budget: 256MiB}
handover: {path: /run/rdmabridge/handover.sock}
YAML
echo 'admin: {address: 127.0.0.1:9091}' > /etc/rdmabridge/two.yaml
sed 's/2049, upstream/2050, upstream/; s|/run/rdmabridge/|/run/rdmabridge-two/|' /etc/rdmabridge/rdmabridge.yaml >> /etc/rdmabridge/two.yaml
for _ in $(seq 100); do grep -q nfs-cp demo.log && break; sleep 0.1; done
rdmabridge doctor -c /etc/rdmabridge/rdmabridge.yaml > doctor.log 2>&1 || [ $? = 3 ] || fail "$(cat doctor.log)"
# A watchdog that expires within the test unless each process reports, also after a hand-over.
for d in rdmabridge.service.d rdmabridge@.service.d; do
    mkdir -p "/run/systemd/system/$d"
    printf '[Service]\nWatchdogSec=2s\n' > "/run/systemd/system/$d/watchdog.conf"
done
systemctl daemon-reload
systemctl enable --now rdmabridge > enable.log 2>&1 || fail "$(cat enable.log)"
systemctl start rdmabridge@two || fail "the instance does not start"
rdmabridge stats --socket /run/rdmabridge-two/control.sock > /dev/null || fail "the instance does not answer"
[ "$(stat -c %U "/proc/$(main)")" = rdmabridge ] || fail "the bridge runs as $(stat -c %U "/proc/$(main)")"
say "both units run as rdmabridge"

# The load: each client writes a file of its own, reads it again and compares it, with a new connection for each.
url() { echo "nfs://127.0.0.1//$1?nfsport=2049&mountport=2049"; }
load() { # NUMBER
    local n=0
    head -c 2M /dev/urandom > "in$1"
    while [ ! -e stop ]; do
        local there # a new name for each: nfs-cp does not write over a file
        there=$(url "f$1.$n")
        if ! nfs-cp "in$1" "$there" > "load$1.log" 2>&1 || ! nfs-cp "$there" "out$1" >> "load$1.log" 2>&1; then
            echo "client $1, round $n: $(cat "load$1.log")" >> errors
        elif ! cmp "in$1" "out$1" >> errors 2>&1; then
            echo "client $1, round $n: wrong octets" >> errors
        fi
        rm -f "out$1"
        n=$((n + 1))
        echo "$n" > "rounds$1"
    done
}
loads=()
for i in 1 2 3; do load $i & loads+=($!); done
rounds() { cat rounds? 2> /dev/null | awk '{n += $1} END {print n + 0}'; }
sleep 2
begun=$(rounds) old=$(main) old_two=$(systemctl show -P MainPID rdmabridge@two)
[ "$begun" -gt 0 ] || fail "no load: $(cat load1.log errors)"
dpkg -i rdmabridge_0.1.1*.deb > upgrade.log 2>&1 || fail "$(cat upgrade.log)"
grep -q "rdmabridge.service handed over from process $old to $(main)" upgrade.log || fail "no hand-over: $(cat upgrade.log)"
grep -q "rdmabridge@two.service handed over from process $old_two" upgrade.log || fail "no hand-over of the instance: $(cat upgrade.log)"
sleep 5
touch stop
wait "${loads[@]}"
[ ! -s errors ] || fail "$(head errors)"
[ "$(rounds)" -gt "$begun" ] || fail "no load after the upgrade"
[ "$(systemctl show -P NRestarts rdmabridge)" = 0 ] || fail "systemd restarted the bridge"
[ "$(systemctl is-active rdmabridge)" = active ] || fail "not active after the upgrade"
rdmabridge stats --socket /run/rdmabridge/control.sock > stats.log || fail "no answer after the upgrade"
grep -q '^rdmabridge 0\.1\.1,' stats.log || fail "$(head -1 stats.log) runs"
[ ! -e "/proc/$old" ] || say "the old process still drains"
say "upgraded under load: $(rounds) files written, read and compared, $begun of them before; no error, no wrong octet"

# systemd says that the successor is not its child. It does notice when it dies.
new=$(main)
kill -KILL "$new"
for _ in $(seq 100); do
    [ "$(main)" = "$new" ] || [ "$(main)" = 0 ] || [ "$(systemctl is-active rdmabridge)" != active ] || break
    sleep 0.1
done
[ "$(systemctl show -P NRestarts rdmabridge)" = 1 ] && rdmabridge stats --socket /run/rdmabridge/control.sock > /dev/null || fail "no restart of a successor that was killed"
say "a successor that was killed was started again"

dpkg -r rdmabridge > remove.log 2>&1 || fail "$(cat remove.log)"
[ -z "$(pgrep -x rdmabridge || true)" ] || fail "processes are left: $(pgrep -ax rdmabridge)"
[ -e /etc/rdmabridge/rdmabridge.yaml ] || fail "remove took the administrator's file"
[ ! -e /etc/systemd/system/multi-user.target.wants/rdmabridge.service ] || fail "still enabled"
rm /etc/rdmabridge/rdmabridge.yaml /etc/rdmabridge/two.yaml # what the administrator wrote, he removes
dpkg -P rdmabridge > purge.log 2>&1 || fail "$(cat purge.log)"
rm -r /run/systemd/system/rdmabridge*.d
after=$(find /run /etc/rdmabridge -iname '*rdmabridge*' 2> /dev/null; getent passwd rdmabridge || true; getent group rdmabridge || true)
[ -z "$after" ] || fail "purge leaves: $after"
say "removed and purged"
