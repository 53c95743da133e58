#!/bin/sh
# xids.sh HOST PORT MOUNTPORT: eight clients whose Calls have the same XIDs, with SEC=sys,
# krb5, krb5i or krb5p. krb5.sh and disk.sh have run.
. /lab/lib.sh
begin
d=/export/disk/xids-$SEC
rm -rf $d
mkdir $d
for i in 0 1 2 3 4 5 6 7; do
    random $((262144 + i)) > $d/f$i
    chmod 666 $d/f$i
done
if [ "$SEC" != sys ]; then
    export KRB5CCNAME=/tmp/krb5cc_xids
    echo alice | kinit alice > /dev/null || die "kinit: status $?"
fi
/lab/xids "$SEC" "$1" "$2" "$3" "$d" "${ROUNDS:-300}" 8 || die "xids: status $?"
rm -rf $d $KRB5CCNAME
end
echo PASS
