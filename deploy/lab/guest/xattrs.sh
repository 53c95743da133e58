#!/bin/sh
# xattrs.sh 4.2 HOST PORT tests short, long and many extended attributes.
DIR=/disk
. /lab/lib.sh
/lab/disk.sh || die "disk.sh"
begin
do_mount
d=xattrs-$vers-$port
m=/mnt/$d e=/export/disk/$d
mkdir "$m" && : > "$m/f" || die "make a file"
value() { getfattr --only-values --absolute-names -n "$1" "$2"; }
setfattr -n user.short -v value "$m/f" || die "setfattr"
equal "on the server" "$(value user.short "$e/f")" value
# 64 KiB is the longest value in Linux; 4000 octets are about as long as a Call or Reply in a Send.
for n in 3000 4000 5000 65536; do
    head -c $((n * 3 / 4)) /dev/urandom | base64 -w 0 | head -c "$n" > "/tmp/xattr.$n"
    # An argument has at most 128 KiB, so a file passes the value.
    printf '# file: %s\nuser.long%s="%s"\n' "$m/f" "$n" "$(cat "/tmp/xattr.$n")" > /tmp/xattr.dump
    setfattr --restore=/tmp/xattr.dump || die "setfattr $n"
    value "user.long$n" "$e/f" > /tmp/xattr.server
    same "$n octets on the server" "/tmp/xattr.$n" /tmp/xattr.server
done
cold
for n in 3000 4000 5000 65536; do
    value "user.long$n" "$m/f" > /tmp/xattr.client || die "getfattr $n"
    same "$n octets read back" "/tmp/xattr.$n" /tmp/xattr.client
done
# 200 names make a Reply of 20 KiB.
: > "$e/many"
awk -v f="$e/many" 'BEGIN { print "# file: " f; for (i = 1000; i < 1200; i++) printf "user.%090d=\"%d\"\n", i, i }' > /tmp/xattr.dump
setfattr --restore=/tmp/xattr.dump || die "setfattr many on the server"
getfattr -d --absolute-names "$e/many" | sed 1d > /tmp/xattr.server
getfattr -d --absolute-names "$m/many" | sed 1d > /tmp/xattr.client || die "getfattr many"
equal "names" "$(grep -c ^user. /tmp/xattr.client)" 200
same "many" /tmp/xattr.server /tmp/xattr.client
setfattr -x user.short "$m/f" || die "setfattr -x"
value user.short "$e/f" 2> /dev/null && die "the server still has what was removed"
value user.none "$m/f" 2> /dev/null && die "there is what was never set"
rm -r "$m" || die "rm -r"
do_umount
end
echo PASS
