#!/bin/sh
# gateways.sh [ROUNDS] mounts one export of the guest's knfsd directly and through gateways, and prints how fast
# each mount is, in turn, for docs/bench-gateways.md. The gateways run in this guest, too:
#
#   direct-rdma  the server itself, over RDMA
#   direct-tcp   the server itself, over TCP
#   rdmabridge   TCP in front, RDMA to the server
#   haproxy      TCP in front, TCP to the server
#   ganesha      nfs-ganesha with FSAL_PROXY_V4: TCP in front, NFSv4.1 over TCP to the server
#   reexport     knfsd exports its own mount over RDMA, as gateways without a proxy do
#
# VERSIONS, TARGETS and SECONDS_EACH, which is for each run of fio, in the environment choose less or more of it.
#
# A line is VERSION WORKLOAD TARGET ROUND FIGURE. Figures of fio are KiB/s, those of meta and untar are seconds.
# The gateways must be in the guest's /usr/local/bin, and ganesha's libfsalproxy_v4.so: bench/gateways.sh puts them there.
set -e
rounds=${1:-3} seconds=${SECONDS_EACH:-3}
at=10.0.2.15
cat > /tmp/bridge.yaml << EOF
listeners: [{name: nfs, address: "127.0.0.1:12049", upstream: server}]
upstreams: [{name: server, transport: rdma, endpoints: ["$at:20049"]}]
memory: {budget: 256MiB}
admin: {address: none}
EOF
cat > /tmp/haproxy.cfg << EOF
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen nfs
    bind 127.0.0.1:12050
    server s $at:2049
EOF
mkdir -p /export/files /tmp/recovery
# ganesha would offer its clients 1 MiB, and then answer each READ or WRITE with as much as the server takes at once.
size=$(cat /proc/fs/nfsd/max_block_size)
cat > /tmp/ganesha.conf << EOF
NFS_CORE_PARAM {
    NFS_Port = 12051; MNT_Port = 12052; NFS_Protocols = 3, 4;
    Enable_UDP = false; Enable_NLM = false; Enable_RQUOTA = false;
    Plugins_Dir = "/usr/local/bin";
}
NFSV4 { Graceless = true; Only_Numeric_Owners = true; RecoveryRoot = /tmp/recovery; }
NFS_KRB5 { Active_krb5 = false; }
EXPORT {
    Export_Id = 1; Path = /files; Pseudo = /files;
    Protocols = 3, 4; Transports = TCP; SecType = sys;
    Access_Type = RW; Squash = No_Root_Squash;
    MaxRead = $size; MaxWrite = $size; PrefRead = $size; PrefWrite = $size;
    FSAL { Name = PROXY_V4; Srv_Addr = $at; }
}
EOF
rdmabridge serve -c /tmp/bridge.yaml > /tmp/bridge.log 2>&1 &
bridge=$!
haproxy -db -f /tmp/haproxy.cfg > /tmp/haproxy.log 2>&1 &
haproxy=$!
ganesha.nfsd -F -f /tmp/ganesha.conf -L /tmp/ganesha.log -p /tmp/ganesha.pid > /tmp/ganesha.out 2>&1 &
ganesha=$!
trap 'kill $bridge $haproxy $ganesha' EXIT

# A Call to the re-exported mount keeps one thread of the server until another thread has answered it. With
# the eight of knfsd.sh, sixteen such Calls wait for each other for ever.
echo 64 > /proc/fs/nfsd/threads

# The re-exported mount is beside the export, and only re-exported clients look at it.
mkdir -p /export/origin
mount -t nfs -o "vers=3,proto=rdma,port=20049,mountport=20048,mountproto=tcp,nolock" $at:/export/files /export/origin
exportfs -o rw,no_root_squash,insecure,fsid=77,no_subtree_check "*:/export/origin"

mkdir -p /tmp/tree
for d in 1 2 3 4 5 6; do
    mkdir -p "/tmp/tree/$d"
    for f in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do head -c $((f * 700)) /dev/urandom > "/tmp/tree/$d/$f.c"; done
done
tar -cf /tmp/tree.tar -C /tmp tree

# address sets the options, the path and the port of MOUNT of a target.
address() {
    path=$at:/export/files options="proto=tcp,port=2049" mountport=20048
    [ "$vers" = 3 ] || path=$at:/files
    case $1 in
    direct-rdma) options=proto=rdma,port=20049 ;;
    rdmabridge) path=127.0.0.1:${path#*:} options=proto=tcp,port=12049 ;;
    haproxy) path=127.0.0.1:${path#*:} options=proto=tcp,port=12050 ;;
    ganesha) path=127.0.0.1:/files options=proto=tcp,port=12051 mountport=12052 ;;
    reexport) path=$(echo "$path" | sed s/files/origin/) ;;
    esac
}
say() { echo "$vers $1 $target $round $2"; }
now() { cut -d' ' -f1 /proc/uptime; }
took() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.2f", b - a }'; }
# run NAME OPTION... runs fio and prints KiB/s.
run() {
    name=$1
    shift
    say "$name" "$(fio --name=x --filename=/mnt/big --size=32m --direct=1 --ioengine=libaio --time_based --runtime="$seconds" --ramp_time=1 \
        --output-format=terse --terse-version=3 "$@" | awk -F';' '{ print $7 + $48 }')"
}
for vers in ${VERSIONS:-3 4.2}; do
    for round in $(seq "$rounds"); do
        for target in ${TARGETS:-direct-rdma direct-tcp rdmabridge haproxy ganesha reexport}; do
            address $target
            more=
            [ "$vers" != 3 ] || more=,mountport=$mountport,mountproto=tcp,nolock
            until mount -t nfs -o "vers=$vers,$options$more,sec=sys,nosharecache" "$path" /mnt; do
                kill -0 $bridge $haproxy $ganesha || { cat /tmp/*.log; exit 1; }
                sleep 1
            done
            dd if=/dev/zero of=/mnt/big bs=1M count=32 conv=fsync 2> /dev/null
            run "read-4k" --rw=randread --bs=4k --iodepth=16
            run "write-4k" --rw=randwrite --bs=4k --iodepth=16
            run "read-1m" --rw=read --bs=1m --iodepth=4
            run "write-1m" --rw=write --bs=1m --iodepth=4
            a=$(now)
            mkdir /mnt/m
            for i in $(seq 150); do
                : > "/mnt/m/$i"
                mv "/mnt/m/$i" "/mnt/m/x$i"
                ls -l "/mnt/m/x$i" > /dev/null
            done
            rm -r /mnt/m
            say meta "$(took "$a")"
            a=$(now)
            tar -xf /tmp/tree.tar -C /mnt
            sync
            rm -r /mnt/tree
            say untar "$(took "$a")"
            rm /mnt/big
            umount /mnt
        done
    done
done
echo finished
