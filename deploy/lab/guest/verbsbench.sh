#!/bin/sh
# verbsbench.sh [ROUNDS] prints what the bridge costs with ibverbs over the guest's device, divided by
# what it costs with iwarp: rates, latencies and the CPU time of the bridge's process. The two bridges run
# side by side and have their load in turn. On siw both have one server, in pure Go. On rxe the server of
# the first is on rxe, too.
#
# Two programs must be in the guest: mkinitrd.sh OUT bin/rdmabridge-ibverbs bin/rdmabridge-bench-ibverbs.
rounds=${1:-9}
ulimit -l unlimited
ulimit -n 65536
at=10.0.2.15
bench() { rdmabridge-bench-ibverbs "$@"; }
serve() { # NAME PROVIDER PORT SERVER-PORT
    cat > "/tmp/$1.yaml" << EOF
listeners: [{name: nfs, address: "127.0.0.1:$3", transport: tcp, upstream: server}]
upstreams: [{name: server, transport: rdma, provider: $2, endpoints: ["$at:$4"], pool: {connections: 4, credits: 128}}]
memory: {budget: 256MiB}
admin: {address: none}
loops: 1
EOF
    rdmabridge-ibverbs serve -c "/tmp/$1.yaml" > "/tmp/$1.log" 2>&1 &
}
bench server --listen $at:20051 --transport rdma --budget 256MiB --loops 1 > /tmp/server.log 2>&1 &
servers=$! port=20051
if [ -e /sys/class/infiniband/rxe0 ]; then
    port=20052
    bench server --listen $at:$port --transport rdma --provider ibverbs --budget 256MiB --loops 1 > /tmp/server2.log 2>&1 &
    servers="$servers $!"
fi
serve iwarp iwarp 12050 20051
a=$!
serve ibverbs ibverbs 12051 $port
b=$!
trap 'kill $servers $a $b' EXIT
for p in 12050 12051; do # until the bridge has its connections
    until bench load --target 127.0.0.1:$p --mix nfs3:getattr=1 --duration 100ms > /tmp/load.log 2>&1; do
        kill -0 $a $b || { cat /tmp/*.log; exit 1; }
        sleep 0.2
    done
done
compare() {
    bench compare --a 127.0.0.1:12050 --a-pid $a --b 127.0.0.1:12051 --b-pid $b --rounds "$rounds" --duration 1s --loops 1 "$@" || exit 1
}
compare --mix nfs3:getattr=1 --conns 1 --depth 1
compare --mix nfs3:getattr=1 --conns 8 --depth 8
compare --mix nfs3:read=1 --size 1MiB --conns 2 --depth 2
compare --mix nfs3:write=1 --size 1MiB --conns 2 --depth 2
