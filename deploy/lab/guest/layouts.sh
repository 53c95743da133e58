#!/bin/sh
# layouts.sh VERS HOST PORT [MOUNTPORT] mounts a file system for which the server gives pNFS layouts
# (block layouts of XFS), and checks whether the client takes it for one: LAYOUTS is pass or hide.
# With hide the client writes and reads a file, and asks for no layout. VERS is 4.1 or 4.2.
DIR=/disk
. /lab/lib.sh
/lab/disk.sh || die "disk.sh"
modprobe blocklayoutdriver || die "modprobe"
begin
exportfs -o rw,no_root_squash,insecure,fsid=1,no_subtree_check,pnfs '*:/export/disk' || die "exportfs"
do_mount
used() { awk '/^device/ { on = $5 == "/mnt" } on && /^[ \t]*nfsv4:/ { sub(".*pnfs=", ""); sub(",.*", ""); print }' /proc/self/mountstats; }
case $LAYOUTS in
pass) equal "layouts" "$(used)" LAYOUT_BLOCK_VOLUME ;; # without the daemon blkmapd, reading would wait
hide)
    equal "layouts" "$(used)" "not configured"
    f=layouts-$vers-$port
    random 3000000 > /tmp/layouts && cp /tmp/layouts "/mnt/$f" || die "write"
    same "on the server" /tmp/layouts "/export/disk/$f"
    cold
    equal "layouts, mounted again" "$(used)" "not configured"
    same "read back" /tmp/layouts "/mnt/$f"
    equal LAYOUTGET "$(ops LAYOUTGET)" 0
    rm "/mnt/$f" /tmp/layouts || die "rm"
    ;;
*) die "LAYOUTS=$LAYOUTS" ;;
esac
do_umount
exportfs -r
end
echo PASS
