#!/bin/sh
# disk.sh exports a file system at /export/disk that has extended attributes, holes and shared
# blocks, which tmpfs does not have. A second run does nothing.
set -e
[ ! -e /export/disk ] || exit 0
for m in loop xfs; do modprobe $m; done
truncate -s 512M /tmp/disk
mkfs.xfs -q /tmp/disk # with reflink=1, its default
mkdir /export/disk
mount -o loop /tmp/disk /export/disk
chmod 777 /export/disk
echo '/export/disk *(rw,no_root_squash,insecure,fsid=1,no_subtree_check,sec=sys:krb5:krb5i:krb5p)' >> /etc/exports
exportfs -a
