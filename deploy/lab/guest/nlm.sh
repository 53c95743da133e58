#!/bin/sh
# nlm.sh HOST mounts NFSv3 with locks and without port options: HOST's rpcbind has the ports of NFS,
# MOUNT and NLM. Two clients lock one file, and then a client and the server do.
. /lab/lib.sh
host=$1 vers=3
f=nlm
trap 'for c in c1 c2; do /lab/client.sh $c umount -l /mnt; done 2> /dev/null' EXIT

begin
for c in c1 c2; do
    client_nlm $c
    client $c mount.nfs "$host:/export" /mnt -o vers=3
    client $c grep " /mnt nfs .*vers=3,.*local_lock=none" /proc/mounts
done
/usr/sbin/rpcinfo "$host"
one=$(client_mnt c1)/$f two=$(client_mnt c2)/$f
/lab/locks -d "$one" "$two" || die "two clients: status $?"
/lab/locks -d "$one" "/export/$f" || die "client and server: status $?"
/lab/locks -d "$two" "/export/$f" || die "the other client and server: status $?"

# A client that unmounts loses its locks; another client keeps its own.
for c in c1 c2; do
    mkfifo /tmp/nlm-$c
    client $c /lab/locks -h "/mnt/$f-$c" < /tmp/nlm-$c > /tmp/nlm-$c.out &
done
exec 8> /tmp/nlm-c1 9> /tmp/nlm-c2
for c in c1 c2; do
    i=0
    until grep -q held /tmp/nlm-$c.out; do
        [ $((i += 1)) -lt 100 ] || die "$c has no lock after 10 s"
        sleep 0.1
    done
    /lab/locks -t "/export/$f-$c"
    equal "what $c locked, to the server" $? 3
done
exec 8>&-
wait_free() {
    i=0
    until /lab/locks -t "$1"; do
        [ $((i += 1)) -lt 100 ] || die "$1 is still locked after 10 s"
        sleep 0.1
    done
}
wait_free "/export/$f-c1"
client_umount c1
/lab/locks -t "/export/$f-c2"
equal "what c2 locked, after c1 has gone" $? 3
exec 9>&-
wait_free "/export/$f-c2"
client_umount c2
wait
rm -f /export/$f /export/$f-c1 /export/$f-c2 /tmp/nlm-*
end
echo PASS
