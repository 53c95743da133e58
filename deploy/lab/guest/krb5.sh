#!/bin/sh
# krb5.sh start|stop runs a Kerberos realm, LAB, in the guest, with the daemons that NFS needs.
# krb5.sh client, which client.sh runs in client machine c3 after start, gives that machine a KDC at
# its 127.0.0.1 and the client's daemons, so that it mounts with Kerberos while others do not.
#
# The client mounts the bridge, so it asks the KDC for a ticket for the bridge's name, and the
# server behind the bridge must have that name's key. Here one keytab has the client's key,
# host/guest.lab, that of c3, host/c3.lab, and the server's, nfs/bridge.lab; /etc/hosts has bridge.lab
# as 10.0.2.2.
#
# The map of rpc.svcgssd makes the root of guest and c3 the server's root. The passwords of alice and bob
# are their names. stop ends rpc.gssd, so that later NFSv4 mounts with sec=sys do not use Kerberos
# for their clientid; the server's daemons keep running.
set -e
dir=/var/lib/krb5kdc
keys='host/guest.lab host/c3.lab nfs/bridge.lab'

configure() {
    cat > /etc/krb5.conf << EOF
[libdefaults]
default_realm = LAB
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
# These are the enctypes that Linux 6.1 supports.
permitted_enctypes = aes256-cts-hmac-sha1-96 aes128-cts-hmac-sha1-96
[realms]
LAB = {
    kdc = 127.0.0.1
}
[domain_realm]
.lab = LAB
EOF
    mkdir -p /etc/krb5kdc $dir /var/tmp
    cat > /etc/krb5kdc/kdc.conf << EOF
[kdcdefaults]
kdc_ports = 88
[realms]
LAB = {
    database_name = $dir/principal
    key_stash_file = $dir/stash
    supported_enctypes = aes256-cts-hmac-sha1-96:normal
}
EOF
    cat > /etc/idmapd.conf << EOF
[General]
Domain = lab
Local-Realms = LAB
[Mapping]
Nobody-User = nobody
Nobody-Group = nogroup
[Translation]
Method = nsswitch
GSS-Methods = static,nsswitch
[Static]
host/guest.lab@LAB = root
host/c3.lab@LAB = root
EOF
    echo '10.0.2.23 c3.lab c3' >> /etc/hosts
}

# wait_open waits until process $1 has opened a file whose path ends in $2. The kernel knows then that
# the daemon runs: rpc.gssd has the pipe that belongs to no client, and rpc.svcgssd the channel of
# contexts, without which the server refuses each new context at once.
wait_open() {
    for i in $(seq 100); do
        ls -l "/proc/$1/fd" | grep -q "$2\$" && return 0
        sleep 0.1
    done
    echo "process $1 has not opened $2"
    return 1
}

# start_gssd starts this machine's rpc.gssd, which says what is wrong in a file that do_mount reads.
start_gssd() {
    rpc.gssd -f >> "/tmp/gssd.$(hostname)" 2>&1 &
    wait_open $! /gssd/clntXX/gssd
}

case $1 in
start)
    if [ ! -e $dir/principal ]; then
        configure
        for m in auth_rpcgss rpcsec_gss_krb5 cts; do modprobe $m; done
        kdb5_util create -s -r LAB -P lab > /dev/null
        for p in $keys; do echo "addprinc -randkey $p"; done > /tmp/kadmin
        for p in alice bob; do echo "addprinc -pw $p $p"; done >> /tmp/kadmin
        for p in $keys; do echo "ktadd -k /etc/krb5.keytab $p"; done >> /tmp/kadmin
        kadmin.local < /tmp/kadmin > /tmp/kadmin.out 2>&1 || { cat /tmp/kadmin.out; exit 1; }
        krb5kdc
        mkdir -p /var/lib/nfs/rpc_pipefs
        mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
        rpc.idmapd
        rpc.svcgssd
        wait_open "$(pidof rpc.svcgssd)" /auth.rpcsec.init/channel
    fi
    start_gssd
    ;;
client)
    mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
    krb5kdc
    rpc.idmapd -C
    start_gssd
    ;;
stop) kill "$(pidof rpc.gssd)" ;;
*)
    echo "usage: krb5.sh start|stop|client" >&2
    exit 2
    ;;
esac
