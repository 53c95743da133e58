#!/bin/sh
# reclaim.sh VERS HOST PORT restarts the server while client c1 holds a lock and, except with 4.0, a
# delegation. c1 must reclaim both in the server's grace period, before c2, which wants the lock
# meanwhile, can get it. c1's open file must still work.
. /lab/lib.sh
DMESG_ALLOW='NFSD: Failed to remove expired client state'
after_grace
begin
f=reclaim-$vers-$port
rm -f "/export/$f"* /tmp/held
client_mount c1
client_mount c2
one=$(client_mnt c1)/$f two=$(client_mnt c2)/$f
states() { cat /proc/fs/nfsd/clients/*/states 2> /dev/null | grep -c "type: $1,.*\"/$2\""; }
lines() { grep -c "$1" /tmp/held; }

echo data > "/export/$f.deleg"
mkfifo /tmp/hold
/lab/locks -h "$one" < /tmp/hold > /tmp/held 2>&1 &
holder=$!
exec 4> /tmp/hold
until_is "the lock" 1 10 lines held
exec 3< "$one.deleg"
/lab/locks -t "$two"
equal "c2 is refused" $? 3
equal "locks at the server" "$(states lock "$f")" 1
deleg=$(states deleg "$f.deleg")
[ "$vers" = 4.0 ] || equal "delegations" "$deleg" 1

/lab/knfsd.sh stop || die "knfsd stop"
/lab/locks -t "$two" & # blocks until the server is back and its grace period is over
second=$!
sleep 1
/lab/knfsd.sh start || die "knfsd start"
t0=$(cut -d. -f1 /proc/uptime)
until_is "the lock reclaimed" 1 20 states lock "$f"
echo "reclaimed after $(($(cut -d. -f1 /proc/uptime) - t0)) s"
[ "$vers" = 4.0 ] || until_is "the delegation reclaimed" 1 10 states deleg "$f.deleg"
wait $second
equal "c2 is refused after the restart" $? 3
echo "written after the restart" >&4
until_is "a write with the state from before" 1 10 lines written
equal "what was written" "$(cat "/export/$f")" "written after the restart"
equal "read with the state from before" "$(cat <&3)" data
exec 3<&-

# c2 opens the file for which c1 has a delegation: the new connection carries the callback.
if [ "$vers" != 4.0 ]; then
    echo more >> "$two.deleg" || die "write"
    equal "delegations after a recall" "$(states deleg "$f.deleg")" 0
fi
exec 4>&-
wait $holder || die "the holder failed: $(cat /tmp/held)"
/lab/locks -t "$two"
equal "c2 after c1 let go" $? 0
rm /tmp/hold /tmp/held "/export/$f"*
client_umount c1
client_umount c2
end
echo PASS
