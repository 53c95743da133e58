#!/bin/bash
# profile.sh writes cmd/rdmabridge/default.pgo: where a bridge spends its time under the loads of peers.sh, as Go's
# profiles have it. go build looks at it and inlines what is called often. A profile of older code does no harm, so it
# is enough to run this before a release, or when the way of a Call has changed. It takes three minutes, in which
# nothing else should run.
#
# In the environment, RDMABRIDGE is the bridge (default bin/rdmabridge), RDMABRIDGE_BENCH the program of server and load
# (default bin/rdmabridge-bench), SECONDS_EACH how long each load runs (default 12), PORT the first of seven ports
# (default 21250), and OUT the file. It ends all processes that it has started.
set -euo pipefail
cd "$(dirname "$0")/../.."

rdmabridge=${RDMABRIDGE:-bin/rdmabridge} bench=${RDMABRIDGE_BENCH:-bin/rdmabridge-bench} each=${SECONDS_EACH:-12} port=${PORT:-21250} out=${OUT:-cmd/rdmabridge/default.pgo}
for tool in curl "$rdmabridge" "$bench"; do
    command -v "$tool" >/dev/null || { echo "profile.sh: $tool is missing (apt-get install curl; make build)" >&2; exit 1; }
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

# The profile names the file of the binary.
cp "$(command -v "$rdmabridge")" "$dir/rdmabridge"
rdmabridge=$dir/rdmabridge

addr() { echo "127.0.0.1:$((port + $1))"; }

cat > "$dir/bridge.yaml" <<YAML
listeners:
  - {name: tcp-rdma, address: "$(addr 0)", upstream: rdma}
  - {name: tcp-tcp, address: "$(addr 1)", upstream: tcp}
  - {name: rdma-tcp, address: "$(addr 2)", transport: rdma, upstream: tcp}
  - {name: rdma-rdma, address: "$(addr 3)", transport: rdma, upstream: rdma}
upstreams:
  - {name: rdma, transport: rdma, endpoints: ["$(addr 4)"]}
  - {name: tcp, transport: tcp, endpoints: ["$(addr 5)"]}
admin: {address: "$(addr 6)"}
log: {level: warn, format: console}
YAML
"$bench" server --listen "$(addr 4)" --transport rdma > "$dir/rdma.log" 2>&1 & pids+=($!)
"$bench" server --listen "$(addr 5)" --transport tcp > "$dir/tcp.log" 2>&1 & pids+=($!)
"$rdmabridge" serve -c "$dir/bridge.yaml" > "$dir/bridge.log" 2>&1 & pids+=($!)
curl -sf --retry 20 --retry-connrefused --retry-delay 1 -o /dev/null "http://$(addr 6)/readyz" ||
    { cat "$dir"/*.log >&2; exit 1; }

# profile LISTENER FRONT FLAG... profiles the bridge under one load.
number=0
profile() {
    local listener=$1 front=$2
    shift 2
    number=$((number + 1))
    "$bench" load --target "$(addr "$listener")" --transport "$front" --duration "$((each + 2))s" "$@" \
        > "$dir/load.log" 2>&1 &
    local load=$!
    pids+=("$load")
    sleep 1
    curl -sf "http://$(addr 6)/debug/pprof/profile?seconds=$each" > "$dir/$number.pprof"
    wait "$load" || { cat "$dir/load.log" >&2; exit 1; }
    unset 'pids[-1]' # another process may get its number
    grep -E '^(work|calls/s)' "$dir/load.log" | tr -s ' ' | paste -sd' '
}

getattr="--mix nfs3:getattr=1"
# shellcheck disable=SC2086 # the flags of $getattr
{
    profile 0 tcp $getattr --conns 16 --depth 16
    profile 0 tcp $getattr --conns 256 --depth 16
    profile 0 tcp $getattr
    profile 0 tcp --conns 16 --depth 16
    profile 0 tcp --mix nfs3:read=1,write=1,getattr=2 --size 128KiB --conns 4 --depth 4
    profile 1 tcp $getattr --conns 16 --depth 16
    profile 1 tcp --conns 16 --depth 16
    profile 1 tcp $getattr
    profile 1 tcp --mix nfs3:read=1,write=1,getattr=2 --size 128KiB --conns 4 --depth 4
    profile 2 rdma $getattr --conns 16 --depth 16
    profile 2 rdma --mix nfs3:read=1,write=1,getattr=2 --size 128KiB --conns 4 --depth 4
    profile 3 rdma $getattr --conns 16 --depth 16
}
go tool pprof -proto -output="$out" "$dir"/*.pprof > /dev/null 2>&1
ls -l "$out"
