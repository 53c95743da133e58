#!/bin/sh
# recall.sh VERS HOST PORT [MOUNTPORT] checks that the server grants clients read delegations, and
# recalls them as soon as another client, or a process of the server, opens for writing: the
# server's Call arrives on the client's own connection. Then both mounts stay idle for IDLE
# seconds, and must still work and receive callbacks. VERS is 4.1 or 4.2; with 4.0 the server makes
# a connection of its own for callbacks, past any bridge.
. /lab/lib.sh
after_grace
begin
f=recall-$vers-$port
rm -f "/export/$f"* # for 30 s after a recall the server grants no delegation for the file
client_mount c1
client_mount c2
one=$(client_mnt c1)/$f two=$(client_mnt c2)/$f
ms() { awk '{ print int($1 * 1000) }' /proc/uptime; }
delegations() { cat /proc/fs/nfsd/clients/*/states | grep -c "type: deleg.*\"/$f"; }
returned() { for c in c1 c2; do client $c sh -c '. /lab/lib.sh; ops DELEGRETURN'; done | awk '{ n += $1 } END { print n }'; }
# recalls FILE N opens FILE for writing, and checks that N delegations for it are returned soon, and
# not only when the server times out and revokes them.
recalls() {
    equal "delegations" "$(delegations)" "$2"
    before=$(returned) t0=$(ms)
    echo more >> "$1" || die "write to $1"
    took=$(($(ms) - t0))
    echo "$2 recalled in $took ms"
    [ "$took" -lt 8000 ] || die "the recall took $took ms"
    equal "delegations after the recall" "$(delegations)" 0
    until_is "DELEGRETURNs of the clients" $((before + $2)) 10 returned
}
# ways WHEN checks that client and server both consider each client's callback connection good.
ways() {
    until_is "ways back, $1" 2 10 ups
    for c in c1 c2; do
        for op in BIND_CONN_TO_SESSION DESTROY_SESSION; do
            equal "$op by $c, $1" "$(client $c sh -c '. /lab/lib.sh; ops "$4"' sh 0 0 0 $op)" 0
        done
    done
}

echo data > "/export/$f"
cat "$one" > /dev/null
exec 3< "$one" # while c1 has the delegation, the server does not know of this open
recalls "$two" 1
equal "read through the file that was open" "$(cat <&3)" data
exec 3<&-
equal "read by c1" "$(tr '\n' ' ' < "$one")" "data more "
ways "after a recall"

f=$f.idle
echo data > "/export/$f"
exec 3< "$one.idle" 4< "$two.idle" # a client soon returns the delegation for a file that is not open
sleep "${IDLE:-1}"
ways "after being idle"
recalls "/export/$f" 2
exec 3<&- 4<&-
equal "read by c1" "$(tr '\n' ' ' < "$one.idle")" "data more "
echo again >> "$two.idle" || die "write after being idle"
equal "on the server" "$(tr '\n' ' ' < "/export/$f")" "data more again "
ways "at the end"

client_umount c1
client_umount c2
rm /export/recall-$vers-$port*
end
echo PASS
