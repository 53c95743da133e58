#!/bin/sh
# read.sh VERS HOST PORT [MOUNTPORT] reads 32 MiB in READs of 1 MiB, past the page cache.
. /lab/lib.sh
begin
f=read-$vers-$port
random 33554432 > "/export/$f" || die "no room in /export"
do_mount
dd if="/mnt/$f" of=/tmp/read bs=1M iflag=direct 2>/dev/null || die "dd: status $?"
same "what was read" /tmp/read "/export/$f"
do_umount
rm "/export/$f" /tmp/read
end
echo PASS
