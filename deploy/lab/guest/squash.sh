#!/bin/sh
# squash.sh VERS HOST PORT [MOUNTPORT] makes files as root, alice and bob, and prints who owns them at the server:
# the user and the group of each of the three.
. /lab/lib.sh
begin
d=squash-$vers-$port
mkdir -p "$SERVER/$d" && chmod 777 "$SERVER/$d" || die "prepare"
do_mount
for user in root alice bob; do
    su "$user" -s /bin/sh -c "echo mine > /mnt/$d/$user && cat /mnt/$d/$user > /dev/null" || die "a file of $user"
done
do_umount
for user in root alice bob; do
    equal "the file of $user" "$(cat "$SERVER/$d/$user")" mine
    echo "owner $user $(stat -c '%u %g' "$SERVER/$d/$user")"
done
rm -r "${SERVER:?}/$d"
end
echo PASS
