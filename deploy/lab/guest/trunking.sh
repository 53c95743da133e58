#!/bin/sh
# trunking.sh A B PORT mounts one server through two bridges, at the addresses A and B, with NFSv4.1. Linux
# finds out that both lead to one server, so each client machine has one client at the server, one session,
# and the connections that its options allow. Run it with
#
#   STEP=mount   mounts A at /tmp/a and B at /tmp/b, on one client machine for each set of options, and checks
#                to which addresses there are connections; and moves a mount from A to B
#   STEP=check   checks that every mount works, after A has moved to another bridge, and that the server
#                recalls delegations; then unmounts
. /lab/lib.sh
a=$1 b=$2 port=$3
ms() { awk '{ print int($1 * 1000) }' /proc/uptime; }
at() { echo "/proc/$(cat "/run/client-$1")/root/tmp/$2"; } # CLIENT a|b
attach() { # CLIENT ADDRESS a|b OPTIONS
    client "$1" mkdir -p "/tmp/$3"
    client "$1" mount.nfs "$2:/" "/tmp/$3" -o "vers=4.1,port=$port,hard$4"
}
# conns CLIENT prints how many connections it has to A and how many to B.
conns() {
    client "$1" cat /proc/net/tcp | awk -v a="$(hex "$a")" -v b="$(hex "$b")" \
        '$4 == "01" { split($3, to, ":"); n[to[1]]++ } END { print n[a] + 0, n[b] + 0 }'
}
hex() { echo "$1" | awk -F. '{ printf "%02X%02X%02X%02X", $4, $3, $2, $1 }'; }
# clients NAME prints how many clients the server has from this machine.
clients() { cat /proc/fs/nfsd/clients/*/info | grep -c "^name: \"Linux NFSv4.1 $1\""; }
delegations() { cat /proc/fs/nfsd/clients/*/states 2> /dev/null | grep -c "type: deleg.*\"/$1\""; }

# works CLIENT a|b checks that data and a recall pass through the mount.
works() {
    m=$(at "$1" "$2")
    n=0
    while :; do
        n=$((n + 1))
        f=trunk-$1-$2-$(ms)
        echo data > "/export/$f"
        exec 5< "$m/$f" || die "open"
        [ "$(delegations "$f")" = 0 ] || break
        [ $n -lt 100 ] || die "no delegation for $1"
        sleep 0.5 # the server may be in its grace period
    done
    t0=$(ms)
    echo more >> "/export/$f" || die "write"
    took=$(($(ms) - t0))
    exec 5<&-
    [ $took -lt 8000 ] || die "the recall from $1 took $took ms"
    echo "by $1" > "$m/$f" || die "write by $1"
    equal "what $1 wrote" "$(cat "/export/$f")" "by $1"
    rm "$m/$f" || die "rm by $1"
    echo "$1 at $2: recalled in $took ms; connections: $(conns "$1")"
}

case $STEP in
mount)
    # Client, options, and its connections to A and B.
    while read -r c options want; do
        [ "$options" != - ] || options=
        attach "$c" "$a" a "${options:+,$options}"
        attach "$c" "$b" b "${options:+,$options}"
        echo "through both" > "$(at "$c" b)/trunk-$c" || die "write by $c"
        equal "read at the other" "$(cat "$(at "$c" a)/trunk-$c")" "through both"
        until_is "connections of $c with options \"$options\"" "$want" 10 conns "$c"
        equal "clients of $c" "$(clients "$c")" 1
        equal "server of both mounts of $c" "$(client "$c" awk '$3 == "nfs4" { print $1 }' /proc/mounts | sort -u)" "$a:/"
        echo "\"$options\": $want connections"
        rm "$(at "$c" a)/trunk-$c"
    done << EOF
c10 - 1 0
c11 max_connect=4 1 1
c12 nconnect=4 4 0
c13 nconnect=4,max_connect=8 4 1
EOF
    attach c14 "$a" a
    equal "connections before a move" "$(conns c14)" "1 0"
    client c14 umount /tmp/a
    attach c14 "$b" b
    equal "connections after a move" "$(conns c14)" "0 1"
    equal "clients of c14" "$(clients c14)" 1
    ;;
check)
    for c in c10 c11 c12 c13; do
        works $c a
        works $c b
        client $c umount /tmp/a
        client $c umount /tmp/b
    done
    works c14 b
    client c14 umount /tmp/b
    ;;
esac
echo PASS
