#!/bin/sh
# refused.sh VERS HOST PORT [MOUNTPORT] tries a mount that must fail, and not after more than WITHIN seconds, 90
# if that is not set. It prints what mount.nfs says. The mount is the one of lib.sh, but mount.nfs may not
# try again by itself.
. /lab/lib.sh
OPTS=${OPTS:+$OPTS,}retry=0
begin
(do_mount) > /tmp/refused.out 2>&1 &
n=$((${WITHIN:-90} * 10))
while kill -0 $! 2> /dev/null; do
    n=$((n - 1))
    [ $n -gt 0 ] || die "the mount neither succeeded nor failed in time"
    sleep 0.1
done
wait $! && die "mounted: $(grep ' /mnt ' /proc/mounts)"
cat /tmp/refused.out
end
echo PASS
