#!/bin/sh
# sparse.sh 4.2 HOST PORT tests holes, and copies that the server makes by itself.
DIR=/disk
. /lab/lib.sh
/lab/disk.sh || die "disk.sh"
begin
do_mount
d=sparse-$vers-$port
m=/mnt/$d e=/export/disk/$d
mkdir "$m" || die "mkdir"
blocks() { sync "$1"; stat -c %b "$1"; }

# Data, a hole of 2 MiB, data, a hole to the end.
random 65536 > /tmp/sparse
dd if=/tmp/sparse of="$m/f" bs=64k 2> /dev/null || die "write"
dd if=/tmp/sparse of="$m/f" bs=64k seek=33 conv=notrunc 2> /dev/null || die "write past a hole"
truncate -s 4M "$m/f"
maps() { # WHAT
    sync "$m/f"
    /lab/sparse map "$e/f" > /tmp/map.server || die "map on the server"
    /lab/sparse map "$m/f" > /tmp/map.client || die "map"
    same "holes $1" /tmp/map.server /tmp/map.client
}
maps "as written"
equal "pieces of data" "$(grep -c data /tmp/map.client)" 2
[ "$(ops SEEK)" -gt 0 ] || die "no SEEK was sent"
before=$(blocks "$e/f")
/lab/sparse punch "$m/f" 2162688 32768 || die "punch" # the first half of the second piece
equal "DEALLOCATE" "$(ops DEALLOCATE)" 1
equal "blocks given back" $((before - $(blocks "$e/f"))) 64
maps "with one more"
equal "the hole" "$(dd if="$m/f" bs=32k skip=66 count=1 2> /dev/null | tr -d '\0' | wc -c)" 0
tail -c 32768 /tmp/sparse > /tmp/half
dd if="$m/f" bs=32k skip=67 count=1 2> /dev/null | cmp - /tmp/half || die "what is behind the hole"
before=$(blocks "$e/f")
/lab/sparse allocate "$m/f" 1048576 1048576 || die "allocate"
equal "ALLOCATE" "$(ops ALLOCATE)" 1
equal "blocks taken" $(($(blocks "$e/f") - before)) 2048
same "file with holes" "$e/f" "$m/f"

# The server completes a short copy before it answers, and reports the end of a long one by a callback.
random 5000000 > "$e/long"
random 100000 > "$e/short"
read=$(ops READ) write=$(ops WRITE)
for f in short long; do
    n=$(ops COPY)
    /lab/sparse copy "$m/$f" "$m/$f.copy" || die "copy $f"
    same "$f copy" "$e/$f" "$e/$f.copy"
    [ "$(ops COPY)" -gt "${n:-0}" ] || die "no COPY was sent for $f"
done
/lab/sparse clone "$m/long" "$m/clone" || die "clone"
same "clone" "$e/long" "$e/clone"
equal "CLONE" "$(ops CLONE)" 1
equal "READ and WRITE while copying" "$(ops READ) $(ops WRITE)" "$read $write"
cold
same "long copy read back" "$e/long" "$m/long.copy"
rm -r "$m" || die "rm -r"
do_umount
end
echo PASS
