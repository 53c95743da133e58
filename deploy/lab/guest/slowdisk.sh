#!/bin/sh
# slowdisk.sh MS exports a file system at /export/slow on a disk whose writes take MS milliseconds each. A
# later run changes the time, under the server's hands.
set -e
table() { echo "0 $(blockdev --getsz /dev/loop7) delay /dev/loop7 0 0 /dev/loop7 0 $1"; }
if [ -e /export/slow ]; then
    dmsetup suspend --nolockfs --noudevsync slow
    dmsetup reload slow --table "$(table "$1")"
    dmsetup resume --noudevsync slow
    exit
fi
modprobe -a loop dm-mod dm-delay xfs
truncate -s 320M /tmp/slow
[ -e /dev/loop7 ] || mknod /dev/loop7 b 7 7
losetup /dev/loop7 /tmp/slow
dmsetup create --noudevsync slow --table "$(table 0)"
mkfs.xfs -q /dev/dm-0
mkdir /export/slow
mount /dev/dm-0 /export/slow
chmod 777 /export/slow
echo '/export/slow *(rw,no_root_squash,insecure,fsid=7,no_subtree_check)' >> /etc/exports
exportfs -a
[ "$1" = 0 ] || "$0" "$1"
