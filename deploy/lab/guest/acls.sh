#!/bin/sh
# acls.sh VERS HOST PORT [MOUNTPORT] tests short and long access control lists: client and server
# each set lists, and the other one must see them. NFSv3 has POSIX ACLs through program NFSACL.
# NFSv4 has its own ACLs, which knfsd converts from and to POSIX ACLs.
. /lab/lib.sh
begin
do_mount
d=acls-$vers-$port
m=/mnt/$d e=/export/$d
mkdir "$m" && echo data > "$m/f" && echo data > "$m/long" || die "make files"
entries() { grep -c '^user:[0-9]'; }

case $vers in
3)
    setfacl -m u:1000:rw,g:1001:r "$m/f" || die "setfacl"
    mkdir "$m/sub" && setfacl -d -m u:1001:rwx "$m/sub" || die "setfacl -d"
    : > "$m/sub/heir"
    for f in f sub/heir sub; do
        getfacl -n -p "$m/$f" | sed 1d > /tmp/acl.client
        getfacl -n -p "$e/$f" | sed 1d > /tmp/acl.server
        same "ACL of $f" /tmp/acl.server /tmp/acl.client
    done
    grep -q default:user:1001:rwx /tmp/acl.client || die "no default ACL: $(cat /tmp/acl.client)"
    ;;
*)
    nfs4_setfacl -a A::1000:RW "$m/f" || die "nfs4_setfacl"
    nfs4_getfacl "$m/f" > /tmp/acl.client || die "nfs4_getfacl"
    grep -q '^A::1000:rw' /tmp/acl.client || die "nfs4_getfacl says $(cat /tmp/acl.client)"
    ;;
esac
getfacl -n -p "$e/f" | grep -q '^user:1000:rw-' || die "on the server: $(getfacl -n -p "$e/f")"
su bob -c "echo no > $m/f" 2> /dev/null && die "bob wrote"
su alice -c "echo alice > $m/f" || die "alice, whom the ACL lets write, did not"
equal "what alice wrote" "$(cat "$e/f")" alice

# 300 entries make an NFSv3 Reply of 4 KiB and an NFSv4 Reply of 16 KiB or more.
awk 'BEGIN { for (i = 5000; i < 5300; i++) print "u:" i ":" (i % 2 ? "rw-" : "r--") }' > /tmp/acl.long
setfacl -M /tmp/acl.long "$e/long" || die "long setfacl on the server"
cold
if [ "$vers" = 3 ]; then
    getfacl -n -p "$m/long" | sed 1d > /tmp/acl.client
    getfacl -n -p "$e/long" | sed 1d > /tmp/acl.server
    equal "entries" "$(entries < /tmp/acl.client)" 300
    same "long ACL" /tmp/acl.server /tmp/acl.client
    echo data > "$m/longer"
    setfacl -M /tmp/acl.long "$m/longer" || die "long setfacl"
    getfacl -n -p "$e/longer" | sed 1d > /tmp/acl.server
    same "long ACL set" /tmp/acl.client /tmp/acl.server
else
    nfs4_getfacl "$m/long" > /tmp/acl.client || die "long nfs4_getfacl"
    equal "entries" "$(grep -c '^A::5' /tmp/acl.client)" 300
    equal "the last one" "$(grep '^A::5299:' /tmp/acl.client | cut -c1-10)" A::5299:rw
    grep -v '^A::5[12]' /tmp/acl.client > /tmp/acl.shorter # knfsd accepts at most 170
    echo data > "$m/longer"
    nfs4_setfacl -S /tmp/acl.shorter "$m/longer" || die "long nfs4_setfacl"
    equal "entries set" "$(getfacl -n -p "$e/longer" | entries)" 100
fi
rm -r "$m" || die "rm -r"
do_umount
end
echo PASS
