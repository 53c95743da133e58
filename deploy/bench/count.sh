#!/bin/bash
# count.sh [BINARY[@KIND]...] counts what a small Call costs a bridge: instructions, and misses of two caches, for each
# GETATTR that goes from clients to a server. It needs valgrind (Debian 12), whose callgrind counts. It is
# for changes of a few percent, which no clock shows on a machine that others use, too. With several binaries, a line
# for each; the first is the baseline. BINARY@rules has a hundred rules, all of which are looked at for each Call and
# only the last of which matches; BINARY@tenants has a hundred tenants, and the load belongs to the last; BINARY@names-2%
# looks at 2% of the Calls for their names.
#
# The figures are those of the bridge's own code, of gnet, and of copying and clearing memory: Go's scheduler and its
# timers run by the clock, and emulation slows the clock down by a factor of 50. The second cache has 1 MiB.
#
# In the environment, RDMABRIDGE_BENCH is the program of server and load (default bin/rdmabridge-bench), CONNS and DEPTH
# are the load (default 256 and 16), TRANSPORT is that of the server (default rdma), CLIENT that of the clients (default tcp),
# SECONDS_COUNTED how long it counts (default 8), PORT the first of two ports (default 21190), and OUT a folder for
# callgrind's files, for callgrind_annotate. It ends all processes that it has started.
set -euo pipefail
cd "$(dirname "$0")/../.."

bench=${RDMABRIDGE_BENCH:-bin/rdmabridge-bench} conns=${CONNS:-256} depth=${DEPTH:-16} counted=${SECONDS_COUNTED:-8} port=${PORT:-21190} transport=${TRANSPORT:-rdma} client=${CLIENT:-tcp}
((${#@} > 0)) || set -- bin/rdmabridge
for tool in valgrind callgrind_control ss "$bench"; do
    command -v $tool >/dev/null || { echo "count.sh: $tool is missing (apt-get install valgrind iproute2; make build)" >&2; exit 1; }
done

dir=${OUT:-$(mktemp -d)}
pids=()
stop() {
    trap - EXIT
    ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    [ -n "${OUT:-}" ] || rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM

# listens PORT waits until somebody listens there.
listens() {
    for _ in $(seq 300); do
        [ -z "$(ss -Hltn "sport = :$1")" ] || return 0
        sleep 0.1
    done
    echo "count.sh: nobody listens on port $1" >&2
    exit 1
}

# summary FILE prints calls, instructions, misses of the first cache and of the second for each Call.
summary() {
    awk '
        function named(line) {
            match(line, /\([0-9]+\)/)
            id = substr(line, RSTART, RLENGTH)
            if (length(line) > RSTART + RLENGTH) name[id] = substr(line, RSTART + RLENGTH + 1)
            return name[id]
        }
        function ours(n) { return n ~ /rdmabridge|gnet|netpoll|memmove|memclr|duff|typedmem|mapaccess|mapassign|mapdelete|maps\.|memhash|memequal|crc32/ }
        /^events:/ { for (i = 2; i <= NF; i++) column[$i] = i - 1; next }
        /^fn=/     { wanted = ours(named($0)); next }
        /^cfn=/    { called = named($0); sub(/'"'"'[0-9]+$/, "", called); next }
        /^calls=/  { if (called ~ /proxy\.(\(\*tcpClient\)\.(Whole|read)|\(\*rdmaHandler\)\.Call|\(\*account\)\.read|\(\*eventLoop\)\.recycle)$/) { split($1, c, "="); begun[called] += c[2] } inclusive = 1; next }
        /^[0-9+*-]/ {
            if (inclusive) { inclusive = 0; next }
            if (!wanted) next
            ir += $(1 + column["Ir"])
            l1 += $(1 + column["D1mr"]) + $(1 + column["D1mw"])
            l2 += $(1 + column["DLmr"]) + $(1 + column["DLmw"])
        }
        END {
            for (n in begun) if (begun[n] > calls) calls = begun[n] # some may be inlined, and older bridges have others
            if (!calls) { print "no Call was counted" > "/dev/stderr"; exit 1 }
            printf "%d %.0f %.1f %.1f\n", calls, ir / calls, l1 / calls, l2 / calls
        }' "$1"
}

# config KIND prints the configuration of a bridge.
config() {
    local i
    cat <<YAML
listeners:
  - name: bench
    address: "127.0.0.1:$port"
    transport: $client
    upstream: bench
    limits: {connections: 16384}
YAML
    if [ "$1" = rules ]; then
        echo '    rules:'
        for ((i = 0; i < 99; i++)); do
            case $((i % 4)) in
            0) echo "      - {name: r$i, uids: [$((70000 + 10 * i))-$((70005 + 10 * i))], action: deny}" ;;
            1) echo "      - {name: r$i, gids: [$((70000 + 10 * i))-$((70005 + 10 * i))], action: deny}" ;;
            2) echo "      - {name: r$i, programs: [nfs], versions: [3], procedures: [$((30 + i))], action: deny}" ;;
            3) echo "      - {name: r$i, flavors: [krb5, krb5i], class: changing, action: deny}" ;;
            esac
        done
        echo '      - {name: rest, action: allow}'
    fi
    cat <<YAML
upstreams:
  - {name: bench, transport: $transport, endpoints: ["127.0.0.1:$((port + 1))"]}
loops: 1
admin: {address: none}
log: {level: warn, format: console}
YAML
    if [[ "$1" = names-* ]]; then
        echo "names: {mode: on, sample: ${1#names-}}"
    fi
    if [ "$1" = tenants ]; then
        echo 'tenants:'
        for ((i = 0; i < 99; i++)); do
            echo "  - {name: t$i, clients: [10.1.$i.0/24], total: {connections: 100}}"
        done
        echo '  - {name: last, clients: [127.0.0.0/8], total: {connections: 10000, calls: 100000, rate: {calls: 10000000}}}'
    fi
}

printf '%-32s %8s %14s %12s %12s   ratios to the first\n' binary Calls instructions 'L1 misses' 'L2 misses'
number=0 base=
for what; do
    number=$((number + 1))
    binary=${what%@*} kind=
    [ "$binary" = "$what" ] || kind=${what##*@}
    config "$kind" > "$dir/$number.yaml"
    "$bench" server --listen "127.0.0.1:$((port + 1))" --transport "$transport" >/dev/null 2>&1 &
    server=$! pids=($!)
    listens $((port + 1))
    # A collection of garbage would count for whatever Calls it interrupts, and valgrind 3.19 does not know RDTSCP.
    GOGC=off GODEBUG=asyncpreemptoff=1,cpu.rdtscp=off valgrind --tool=callgrind --instr-atstart=no --cache-sim=yes \
        --D1=32768,8,64 --LL=1048576,16,64 --callgrind-out-file="$dir/$number.out" \
        "$binary" serve -c "$dir/$number.yaml" > "$dir/$number.log" 2>&1 &
    bridge=$! pids+=($!)
    listens "$port"
    "$bench" load --target "127.0.0.1:$port" --transport "$client" --conns "$conns" --depth "$depth" --mix nfs3:getattr=1 \
        --duration $((counted + 6))s --warmup 1s --timeout 60s > "$dir/$number.load" 2>&1 &
    load=$! pids+=($!)
    sleep 5 # until all clients are connected and buffers have grown
    callgrind_control -i on $bridge >/dev/null 2>&1
    sleep "$counted"
    callgrind_control -i off $bridge >/dev/null 2>&1
    wait $load || { cat "$dir/$number.load" >&2; exit 1; }
    kill $bridge $server
    wait $bridge $server 2>/dev/null || true
    pids=()
    line=$(summary "$dir/$number.out")
    read -r calls ir l1 l2 <<< "$line"
    base=${base:-$line}
    printf '%-32s %8s %14s %12s %12s   %s\n' "${what##*/}" "$calls" "$ir" "$l1" "$l2" \
        "$(awk '{printf "%.3f %.3f %.3f", $2 / $6, $3 / $7, $4 / $8}' <<< "$line $base")"
done
