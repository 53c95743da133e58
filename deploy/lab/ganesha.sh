#!/bin/bash
# ganesha.sh DIR NFSPORT MOUNTPORT STATE [LEASE] runs nfs-ganesha in the foreground, as root, for NFSv3
# to NFSv4.2 over TCP. It listens on every address, because on a host that has only a loopback
# interface it would not find even 127.0.0.1. It exports DIR, and keeps its log, STATE/log, and
# all its other files in the directory STATE. NFSv3 clients mount DIR, NFSv4 clients mount /.
# Kill it by its pid.
#
# With LOCKS="NAME HERE THERE" in its environment it is a host of its own, with a lock manager for NFSv3 and a status monitor: in a
# network namespace whose address is THERE, on a veth whose other end, in the caller's namespace, is NAME with address HERE. Both are
# like 10.8.0.2/24.
#
# With LEASE, a number of seconds, clients reclaim their state after a restart, in a grace period as long. Without
# it there is no grace period.
#
# ganesha does not start without an rpcbind at which it can register its ports, and another
# process may use port 111. So this script starts an rpcbind that listens only on a Unix socket,
# in a /run of its own.
set -euo pipefail
LOCKS=${LOCKS:-}
if [ -z "${GANESHA_UNSHARED:-}" ]; then
    exec 7< /proc/self/ns/net
    GANESHA_UNSHARED=1 exec unshare -m ${LOCKS:+-n} "$0" "$@"
fi
dir=$1 nfs=$2 mount=$3 state=$4 lease=${5:-}
grace='Graceless = true;'
[ -z "$lease" ] || grace="Lease_Lifetime = $lease; Grace_Period = $lease;"
nlm=false
[ -z "$LOCKS" ] || nlm=true
mkdir -p "$state/recovery"
cat > "$state/ganesha.conf" << EOF
NFS_CORE_PARAM {
    NFS_Port = $nfs; MNT_Port = $mount;
    NFS_Protocols = 3, 4; Enable_UDP = false; Enable_NLM = $nlm; Enable_RQUOTA = false;
    RPC_Idle_Timeout_S = 3600; # the default is 300
}
NFSV4 { $grace Only_Numeric_Owners = true; RecoveryRoot = $state/recovery; }
NFS_KRB5 { Active_krb5 = false; }
EXPORT {
    Export_Id = 1; Path = $dir; Pseudo = /;
    Protocols = 3, 4; Transports = TCP; SecType = sys;
    Access_Type = RW; Squash = No_Root_Squash;
    MaxRead = 1048576; MaxWrite = 1048576; PrefRead = 1048576; PrefWrite = 1048576;
    Attr_Expiration_Time = 0; # tests also change DIR directly
    FSAL { Name = VFS; }
}
EOF
mount -t tmpfs tmpfs /run
if [ -n "$LOCKS" ]; then
    read -r name here there <<< "$LOCKS"
    outside() { nsenter --net=/proc/self/fd/7 "$@"; }
    outside ip link add "$name" type veth peer name eth0 netns $$
    outside ip addr add "$here" dev "$name"
    outside ip link set "$name" up
    ip link set lo up
    ip addr add "$there" dev eth0
    ip link set eth0 up
    mkdir -p "$state"/statd/{sm,sm.bak}
    touch "$state/statd/state"
    mount --bind "$state/statd" /var/lib/nfs
else
    grep ^local /etc/netconfig > /run/netconfig
    mount --bind /run/netconfig /etc/netconfig
fi
exec 7<&-
# until_end PID ends a daemon when ganesha has ended. setpriv --pdeathsig would not: rpcbind and statd change their user.
until_end() { (tail --pid=$$ -f /dev/null && kill "$1") > /dev/null 2>&1 & }
rpcbind -f &
until_end $!
while [ ! -S /run/rpcbind.sock ]; do sleep 0.05; done
if [ -n "$LOCKS" ]; then
    sm-notify -f
    rpc.statd --no-notify -F &
    until_end $!
else
    umount -l /etc/netconfig # ganesha needs the original; rpcbind may still have this one open
fi
exec ganesha.nfsd -F -f "$state/ganesha.conf" -L "$state/log" -p /run/ganesha.pid
