#!/bin/sh
# largest.sh VERS HOST PORT [MOUNTPORT] mounts without naming sizes, expects RSIZE and WSIZE, and writes and
# reads 1 MiB at a time past the page cache: the client divides that by what the server and the bridge carry.
. /lab/lib.sh
begin
f=largest-$vers-$port
random 5000001 > /tmp/largest
do_mount
grep -q " /mnt .*,rsize=$RSIZE,wsize=$WSIZE," /proc/mounts || die "mounted as: $(grep ' /mnt ' /proc/mounts)"
w=$(ops WRITE)
dd if=/tmp/largest of="/mnt/$f" bs=1M oflag=direct 2> /dev/null || die "write"
w=$(($(ops WRITE) - w))
same "what was written" /tmp/largest "$SERVER/$f"
cold
r=$(ops READ)
dd if="/mnt/$f" of=/tmp/part bs=1M iflag=direct 2> /dev/null || die "read"
r=$(($(ops READ) - r))
same "what was read" /tmp/largest /tmp/part
rm "/mnt/$f" /tmp/largest /tmp/part
do_umount
echo "$w WRITEs, $r READs"
[ $w -ge $((5000001 / WSIZE)) ] || die "$w WRITEs of at most $WSIZE"
[ $r -ge $((5000001 / RSIZE)) ] || die "$r READs of at most $RSIZE"
end
echo PASS
