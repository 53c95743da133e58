#!/bin/sh
# ipvs.sh has clients of the kernel, a director with keepalived and IPVS, and two bridges in namespaces of this guest,
# whose knfsd is the storage. /host/rdmabridge is the bridge, and /host/ipvs.conf keepalived's configuration.
#
#   c1 c2 c3 c4 -- 10.8.0.100 on lb -- IPVS, source hashing, NAT --> b1 or b2 -- TCP --> knfsd
#
# Each client mounts the version of NFS that VERSIONS names for it, and meta.c works on names while
#
#   killed    the bridge of c1 is killed, and started again
#   silent    the machine of c1's bridge is cut off, and joined again
#   upgrade   each bridge hands over to a successor, one after the other
#   restart   each bridge drains, ends and is started again, one after the other
#
# The script prints a line for each, and PASS at the end: when keepalived had changed the table, or both bridges were done,
# and how long the longest operation of each client took.
die() {
    echo "FAIL: $*"
    touch /host/stop
    tail -n 3 /host/meta-*
    cat /host/keepalived.log
    tail -n 20 /host/b1.log /host/b2.log
    cat /proc/"$(cat /run/ns-lb)"/net/ip_vs /proc/"$(cat /run/ns-lb)"/net/ip_vs_conn
    echo "FAIL: $*"
    exit 1
}
ms() { awk '{ print int($1 * 1000) }' /proc/uptime; }
# soon WHAT COMMAND... waits until COMMAND succeeds, for two minutes.
soon() {
    what=$1 tries=600
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || die "not $what after two minutes"
        [ ! -e /host/failed ] || die "a client failed"
        sleep 0.2
    done
}

machine() {
    unshare -m -n -u sh -c "hostname $1; echo \$\$ > /run/ns-$1; exec sleep 1000000" > /dev/null 2>&1 &
    soon "a namespace" test -s "/run/ns-$1"
    in_ "$1" ip link set lo up
    in_ "$1" mount -t sysfs sys /sys
}
in_() {
    name=$1
    shift
    nsenter -t "$(cat "/run/ns-$name")" -m -n -u "$@"
}
# cable A ADDRESS B ADDRESS joins two machines; B may be the guest itself, "".
cable() {
    a=$1-${3:-nfs} b=${3:-nfs}-$1
    /usr/sbin/ip link add "$a" type veth peer name "$b"
    /usr/sbin/ip link set "$a" netns "$(cat "/run/ns-$1")"
    in_ "$1" sh -ec "ip addr add $2 dev $a; ip link set $a up" || die "$a"
    if [ -n "$3" ]; then
        /usr/sbin/ip link set "$b" netns "$(cat "/run/ns-$3")"
        in_ "$3" sh -ec "ip addr add $4 dev $b; ip link set $b up" || die "$b"
    else
        ip addr add "$4" dev "$b"
        ip link set "$b" up
    fi
}

bridge() { # starts that of NAME
    in_ "$1" sh -c "echo \$\$ > /run/$1/pid; RUNTIME_DIRECTORY=/run/$1 exec /host/rdmabridge serve -c /run/$1/rdmabridge.yaml" >> "/host/$1.log" 2>&1 &
}
handed_over() { [ "$(grep -c '"event":"starting"' "/host/$1.log")" -gt "$2" ] && ! kill -0 "$3" 2> /dev/null; }
ready() { in_ "$1" wget -q -O /dev/null http://127.0.0.1:9090/readyz 2> /dev/null; }
gone() { ! kill -0 "$1" 2> /dev/null; }
# member NAME: IPVS sends new connections to it. Addresses are hexadecimal there.
member() { grep -q "$(printf '0A09%02X02:0801 .* Masq *1 ' "${1#b}")" "/proc/$(cat /run/ns-lb)/net/ip_vs"; }
not_member() { ! member "$1"; }
of() { # prints the bridge of a client
    a=$(printf '0A08%02X02' "${1#c}")
    awk -v a="$a" '$2 == a && $8 == "ESTABLISHED" { print "b" (substr($6, 5, 2) + 0); exit }' "/proc/$(cat /run/ns-lb)/net/ip_vs_conn"
}
# since CLIENT T prints how many operations began at T or later and have ended.
since() { awk -v t="$2" '$1 >= t { n++ } END { print n + 0 }' "/host/meta-$1"; }
went_on() { [ "$(since "$1" "$2")" -ge 20 ]; }
# report WHAT T prints what happened from T on: each client must go on from now on.
report() {
    now=$(ms)
    for c in $clients; do soon "$c goes on after $1" went_on "$c" "$now"; done
    line="$1: done after $((now - $2)) ms; longest operation of each client"
    for c in $clients; do
        line="$line $c $(awk -v t="$2" '$2 >= t && $2 - $1 > m { m = $2 - $1 } END { print m + 0 }' "/host/meta-$c")"
    done
    echo "$line ms"
}

set -- $VERSIONS
clients=''
modprobe -a veth ip_vs ip_vs_sh || die "modules"
rm -f /host/stop /host/failed /host/meta-*
machine lb
in_ lb sh -ec '
    ip addr add 10.8.0.100/32 dev lo
    echo 1 > /proc/sys/net/ipv4/ip_forward
    echo 1 > /proc/sys/net/ipv4/vs/expire_nodest_conn'
for i in 1 2; do
    machine b$i
    cable b$i 10.7.$i.2/24 '' 10.7.$i.1/24
    cable b$i 10.9.$i.2/24 lb 10.9.$i.1/24
    in_ b$i ip route add 10.8.0.0/16 via 10.9.$i.1
    mkdir -p /run/b$i
    cat > /run/b$i/rdmabridge.yaml << YAML
identity: one text for both
listeners:
  - {name: nfs, address: "0.0.0.0:2049", upstream: storage, routes: [{program: mount, upstream: mountd}]}
upstreams:
  - {name: storage, transport: tcp, endpoints: ["10.7.$i.1:2049"]}
  - {name: mountd, transport: tcp, endpoints: ["10.7.$i.1:20048"]}
memory: {budget: 64MiB}
admin: {address: "0.0.0.0:9090"}
handover: {path: /run/b$i/handover.sock}
log: {format: json}
YAML
    bridge b$i
done
for b in b1 b2; do soon "$b is ready" ready $b; done

in_ lb keepalived -n -l -C -f /host/ipvs.conf -p /run/keepalived.pid -c /run/checkers.pid > /host/keepalived.log 2>&1 &
for b in b1 b2; do soon "IPVS has $b" member $b; done

n=0
for v in "$@"; do
    n=$((n + 1))
    c=c$n clients="$clients c$n"
    machine $c
    cable $c 10.8.$n.2/24 lb 10.8.$n.1/24
    in_ $c ip route add default via 10.8.$n.1
    from=10.8.0.100:/ o=vers=$v,proto=tcp,port=2049,hard,timeo=100,actimeo=0,lookupcache=none
    [ "$v" != 3 ] || from=10.8.0.100:/export o=$o,nolock,mountproto=tcp,mountport=2049
    in_ $c mount.nfs $from /mnt -o $o || die "$c: mount of version $v: status $?"
    in_ $c mkdir -p /mnt/ipvs-$c
    (in_ $c /lab/meta /mnt/ipvs-$c $c /host/meta-$c /host/stop || touch /host/failed) &
    load="$load $!"
done
for c in $clients; do soon "$c works" went_on $c 0; done
for c in $clients; do
    echo "$c is at $(of $c)"
    at="$at$(of $c)"
done
case $at in *b1*b2* | *b2*b1*) ;; *) die "all clients are at one bridge: $at" ;; esac
echo "load runs"

b=$(of c1) t=$(ms)
kill -9 "$(cat /run/$b/pid)"
soon "IPVS is without $b" not_member "$b"
report killed "$t"
bridge "$b"
soon "IPVS has $b" member "$b"

b=$(of c1) t=$(ms)
in_ lb ip link set lb-$b down
soon "IPVS is without $b" not_member "$b"
report silent "$t"
in_ lb ip link set lb-$b up
soon "IPVS has $b" member "$b"

t=$(ms)
for b in b1 b2; do
    old=$(cat /run/$b/pid) starts=$(grep -c '"event":"starting"' /host/$b.log)
    kill -USR2 "$old"
    soon "$b has handed over" handed_over "$b" "$starts" "$old"
    sed -n 's/.*"event":"starting".*"pid":\([0-9]*\),.*/\1/p' /host/$b.log | tail -n 1 > /run/$b/pid
done
report upgrade "$t"

t=$(ms)
for b in b1 b2; do
    kill -TERM "$(cat /run/$b/pid)"
    soon "$b has ended" gone "$(cat /run/$b/pid)"
    soon "IPVS is without $b" not_member "$b"
    bridge $b
    soon "IPVS has $b" member $b
done
report restart "$t"

touch /host/stop
for p in $load; do wait "$p"; done
[ ! -e /host/failed ] || die "a client failed"
for c in $clients; do
    awk -v c=$c '{ n[$5]++ } END { print c ": " n["ok"] + 0 " operations, " n["again"] + 0 " told that they had been done, " n["FAIL"] + 0 " failed" }' /host/meta-$c
    in_ $c umount /mnt || die "$c: umount"
done
for b in b1 b2; do kill -TERM "$(cat /run/$b/pid)"; done
kill "$(cat /run/keepalived.pid)"
echo PASS
