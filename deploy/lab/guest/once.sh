#!/bin/sh
# once.sh VERS HOST PORT [MOUNTPORT]: a mkdir that the caller holds up on its way, between
# "ready" and the file /host/go here and the server there, succeeds. It says how often it was
# sent again.
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
