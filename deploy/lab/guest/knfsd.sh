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
stop)
    echo 0 > /proc/fs/nfsd/threads &
    n=0
    while kill -0 $! 2> /dev/null; do
        n=$((n + 1))
        if [ $n = 400 ]; then
            echo "the server does not stop; its threads:"
            for p in /proc/[0-9]*; do
                [ "$(cat "$p/comm" 2> /dev/null)" != nfsd ] || { cat "$p/stack"; echo; }
            done
        fi
        sleep 0.1
    done
    wait $!
    ;;
*)
    echo "usage: knfsd.sh start|stop" >&2
    exit 2
    ;;
esac
