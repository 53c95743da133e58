#!/bin/sh
# files.sh VERS HOST PORT [MOUNTPORT] tests files and directories through a mount, and compares each
# with the server's own copy. SIZES are the sizes of the files, and NAMES is the number of names in
# a directory. LOCKS=no leaves out locks. MANY is a directory in which the server has created that
# many names.
. /lab/lib.sh
step() { echo "$(cut -d' ' -f1 /proc/uptime) $*"; }
begin
step "mount vers=$vers $host port $port"
do_mount
d=files-$vers-$port
m=/mnt/$d e=$SERVER/$d ours=/tmp/ours
rm -rf "$e"
mkdir "$m" || die "mkdir"

step "sizes"
mkdir -p $ours
sizes="${SIZES:-0 1 3 4095 4096 65537 67108864}"
for n in $sizes; do
    [ -e "$ours/$n" ] || random "$n" > "$ours/$n"
    dd if="$ours/$n" of="$m/$n" bs=1M 2> /dev/null || die "write $n"
done
sync -f "$m" 2> /dev/null || sync
for n in $sizes; do same "$n on the server" "$ours/$n" "$e/$n"; done
cold
for n in $sizes; do
    equal "size of $n" "$(stat -c %s "$m/$n")" "$n"
    same "$n read back" "$ours/$n" "$m/$n"
done

step "odd offsets"
# A hole, a write across it, and a read of a few octets from the middle.
printf 'middle' | dd of="$m/4096" bs=1 seek=4093 conv=notrunc 2> /dev/null || die "overwrite"
printf 'far' | dd of="$m/65537" bs=1 seek=70001 conv=notrunc 2> /dev/null || die "append past a hole"
cold
equal "overwritten octets" "$(dd if="$m/4096" bs=1 skip=4093 2> /dev/null)" middle
same "overwritten" "$e/4096" "$m/4096"
same "with a hole" "$e/65537" "$m/65537"
equal "size with a hole" "$(stat -c %s "$e/65537")" 70004

names=${NAMES:-2000}
step "$names names"
# The server creates names of every length up to 200, so that Replies end at each roundup residue.
many=${MANY:-$d/many}
pad=nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn
pad=$pad$pad
if [ -z "$MANY" ]; then
    mkdir "$e/many"
    i=0
    while [ $i -lt $names ]; do
        : > "$e/many/$i.${pad:0:$((i % 195))}"
        i=$((i + 1))
    done
fi
entries() { (cd "$1" && printf '%s\n' *) | sort; } # ls would ask for attributes
entries "$SERVER/$many" > /tmp/names.server
entries "/mnt/$many" > /tmp/names.client
equal "names on the server" "$(wc -l < /tmp/names.server)" $names
same "names" /tmp/names.server /tmp/names.client
cold
ls -ln "/mnt/$many" | awk '{print $NF}' | sed 1d | sort > /tmp/names.client
same "names with attributes" /tmp/names.server /tmp/names.client
[ -n "$MANY" ] || rm -r "$e/many"

step "names and attributes"
echo one > "$m/a"
mv "$m/a" "$m/b" || die "rename"
[ ! -e "$e/a" ] && [ "$(cat "$e/b")" = one ] || die "rename on the server"
mkdir "$m/dir" && mv "$m/b" "$m/dir/c" || die "rename into a directory"
[ "$(cat "$e/dir/c")" = one ] || die "rename into a directory on the server"
ln "$m/dir/c" "$m/hard" || die "link"
equal "links" "$(stat -c %h "$e/hard")" 2
equal "same inode" "$(stat -c %i "$e/hard")" "$(stat -c %i "$e/dir/c")"
text=../${pad:0:$((${#pad} - 1))}/x
for t in t "$text" "$text/$text/$text/$text"; do # the last target alone is 800 octets
    ln -s "$t" "$m/sym" || die "symlink"
    equal "symlink on the server" "$(readlink "$e/sym")" "$t"
    cold
    equal "readlink" "$(readlink "$m/sym")" "$t"
    rm "$m/sym" || die "remove symlink"
done
truncate -s 100 "$m/65537" || die "truncate"
equal "truncated" "$(stat -c %s "$e/65537")" 100
same "truncated" "$e/65537" "$m/65537"
truncate -s 5000 "$m/65537" || die "extend"
cold
equal "extended" "$(stat -c %s "$e/65537")" 5000
same "extended" "$e/65537" "$m/65537"
chmod 4751 "$m/hard" || die "chmod"
equal "mode on the server" "$(stat -c %a "$e/dir/c")" 4751
chmod 640 "$m/dir/c"
equal "mode" "$(stat -c %a "$m/hard")" 640
touch -d '2001-02-03 04:05:06' "$m/hard" || die "touch"
equal "mtime on the server" "$(stat -c %Y "$e/hard")" "$(stat -c %Y "$m/hard")"
mkfifo "$m/fifo" || die "mkfifo"
[ -p "$e/fifo" ] || die "mkfifo on the server"
rmdir "$m/dir" 2> /dev/null && die "rmdir of a full directory went through"
rm "$m/nothing" 2> /dev/null && die "rm of nothing went through"
mkdir "$m/dir" 2> /dev/null && die "mkdir of what exists went through"
rm "$m/hard" "$m/dir/c" "$m/fifo" && rmdir "$m/dir" || die "remove"
equal "left on the server" "$(ls "$e" | sort -n | tr '\n' ' ')" "$sizes "

if [ "$vers" != 3 ] && [ "$LOCKS" != no ]; then
    step "locks"
    /lab/locks "$m/locked" "$e/locked" || die "locks: status $?"
fi

step "remove"
rm -r "$m" || die "rm -r"
[ ! -e "$e" ] || die "rm -r left something"
df /mnt | tail -1 | grep -q /mnt || die "df"
do_umount
end
step "done"
echo PASS
