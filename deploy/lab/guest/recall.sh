#!/bin/sh
# recall.sh VERS HOST PORT [MOUNTPORT]: a read delegation is given, and recalled as soon as
# somebody writes: the server's Call comes back on the client's own connection. VERS is 4.1
# or 4.2; 4.0 has a connection of its own for that, past any bridge.
. /lab/lib.sh
was=$(cat /proc/sys/fs/leases-enable)
echo 1 > /proc/sys/fs/leases-enable
# lockd, like nfsd, has a grace period in which there are no delegations: 50 s.
while [ "$(cut -d. -f1 /proc/uptime)" -lt 70 ]; do sleep 1; done
begin
f=recall-$vers-$port
echo data > "/export/$f"
do_mount
delegated() { cat /proc/fs/nfsd/clients/*/states 2>/dev/null | grep -q "type: deleg.*$f"; }
for i in 1 2 3 4 5; do # the first opens of a file may come too early
    cat "/mnt/$f" > /dev/null || die "cat"
    sleep 0.3
    delegated && break
done
delegated || die "no delegation was given: $(cat /proc/fs/nfsd/clients/*/info)"
grep -q "callback state: UP" /proc/fs/nfsd/clients/*/info || die "$(cat /proc/fs/nfsd/clients/*/info)"
exec 3< "/mnt/$f"
ms() { awk '{print int($1 * 1000)}' /proc/uptime; }
t0=$(ms)
echo more >> "/export/$f" || die "write"
took=$(($(ms) - t0))
echo "recalled in $took ms"
[ "$took" -lt 2000 ] || die "the recall took $took ms"
delegated && die "the delegation is still there: $(cat /proc/fs/nfsd/clients/*/states)"
exec 3<&-
sleep "${IDLE:-1}"
equal "read after the recall" "$(cat "/mnt/$f" | tr '\n' ' ')" "data more "
grep -q "callback state: UP" /proc/fs/nfsd/clients/*/info || die "$(cat /proc/fs/nfsd/clients/*/info)"
do_umount
rm "/export/$f"
end
echo "$was" > /proc/sys/fs/leases-enable
echo PASS
