#!/bin/sh
# fio.sh VERS HOST PORT [MOUNTPORT] runs several fio jobs that write data and verify them by
# checksum. SIZE (default 4m) is how much each process of each job writes. RESTART=N stops knfsd N
# times while the jobs run, and starts it again. Fast jobs run again until knfsd has been stopped
# that often, or until the file UNTIL exists. The line "fio runs" tells the caller that it can now
# stop something else, and then create UNTIL.
#
# A direct write of several RPCs may end short when a restart interrupts it. POSIX allows this, and
# the Linux client does it without any bridge too; fio then expects the rest in the wrong place. So
# with RESTART direct writes are shorter than one RPC, and large writes use the page cache.
. /lab/lib.sh
size=${SIZE:-4m}
# knfsd forgets a client that unmounted before the grace period ended, and logs that.
[ -z "$RESTART" ] || DMESG_ALLOW='NFSD: Failed to remove expired client state'
begin
do_mount
big='ioengine=libaio direct=1 iodepth=4'
[ -z "$RESTART" ] || big='ioengine=psync fsync=4'
d=/mnt/fio-$vers-$port
mkdir -p "$d"
cat > /tmp/fio.ini << EOF
[global]
directory=$d
size=$size
thread=1
verify=crc32c
verify_fatal=1
group_reporting=1
randseed=8166
fallocate=none

[small-direct]
rw=randwrite
bsrange=512-16k
blockalign=512
direct=1
ioengine=libaio
iodepth=8
numjobs=2

[mixed]
rw=randrw
bssplit=1k/20:4k/40:32k/30:128k/10
ioengine=psync
fsync=32

[stream]
rw=write
bs=1m
$(echo $big | tr ' ' '\n')

[buffered]
rw=randwrite
bs=4k
ioengine=psync
end_fsync=1
EOF
restarts() {
    n=${RESTART:-0}
    while [ "$n" -gt 0 ]; do
        sleep 3
        /lab/knfsd.sh stop || die "knfsd stop"
        sleep 2
        /lab/knfsd.sh start || die "knfsd start"
        echo "knfsd stopped and started"
        n=$((n - 1))
    done
}
rm -f /tmp/fio.restarts
{
    (restarts)
    echo $? > /tmp/fio.restarts
} &
echo "fio runs"
n=0
while [ $n = 0 ] || [ ! -s /tmp/fio.restarts ] || { [ -n "$UNTIL" ] && [ ! -e "$UNTIL" ]; }; do
    fio --output=/tmp/fio.out /tmp/fio.ini || { cat /tmp/fio.out; die "fio: status $?"; }
    grep -E 'err=|READ:|WRITE:|verify' /tmp/fio.out
    grep -q 'err= *[1-9]' /tmp/fio.out && die "fio saw errors"
    n=$((n + 1))
done
echo "fio ran $n times"
equal "status of the restarts" "$(cat /tmp/fio.restarts)" 0
cold
# A verify run that writes nothing checks the checksums again after the caches are dropped.
fio --verify_only --output=/tmp/fio.out /tmp/fio.ini || { cat /tmp/fio.out; die "fio --verify_only: status $?"; }
rm -r "$d" || die "rm -r"
do_umount
end
echo PASS
