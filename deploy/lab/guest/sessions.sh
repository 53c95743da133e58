#!/bin/sh
# sessions.sh VERS HOST PORT is the clients of a fleet: client machines that mount one server through one
# bridge, with NFSv4.1 or later, while the caller breaks things. CLIENTS lists them, as
# c1:VERS[:OPTIONS] and so on. FLEET is the fleet's name. Run it with
#
#   STEP=start   mounts, and starts the load: each client has a fio that writes and verifies, and all
#                add to one number under one lock (locks -c)
#   STEP=going   waits until fio and locks of each client have gone on since it began
#   STEP=recall  each client is granted a delegation, which another client's write recalls; then all
#                have one for the same file, and the server recalls them at once. The
#                server is the guest's own
#   STEP=locks   runs locks.c with pairs of clients
#   STEP=stop    ends the load, verifies the server's copy, and unmounts
#
# A fio that reads a wrong octet or gets an error ends, and so does a process that cannot lock, unlock,
# or read or write under its lock. Every step fails then. The files /tmp/FLEET.* have what they said.
#
# RECALL is how many milliseconds a recall may take. PACE is how many reads or writes each job of fio does per second. MAXLAT is how many seconds one of them
# may take.
. /lab/lib.sh
die() {
    echo "FAIL: $*"
    dmesg | tail -n 20
    exit 1
}
load=/tmp/$FLEET
dir=sessions-$FLEET
names=$(for c in $CLIENTS; do echo "${c%%:*}"; done)
mnt() { echo "$(client_mnt "$1")/$dir"; }
ms() { awk '{ print int($1 * 1000) }' /proc/uptime; }

# alive WHEN fails if a part of the load has failed.
alive() {
    if ls "$load".*.failed > /dev/null 2>&1; then
        cat "$load".*.failed
        die "the load of $FLEET has failed, $1"
    fi
}

fio_ini() { # CLIENT SEED
    cat << EOF
[global]
directory=$(mnt "$1")/$1
thread=1
verify=crc32c
verify_fatal=1
group_reporting=1
randseed=$2
fallocate=none
max_latency=${MAXLAT:-120}s
rate_iops=${PACE:-8}

[direct]
rw=randwrite
size=${SIZE:-128k}
bsrange=512-16k
blockalign=512
direct=1
ioengine=libaio
iodepth=4

[buffered]
rw=randwrite
size=${SIZE:-128k}
bssplit=1k/20:4k/40:32k/30:128k/10
ioengine=psync
fsync=32
EOF
}

# fio_loop overwrites the data with other data in each pass, and verifies them.
fio_loop() {
    n=0
    while [ ! -e "$load.until" ]; do
        n=$((n + 1))
        fio_ini "$1" $((8881 + n)) > "$load.$1.ini"
        if ! fio --output="$load.$1.out" "$load.$1.ini" > "$load.$1.err" 2>&1 || grep -q 'err= *[1-9]' "$load.$1.out"; then
            { echo "fio of $1, pass $n:"; cat "$load.$1.err" "$load.$1.out"; } > "$load.$1.failed"
            return 1
        fi
        echo "$n" > "$load.$1.passes"
    done
}

# moved prints how many octets of data have gone from and to the server for client $1.
moved() {
    awk '/^device/ { on = $5 == "/mnt" } on && /bytes:/ { print $6 + $7 }' \
        "/proc/$(cat "/run/client-$1")/mountstats"
}
# added prints how often client $1, the $2nd of the fleet, has added to the number.
added() { grep -c "^$2$" "$load.locks"; }

going() {
    began=$(ms) i=0
    for c in $names; do
        i=$((i + 1))
        eval "moved$i=$(moved $c) added$i=$(added $c $i)"
    done
    i=0
    for c in $names; do
        i=$((i + 1))
        eval "m=\$moved$i a=\$added$i"
        until [ "$(moved $c)" -gt $((m + 8192)) ] && [ "$(added $c $i)" -gt $((a + 2)) ]; do
            alive "while all of it should go on"
            [ $(($(ms) - began)) -lt "${WAIT:-100}000" ] ||
                die "$c does not go on: $(($(moved $c) - m)) octets, $(($(added $c $i) - a)) locks; $(cat "$load.locks.err")"
            sleep 0.2
        done
    done
    echo "$FLEET: all clients go on after $(($(ms) - began)) ms"
}

delegations() { cat /proc/fs/nfsd/clients/*/states 2> /dev/null | grep -c "type: deleg.*[\"/]$dir/$1\""; }

# granted CLIENT... opens a new file of the server with file descriptors 5, 6 and so on, one for each
# client, until each has a delegation for it. A server grants none in its grace period, and not to a client
# that it cannot call. The file's name is in $f.
granted() {
    began=$(ms)
    while :; do
        files=$((files + 1))
        f=deleg-$(ms)-$files
        echo data > "/export/$dir/$f"
        fd=5
        for c; do
            eval "exec $fd< '$(mnt "$c")/$f'" || die "open by $c"
            fd=$((fd + 1))
        done
        [ "$(delegations "$f")" != $# ] || return 0
        [ $(($(ms) - began)) -lt 60000 ] || die "$(delegations "$f") delegations for $*; the server's clients: $(cat /proc/fs/nfsd/clients/*/info)"
        exec 5<&- 6<&- 7<&-
        alive "while delegations should be granted"
        sleep 0.5
    done
}

# recalled FILE CLIENT... writes to the file, and checks that the delegations of all these clients are
# returned soon. If a recall does not arrive, the write takes as long as the server's lease.
recalled() {
    to=$1
    shift
    t0=$(ms)
    echo more >> "$to" || die "write to $to"
    took=$(($(ms) - t0))
    echo "$FLEET: recalled from $* in $took ms"
    # Two seconds where the processor is not emulated.
    [ $took -lt "${RECALL:-8000}" ] || die "the recall from $* took $took ms"
    equal "delegations after the recall" "$(delegations "$f")" 0
    read -r first <&5 || die "read through the file that was open"
    equal "read through the file that was open" "$first" data
    exec 5<&- 6<&- 7<&-
}

recall() {
    files=0
    set -- $names
    for c in $names; do
        shift # $1 is the client after c, or the first
        [ $# -gt 0 ] || set -- $names
        granted "$c"
        recalled "$(mnt "$1")/$f" "$c"
    done
    granted $names
    recalled "/export/$dir/$f" $names
}

case $STEP in
start)
    rm -f "$load".*
    mkdir -p "$SERVER/$dir"
    chmod 777 "$SERVER/$dir"
    for c in $CLIENTS; do
        IFS=: read -r name vers OPTS << EOF
$c
EOF
        export OPTS
        client "$name" sh -c '. /lab/lib.sh; do_mount' sh "$vers" "$host" "$port"
        mkdir -p "$(mnt "$name")/$name" || die "mkdir by $name"
    done
    set --
    for name in $names; do
        (fio_loop "$name") > "$load.$name.log" 2>&1 &
        echo $! > "$load.$name.pid"
        set -- "$@" "$(mnt "$name")/number"
    done
    {
        /lab/locks -c "$load.until" "$@" > "$load.locks" 2> "$load.locks.err" || cp "$load.locks.err" "$load.locks.failed"
    } &
    echo $! > "$load.locks.pid"
    ;;
going)
    alive "before it should go on"
    going
    ;;
recall)
    alive "before delegations are recalled"
    recall
    alive "while delegations were recalled"
    ;;
locks)
    alive "before the tests of locks"
    set -- $names
    for pair in "$1 $2" "$2 $3"; do
        one=${pair% *} two=${pair#* }
        /lab/locks -2 "$(mnt "$one")/locks" "$(mnt "$two")/locks" > "$load.pair" || { cat "$load.pair"; die "locks of $pair"; }
        echo "$FLEET: locks of $pair: $(grep granted "$load.pair" | grep -v ok: | tr '\n' ' ')"
    done
    alive "while locks were tested"
    ;;
stop)
    touch "$load.until"
    for p in "$load".*.pid; do
        n=0
        while [ -d "/proc/$(cat "$p")" ]; do
            n=$((n + 1))
            [ $n -lt 1200 ] || die "$p does not end"
            sleep 0.1
        done
    done
    alive "at its end"
    tail -n 1 "$load.locks"
    for c in $names; do
        echo "$FLEET: $c: $(cat "$load.$c.passes") passes of fio"
        client "$c" umount /mnt
    done
    echo 3 > /proc/sys/vm/drop_caches
    for c in $CLIENTS; do
        IFS=: read -r name vers OPTS << EOF
$c
EOF
        export OPTS
        client "$name" sh -c '. /lab/lib.sh; do_mount' sh "$vers" "$host" "$port"
        sed -i '/^rate_iops/d' "$load.$name.ini"
        fio --verify_only --output="$load.$name.out" "$load.$name.ini" || { cat "$load.$name.out"; die "fio --verify_only of $name: status $?"; }
        client "$name" umount /mnt
    done
    rm -r "$SERVER/$dir" "$load".*
    # "lost 1 locks" after a restart is also about locks that a process was waiting for. locks.c sees it when
    # one that a process had is lost.
    dmesg | grep -E 'BUG|WARNING|Oops|Call Trace|NFS: .*failed|hung task|blocked for more' &&
        die "see the kernel's log above"
    ;;
esac
echo PASS
