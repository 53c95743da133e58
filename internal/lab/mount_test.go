//go:build lab

package lab

import (
	"testing"
	"time"
)

// testMount mounts in the guest by rdmabridge mount, and by lines of /etc/fstab as at boot. The guest is the storage, too:
//
//	the guest's client -- TCP --> rdmabridge in the guest -- iWARP --> siw, the guest's knfsd
func testMount(t *testing.T, g *guest) {
	g.put(t, bridgeBinary(t), "rdmabridge")
	g.job(t, 2*time.Minute, mountScript)
	g.job(t, 5*time.Minute, demoScript)
}

// mountScript has the steps. There is no systemd in the guest.
const mountScript = `. /lab/lib.sh
set -x
cp /host/rdmabridge /bin/rdmabridge # a program on /host is read anew at each start
ln -sf /bin/rdmabridge /sbin/mount.rdmabridge
ln -sf /bin/rdmabridge /sbin/umount.rdmabridge
mkdir -p /mnt /mnt4
bridges() { grep -l '[u]ntil-unmounted' /proc/[0-9]*/cmdline 2> /dev/null | cut -d/ -f3; }
ended() { [ -e /proc/$1/exe ]; echo $?; }
mounted() { grep -c "^10.0.2.15:$1 $2 nfs.*[ ,]vers=$3,.*proto=tcp,.*addr=127.0.0.1" /proc/mounts; }

# By hand: two exports of one storage have one bridge.
rdmabridge mount -o vers=3 10.0.2.15:/export /mnt > /tmp/said || die "NFSv3: status $?"
rdmabridge mount 10.0.2.15:/ /mnt4 > /tmp/said4 || die "NFSv4: status $?"
equal "mounts with NFSv3" "$(mounted /export /mnt 3)" 1
equal "mounts with NFSv4.2" "$(mounted / /mnt4 4.2)" 1
pid=$(bridges)
equal "bridges" "$(echo "$pid" | wc -w)" 1
random 1000001 > /tmp/data
cp /tmp/data /mnt/mount3 && cp /tmp/data /mnt4/mount42 || die "cp"
sleep 1.5 # the bridge looks once a second, and would wait two minutes for a first mount that it has not seen
umount /mnt && rdmabridge umount /mnt4 || die "umount"
until_is "the bridge after the last umount" 1 20 ended $pid
same "written with NFSv3" /tmp/data /export/mount3
same "written with NFSv4.2" /tmp/data /export/mount42

# By the lines that mount has printed.
grep -h ' rdmabridge _netdev' /tmp/said /tmp/said4 > /etc/fstab
for i in 1 2; do /lab/mount -a || die "mount -a: status $?"; done
equal "mounts with NFSv3, by fstab" "$(mounted /export /mnt 3)" 1
equal "mounts with NFSv4.2, by fstab" "$(mounted / /mnt4 4.2)" 1
same "read with NFSv3" /tmp/data /mnt/mount42
same "read with NFSv4.2" /tmp/data /mnt4/mount3

# The next mount starts a bridge that was killed, with the port that the other mounts have.
umount /mnt
kill -9 $(bridges)
/lab/mount /mnt || die "mount after the bridge was killed: status $?"
pid=$(bridges)
for bad in 10.0.2.15:/none "-o port=1,retry=0 10.0.2.15:/"; do
    rdmabridge mount $bad /tmp
    equal "the status of mount $bad" $? 32
done
rm /mnt4/mount3 /mnt/mount42 || die "rm"
umount /mnt && umount /mnt4 || die "umount"
until_is "the bridge at the end" 1 20 ended $pid
rm /etc/fstab
`

// demoScript mounts the demo by the command that the demo prints, and does what somebody does who tries it.
const demoScript = `. /lab/lib.sh
set -x
ln -sf /usr/sbin/mount.nfs /sbin/mount.nfs
rdmabridge demo > /tmp/said 2> /tmp/demo.log &
demo=$!
trap 'umount -l /mnt; kill $demo; cat /tmp/said /tmp/demo.log' EXIT
until_is "the demo says how to mount it" 1 60 grep -c '^ *mount -t nfs ' /tmp/said
command=$(sed -n 's/^ *\(mount -t nfs .*\)/\1/p' /tmp/said)
/lab/$command || die "$command: status $?"
mount | grep ' /mnt nfs'
equal "files in an empty file system" "$(ls -A /mnt)" ""

random 3000001 > /tmp/data
mkdir -p /mnt/dir/sub && cp /tmp/data /mnt/dir/data && cp -a /etc /mnt/dir/sub || die "cp"
echo one > /mnt/dir/note && echo two >> /mnt/dir/note || die "append"
mv /mnt/dir/note /mnt/note && ln -s dir/data /mnt/link && chmod 600 /mnt/note || die "mv, ln, chmod"
umount /mnt || die "umount"
/lab/$command || die "$command a second time: status $?"
ls -lR /mnt
same "a file" /tmp/data /mnt/link
diff -r /etc /mnt/dir/sub/etc || die "a tree of files differs"
equal "a file that was renamed" "$(cat /mnt/note | tr '\n' ,)" one,two,
equal "its mode" "$(stat -c %a /mnt/note)" 600
equal "the time of a file that cp -a has copied" "$(stat -c %Y /mnt/dir/sub/etc/rpc)" "$(stat -c %Y /etc/rpc)"
df /mnt || die "df"
truncate -s 1000 /mnt/dir/data && first 1000 /tmp/data > /tmp/first && same "a file that was cut" /tmp/first /mnt/dir/data
rm -r /mnt/dir /mnt/link /mnt/note || die "rm"
equal "files at the end" "$(ls -A /mnt)" ""
umount /mnt || die "umount at the end"
kill $demo
wait $demo
equal "the status of the demo" $? 0
trap - EXIT
! grep " ERR " /tmp/demo.log || die "the demo complains"
`
