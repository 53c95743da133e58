#!/bin/bash
# test-ibverbs-inside.sh is the part of test-ibverbs.sh that runs in the container. It prints what it sees, and ends at the
# first thing that is wrong.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
rm -f /var/lib/man-db/auto-update # its index of all pages takes longer than this test
. ./test-lib.sh

dpkg -i rdmabridge_0.1.0*.deb > install.log 2>&1 || fail "$(cat install.log)"
start_demo
systemctl enable --now rdmabridge > enable.log 2>&1 || fail "$(cat enable.log)"
! rdmabridge check roce.yaml > check.log 2>&1 || fail "the static program has the provider ibverbs"
grep -q 'use rdmabridge-ibverbs' check.log || fail "$(cat check.log)"
old=$(main rdmabridge)
dpkg -i rdmabridge-ibverbs_0.1.0*.deb > ibverbs.log 2>&1 || fail "$(cat ibverbs.log)"
for f in roce infiniband; do rdmabridge-ibverbs check $f.yaml > check.log 2>&1 || fail "$(cat check.log)"; done
man -w rdmabridge-ibverbs rdmabridge-bench-ibverbs > man.log 2>&1 || fail "$(cat man.log)"
[ "$(main rdmabridge)" = "$old" ] || fail "the installation of rdmabridge-ibverbs stopped the bridge"
# program UNIT prints which program a unit runs.
program() { readlink "/proc/$(main "$1")/exe"; }
[ "$(program rdmabridge)" = /usr/bin/rdmabridge ] || fail "$(program rdmabridge) runs"
systemctl restart rdmabridge || fail "no restart with ibverbs"
cp /etc/rdmabridge/rdmabridge.yaml /etc/rdmabridge/two.yaml
sed -i 's/:2049/:2050/; s|^handover.*|admin: {address: none}|' /etc/rdmabridge/two.yaml
systemctl start rdmabridge@two || fail "the instance does not start"
for unit in rdmabridge rdmabridge@two; do
    [ "$(program $unit)" = /usr/bin/rdmabridge-ibverbs ] || fail "$unit runs $(program $unit)"
    for property in 'LimitMEMLOCK=infinity' 'PrivateDevices=no' 'DevicePolicy=closed' 'NoNewPrivileges=yes'; do
        systemctl show "$unit" | grep -qx "$property" || fail "$unit does not have $property"
    done
    exposure=$(systemd-analyze security --no-pager "$unit" | sed -n 's/.*exposure level.*: \([0-9.]*\).*/\1/p')
    awk -v e="$exposure" 'BEGIN { exit !(e != "" && e <= 2.0) }' || fail "$unit has exposure $exposure"
done
say "both units run rdmabridge-ibverbs, exposure $exposure"

systemctl stop rdmabridge@two
start_loads 1
await 30 "load" rounds_after 2
begun=$(rounds) old=$(main rdmabridge)
! dpkg -i rdmabridge_0.1.1*.deb > alone.log 2>&1 || fail "rdmabridge is upgraded alone: $(cat alone.log)"
grep -q 'would break rdmabridge-ibverbs' alone.log || fail "$(cat alone.log)"
dpkg -s rdmabridge | grep -q '^Version: 0\.1\.0' || fail "$(dpkg -s rdmabridge)"
[ "$(main rdmabridge)" = "$old" ] || fail "an upgrade that was refused has touched the bridge"
say "dpkg refuses an upgrade of rdmabridge alone"
dpkg -i rdmabridge-ibverbs_0.1.1*.deb rdmabridge_0.1.1*.deb > upgrade.log 2>&1 || fail "$(cat upgrade.log)"
grep -q "rdmabridge.service handed over from process $old to $(main rdmabridge)" upgrade.log || fail "no hand-over: $(cat upgrade.log)"
[ "$(program rdmabridge)" = /usr/bin/rdmabridge-ibverbs ] || fail "$(program rdmabridge) runs after the upgrade"
rdmabridge stats > stats.log && grep -q '^rdmabridge 0\.1\.1,' stats.log || fail "$(head -1 stats.log) runs"
await 30 "load after the upgrade" rounds_after $((begun + 2))
end_loads
say "upgraded both: $(rounds) files written, read and compared; no error, no wrong octet"

dpkg -r rdmabridge-ibverbs > remove.log 2>&1 || fail "$(cat remove.log)"
systemctl restart rdmabridge || fail "no restart without ibverbs"
[ "$(program rdmabridge)" = /usr/bin/rdmabridge ] || fail "$(program rdmabridge) runs without rdmabridge-ibverbs"
say "removed rdmabridge-ibverbs: the unit runs rdmabridge"

# What the administrator and the bridge wrote, with the modes of install.md, is not for whoever gets the numbers of the
# user and the group next.
install -m 0640 -g rdmabridge /dev/null /etc/rdmabridge/key.pem
install -d -m 0750 -g rdmabridge /etc/rdmabridge/more
install -m 0644 -o nobody /dev/null target
ln -s "$PWD/target" /etc/rdmabridge/more/link
install -m 0640 -g rdmabridge /dev/null /etc/rdmabridge/more/key.pem
uid=$(id -u rdmabridge) gid=$(id -g rdmabridge)
dpkg -P rdmabridge rdmabridge-ibverbs > purge.log 2>&1 || fail "$(cat purge.log)"
[ -e /etc/rdmabridge/key.pem ] && [ -e /etc/rdmabridge/two.yaml ] || fail "purge took the administrator's files: $(ls /etc/rdmabridge)"
[ "$(stat -c '%U:%G %a' /etc/rdmabridge)" = 'root:root 700' ] && [ "$(stat -c %U target)" = nobody ] || fail "$(stat /etc/rdmabridge target)"
left=$(find / -xdev \( -path /proc -o -path /sys -o -path /package-test \) -prune -o \( -user "$uid" -o -group "$gid" \) -print; find /run -user "$uid" -o -group "$gid")
[ -z "$left" ] || fail "of the user or the group are still: $left"
left=$(find /usr /run /var/log -iname '*rdmabridge*')
[ -z "$left" ] || fail "purge leaves: $left"
getent passwd rdmabridge > /dev/null || fail "purge took the user, whose number somebody else could get"
rm -r /etc/rdmabridge # what the administrator wrote, he removes
say "purged: nothing is left that belongs to the user or the group, which stay"
