//go:build lab

package lab

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestLabCrash kills a client of NFSv3 that has locks: a guest of its own, whose status monitor has a disk.
//
//	client guest 10.9.1.15 ------------------- 10.9.1.2  this host,   10.9.0.2 --> 10.9.0.15 near guest, knfsd, or
//	c1, c2, c3 10.9.0.21 and so on, on eth1 -- 10.9.0.2  rdmabridge,  10.8.0.1 --> 10.8.0.2  nfs-ganesha on this host
//	of the near guest
//
// Its locks hold while it is away, whatever happens to the bridge meanwhile, and also when a machine without the disk has its
// address. Its notice frees them, and what it waited for, and nothing else.
func TestLabCrash(t *testing.T) {
	needLab(t)
	if !labFull() {
		t.Skip("boots ten guests: set RDMABRIDGE_LAB_FULL=1")
	}
	t.Run("knfsd", func(t *testing.T) {
		l := newCrashLab(t, packGuest(t))
		l.server, l.export = "10.9.0.15", "/export"
		l.start(t, "lab.server=1")
		l.crashes(t)
	})
	t.Run("ganesha", func(t *testing.T) {
		if !mayRunGanesha() {
			t.Skip("ganesha opens files by their handles, which takes the host's own root")
		}
		l := newCrashLab(t, packGuest(t))
		n := newGanesha(t, l.client, "15")
		n.locks, n.nfs, n.mount = "crash2 10.8.0.1/24 10.8.0.2/24", 2049, 20048
		n.args[1], n.args[2] = "2049", "20048"
		n.start(t)
		l.server, l.export = "10.8.0.2", n.dir
		l.start(t, "")
		l.contend(t)
		l.restartGanesha(t, n)
		l.crashes(t)
		n.wantQuiet(t)
		n.stop(t)
	})
}

func (l *crashLab) crashes(t *testing.T) {
	for _, c := range []struct {
		name string
		away func(*testing.T)
	}{
		{"restart", func(*testing.T) {}},
		{"bridge killed", func(t *testing.T) {
			l.bridge.kill(t)
			l.bridge.start(t)
		}},
		{"no disk", l.impostor},
	} {
		if !t.Run(c.name, func(t *testing.T) { l.crash(t, c.away) }) {
			return
		}
	}
	l.bridge.wantNoErrors(t)
}

// A crashLab is the bridge, and the guests around it.
type crashLab struct {
	initrd       string
	server       string // the storage's address
	export       string
	near, client *guest
	bare         *guest // client without its disk; only one of both runs
	bridge       *bridgeProcess
	keepers      int
}

const (
	crashLocks = 17               // that a client has
	crashBound = 10 * time.Second // from a notice to the grant
)

func newCrashLab(t *testing.T, initrd string) *crashLab {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 16<<20); err != nil {
		t.Fatal(err)
	}
	command(t, time.Minute, "/sbin/mkfs.ext4", "-q", disk)
	options := []string{"--mem", "768", "--tap", "crash1", "--append", "lab.tap=10.9.1.15/24"}
	return &crashLab{
		initrd: initrd,
		client: newGuest(t, initrd, append(options, "--disk", disk)...),
		bare:   newGuest(t, initrd, options...),
	}
}

// start starts all but the storage, unless that is in the near guest: its command line has words, too.
func (l *crashLab) start(t *testing.T, words string) {
	t.Helper()
	makeTap(t, "crash0", "10.9.0.2/24")
	makeTap(t, "crash1", "10.9.1.2/24")
	l.near = newGuest(t, l.initrd, "--tap", "crash0", "--append", "lab.tap=10.9.0.15/24 "+words)
	l.near.launch(t)
	l.client.launch(t)
	p := freePorts(t, 2)
	l.bridge = newBridgeWith(t, p[0], p[1], fmt.Sprintf(`
listeners:
  - {name: nfs, address: "0.0.0.0:%d", upstream: storage, routes: [{program: mount, upstream: mountd}]}
upstreams:
  - {name: storage, transport: tcp, endpoints: ["%[2]s:2049"]}
  - {name: mountd, transport: tcp, endpoints: ["%[2]s:20048"]}
rpcbind: {address: "0.0.0.0:111"}
nlm: {address: "0.0.0.0:4045", server: %[2]s, name: bridge.lab, state: %[3]q}
memory: {budget: 64MiB}
admin: {address: "127.0.0.1:%[4]d"}
log: {format: json}
`, p[0], l.server, t.TempDir(), p[1]))
	l.near.ready(t)
	l.client.ready(t)
	l.bridge.start(t)
	l.near.job(t, 2*time.Minute, `. /lab/lib.sh
export NET=10.9.0
for c in c1 c2 c3; do
    client_nlm $c
    client $c mount.nfs 10.9.0.2:`+l.export+` /mnt -o vers=3
    client $c grep -q " /mnt nfs .*vers=3,.*local_lock=none" /proc/mounts || die "$c has no locks"
done
[ ! -e /proc/fs/nfsd/threads ] || after_grace`)
	l.bootClient(t, l.client)
	l.mountClient(t, l.client)
}

// restartGanesha kills the storage and starts it again while a client has locks and another waits for one.
func (l *crashLab) restartGanesha(t *testing.T, n *ganesha) {
	t.Helper()
	c1 := l.keep(t, "c1", "-h", "restart", crashLocks)
	c1.holds(t)
	c3 := l.keep(t, "c3", "-w", "restart", 1)
	l.wantCounts(t, "before the restart", lockCounts{crashLocks, 1, 2})
	n.process.end(t, syscall.SIGKILL)
	waitFor(t, time.Minute, "the end of its network", func() bool {
		_, err := net.InterfaceByName("crash2")
		return err != nil
	})
	began := time.Now()
	n.start(t)
	const told = `nlm_notices_total{notice="told"}`
	testkit.Eventually(t, "the clients are told", func() bool { return l.bridge.metric(t, told) >= 2 })
	l.strangerSees(t, "after the storage's restart", "restart", crashLocks) // c2 waits for the end of the grace period
	t.Logf("a stranger is answered %.1f s after the storage began to start", time.Since(began).Seconds())
	if c3.said("held\n") {
		t.Error("a client that waits has got a lock that another has reclaimed")
	}
	c1.free(t)
	c3.holds(t)
	c3.free(t)
	l.wantCounts(t, "after the restart", lockCounts{})
}

// contend has two clients want one lock, both ways. They are told within a second when they have it.
func (l *crashLab) contend(t *testing.T) {
	t.Helper()
	out := l.near.job(t, 5*time.Minute, `. /lab/lib.sh
one=$(client_mnt c1)/contend two=$(client_mnt c2)/contend
/lab/locks -3 $one $two || die "status $?"`)
	grants := 0
	for line := range strings.Lines(out) {
		var ms int
		if n, _ := fmt.Sscanf(line, "granted %d ms", &ms); n == 0 {
			continue
		}
		grants++
		t.Log(strings.TrimSpace(line))
		if ms > 1000 {
			t.Errorf("granted %d ms after the lock was free, want at most 1000", ms)
		}
	}
	if grants != 2 {
		t.Errorf("%d clients were told that they have the lock, want 2", grants)
	}
	if n := l.bridge.metric(t, `nlm_grants_total{result="taken"}`); n == 0 {
		t.Error("the storage has granted nothing")
	}
}

// bootClient does in a client guest what a distribution does at boot before sm-notify.
func (l *crashLab) bootClient(t *testing.T, g *guest) {
	t.Helper()
	g.job(t, time.Minute, `set -e
hostname crash
if modprobe virtio_blk && [ -e /dev/vda ]; then
    modprobe ext4
    mount -t ext4 /dev/vda /var/lib/nfs
fi
mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak
touch /var/lib/nfs/state
rpcbind -w`)
}

func (l *crashLab) mountClient(t *testing.T, g *guest) {
	t.Helper()
	g.job(t, time.Minute, `set -e
rpc.statd --no-notify
mount.nfs 10.9.1.2:`+l.export+` /mnt -o vers=3
grep -q " /mnt nfs .*vers=3,.*local_lock=none" /proc/mounts`)
}

// A keeper is a process of a client that holds locks, or waits for them.
type keeper struct {
	*guestJob
	pipe string
}

// keep has a client take n locks of a file. With option -h it takes them at once, and with -w it waits for them. machine is a
// machine of the near guest, or empty for the client guest.
func (l *crashLab) keep(t *testing.T, machine, option, file string, n int) *keeper {
	t.Helper()
	g := l.client
	if machine != "" {
		g, machine = l.near, "/lab/client.sh "+machine
	}
	l.keepers++
	k := &keeper{pipe: fmt.Sprintf("/tmp/keeper%d", l.keepers)}
	// What opens and closes the pipe for writing ends the input.
	k.guestJob = g.begin(t, fmt.Sprintf("mkfifo %[1]s && cat %[1]s | %s /lab/locks %s /mnt/%s %d", k.pipe, machine, option, file, n))
	return k
}

func (k *keeper) holds(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, k.script+" has its locks", func() bool { return k.said("held\n") })
}

// free unlocks.
func (k *keeper) free(t *testing.T) {
	t.Helper()
	k.g.job(t, time.Minute, ": > "+k.pipe)
	k.wait(t, time.Minute)
}

// strangerSees fails unless c2 is refused n locks of a file, and gets the first of them if that is 0.
func (l *crashLab) strangerSees(t *testing.T, when, file string, n int) {
	t.Helper()
	status := 3
	if n == 0 {
		status = 0
	}
	got := strings.Fields(l.near.job(t, time.Minute, fmt.Sprintf("c2='/lab/client.sh c2 /lab/locks' f=/mnt/%s; $c2 -n $f %d; $c2 -t $f; echo $?", file, crashLocks)))
	if want := []string{fmt.Sprint(n), fmt.Sprint(status)}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: of %s c2 sees as many locks of others, and is answered: got %v, want %v", when, file, got, want)
	}
}

type lockCounts struct{ Held, Waiting, Clients int }

func (l *crashLab) counts(t *testing.T) (c lockCounts) {
	t.Helper()
	res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/api/v1/locks", l.bridge.admin))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

func (l *crashLab) wantCounts(t *testing.T, when string, want lockCounts) {
	t.Helper()
	var got lockCounts
	if !testkit.Settles(testkit.Patience, func() bool {
		got = l.counts(t)
		return got == want
	}) {
		t.Errorf("%s the bridge knows of %+v, want %+v", when, got, want)
	}
}

// crash kills the client guest while it has locks and waits for one, and starts it again. away happens in between.
func (l *crashLab) crash(t *testing.T, away func(*testing.T)) {
	const theirs, others = "crash-theirs", "crash-others"
	other := l.keep(t, "c1", "-h", others, crashLocks)
	lost := l.keep(t, "", "-h", theirs, crashLocks)
	other.holds(t)
	lost.holds(t)
	l.keep(t, "", "-w", others, 1)
	next := l.keep(t, "c3", "-w", theirs, 1)
	all := lockCounts{2 * crashLocks, 2, 3}
	l.wantCounts(t, "before the crash", all)

	l.client.qemu.end(t, syscall.SIGKILL)
	killed := time.Now()
	l.strangerSees(t, "after the crash", theirs, crashLocks)
	away(t)
	l.wantCounts(t, "after the crash", all)
	l.client.boot(t)
	l.bootClient(t, l.client)
	l.strangerSees(t, "before the notice", theirs, crashLocks)
	l.strangerSees(t, "before the notice", others, crashLocks)
	if next.said("held\n") {
		t.Error("another client has got the lock before the notice")
	}

	const notice = `nlm_notices_total{notice="client"}`
	before := l.bridge.metric(t, notice)
	began := time.Now()
	sent := l.client.begin(t, "sm-notify -d -f")
	testkit.Eventually(t, "the bridge has the client's notice", func() bool { return l.bridge.metric(t, notice) > before })
	noticed := time.Now()
	if !testkit.Settles(crashBound, func() bool { return next.said("held\n") }) {
		t.Fatalf("c3 does not have the lock %v after the notice; the bridge knows of %+v", crashBound, l.counts(t))
	}
	granted := time.Now()
	t.Logf("notice %.1f s after the crash, %.1f s after sm-notify began; c3 had the lock %.0f ms after the notice",
		noticed.Sub(killed).Seconds(), noticed.Sub(began).Seconds(), float64(granted.Sub(noticed))/1e6)
	sent.wait(t, time.Minute)
	l.wantCounts(t, "after the notice", lockCounts{crashLocks + 1, 0, 2})
	l.strangerSees(t, "after the notice", theirs, 1)
	l.strangerSees(t, "after the notice", others, crashLocks)
	if n := l.bridge.metric(t, notice) - before; n != 1 {
		t.Errorf("%.0f notices, want 1", n)
	}

	// What the client waited for is nobody's.
	other.free(t)
	l.strangerSees(t, "after c1 has unlocked", others, 0)
	next.free(t)
	l.wantCounts(t, "after all have unlocked", lockCounts{})

	l.mountClient(t, l.client)
	again := l.keep(t, "", "-h", theirs, crashLocks)
	again.holds(t)
	l.strangerSees(t, "in the client's next life", theirs, crashLocks)
	again.free(t)
	l.wantCounts(t, "in the end", lockCounts{})
}

// impostor has a machine with the client's address, which knows nothing of the client's locks, mount and lock.
func (l *crashLab) impostor(t *testing.T) {
	l.bare.boot(t)
	l.bootClient(t, l.bare)
	l.bare.job(t, time.Minute, "hostname impostor; sm-notify -d -f")
	l.mountClient(t, l.bare)
	l.bare.job(t, time.Minute, "/lab/locks -t /mnt/crash-own && /lab/locks -n /mnt/crash-own 1")
	l.strangerSees(t, "a machine without the client's disk has been there", "crash-theirs", crashLocks)
	l.bare.qemu.end(t, syscall.SIGKILL)
}
