#!/bin/sh
# reconnect.sh VERS HOST PORT runs with STEP=hold, and then with STEP=check. Client c1 gets a lock
# and, except with 4.0, a delegation. It must still hold them after the caller has cut every
# connection in between, and the server must reach it on its new connection. The server runs all
# the time, so nothing is reclaimed.
. /lab/lib.sh
f=reconnect-$vers-$port
states() { cat /proc/fs/nfsd/clients/*/states | grep -c "type: $1,.*\"/$2\""; }
one() { echo "$(client_mnt c1)/$f"; }
two() { echo "$(client_mnt c2)/$f"; }
ops_of() { client "$1" sh -c '. /lab/lib.sh; ops "$4"' sh 0 0 0 "$2"; }
case $STEP in
hold)
    after_grace
    client_mount c1
    client_mount c2
    rm -f "/export/$f"* /tmp/held
    echo data > "/export/$f.deleg"
    mkfifo /tmp/hold
    setsid sleep 1000 > /tmp/hold & # keeps the pipe open
    echo $! > /tmp/hold.pid
    setsid /lab/locks -h "$(one)" < /tmp/hold > /tmp/held 2>&1 &
    setsid sh -c "exec sleep 1000 < '$(one).deleg'" &
    echo $! > /tmp/open.pid
    until_is "the holder" held 20 cat /tmp/held
    equal "locks" "$(states lock "$f")" 1
    [ "$vers" = 4.0 ] || until_is "delegations" 1 10 states deleg "$f.deleg"
    trap - EXIT # keep the mounts
    ;;
check)
    begin
    equal "clients" "$(infos | grep -c ^clientid)" 2
    /lab/locks -t "$(two)"
    equal "c2 is refused" $? 3
    echo "written on the new connection" > /tmp/hold
    until_is "a write of c1" 1 10 grep -c written /tmp/held
    equal "what c1 wrote" "$(cat "/export/$f")" "written on the new connection"
    equal "locks" "$(states lock "$f")" 1
    if [ "$vers" != 4.0 ]; then
        equal "delegations" "$(states deleg "$f.deleg")" 1
        until_is "ways back" 2 10 ups
        t0=$(awk '{ print int($1 * 1000) }' /proc/uptime)
        echo more >> "$(two).deleg" || die "write"
        took=$(($(awk '{ print int($1 * 1000) }' /proc/uptime) - t0))
        echo "recalled in $took ms"
        [ "$took" -lt 8000 ] || die "the recall took $took ms"
        equal "delegations after the recall" "$(states deleg "$f.deleg")" 0
        until_is "ways back" 2 10 ups
    fi
    case $vers in
    4.[12])
        for c in c1 c2; do
            equal "sessions of $c" "$(ops_of $c CREATE_SESSION)" 1
            echo "$c: BIND_CONN_TO_SESSION $(ops_of $c BIND_CONN_TO_SESSION)"
        done
        ;;
    esac
    kill "$(cat /tmp/hold.pid)" "$(cat /tmp/open.pid)"
    until_is "locks after c1 let go" 0 10 states lock "$f"
    /lab/locks -t "$(two)"
    equal "c2 after c1 let go" $? 0
    client_umount c1
    client_umount c2
    rm /tmp/hold* /tmp/held /tmp/open.pid "/export/$f"*
    end
    ;;
esac
echo PASS
