#!/bin/sh
# knfsd.sh start|stop starts or stops the kernel NFS server on TCP 2049 and, with an RDMA device, on
# RDMA 20049. stop sets the number of threads to 0: as in a reboot, the server closes every
# listener and connection and forgets all NFSv4 state. The exports remain.
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
