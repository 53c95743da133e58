#!/bin/sh
# client.sh NAME COMMAND... runs COMMAND on client machine NAME. A client machine is a namespace of
# network, mounts and host name, created at its first use, with an NFSv4 clientid, a lockd and
# mounts of its own. NAME is c1, c2 and so on; c1 has the address 10.0.2.21. The server's /export
# is visible there too. With NET=10.9.0 it has 10.9.0.21 on eth1, of which lab.tap is the address 10.9.0.15.
#
# With PROTO=rdma a client machine uses the guest's network, because siw connects from nowhere
# else. The kernel then treats two clients as one, unless they mount different ports.
set -e
name=$1
shift
pid=/run/client-$name
if [ "$PROTO" = rdma ]; then
    pid=$pid-rdma
    if [ ! -e "$pid" ]; then
        unshare -m -u sh -c "hostname $name; echo \$\$ > $pid; exec sleep 1000000" > /dev/null 2>&1 &
        while [ ! -s "$pid" ]; do sleep 0.05; done
    fi
    exec nsenter -t "$(cat "$pid")" -m -u "$@"
fi
if [ ! -e "$pid" ]; then
    modprobe ipvlan
    card=eth0
    [ -z "$NET" ] || card=eth1
    net=${NET:-10.0.2}
    unshare -m -n -u sh -c "hostname $name; echo \$\$ > $pid.new; exec sleep 1000000" > /dev/null 2>&1 &
    while [ ! -s "$pid.new" ]; do sleep 0.05; done
    # The ip of busybox does not know mode.
    /usr/sbin/ip link add "$name" link "$card" type ipvlan mode l2
    ip link set "$name" netns "$(cat "$pid.new")"
    nsenter -t "$(cat "$pid.new")" -m -n -u sh -ec "
        ip link set lo up
        ip link set $name up
        ip addr add $net.2${name#c}/24 dev $name
        ip route add default via $net.2
        mount -t sysfs sys /sys"
    mv "$pid.new" "$pid"
fi
exec nsenter -t "$(cat "$pid")" -m -n -u "$@"
