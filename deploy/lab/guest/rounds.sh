#!/bin/sh
# rounds.sh HOST PORT MOUNTPORT runs a client's load while the caller injects faults: with each of
# the NFS versions in VERSIONS at the same time, fio writes and verifies in turns, and meta.c works
# on names. Both report in /host; the file /host/stop ends them.
#
#   /host/meta-VERS-N   the log of one meta
#   /host/fio-VERS      the passes of fio
#   /host/beat          written once a second: uptime, and for each version how many octets have
#                       gone from and to the server. The file's time tells the caller how its
#                       clock differs from the guest's
#
# The script prints "load runs", and PASS at the end. MAXLAT is how many seconds one read or write
# of fio may take, and LOOPS is how many meta.c run with each version.
host=$1 port=$2 mountport=$3
versions=$VERSIONS
die() {
    echo "FAIL: $*"
    exit 1
}
m() { echo "/mnt/$1"; }

# Each direct read and write is one RPC: fio.sh says why.
do_mount() {
    mkdir -p "$(m "$1")"
    o=vers=$1,proto=tcp,port=$port,hard,timeo=600,rsize=131072,wsize=131072,actimeo=0,lookupcache=none
    case $1 in
    3) mount.nfs "$host:/export" "$(m "$1")" -o "$o,nolock,mountport=$mountport,mountproto=tcp" ;;
    4.0) mount.nfs "$host:/" "$(m "$1")" -o "$o,clientaddr=0.0.0.0" ;; # disables callbacks
    *) mount.nfs "$host:/" "$(m "$1")" -o "$o" ;;
    esac || die "mount of version $1: status $?"
}

fio_ini() { # VERS SEED
    cat << EOF
[global]
directory=$(m "$1")/fio-$1
thread=1
verify=crc32c
verify_fatal=1
group_reporting=1
randseed=$2
fallocate=none
max_latency=${MAXLAT}s
rate_iops=20

[direct]
rw=randwrite
size=${SIZE:-512k}
bsrange=512-16k
blockalign=512
direct=1
ioengine=libaio
iodepth=4
numjobs=2

[buffered]
rw=randwrite
size=${SIZE:-512k}
bssplit=1k/20:4k/40:32k/30:128k/10
ioengine=psync
fsync=32
EOF
}

# fio_loop overwrites the data with other data in each pass, verifies them, and verifies them again
# with the server's copy.
fio_loop() {
    n=0
    while [ ! -e /host/stop ] && [ ! -e /host/failed ]; do
        n=$((n + 1))
        fio_ini "$1" $((8166 + n)) > "/tmp/fio-$1.ini"
        for how in '' --verify_only; do
            [ -z "$how" ] || echo 1 > /proc/sys/vm/drop_caches
            if ! fio $how --output="/tmp/fio-$1.out" "/tmp/fio-$1.ini" > "/tmp/fio-$1.err" 2>&1 ||
                grep -q 'err= *[1-9]' "/tmp/fio-$1.out"; then
                echo "FAIL: fio $how, version $1, pass $n"
                cat "/tmp/fio-$1.err" "/tmp/fio-$1.out"
                touch /host/failed
                return 1
            fi
            echo "$n ${how:-write}: $(sed -n 's/^ *lat (\(.*sec\)).*max=\([^,]*\),.*/\2 \1/p' "/tmp/fio-$1.out" | tr '\n' ';')"
        done
    done
}

beat() {
    while :; do
        awk -v versions="$versions" '/^device/ { on = $5 ~ "^/mnt/[34]"; name = substr($5, 6) }
            on && /bytes:/ { b[name] = $6 + $7 }
            END {
                getline < "/proc/uptime"
                line = $1
                n = split(versions, v, " ")
                for (i = 1; i <= n; i++) line = line " " b[v[i]]
                print line
            }' /proc/self/mountstats > /host/beat.new
        mv /host/beat.new /host/beat
        sleep 0.5
    done
}

case $STEP in
state) # shows what hangs, for the report of a failure
    for p in $(pidof meta fio); do
        for t in /proc/$p/task/*; do
            echo "== $(tr '\0' ' ' < $t/cmdline)"
            cat $t/stack
        done
    done
    dmesg | tail -30
    exit 0
    ;;
esac

rm -f /host/stop /host/failed /host/meta-* /host/fio-*
for v in $versions; do
    do_mount $v
    mkdir -p "$(m $v)/fio-$v"
done
beat &
beat=$!
pids=''
for v in $versions; do
    for n in $(seq $LOOPS); do
        mkdir -p "$(m $v)/meta-$v-$n"
        /lab/meta "$(m $v)/meta-$v-$n" "m$n" "/host/meta-$v-$n" /host/stop &
        pids="$pids $!"
    done
    fio_loop $v > "/host/fio-$v" &
    pids="$pids $!"
done
echo "load runs"
for p in $pids; do wait $p || bad=1; done
kill $beat
[ -z "$bad" ] || { tail -n 2 /host/meta-*; cat /host/fio-*; die "see above"; }
for v in $versions; do
    umount "$(m $v)" || die "umount of version $v: status $?"
done
# Verify the server's copy through a new mount.
echo 3 > /proc/sys/vm/drop_caches
for v in $versions; do
    do_mount $v
    fio --verify_only --output=/tmp/fio.out "/tmp/fio-$v.ini" || { cat /tmp/fio.out; die "fio --verify_only: status $?"; }
    umount "$(m $v)" || die "umount of version $v: status $?"
done
dmesg | grep -v 'NFSD: Using .* state recovery directory' | grep -E 'BUG|WARNING|Oops|Call Trace|NFS: .*(lost|failed)|state recovery|hung task|blocked for more' && die "see the kernel's log above"
echo PASS
