#!/bin/sh
# locks3.sh has clients of NFSv3 that lock through the bridge's lock manager, all in namespaces of this guest, whose
# knfsd is the storage. /host/rdmabridge is the bridge.
#
#   c1 c2 c3 c4 -- 10.0.2.29 on c9, with rpcbind at port 111 -- 10.7.9.2, TCP --> 10.7.9.1, knfsd and lockd
#   c8 ------------------------------------------------------------------------> 10.7.8.1, the same
#
# STEPS has the steps, by default all:
#
#   contend   two clients, a client and one beside the bridge, a client and a process of the server want one lock
#   mountudp  a client mounts by MOUNT over UDP
#   killed    a client waits while the bridge is killed, and started again
#   handover  a client waits while another process takes over from the bridge
#   rdma      a client on RDMA and others want one lock; KILLS="15 2" kills the bridge twice meanwhile, every 15 s
#   torture   four clients add to a number under a lock, and the bridge is killed again and again
#   crash     a client is away without a word, and starts again: its locks are free, and those of others stay
#   restart   the server restarts while three clients have 50 locks, and a fourth waits for one: all are reclaimed
#   both      the same, and the bridge is killed meanwhile
#   chain     the same, with a client behind a second bridge, 10.0.2.27 on c7, whose storage is the first one
#
# Lines that begin with "granted" say how long it took. With DIRECT=1 all clients are beside the bridge, as c8 is: a step that
# fails then, too, does not show a bug of the bridge.
. /lab/lib.sh
vers=3 N=17 bridge=10.0.2.29
STEPS=${STEPS:-contend mountudp killed handover rdma torture crash restart both chain}
all='c1 c2 c3 c4 c8'
trap at_exit EXIT
at_exit() {
    touch /tmp/free-all
    for c in $all; do /lab/client.sh $c umount -l /mnt; done 2> /dev/null
    PROTO=rdma /lab/client.sh c6 umount -l /mnt 2> /dev/null
    [ ! -e /tmp/passed ] || return
    kill "$(cat /run/c9/pid)"
    tail -n 40 /host/c9.log
    [ "$(cat /proc/fs/nfsd/threads)" != 0 ] || start_server
}

# cable NAME joins machine NAME, as 10.7.N.2, with the server: slaves of ipvlan do not reach their master.
cable() {
    client "$1" true
    ! /usr/sbin/ip link show "nfs-$1" > /dev/null 2>&1 || return 0
    /usr/sbin/ip link add "nfs-$1" type veth peer name nfs
    /usr/sbin/ip link set nfs netns "$(cat "/run/client-$1")"
    ip addr add "10.7.${1#c}.1/24" dev "nfs-$1"
    ip link set "nfs-$1" up
    client "$1" sh -ec "ip addr add 10.7.${1#c}.2/24 dev nfs; ip link set nfs up"
}
# beside NAME: the machine mounts from the server itself.
beside() { [ "$1" = c8 ] || [ -n "$DIRECT" ]; }
# start_client NAME [ADDRESS] mounts from a bridge, c9's by default.
start_client() {
    from=${2:-$bridge}
    if beside "$1"; then
        cable "$1"
        from=10.7.${1#c}.1
    fi
    client_nlm "$1"
    client "$1" mount.nfs "$from:/export" /mnt -o vers=3
    client "$1" grep -q " /mnt nfs .*vers=3,.*local_lock=none" /proc/mounts
}
# configure NAME ADDRESS NFS MOUNT SERVER writes what the bridge on a machine has: its own address, and its storage's.
configure() {
    mkdir -p "/run/$1"
    rm -rf "/run/$1/state"
    cat > "/run/$1/rdmabridge.yaml" << YAML
listeners:
  - {name: nfs, address: "0.0.0.0:2049", upstream: storage, routes: [{program: mount, upstream: mountd}]}
  - {name: rdma, address: "0.0.0.0:20049", transport: rdma, provider: iwarp, upstream: storage}
upstreams:
  - {name: storage, transport: tcp, endpoints: ["$3"]}
  - {name: mountd, transport: tcp, endpoints: ["$4"]}
rpcbind: {address: "0.0.0.0:111"}
nlm: {address: "0.0.0.0:4045", server: $5, name: $1.lab, state: /run/$1/state, mount: udp}
memory: {budget: 64MiB}
admin: {address: "127.0.0.1:9090"}
control: {path: none}
handover: {path: /run/$1/handover.sock}
hardening: off
log: {format: json}
YAML
}
# bridge NAME starts it.
bridge() {
    client "$1" sh -c "echo \$\$ > /run/$1/pid; exec rdmabridge serve -c /run/$1/rdmabridge.yaml" >> "/host/$1.log" 2>&1 &
    until_is "the bridge on $1" ok 60 bridge_ready "$1"
}
# The server may be away, so that the bridge is not ready.
bridge_ready() { [ -z "$(known "$1")" ] || echo ok; }
# known NAME prints how many locks that bridge knows, how many are waited for, and by how many clients.
known() {
    /lab/client.sh "$1" wget -q -O - http://127.0.0.1:9090/api/v1/locks 2> /dev/null |
        sed -n 's/.*"held": *\([0-9]*\), *"waiting": *\([0-9]*\), *"clients": *\([0-9]*\).*/\1 \2 \3/p'
}
kill_bridge() { kill -9 "$(cat /run/c9/pid)"; }

now() { read -r up _ < /proc/uptime && echo "${up%.*}${up#*.}0"; } # in ms
# hold OPTION CLIENT FILE N holds N locks until /tmp/free-CLIENT exists. /tmp/said-CLIENT says when it got and freed them.
hold() {
    rm -f "/tmp/free-$2"
    (
        exec > "/tmp/said-$2" 2>&1
        { until [ -e "/tmp/free-$2" ] || [ -e /tmp/free-all ]; do read -r -t 0.1 _ <> /tmp/pause; done; } |
            /lab/client.sh "$2" /lab/locks "$1" "/mnt/$3" "$4" |
            while read -r word; do echo "$word $(now)"; done
    ) &
}
said() { awk -v w="$2" '$1 == w { print $2 }' "/tmp/said-$1"; }
has() { said "$1" held | wc -l; }
locked() { /lab/locks -n "/export/$1" "$2"; }
take() { hold -h "$@" && until_is "$1 has its locks" 1 60 has "$1"; }
await() { hold -w "$@" && until_is "the server knows that $1 waits" "$(($(waiting) + 1))" 60 waiting; }
waiting() { grep -c '^[0-9]*: ->' /proc/locks; }
free() { touch "/tmp/free-$1" && until_is "$1 has no lock" 1 60 freed "$1"; }
freed() { said "$1" freed | wc -l; }
# granted WHAT CLIENT T waits until a client has its lock, and tells how long after T that was.
granted() {
    until_is "$1: $2 has the lock" 1 120 has "$2"
    echo "granted $(($(said "$2" held) - $3)) ms $1"
}

begin
rm -f /tmp/free-* /tmp/said-* /tmp/passed /host/c[79].log
[ -p /tmp/pause ] || mkfifo /tmp/pause
rm -f /export/lock3-*
modprobe veth
cable c9
[ -e /bin/rdmabridge ] || cp /host/rdmabridge /bin/rdmabridge # a program on /host is read anew at each start
configure c9 $bridge 10.7.9.1:2049 10.7.9.1:20048 10.7.9.1
bridge c9
for c in $all; do start_client $c; done
/lab/client.sh c1 /usr/sbin/rpcinfo $bridge

step_contend() {
    one=$(client_mnt c1) two=$(client_mnt c2) beside=$(client_mnt c8)
    /lab/locks -3 "$one/lock3-a" "$two/lock3-a" || die "two clients: status $?"
    /lab/locks -3 "$one/lock3-b" "$beside/lock3-b" || die "a client and one beside the bridge: status $?"
    /lab/locks -3 "$two/lock3-c" "/export/lock3-c" || die "a client and the server: status $?"
}

step_mountudp() {
    client_umount c1
    client c1 mount.nfs $bridge:/export /mnt -o vers=3,proto=tcp,mountproto=udp
    client c1 grep -q " /mnt nfs .*mountproto=udp,.*local_lock=none" /proc/mounts
    client_umount c1
    start_client c1
}

step_killed() {
    take c1 lock3-d $N
    await c2 lock3-d 1
    kill_bridge
    bridge c9
    equal "locks, after the bridge was killed" "$(locked lock3-d $N)" $N
    until_is "what the bridge knows" "$N 1 2" 60 known c9
    free c1
    granted "after the bridge was killed" c2 "$(said c1 free)"
    free c2
    equal "locks that are left" "$(locked lock3-d $N)" 0
}

step_handover() {
    take c1 lock3-g $N
    await c2 lock3-g 1
    old=$(cat /run/c9/pid)
    kill -USR2 "$old"
    until_is "the old process" 1 60 ended "$old"
    sed -n 's/.*"event":"starting".*"pid":\([0-9]*\),.*/\1/p' /host/c9.log | tail -n 1 > /run/c9/pid
    until_is "what the new process knows" "$N 1 2" 60 known c9
    free c1
    granted "after a hand-over" c2 "$(said c1 free)"
    free c2
}
ended() { kill -0 "$1" 2> /dev/null; echo $?; }

# torture SECONDS KILLS FILE... has a client for each FILE add to the number in it under a lock, with so many kills of the bridge, and
# so many seconds between two of them. A lock that two have, or that is lost, makes an addition disappear.
torture() {
    pause=$1 kills=$2
    shift 2
    rm -f /tmp/until
    /lab/locks -c /tmp/until "$@" > /tmp/torture &
    load=$!
    while sleep "$pause" && [ "$kills" -gt 0 ]; do
        kills=$((kills - 1))
        kill_bridge
        bridge c9
    done
    touch /tmp/until
    wait $load || die "torture: status $?: $(tail -n 3 /tmp/torture)"
    for n in $(seq $#); do echo "client $n of the torture: $(grep -c "^$n$" /tmp/torture) additions"; done
    grep '^ok: ' /tmp/torture
}
step_torture() {
    files=
    for c in c1 c2 c3 c8; do files="$files $(client_mnt $c)/lock3-h"; done
    torture 4 4 $files
}

# siw makes its sockets in the first network namespace, which is the server's, too. So the client on RDMA has an address of its
# own there, 10.7.6.1: the bridge tells hosts apart by address.
on_rdma() { PROTO=rdma /lab/client.sh c6 "$@" || die "c6, on RDMA: $*: status $?"; }
step_rdma() {
    ip addr replace 10.7.6.1/24 dev nfs-c9
    client c9 ip addr replace 10.7.6.2/24 dev nfs
    rdma link add siw6 type siw netdev nfs-c9
    on_rdma mount.nfs 10.7.6.2:/export /mnt -o vers=3,proto=rdma,port=20049
    on_rdma grep -q " /mnt nfs .*proto=rdma,.*local_lock=none" /proc/mounts
    one=$(client_mnt c1) rdma=$(PROTO=rdma client_mnt c6)
    /lab/locks -3 "$rdma/lock3-j" "$one/lock3-j" || die "a client on RDMA and one on TCP: status $?"
    torture ${KILLS:-4 0} "$rdma/lock3-k" "$one/lock3-k" "$(client_mnt c8)/lock3-k"
    on_rdma umount /mnt
    rdma link del siw6
}

# The machine of c3 loses its network and then its process, so that nothing is unlocked. Another one with its address and
# what its statd has on disk is what it would be after a restart.
step_crash() {
    take c1 lock3-e $N
    take c3 lock3-f $N
    holder=$(for p in $(pidof locks); do ! grep -q lock3-f "/proc/$p/cmdline" || echo "$p"; done)
    await c2 lock3-f 1
    old=$(cat /run/client-c3)
    rm -rf /tmp/nsm
    cp -r "/proc/$old/root/var/lib/nfs" /tmp/nsm
    client c3 sh -c 'for l in c3 nfs; do [ ! -e /sys/class/net/$l ] || /usr/sbin/ip link del $l; done; umount -l /mnt; kill $(cat /run/rpc.statd.pid)'
    kill -9 "$holder"
    rm /run/client-c3
    sleep 1
    equal "locks of a client that is away" "$(locked lock3-f $N)" $N
    start_client c3
    began=$(now)
    client c3 sm-notify -d -f > /tmp/sm-notify 2>&1 &
    granted "after a client's crash" c2 "$began"
    free c2
    equal "locks of the client that crashed" "$(locked lock3-f $N)" 0
    equal "locks of the other client" "$(locked lock3-e $N)" $N
    free c1
}

start_server() {
    /lab/knfsd.sh start
    rpc.statd --no-notify
    sm-notify -d -f > /tmp/sm-notify 2>&1 &
}
# restart COMMAND restarts the server, and COMMAND comes while it is away. lockd forgets locks and hosts when no namespace needs
# it any more. So the kernel is told to forget the locks, and then forgets the hosts. It tells statd, which it would not in a crash,
# so statd gets back what it had on disk.
restart() {
    for c in $holders; do take $c "lock3-$c" $N; done
    await c4 lock3-c1 1
    rm -rf /tmp/sm
    cp -r /var/lib/nfs/sm /tmp
    echo /export > /proc/fs/nfsd/unlock_filesystem
    /lab/knfsd.sh stop
    kill "$(cat /run/rpc.statd.pid)"
    cp /tmp/sm/* /var/lib/nfs/sm
    "$@"
    equal "locks, after the server's restart" "$(locked lock3-c1 $N)" 0
    began=$(now)
    start_server
    for c in $holders; do until_is "locks of $c" $N 60 locked "lock3-$c" $N; done
    echo "granted $(($(now) - began)) ms until $(($(echo $holders | wc -w) * N)) locks were reclaimed"
    equal "the fourth client has a lock" "$(has c4)" 0
    sleep 60 # the grace period
    for c in $holders; do equal "locks of $c, after the grace period" "$(locked "lock3-$c" $N)" $N; done
    equal "the fourth client has a lock, after the grace period" "$(has c4)" 0
    free c1
    granted "after the grace period" c4 "$(said c1 free)"
    for c in ${holders#c1 } c4; do free $c; done
    for c in $holders; do equal "locks that are left in lock3-$c" "$(locked "lock3-$c" $N)" 0; done
}
holders='c1 c2 c3'
step_restart() { restart true; }
kill_and_start() { kill_bridge && bridge c9; }
step_both() { restart kill_and_start; }

step_chain() {
    client c7 true
    configure c7 10.0.2.27 $bridge:2049 $bridge:2049 $bridge
    bridge c7
    all="$all c5"
    start_client c5 10.0.2.27
    take c1 lock3-i $N
    await c5 lock3-i 1
    free c1
    granted "through two bridges" c5 "$(said c1 free)"
    free c5
    holders='c1 c5' restart true
    client_umount c5
    all=${all% c5}
    kill "$(cat /run/c7/pid)"
}

for s in $STEPS; do
    echo "step $s"
    "step_$s"
done
for c in $all; do client_umount $c; done
rm -f /export/lock3-*
kill "$(cat /run/c9/pid)"
touch /tmp/passed
DMESG_ALLOW='lockd: server .* not responding|rpcrdma: connection to' end
echo PASS
