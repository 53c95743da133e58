#!/bin/sh
# knfsd.sh start|stop: the kernel NFS server, on TCP 2049 and, with an RDMA device, on
# RDMA 20049. stop takes the threads to 0: every listener and connection goes, and so
# does all NFSv4 state, as in a reboot of the server; the exports stay.
set -e
case $1 in
start)
    rpc.nfsd --no-udp 8
    if [ -n "$(ls /sys/class/infiniband 2> /dev/null)" ] && ! grep -q '^rdma' /proc/fs/nfsd/portlist; then
        echo 'rdma 20049' > /proc/fs/nfsd/portlist
    fi
    ;;
stop) echo 0 > /proc/fs/nfsd/threads ;;
*)
    echo "usage: knfsd.sh start|stop" >&2
    exit 2
    ;;
esac
