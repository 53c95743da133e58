#!/bin/sh
# tls.sh start DIR [CLIENT] runs tlshd, which makes the TLS handshakes for the kernel's client and server, with
# the files of DIR: ca.pem, server.pem and server.key, CLIENT.pem and CLIENT.key; CLIENT is "client" if not
# given. Its log is DIR/tlshd.log.
# tls.sh client DIR CLIENT gives the client the certificate CLIENT from its next handshake on.
# tls.sh export MODE has the server demand mtls of all clients, or none, as the option xprtsec= of exports(5) does
# in newer versions of exportfs and mountd. RDMA counts as a connection without TLS.
# tls.sh stop ends tlshd, and no TLS connection can be made any more.
set -e
etc=/etc/tlshd
umask 077 # tlshd complains of keys that others may read
client() { # DIR CLIENT
    for f in pem key; do
        cp "$1/$2.$f" "$etc/client.$f.new"
        mv "$etc/client.$f.new" "$etc/client.$f"
    done
}
case $1 in
start)
    modprobe -a tls gcm ghash-generic
    mkdir -p $etc
    cp "$2/ca.pem" "$2/server.pem" "$2/server.key" $etc
    client "$2" "${3:-client}"
    cat > /etc/tlshd.conf << EOF
[debug]
loglevel=1
[authenticate.client]
x509.truststore=$etc/ca.pem
x509.certificate=$etc/client.pem
x509.private_key=$etc/client.key
[authenticate.server]
x509.truststore=$etc/ca.pem
x509.certificate=$etc/server.pem
x509.private_key=$etc/server.key
EOF
    tlshd -s -c /etc/tlshd.conf > "$2/tlshd.log" 2>&1 &
    echo $! > /run/tlshd.pid
    sleep 0.2
    kill -0 $! || { cat "$2/tlshd.log"; exit 1; }
    ;;
client) client "$2" "$3" ;;
export)
    if [ "$2" = mtls ]; then
        # What mountd would write: who the addresses are, and rw, insecure, no_subtree_check, no_root_squash, fsid=0,
        # with the one mode 4, mtls.
        for a in 10.0.2.2 10.0.2.15; do echo "nfsd $a 2147483647 *" > /proc/net/rpc/auth.unix.ip/channel; done
        echo '* /export 2147483647 9218 65534 65534 0 xprtsec 1 4' > /proc/net/rpc/nfsd.export/channel
    else
        exportfs -f
    fi
    ;;
stop) kill "$(cat /run/tlshd.pid)" ;;
esac
