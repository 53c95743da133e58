#!/bin/bash
# tls.sh [FLAG...] puts the same loads in turn on the bridge and on HAProxy, which both terminate TLS 1.3 in front of the
# same echo service on TCP, and then on the bridge without TLS and with it. It prints the ratios.
#
# It passes the flags to `rdmabridge-bench compare`, such as --rounds 15. In the environment, RDMABRIDGE is the bridge
# (default bin/rdmabridge), RDMABRIDGE_BENCH is the other program (default bin/rdmabridge-bench), and PORT is the first
# of four ports (default 21200).
#
# It needs haproxy and openssl (Debian 12). It ends all processes that it has started.
set -euo pipefail
cd "$(dirname "$0")/../.."

rdmabridge=${RDMABRIDGE:-bin/rdmabridge}
bench=${RDMABRIDGE_BENCH:-bin/rdmabridge-bench}
port=${PORT:-21200}
here=deploy/bench

for tool in haproxy openssl "$rdmabridge" "$bench"; do
    command -v "$tool" >/dev/null || {
        echo "tls.sh: $tool is missing (apt-get install haproxy openssl; make build)" >&2
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

# start NAME ADDRESS COMMAND... runs the command in the background, and waits at most 10 s until it listens.
start() {
    local name=$1 host=${2%:*} p=${2##*:}
    shift 2
    "$@" >"$dir/$name.log" 2>&1 </dev/null &
    pid=$!
    pids+=("$pid")
    for _ in {1..100}; do
        if ! kill -0 "$pid" 2>/dev/null; then
            break
        elif (exec 3<>"/dev/tcp/$host/$p") 2>/dev/null; then
            return
        fi
        sleep 0.1
    done
    echo "tls.sh: $name did not start:" >&2
    cat "$dir/$name.log" >&2
    exit 1
}

# bridge NAME ADDRESS TLS starts a bridge.
bridge() {
    sed -e "s|@LISTEN@|$2|" -e "s|@BACKEND@|$(addr 0)|" -e "s|@TLS@|$3|" -e "s|@DIR@|$dir|" "$here/bridge-tls.yaml" >"$dir/$1.yaml"
    start "$1" "$2" "$rdmabridge" serve -c "$dir/$1.yaml"
}

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -keyout "$dir/key.pem" -out "$dir/cert.pem" 2>/dev/null
cat "$dir/cert.pem" "$dir/key.pem" >"$dir/both.pem"

start server "$(addr 0)" "$bench" server --listen "$(addr 0)" --transport tcp
LISTEN=$(addr 1) BACKEND=$(addr 0) CERT=$dir/both.pem start haproxy "$(addr 1)" haproxy -db -f "$here/haproxy-tls.cfg"
haproxy=$pid
bridge tls "$(addr 2)" "{mode: required, certificate: $dir/both.pem}"
tls=$pid
bridge plain "$(addr 3)" "{mode: \"off\"}"
plain=$pid

compare() {
    "$bench" compare --tls-ca "$dir/cert.pem" "$@" 2>"$dir/compare.log" || { cat "$dir/compare.log" >&2; exit 1; }
    echo
}
for load in "--conns 4 --depth 4 --call 1MiB" "--conns 4 --depth 4 --reply 1MiB" "--conns 16 --depth 16" "--conns 1 --depth 1"; do
    echo "$load: a is HAProxy with TLS, b is the bridge with TLS"
    # shellcheck disable=SC2086 # several flags
    compare --a "tls://$(addr 1)" --a-pid "$haproxy" --b "rpctls://$(addr 2)" --b-pid "$tls" $load "$@"
    echo "$load: a is the bridge without TLS, b is the bridge with TLS"
    # shellcheck disable=SC2086
    compare --a "$(addr 3)" --a-pid "$plain" --b "rpctls://$(addr 2)" --b-pid "$tls" $load "$@"
done
