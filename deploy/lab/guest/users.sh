#!/bin/sh
# users.sh VERS HOST PORT [MOUNTPORT], with SEC=krb5 and so on, checks that the server knows a user by
# the name in the user's ticket, and a user without a ticket as nobody. krb5.sh has created alice
# and bob.
. /lab/lib.sh
as() { # USER COMMAND
    su "$1" -c "$2"
}
ticket() { echo "$1" | as "$1" kinit > /dev/null || die "kinit $1: status $?"; }
begin
rm -f /tmp/krb5cc_1*
do_mount
d=users-$vers-$SEC-$port
m=/mnt/$d e=/export/$d
mkdir -m 777 "$m" && chmod 777 "$m" || die "mkdir"
equal "root is" "$(stat -c %u "$e")" 0
as bob "ls $m" 2> /dev/null && die "bob came in without a ticket"
ticket alice
random 300001 > /tmp/alices
chmod 644 /tmp/alices
as alice "umask 077; cat /tmp/alices > $m/alices" || die "alice writes"
equal "alice is" "$(stat -c %u:%a "$e/alices")" 1000:600
same "what alice wrote" /tmp/alices "$e/alices"
ticket bob
as bob "ls $m > /dev/null" || die "bob cannot list"
as bob "cat $m/alices" 2> /dev/null && die "bob read what is alice's"
as bob "echo bob > $m/bobs" || die "bob writes"
equal "bob is" "$(stat -c %u "$e/bobs")" 1001
cold
as alice "cmp $m/alices /tmp/alices" || die "alice reads back"
equal "alice sees herself as" "$(as alice "stat -c %U $m/alices")" alice
rm -r "$m" || die "rm -r"
do_umount
rm -f /tmp/krb5cc_1*
end
echo PASS
