#!/bin/sh
# iosize.sh VERS HOST PORT [MOUNTPORT] sends READs and WRITEs of the lengths IOSIZES, which are
# shorter than the largest that client and server agree on, and of odd lengths.
. /lab/lib.sh
begin
more=$OPTS
d=iosize-$vers-$port
m=/mnt/$d e=$SERVER/$d
random 4200001 > /tmp/iosize
for n in ${IOSIZES:-4096 16384 69632 262144 1048576}; do
    OPTS=${more:+$more,}rsize=$n,wsize=$n
    do_mount
    grep -q " /mnt .*,rsize=$n,wsize=$n," /proc/mounts || die "mounted as: $(grep ' /mnt ' /proc/mounts)"
    mkdir "$m" || die "mkdir"
    w=$(ops WRITE)
    # The page cache sends WRITEs of whole pages, and one of the rest.
    for size in 1 $((n - 1)) $n $((n + 1)) $((3 * n + 7)); do
        first $size /tmp/iosize > /tmp/part
        cat /tmp/part > "$m/$size" || die "write $size"
        same "$size on the server, wsize $n" /tmp/part "$e/$size"
    done
    # A direct write sends exactly its own octets, at an odd offset.
    for size in 1 5 1023 4097 $((n - 3)); do
        dd if=/tmp/iosize of="$m/odd" bs=$size count=3 seek=1 skip=1 oflag=direct conv=notrunc 2> /dev/null || die "direct write of $size"
        dd if=/tmp/iosize bs=$size count=3 skip=1 2> /dev/null > /tmp/part
        dd if="$e/odd" bs=$size count=3 skip=1 2> /dev/null | cmp - /tmp/part || die "direct write of $size, wsize $n"
    done
    w=$(($(ops WRITE) - w))
    cold
    r=$(ops READ)
    for size in 1 $((n - 1)) $n $((n + 1)) $((3 * n + 7)); do
        same "$size read back, rsize $n" "$e/$size" "$m/$size"
    done
    for size in 1 5 1023 4097 $((n - 3)); do
        dd if="$m/odd" bs=$size count=3 skip=1 iflag=direct 2> /dev/null > /tmp/part || die "direct read of $size"
        dd if="$e/odd" bs=$size count=3 skip=1 2> /dev/null | cmp - /tmp/part || die "direct read of $size, rsize $n"
    done
    echo "rsize and wsize $n: $w WRITEs, $(($(ops READ) - r)) READs"
    rm -r "$m" || die "rm -r"
    do_umount
done
rm /tmp/iosize /tmp/part
end
echo PASS
