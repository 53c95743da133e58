#!/bin/sh
# tenants.sh VERS HOST PORT [MOUNTPORT] is what the client machine NAME does with its mount:
#
#   STEP=mount    mounts
#   STEP=load     writes and verifies with DEPTH Calls at once, until there is the file /tmp/tenants-stop
#   STEP=work     makes and moves names, writes 2 MiB and reads them back
#   STEP=umount   unmounts
. /lab/lib.sh
m=/proc/$(cat "/run/client-$NAME" 2> /dev/null)/root/mnt
d=tenant-$NAME-$vers
begin
case $STEP in
mount)
    client "$NAME" sh -c '. /lab/lib.sh; do_mount' sh "$vers" "$host" "$port" "$mountport"
    mkdir -p "$(client_mnt "$NAME")/$d" || die "mkdir"
    ;;
load)
    n=0
    while [ ! -e /tmp/tenants-stop ]; do
        n=$((n + 1))
        fio --name=load --directory="$m/$d" --size=256k --bs=4k --rw=randwrite --randseed=$n --verify=crc32c --verify_fatal=1 \
            --direct=1 --ioengine=libaio --iodepth="$DEPTH" --thread --fallocate=none --output=/tmp/tenants.out > /tmp/tenants.err 2>&1 ||
            { cat /tmp/tenants.err /tmp/tenants.out; die "fio, pass $n"; }
    done
    echo "passes: $n"
    ;;
work)
    random 2097152 > "/tmp/$d"
    for n in 1 2 3 4 5 6 7 8 9 10; do
        mkdir "$m/$d/new-$n" && mv "$m/$d/new-$n" "$m/$d/name-$n" || die "name $n"
    done
    dd if="/tmp/$d" of="$m/$d/data" bs=64k oflag=direct 2> /dev/null || die "write"
    same "the server's copy" "/tmp/$d" "$SERVER/$d/data"
    dd if="$m/$d/data" of="/tmp/$d.back" bs=64k iflag=direct 2> /dev/null || die "read"
    same "what was read" "/tmp/$d" "/tmp/$d.back"
    equal names "$(ls "$SERVER/$d" | grep -c ^name-)" 10
    rm -r "$m/$d"/* "/tmp/$d" "/tmp/$d.back" || die "rm"
    ;;
umount)
    client "$NAME" umount /mnt
    rm -rf "${SERVER:?}/$d" /tmp/tenants-stop
    ;;
esac
end
echo PASS
