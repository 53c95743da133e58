# test-lib.sh has what the tests in containers share; they source it.
say() { printf '%4d s  %s\n' "$SECONDS" "$*"; }
fail() {
    say "FAIL: $*"
    journalctl --no-pager -u 'rdmabridge*' | tail -40
    tail -n 20 guest.log host/*.out host/fio-* 2> /dev/null
    exit 1
}
main() { systemctl show -P MainPID "$1"; }
restarts() { systemctl show -P NRestarts "$1"; }
# await SECONDS WHAT COMMAND... waits until COMMAND succeeds.
await() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        [ $SECONDS -lt $end ] || fail "waited in vain for $what"
        sleep 0.1
    done
}
# restarted UNIT succeeds when systemd has started the unit again by itself.
restarted() { [ "$(restarts "$1")" -ge 1 ] && [ "$(systemctl is-active "$1")" = active ] && [ "$(main "$1")" != 0 ]; }

# start_demo starts a server that is reached by RDMA, at 127.0.0.1:20049, and writes a configuration for it. The server
# is the demo's. As nobody it has no control socket, which the bridge would miss.
start_demo() {
    cp /usr/bin/rdmabridge ./demo
    : > demo.log
    setpriv --reuid nobody --regid nogroup --clear-groups ./demo demo --admin none > demo.log 2>&1 &
    cat > /etc/rdmabridge/rdmabridge.yaml << 'YAML'
listeners:
  - {name: nfs, address: 127.0.0.1:2049, upstream: storage, routes: [{program: mount, upstream: storage}]}
upstreams:
  - {name: storage, transport: rdma, endpoints: ["127.0.0.1:20049"]}
memory: {budget: 256MiB}
handover: {path: /run/rdmabridge/handover.sock}
YAML
    await 10 "the demo" grep -q nfs-cp demo.log
}

# start_loads N starts N clients. Each writes a file of its own, reads it again and compares it, with a new connection
# for each. end_loads ends them, and fails if one had an error. The demo has 2 GiB for all files, and nfs-cp says no more
# than "Failed to write to dest file" when they are full: so the clients are not fast, and stop before that.
loads=()
start_loads() { for i in $(seq "$1"); do load "$i" & loads+=($!); done; }
end_loads() {
    touch stop
    wait "${loads[@]}"
    [ ! -s errors ] || fail "$(head errors)"
}
url() { echo "nfs://127.0.0.1//$1?nfsport=2049&mountport=2049"; }
load() { # NUMBER
    local n=0 there
    head -c 1M /dev/urandom > "in$1"
    while [ ! -e stop ]; do
        [ $n -lt 600 ] || { echo "client $1: the demo has no room for more files" >> errors; return; }
        sleep 0.1
        there=$(url "f$1.$n") # a new name for each: nfs-cp does not write over a file
        if ! nfs-cp "in$1" "$there" > "load$1.log" 2>&1 || ! nfs-cp "$there" "out$1" >> "load$1.log" 2>&1; then
            echo "client $1, round $n: $(cat "load$1.log")" >> errors
        elif ! cmp "in$1" "out$1" >> errors 2>&1; then
            echo "client $1, round $n: wrong octets" >> errors
        fi
        rm -f "out$1"
        n=$((n + 1))
        echo "$n" > "rounds$1"
    done
}
rounds() { cat rounds? 2> /dev/null | awk '{n += $1} END {print n + 0}'; }
# rounds_after N succeeds when the clients have written N files.
rounds_after() { [ "$(rounds)" -gt "$1" ]; }
