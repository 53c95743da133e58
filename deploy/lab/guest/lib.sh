# lib.sh has what the test scripts share; they source it. $1 = vers (3, 4.0, 4.1, 4.2), $2 = host,
# $3 = NFS port, $4 = MOUNT port (default $3). PROTO=rdma mounts over RDMA instead of TCP;
# SEC=krb5 and so on sets the security flavor, DIR=/disk a directory of the export, and OPTS
# further options of the mount. EXPORT is the export's path, and SERVER a path at which its
# files are visible without the server; both are /export if the server is the guest's own.
# The mount is at /mnt.
vers=$1 host=$2 port=$3 mountport=${4:-$3}
EXPORT=${EXPORT:-/export} SERVER=${SERVER:-/export}

die() {
    echo "FAIL: $*"
    exit 1
}

# The shell would use the cmp and head of busybox, which handle octet after octet, at a great cost
# under emulation.
cmp() { /usr/bin/cmp "$@"; }
# first N FILE prints the first N octets of FILE.
first() { dd if="$2" bs=1M count="$1" iflag=count_bytes,fullblock 2> /dev/null; }
# random N prints N random octets.
random() { first "$1" /dev/urandom; }

# same WHAT A B fails unless the files A and B are equal, byte for byte.
same() { cmp "$2" "$3" || die "$1"; }

# equal WHAT GOT WANT fails unless the two words are equal.
equal() { [ "$2" = "$3" ] || die "$1: got \"$2\", want \"$3\""; }

# until_is WHAT WANT SECONDS COMMAND... fails unless COMMAND prints WANT within that time.
until_is() {
    what=$1 want=$2 n=$(($3 * 10))
    shift 3
    while [ "$("$@")" != "$want" ]; do
        n=$((n - 1))
        [ $n -gt 0 ] || die "$what: got \"$("$@")\", want \"$want\"; states: $(cat /proc/fs/nfsd/clients/*/states 2> /dev/null)"
        sleep 0.1
    done
}

# port_in_use reports whether a mount failed because rdma_cm had chosen a local port without asking TCP: siw
# then finds it in TIME_WAIT.
port_in_use() { [ "$PROTO" = rdma ] && grep -q 'Cannot assign requested address' "/tmp/mount.$$"; }

# old_pipe reports whether a mount failed because rpc.gssd uses the kernel's old pipe. nfs-utils 2.6 looks for
# the new pipe first, and then for the old one. If the kernel makes both in between, it finds the old one,
# which does not say which enctypes the kernel has. It then asks Kerberos for DES, and in vain. The next
# mount has other pipes.
old_pipe() {
    grep gss_set_allowable_enctypes "/tmp/gssd.$(hostname)" 2> /dev/null || return 1
    : > "/tmp/gssd.$(hostname)"
}

do_mount() {
    opts=vers=$vers,proto=${PROTO:-tcp},port=$port,hard,timeo=${TIMEO:-600}${SEC:+,sec=$SEC}${OPTS:+,$OPTS}
    case $vers in
    3) opts=$opts,nolock,mountport=$mountport,mountproto=tcp from=$host:$EXPORT$DIR ;;
    4.0) opts=$opts,clientaddr=0.0.0.0 from=$host:${DIR:-/} ;; # 0.0.0.0 disables callbacks
    *) from=$host:${DIR:-/} ;;
    esac
    tries=1
    until mount.nfs "$from" /mnt -o "$opts" 2> "/tmp/mount.$$"; do
        rc=$?
        cat "/tmp/mount.$$"
        [ $tries -lt 5 ] && { port_in_use || old_pipe; } || die "mount $from -o $opts: status $rc"
        tries=$((tries + 1))
    done
    grep -q " /mnt nfs.*[ ,]vers=$vers[, ]" /proc/mounts || die "mounted as: $(grep ' /mnt ' /proc/mounts)"
}

do_umount() { umount /mnt || die "umount: status $?"; }

# ops NAME prints how many times the mount has sent NFS operation NAME.
ops() { awk -v op="$1:" '/^device/ { on = $5 == "/mnt" } on && $1 == op { print $2 }' /proc/self/mountstats; }

# cold makes the client forget all that it has cached of the mount.
cold() {
    do_umount
    echo 3 > /proc/sys/vm/drop_caches
    do_mount
}

# Client machines c1 and c2 of client.sh mount with the arguments of this script; c2 mounts from
# port PORT2 if that is set.
client() { /lab/client.sh "$@" || die "client $*: status $?"; }
client_mount() {
    trap 'for c in c1 c2; do /lab/client.sh $c umount -l /mnt; done 2> /dev/null' EXIT # also after a test that fails
    p=$port
    [ "$1" != c2 ] || p=${PORT2:-$port}
    client "$1" sh -c '. /lab/lib.sh; do_mount' sh "$vers" "$host" "$p" "$mountport"
}
client_umount() { client "$1" umount /mnt; }
# client_mnt NAME prints the path of client NAME's mount for a process outside the clients.
client_mnt() {
    case $PROTO in
    rdma) echo "/proc/$(cat "/run/client-$1-rdma")/root/mnt" ;;
    *) echo "/proc/$(cat "/run/client-$1")/root/mnt" ;;
    esac
}

# client_nlm NAME starts what a client machine that locks needs of its own: an rpcbind and a statd, and these need a /run. statd
# begins with what is in /tmp/nsm. The number in /proc/sys/fs/nfs/nsm_local_state is one for all namespaces, and no
# client machine may write it.
client_nlm() {
    client "$1" sh -ec '
        [ ! -e /run/nlm ] || exit 0
        mount -t tmpfs tmpfs /run
        mount -t tmpfs tmpfs /var/lib/nfs
        mount -o bind /proc/sys /proc/sys
        mount -o bind,remount,ro /proc/sys
        mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak
        [ ! -e /tmp/nsm ] || cp -r /tmp/nsm/* /var/lib/nfs
        touch /var/lib/nfs/state
        rpcbind -w
        rpc.statd --no-notify
        touch /run/nlm'
}

# after_grace waits until lockd's grace period is over: the server grants no delegations in it. It
# lasts 50 s after boot and cannot be shortened.
after_grace() { while [ "$(cut -d. -f1 /proc/uptime)" -lt 70 ]; do sleep 1; done; }

# infos prints what the server knows of c1 and c2, without earlier clients of other versions.
infos() { cat $(grep -l "^name: \"Linux NFSv$vers c[12]" /proc/fs/nfsd/clients/*/info); }

# ups prints how many of them have a working callback connection.
ups() { infos | grep -c 'callback state: UP'; }

# kernel_log prints the kernel's log without a warning that says nothing about a bridge. Who looks for a file
# of a client in /proc/fs/nfsd/clients just when the client goes, leaves the name of a file that is not
# there, and nfsd of Linux 6.1 wonders about it (nfsdfs_remove_files).
kernel_log() {
    dmesg | awk '
        /cut here/ { block = ""; inside = 1 }
        !inside { print; next }
        { block = block $0 "\n" }
        /end trace/ { if (block !~ /nfsdfs_remove_files/) printf "%s", block; block = ""; inside = 0 }
        END { printf "%s", block }'
}

# end fails if the kernel, as client or as server, has logged a problem since begin. DMESG_ALLOW is
# a pattern of lines that the caller provokes. The Calls of the server's lockd do not reach NLM
# clients through a bridge: lockd gives up minutes after nlm.sh, and end ignores that, and what the client says that
# locks3.sh has left without a network.
begin() { echo "lab: begin $$" > /dev/kmsg; }
end() {
    kernel_log | sed "1,/lab: begin $$/d" > "/tmp/dmesg.$$"
    if grep -iE 'bug|warn|oops|call trace|not responding|timed out|reject|corrupt|fail|error|unexpected|svcrdma|siw:|rpcrdma|hung|lost|callback' \
        "/tmp/dmesg.$$" | grep -vE "lockd: server (c[12]|10\.0\.2\.29) not responding|${DMESG_ALLOW:-^$}"; then
        die "see the kernel's log above"
    fi
}
