#!/bin/sh
# readonly.sh VERS HOST PORT [MOUNTPORT] mounts what must not be written. Each change has to fail at once with the error
# of a read-only file system, or REFUSAL, and after each of them the mount reads the server's data. The server's files
# have to be as before.
. /lab/lib.sh
begin
d=ro-$vers-$port
m=/mnt/$d e=$SERVER/$d
mkdir -p "$e/full" && echo content > "$e/file" && echo more > "$e/full/more" || die "prepare"
state() { (cd "$e" && find . -exec stat -c '%n %f %h %u %g %s %Y' {} + | sort && cat file full/more); }
state > /tmp/ro.before
do_mount
reads() { equal "$1" "$(timeout 20 dd if="$m/file" iflag=direct bs=4096 2> /tmp/ro.dd)" content; }
reads "the file"

# refused WHAT COMMAND... fails unless the command does, with the right error.
refused() {
    what=$1
    shift
    timeout 20 "$@" > /tmp/ro.out 2>&1
    case $? in
    0) die "$what went through" ;;
    124 | 143) die "$what hangs: $(cat /proc/$$/stack 2> /dev/null)" ;;
    esac
    grep -q "${REFUSAL:-Read-only file system}" /tmp/ro.out || die "$what: $(cat /tmp/ro.out)"
    reads "the file after $what"
}
refused create touch "$m/new"
refused "exclusive create" sh -c "set -C; : > $m/new"
refused write dd if=/dev/zero of="$m/file" bs=512 count=1 conv=notrunc,fsync
refused "long write" dd if=/dev/zero of="$m/file" bs=1M count=4 conv=notrunc,fsync
refused truncate sh -c ": > $m/file"
refused mkdir mkdir "$m/dir"
refused symlink ln -s to "$m/sym"
refused link ln "$m/file" "$m/hard"
refused mkfifo mkfifo "$m/fifo"
refused rename mv "$m/file" "$m/other"
refused remove rm -f "$m/file"
refused rmdir rmdir "$m/full"
refused chmod chmod 600 "$m/file"
refused chown chown 1000 "$m/file"
refused times touch -d '2001-02-03 04:05:06' "$m/file"

# Several at once, on several slots of the session.
for n in 1 2 3 4 5 6 7 8; do
    (for k in 1 2 3 4 5; do mkdir "$m/dir$n-$k"; done; ls -l "$m/full" > "/tmp/ro.ls$n") 2> /dev/null &
done
wait
for n in 1 2 3 4 5 6 7 8; do grep -q more "/tmp/ro.ls$n" || die "ls beside refused operations"; done
cold
reads "the file of a new mount"
equal "names" "$(ls "$m" | tr '\n' ' ')" "file full "
df /mnt | tail -1 | grep -q /mnt || die "df"
do_umount
state > /tmp/ro.after
same "the server's files" /tmp/ro.before /tmp/ro.after
rm -r "$e"
end
echo PASS
