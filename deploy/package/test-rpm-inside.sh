#!/bin/bash
# test-rpm-inside.sh is the part of test-rpm.sh that runs in the container. It prints what it sees, and ends at the first
# thing that is wrong.
set -euo pipefail
. ./test-lib.sh
old=$(echo rdmabridge-0.1.0*.rpm) new=$(echo rdmabridge-0.1.1*.rpm)
rpm() { command rpm --force-debian "$@"; } # Debian's rpm asks for alien otherwise
installs() { rpm "$@" > rpm.log 2>&1 || fail "rpm $*: $(cat rpm.log)"; }

# The binary is static: nothing but a shell is required. Debian's rpm does not know of the one that is here.
requires=$(rpm -qp --requires "$old")
! grep -vE '^(rpmlib\(.*|/bin/sh$)' <<< "$requires" | grep . || fail "requires the lines above"
command rpm -K --nosignature "$old" "$new" > rpm.log || fail "$(cat rpm.log)"
installs -i --nodeps "$old"
grep -q 'rdmabridge doctor -c' rpm.log || fail "no hint: $(cat rpm.log)"
! grep -iE 'warning|error|fail' rpm.log || fail "rpm complains"
rdmabridge version | grep -q '^rdmabridge 0\.1\.0,' || fail "$(rdmabridge version)"
getent passwd rdmabridge > /dev/null || fail "no user"
[ "$(stat -c '%U:%G %a' /etc/rdmabridge)" = 'root:rdmabridge 750' ] || fail "$(stat /etc/rdmabridge)"
[ "$(stat -c '%U:%G %a' /var/log/rdmabridge)" = 'rdmabridge:rdmabridge 700' ] || fail "$(stat /var/log/rdmabridge)"
[ "$(rpm -qc rdmabridge)" = /etc/rdmabridge/annotated.yaml ] || fail "configuration: $(rpm -qc rdmabridge)"
rpm -V --nodeps rdmabridge > verify.log || fail "rpm -V: $(cat verify.log)"
[ "$(systemctl is-active rdmabridge || true)" = inactive ] || fail "installed and started"
[ "$(systemctl show -P LoadState rdmabridge)" = loaded ] || fail "systemd does not know the unit"
say "installed, not started; rpm -V finds every file as it was packed"

start_demo
systemctl enable --now rdmabridge > enable.log 2>&1 || fail "$(cat enable.log)"
echo '# mine' >> /etc/rdmabridge/annotated.yaml
start_loads 2
await 60 "load" rounds_after 10
begun=$(rounds) before=$(main rdmabridge)
installs -U --nodeps "$new"
grep -q "rdmabridge.service handed over from process $before to $(main rdmabridge)" rpm.log || fail "no hand-over: $(cat rpm.log)"
! grep -q 'doctor -c' rpm.log || fail "the hint of an installation after an upgrade"
await 60 "load after the upgrade" rounds_after $((begun + 10))
end_loads
[ "$(restarts rdmabridge)" = 0 ] && [ "$(systemctl is-active rdmabridge)" = active ] || fail "systemd restarted the bridge"
[ "$(systemctl is-enabled rdmabridge)" = enabled ] || fail "the upgrade disabled the unit"
rdmabridge stats > stats.log && grep -q '^rdmabridge 0\.1\.1,' stats.log || fail "$(head -1 stats.log) runs"
tail -1 /etc/rdmabridge/annotated.yaml | grep -qx '# mine' || fail "the upgrade replaced a file that somebody changed"
[ "$(rpm -V --nodeps rdmabridge || true)" = 'S.5....T.  c /etc/rdmabridge/annotated.yaml' ] || fail "rpm -V: $(rpm -V --nodeps rdmabridge)"
say "upgraded under load: $(rounds) files written, read and compared, $begun of them before; no error, no wrong octet"

files=$(rpm -ql rdmabridge)
installs -e rdmabridge
[ -z "$(pgrep -x rdmabridge || true)" ] || fail "processes are left: $(pgrep -ax rdmabridge)"
[ ! -e /etc/systemd/system/multi-user.target.wants/rdmabridge.service ] || fail "still enabled"
[ "$(systemctl show -P LoadState rdmabridge)" = not-found ] || fail "systemd knows the unit still"
for f in $files; do [ ! -f "$f" ] || fail "$f is left"; done
[ -e /etc/rdmabridge/rdmabridge.yaml ] && [ -e /etc/rdmabridge/annotated.yaml.rpmsave ] || fail "removal took what the administrator wrote: $(ls /etc/rdmabridge)"
getent passwd rdmabridge > /dev/null && [ -d /var/log/rdmabridge ] || fail "removal took the logs or their owner"
say "removed; what the administrator wrote and the logs are left"

# Nobody has written anything after this installation.
rm -r /etc/rdmabridge
installs -i --nodeps "$new"
installs -e rdmabridge
[ ! -e /etc/rdmabridge ] || fail "removal left an empty directory"
userdel rdmabridge
rm -r /var/log/rdmabridge /var/lib/rdmabridge
rm -rf /run/rdmabridge
left=$(find /usr /etc -iname '*rdmabridge*' ! -path '*/dpkg/*')
[ -z "$left" ] || fail "removal leaves: $left"
say "installed again and removed without a trace in /usr and /etc"
