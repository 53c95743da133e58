#!/bin/sh
# once.sh VERS HOST PORT [MOUNTPORT] checks that a mkdir succeeds which the caller delays on its way
# to the server. The script prints "ready", and runs mkdir when the file /host/go exists. It prints
# how often the client sent the Call again.
. /lab/lib.sh
DMESG_ALLOW="rpcrdma: connection to|nfs: server .* (not responding|OK)"
begin
do_mount
d=once-$vers-$port
m=/mnt/$d
rm -rf "${SERVER:?}/$d" /host/go
mkdir "$m" && ls -a "$m" > /dev/null || die "mkdir"
echo ready
while [ ! -e /host/go ]; do sleep 0.1; done
mkdir "$m/sub" || die "mkdir: status $?"
[ -d "$SERVER/$d/sub" ] || die "no directory"
case $vers in 3) op=MKDIR ;; *) op=CREATE ;; esac
awk -v op="$op:" '/^device/ { on = $5 == "/mnt" } on && $1 == op { print "sent again", $3 - $2 }' /proc/self/mountstats
rm -r "$m" /host/go || die "rm"
do_umount
end
echo PASS
