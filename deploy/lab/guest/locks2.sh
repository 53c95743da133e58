#!/bin/sh
# locks2.sh VERS HOST PORT [MOUNTPORT] makes two clients lock one file.
. /lab/lib.sh
begin
f=locks2-$vers-$port
client_mount c1
client_mount c2
/lab/locks -2 "$(client_mnt c1)/$f" "$(client_mnt c2)/$f" || die "locks: status $?"
rm "$(client_mnt c1)/$f"
client_umount c1
client_umount c2
end
echo PASS
