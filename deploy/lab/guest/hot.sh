#!/bin/sh
# hot.sh VERS HOST PORT [MOUNTPORT] reads files of three exports as often as their names say, with six client machines: one of NFSv3
# and one of NFSv4.2 for each export, whichever VERS is. exports.sh has made the exports.
#
#   STEP=mount    all of them mount
#   STEP=work     makes the files, reads them, and changes names. It prints "client DIRECTORY CALLS READ WRITTEN" for each
#                 client: the octets, and the Calls that name a file, that the kernel has counted. Those with which NFSv4 goes from the
#                 root to DIRECTORY are not in there, some ten for each mount. They are few beside those of the tree that is unpacked at
#                 the root.
#   STEP=again    reads two files: read-80, whose name is looked up again, and read-120, which is open since STEP=work
#   STEP=umount   all of them unmount
. /lab/lib.sh
export STEP NAME
# Machine, version, and directory below the server's root. Either version is the first to see an export.
clients='c1:3: c2:4.2: c3:4.2:/archive c4:3:/archive c5:3:/secret c6:4.2:/secret'

# files prints the numbers of blocks of the files in DIR.
files() {
    case $DIR in
    '') echo 140 110 80 50 20 ;;
    /archive) echo 130 100 70 40 10 ;;
    /secret) echo 120 90 60 30 ;;
    esac
}
# blocks FILE N reads N blocks.
blocks() { dd if="$1" of=/dev/null bs=4k count="$2" iflag=direct 2> /dev/null || die "$NAME: read $1"; }
# at NAME... runs STEP on these machines at once.
at() {
    started=
    for x in $clients; do
        n=${x%%:*} x=${x#*:}
        case " $* " in
        *" $n "*)
            NAME=$n DIR=${x#*:} /lab/client.sh "$n" /lab/hot.sh "${x%%:*}" "$host" "$port" "$mountport" &
            started="$started $!"
            ;;
        esac
    done
    for p in $started; do wait "$p" || die "$STEP on $*"; done
}
m=/mnt/hot
case $NAME:$STEP in
:mount)
    for c in c1 c2 c3 c4 c5 c6; do at $c; done
    ;;
:work)
    mkdir -p /tmp/hot-tree && cd /tmp/hot-tree || die mkdir
    for d in 1 2 3 4 5 6 7 8 9 10; do
        mkdir d$d
        for f in $(seq 25); do echo "$d $f" > d$d/f$f; done
    done
    tar cf /tmp/hot.tar . && cd / && rm -r /tmp/hot-tree || die tar
    STEP=make
    at c1 c3 c5
    STEP=read
    at c1 c2 c3 c4 c5 c6
    STEP=change
    at c1 c2 c4
    STEP=count
    at c1 c2 c3 c4 c5 c6
    ;;
:again)
    at c1 c6
    ;;
:umount)
    at c1 c2 c3 c4 c5 c6
    ;;
*:mount) do_mount ;;
*:make)
    mkdir $m $m/sub || die mkdir
    for n in $(files); do
        random $((n * 4096)) > $m/new && mv $m/new $m/sub/read-$n || die "write"
    done
    if [ $NAME = c1 ]; then random $((150 * 4096)) > $m/gone || die "write"; fi
    ;;
*:read)
    for n in $(files); do blocks $m/sub/read-$n $((n / 2)); done
    [ -n "$DIR" ] || blocks $m/gone 75
    ! [ $NAME = c2 ] || tar xf /tmp/hot.tar -C $m || die untar
    ;;
c1:change) # the same names for other files
    rm $m/gone && random $((4 * 4096)) > $m/gone && blocks $m/gone 4 || die rm
    cd $m/sub && mv read-140 other && mv read-110 read-140 && mv other read-110 || die mv
    ;;
c4:change) ln $m/sub/read-130 $m/link && rm $m/sub/read-130 && mv $m/link $m/sub/read-130 || die ln ;;
c2:change) rm -r $m/d1 && mv $m/d2 $m/d1 || die rm ;;
*:count)
    awk -v dir="$DIR" '
        /^device/ { on = $5 == "/mnt" }
        !on { next }
        $1 == "bytes:" { read = $6; written = $7 }
        NF > 8 && $1 ~ /^[A-Z_0-9]*:$/ && $1 !~ /^(NULL|SEQUENCE|EXCHANGE_ID|LOOKUP_ROOT|.*_SESSION|RECLAIM_COMPLETE):$/ { calls += $2 }
        END { printf "client %s %d %d %d\n", "/export" dir, calls, read, written }' /proc/self/mountstats
    if [ $NAME = c6 ]; then # opens a file before the bridge starts again, and reads it after that
        {
            until [ -e /run/hot-go ]; do sleep 0.2; done
            cat
            rm /run/hot-go
        } < $m/sub/read-120 > /dev/null 2>&1 &
    fi
    ;;
c1:again)
    echo 3 > /proc/sys/vm/drop_caches
    blocks $m/sub/read-80 40
    ;;
c6:again)
    touch /run/hot-go
    while [ -e /run/hot-go ]; do sleep 0.2; done
    ;;
*:umount) do_umount ;;
esac
