#!/bin/bash
# peers.sh [chain] [FLAG...] puts the same loads in turn on the bridge (TCP to iWARP, with CRC and
# without), HAProxy, nginx (with default buffers, and with 256 KiB) and no proxy at all, in
# front of the same echo service. It writes docs/bench-peers.md. With "chain" it compares two bridges
# one behind the other, TCP to iWARP to TCP, with two HAProxy, and writes docs/bench-chain.md.
#
# It passes the flags to `rdmabridge-bench peers`, such as --rounds 3, --cases all,
# --only "1 MiB", --out FILE. In the environment, RDMABRIDGE is the bridge (default bin/rdmabridge),
# RDMABRIDGE_BENCH is the other program (default bin/rdmabridge-bench), and PORT is the first of ten ports
# (default 21100).
#
# It needs haproxy, nginx-light or nginx, and libnginx-mod-stream (Debian 12). It ends all
# processes that it has started.
set -euo pipefail
cd "$(dirname "$0")/../.."

rdmabridge=${RDMABRIDGE:-bin/rdmabridge}
bench=${RDMABRIDGE_BENCH:-bin/rdmabridge-bench}
port=${PORT:-21100}
here=deploy/bench
modules=/usr/lib/nginx/modules

for tool in haproxy nginx "$rdmabridge" "$bench" "$modules/ngx_stream_module.so"; do
    command -v "$tool" >/dev/null || [ -e "$tool" ] || {
        echo "peers.sh: $tool is missing (apt-get install haproxy nginx-light libnginx-mod-stream; make build)" >&2
        exit 1
    }
done

dir=$(mktemp -d)
pids=()
stop() {
    trap - EXIT
    ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM

addr() { echo "127.0.0.1:$((port + $1))"; }

# start NAME COMMAND... runs the command in the background and sets $pid to its process id.
start() {
    local name=$1
    shift
    "$@" >"$dir/$name.log" 2>&1 </dev/null &
    pid=$!
    pids+=("$pid")
}

# await NAME PID ADDRESS waits at most 10 s until a process listens at the address.
await() {
    local host=${3%:*} p=${3##*:}
    for _ in {1..100}; do
        if ! kill -0 "$2" 2>/dev/null; then
            break
        elif (exec 3<>"/dev/tcp/$host/$p") 2>/dev/null; then
            return
        fi
        sleep 0.1
    done
    echo "peers.sh: $1 did not start:" >&2
    cat "$dir/$1.log" >&2
    exit 1
}

# fill TEMPLATE NAME=VALUE... prints the template with each @NAME@ replaced.
fill() {
    local file=$1 args=()
    shift
    for v in "$@"; do args+=(-e "s|@${v%%=*}@|${v#*=}|g"); done
    sed "${args[@]}" "$file"
}

targets=()
target() { targets+=(--target "$1=$2${3:+@$3}"); }

# The echo service has one process for TCP, and one for RDMA with each setting of CRC. CRC is
# on if either side wants it.
tcp=$(addr 0)
start tcp "$bench" server --listen "$tcp" --transport tcp
await tcp "$pid" "$tcp"

# proxy NAME LISTEN BACKEND starts HAProxy.
proxy() {
    LISTEN=$2 BACKEND=$3 start "$1" haproxy -db -f "$here/haproxy.cfg"
    await "$1" "$pid" "$2"
}

# bridge NAME LISTEN FRONT BACKEND TRANSPORT PROGRAMS starts a bridge. FRONT is the transport of the listener, and the
# last two are YAML.
bridge() {
    fill "$here/bridge.yaml" LISTEN="$2" FRONT="$3" BACKEND="$4" TRANSPORT="$5" PROGRAMS="$6" >"$dir/$1.yaml"
    start "$1" "$rdmabridge" serve -c "$dir/$1.yaml"
    await "$1" "$pid" "$2"
}

# measure FILE FLAG... runs the loads on all targets and writes FILE. Then it ends this script.
measure() {
    local out=$1 status=0
    shift
    "$bench" peers "${targets[@]}" --baseline haproxy --cases all --out "$out" \
        --note "$("$rdmabridge" version)" "$@" & # so that this script handles signals at once
    pids+=("$!")
    wait "$!" || status=$?
    for log in "$dir"/*.log; do
        case $log in */tcp.log | */server-*.log) continue ;; esac
        [ ! -s "$log" ] || { echo "== ${log##*/}" >&2; tail -20 "$log" >&2; }
    done
    exit "$status"
}

# The short Replies of the echo program are declared: docs/programs.md.
programs="programs: [{program: 536870914, versions: [1], procedures: [2], reply: 2KiB, effect: read_only}]"
haproxy_note="$(haproxy -v | head -1 | cut -d' ' -f1-3), mode tcp, 2 threads, 16 KiB buffers"

if [ "${1:-}" = chain ]; then
    shift
    proxy haproxy-far "$(addr 1)" "$tcp"
    far=$pid
    proxy haproxy-near "$(addr 2)" "$(addr 1)"
    target haproxy "$(addr 2)" "$far+$pid"
    n=3
    for name in rdmabridge rdmabridge-programs; do
        declared=$programs
        [ $name != rdmabridge ] || declared=
        bridge $name-far "$(addr $n)" rdma "$tcp" "transport: tcp" "$declared"
        far=$pid
        bridge $name-near "$(addr $((n + 1)))" tcp "$(addr $n)" "transport: rdma" "$declared"
        target $name "$(addr $((n + 1)))" "$far+$pid"
        n=$((n + 2))
    done
    measure docs/bench-chain.md --note "haproxy: two in a row, $haproxy_note" \
        --note "rdmabridge: two in a row, TCP to iWARP and iWARP to TCP, default configuration" \
        --note "rdmabridge-programs: the same, with the length and the effect of short echo Calls declared in programs" \
        --note "behind both is \`rdmabridge-bench server\` over TCP" "$@"
fi

proxy haproxy "$(addr 1)" "$tcp"
target haproxy "$(addr 1)" "$pid"

n=2
for crc in on off; do
    name=rdmabridge
    [ $crc = on ] || name="rdmabridge-crc-off"
    start "server-$crc" "$bench" server --listen "$(addr $n)" --transport rdma --crc=$crc
    await "server-$crc" "$pid" "$(addr $n)"
    bridge $name "$(addr $((n + 1)))" tcp "$(addr $n)" "transport: rdma, iwarp: {crc: $crc}" ""
    target $name "$(addr $((n + 1)))" "$pid"
    n=$((n + 2))
done

bridge rdmabridge-programs "$(addr $n)" tcp "$(addr 2)" "transport: rdma" "$programs"
target rdmabridge-programs "$(addr $n)" "$pid"
bridge rdmabridge-tcp "$(addr $((n + 1)))" tcp "$tcp" "transport: tcp" ""
target rdmabridge-tcp "$(addr $((n + 1)))" "$pid"
n=$((n + 2))

for buffers in default 256k; do
    name=nginx setting=
    [ $buffers = default ] || name=nginx-256k setting="proxy_buffer_size $buffers;"
    mkdir "$dir/$name"
    fill "$here/nginx.conf" MODULES=$modules DIR="$dir/$name" LISTEN="$(addr $n)" BACKEND="$tcp" BUFFERS="$setting" >"$dir/$name.conf"
    start "$name" nginx -p "$dir/$name" -e stderr -c "$dir/$name.conf"
    await "$name" "$pid" "$(addr $n)"
    target "$name" "$(addr $n)" "$pid"
    n=$((n + 1))
done
target direct "$tcp"

measure docs/bench-peers.md --note "$haproxy_note" \
    --note "$(nginx -v 2>&1 | sed 's/.*: //'), stream, 2 workers; nginx-256k with proxy_buffer_size 256k" \
    --note "rdmabridge: TCP to iWARP, default configuration; rdmabridge-crc-off without CRC32c on either side" \
    --note "rdmabridge-programs: the same, with the length and the effect of short echo Calls declared in programs" \
    --note "rdmabridge-tcp: TCP to TCP, as HAProxy and nginx" \
    --note "direct: no proxy; behind every proxy is \`rdmabridge-bench server\`, over TCP or over RDMA" \
    "$@"
