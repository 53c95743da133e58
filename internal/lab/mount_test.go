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
