#!/bin/sh
# exports.sh is about rules that name exports. STEP=setup makes two more exports below /export: /export/archive, where a rule
# denies changes, and /export/secret, where one denies everything. STEP=remove removes them. STEP=rate, with the arguments below, uses one of them.
# Otherwise
# exports.sh VERS HOST PORT [MOUNTPORT] mounts all of them: /export can be written meanwhile, and no way leads around the rules.
. /lab/lib.sh
a=/export/archive s=/export/secret
uuid=8f3c0d3a-1b6e-4c1f-9b7a-5d0e7c2a9f10
case $STEP in
setup)
    mkdir -p $a $s
    mount -t tmpfs tmpfs $a && mount -t tmpfs tmpfs $s || die mount
    chmod 777 $a $s
    exportfs -o rw,no_root_squash,insecure,fsid=$uuid '*:/export/archive' && exportfs -o rw,no_root_squash,insecure,fsid=8 '*:/export/secret' || die exportfs
    exit
    ;;
remove)
    exportfs -u '*:/export/archive' && exportfs -u '*:/export/secret' && exportfs -f || die exportfs
    umount -l $a && umount -l $s && rmdir $a $s || die umount # nfsd may still have a file
    exit
    ;;
rate) # writes and reads 4 MiB in the export DIR, and says how long that took
    begin
    do_mount
    m=/mnt/rate-$vers
    head -c 4194304 /dev/urandom > /tmp/rate
    from=$(cut -d ' ' -f 1 /proc/uptime)
    cp /tmp/rate $m && sync $m || die "write"
    echo 3 > /proc/sys/vm/drop_caches
    cmp /tmp/rate $m || die "what was read is not what was written"
    echo "took $(cut -d ' ' -f 1 /proc/uptime | awk "{print \$1 - $from}")"
    rm $m && do_umount
    end
    echo PASS
    exit
    ;;
esac
begin

# refused REFUSAL COMMAND... fails unless the command does, with this error.
refused() {
    why=$1
    shift
    timeout 20 "$@" > /tmp/ex.out 2>&1 && die "$* went through"
    grep -q "$why" /tmp/ex.out || die "$*: $(cat /tmp/ex.out)"
}
ro='Read-only file system'
echo secret > $s/file && echo old > $a/file || die prepare
mkdir -p $a/dir
do_mount
m=/mnt/ex-$vers
rm -rf $m
mkdir $m && echo one > $m/file && mv $m/file $m/file2 && ln $m/file2 $m/file3 && chmod 600 $m/file3 || die "a change of what no rule names"
if [ "$vers" != 3 ]; then # the mount leads into the other exports
    equal "a file of the archive" "$(cat /mnt/archive/file)" old
    refused "$ro" touch /mnt/archive/new
    refused "$ro" sh -c 'cd /mnt/archive/dir && echo no > ../file'
    refused "$ro" rm -f /mnt/archive/file
    refused "$ro" cp $m/file2 /mnt/archive/new
    refused "$ro" mv /mnt/archive/file $m/moved
    refused . cat /mnt/secret/file
    refused . ls /mnt/secret
    refused . sh -c 'echo no > /mnt/secret/file'
    equal "a file of the archive, copied" "$(rm -f $m/moved; cp /mnt/archive/file $m/copy && cat $m/copy)" old
fi
echo two >> $m/file2 || die "a change beside refused ones"
rm -r $m || die "rm"
do_umount
DIR=/archive
do_mount
equal "a file of the archive" "$(cat /mnt/file)" old
refused "$ro" touch /mnt/new
refused "$ro" sh -c 'echo no > /mnt/file'
refused "$ro" sh -c 'cd /mnt/dir && echo no > ../file'
do_umount
DIR=/secret
[ "$vers" = 3 ] && from=$host:$EXPORT$DIR o=vers=3,nolock,port=$port,mountport=$mountport,mountproto=tcp || from=$host:$DIR o=vers=$vers,port=$port
refused . sh -c "mount.nfs $from /mnt -o proto=${PROTO:-tcp},retry=0,$o && cat /mnt/file"
umount /mnt 2> /dev/null
equal "the files of the server" "$(cat $a/file $s/file; ls $a $s)" "$(printf 'old\nsecret\n%s:\ndir\nfile\n\n%s:\nfile' $a $s)"
end
echo PASS
