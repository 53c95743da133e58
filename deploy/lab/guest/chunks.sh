#!/bin/sh
# chunks.sh VERS HOST PORT [MOUNTPORT] sends WRITEs and READs of 8 KiB, 64 KiB and 1 MiB past the
# page cache, and prints how many of each it has sent.
. /lab/lib.sh
begin
f=chunks-$vers-$port
do_mount
random 4194304 > /tmp/chunks
for size in 8k:64 64k:16 1M:4; do
    bs=${size%:*} count=${size#*:}
    dd if=/tmp/chunks of=/tmp/want bs=$bs count=$count 2> /dev/null
    dd if=/tmp/want of="/mnt/$f" bs=$bs oflag=direct 2> /dev/null || die "write $bs: status $?"
    same "written $bs" /tmp/want "/export/$f"
    dd if="/mnt/$f" of=/tmp/read bs=$bs iflag=direct 2> /dev/null || die "read $bs: status $?"
    same "read $bs" /tmp/want /tmp/read
    rm "/mnt/$f"
done
echo "WRITE $(ops WRITE) READ $(ops READ)"
do_umount
rm /tmp/chunks /tmp/want /tmp/read
end
echo PASS
