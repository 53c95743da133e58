//go:build lab

package lab

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestBootLab boots a guest twice whose PID 1 is systemd. The guest is the storage, too, as in testMount. After the first boot
// rdmabridge mount mounts by hand. It says what to write to /etc/fstab, which the second boot has.
func TestBootLab(t *testing.T) {
	needLab(t)
	initrd := filepath.Join(t.TempDir(), "guest.cpio")
	command(t, 3*time.Minute, "../../deploy/lab/mkinitrd.sh", "--systemd", initrd, bridgeBinary(t))
	g := newGuest(t, initrd, "--mem", "3072", "--append", "lab.rdma=siw lab.server=1 lab.systemd=1")
	for _, boot := range []struct{ name, script string }{{"by hand", bootByHand}, {"by fstab", bootByFstab}} {
		g.boot(t)
		g.job(t, 10*time.Minute, bootBegin+boot.script)
		g.job(t, time.Minute, bootEnd)
		if !testkit.Settles(patience, func() bool { return !g.qemu.alive() }) {
			t.Fatalf("mounted %s: the guest is still there %v after systemctl poweroff", boot.name, patience)
		}
		last := filepath.Join(g.dir, "last")
		if text, err := os.ReadFile(last); err != nil || string(text) != "same\n" {
			t.Errorf("mounted %s: the storage lacks what a program wrote until the host was shut down: %q, %v", boot.name, text, err)
		}
		os.Remove(last)
	}
}

const bootBegin = `. /lab/lib.sh
set -x
trap 'rc=$?; [ $rc = 0 ] || journalctl --no-pager -n 40; exit $rc' EXIT
bridge=rdmabridge-mount-10.0.2.15.service
mounted() { grep -c "^10.0.2.15:$1 $2 nfs.*[ ,]vers=$3,.*proto=tcp,.*addr=127.0.0.1" /proc/mounts; }
both_mounted() {
    equal "mounts with NFSv3" "$(mounted /export /mnt 3)" 1
    equal "mounts with NFSv4.2" "$(mounted / /mnt4 4.2)" 1
    equal "the bridge" "$(systemctl show -P Transient -P DynamicUser -P SubState $bridge | sort | tr '\n' ,)" running,yes,yes,
}
copied() { # NAME
    cp /tmp/data /mnt/$1.3 && cp /tmp/data /mnt4/$1.42 || die "cp"
    same "written with NFSv3" /tmp/data /export/$1.3
    same "written with NFSv4.2" /tmp/data /export/$1.42
}
killed() {
    before=$(systemctl show -P MainPID $bridge)
    systemctl kill -s KILL $bridge
    until_is "starts of the bridge after it was killed" 1 60 systemctl show -P NRestarts $bridge
    copied killed
    [ "$(systemctl show -P MainPID $bridge)" != "$before" ] || die "the bridge was not killed"
}
gone() {
    until_is "the bridge after the last umount" inactive 60 systemctl is-active $bridge
    equal "what systemd knows of it" "$(systemctl show -P LoadState $bridge)" not-found
    journalctl --no-pager -u $bridge | grep '"reason":"unmounted"' || die "the bridge does not say why it ended"
}
mkdir -p /mnt /mnt4
random 1000001 > /tmp/data
equal "the state of the host after boot" "$(systemctl is-system-running --wait)" running
`

const bootByHand = `
rdmabridge mount -o vers=3 10.0.2.15:/export /mnt > /tmp/said || die "NFSv3: status $?"
rdmabridge mount 10.0.2.15:/ /mnt4 > /tmp/said4 || die "NFSv4: status $?"
equal "who is said to have the bridge" "$(grep -c "through $bridge" /tmp/said /tmp/said4 | tr '\n' ,)" /tmp/said:1,/tmp/said4:1,
both_mounted
rdmabridge stats --socket /run/${bridge%.service}/control.sock || die "stats"
copied hand
killed
/bin/umount /mnt && rdmabridge umount /mnt4 || die "umount"
gone
rdmabridge mount -o vers=3 10.0.2.15:/export /mnt && rdmabridge mount 10.0.2.15:/ /mnt4 || die "mount once more"
both_mounted
grep -h ' rdmabridge _netdev' /tmp/said /tmp/said4 > /host/fstab
equal "lines for /etc/fstab" "$(wc -l < /host/fstab)" 2
`

const bootByFstab = `
equal "the state of the mounts after boot" "$(systemctl is-active mnt.mount mnt4.mount | tr '\n' ,)" active,active,
equal "where systemd has them from" "$(systemctl show -P SourcePath mnt.mount mnt4.mount | sort -u | grep .)" /etc/fstab
both_mounted
copied fstab
killed
/bin/umount /mnt && systemctl stop mnt4.mount || die "umount"
gone
systemctl start mnt.mount && /bin/mount /mnt4 || die "mount"
both_mounted
copied again
`

// bootEnd shuts the guest down while a program writes to the mounts. The service last is there until they are gone.
const bootEnd = `. /lab/lib.sh
set -x
systemd-run --unit=last -p Type=oneshot -p RemainAfterExit=yes -p Before=remote-fs-pre.target -p After=lab.service \
    -p RequiresMountsFor='/host /tmp' -p ExecStop='/bin/sh -c "cmp /tmp/data /export/last && echo same > /host/last"' true || die "last"
systemd-run --unit=writer -p RequiresMountsFor='/mnt /mnt4' sh -c 'exec > /mnt/last; cat /tmp/data; exec sleep 1000' || die "writer"
until_is "the file that is being written" 1000001 20 stat -c %s /mnt/last
systemctl poweroff --no-block
`
