//go:build lab

package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestLabRDMA tests the other direction: clients on RDMA and servers on TCP.
//
//	the guest's NFS client -- iWARP --> rdmabridge -- TCP --> the guest's knfsd
//	                                        '------- TCP --> nfs-ganesha on this host
//
// RDMABRIDGE_LAB_DIRECT=1 leaves NFS/RDMA to knfsd and mounts ganesha over TCP.
// RDMABRIDGE_LAB_FULL=1 runs everything with every version of NFS, and with files of 64 MiB.
func TestLabRDMA(t *testing.T) {
	needLab(t)
	g := bootGuest(t)
	// ganesha's directory has manyNames, and its test needs the number.
	files, away, iosize := shortFiles, fmt.Sprintf("NAMES=%d %s", manyNames, lessData), "IOSIZES='4096 69632 1048576' /lab/iosize.sh"
	if labFull() {
		files, iosize = fmt.Sprintf("NAMES=%d /lab/files.sh", manyNames), "/lab/iosize.sh"
		away = files
	}

	f := rdmaFront{ganesha: startGanesha(t, g)}
	f.start(t, g)
	for _, server := range []struct {
		name string
		far  farEnd
		idle string // the upstream that is not used

		command string // for files
		// The versions of NFS for each test.
		files, iosize, fio, acls, locks2 []string
	}{
		{"knfsd", f.knfsd, "ganesha", files, someVersions("3", "4.2"), someVersions("4.1"), someVersions("4.2"), someVersions("3", "4.1"), nil},
		{"ganesha", f.away, "storage", away, someVersions("3", "4.1"), someVersions(), someVersions("3"), nil, someVersions("4.2")},
	} {
		each := func(what string, versions []string, timeout time.Duration, command string) {
			for _, v := range versions {
				t.Run(strings.Join([]string{server.name, what, v}, "/"), func(t *testing.T) {
					g.job(t, timeout, server.far.script(command, v))
					f.wantQuiet(t, server.idle)
				})
			}
		}
		each("files", server.files, 6*time.Minute, server.command)
		each("iosize", server.iosize, 4*time.Minute, iosize)
		each("fio", server.fio, 5*time.Minute, "SIZE=1m /lab/fio.sh")
		each("acls", server.acls, 2*time.Minute, "/lab/acls.sh")
		each("locks2", slices.DeleteFunc(slices.Clone(server.locks2), func(v string) bool { return v == "3" }), 3*time.Minute, "/lab/locks2.sh")
	}
	if f.bridge == nil {
		return
	}
	for _, v := range some([]string{"4.1", "4.2"}, "4.1") {
		t.Run("recall/"+v, func(t *testing.T) { f.testRecall(t, g, v) })
	}
	for _, v := range someVersions("4.1") {
		t.Run("restart/"+v, func(t *testing.T) { f.testRestart(t, g, v) })
	}
	for _, v := range []string{"3", "4.1"} {
		t.Run("once/drained/"+v, func(t *testing.T) { f.testOnce(t, g, v, true) })
		t.Run("once/killed/"+v, func(t *testing.T) { f.testOnce(t, g, v, false) })
	}
	f.bridge.stop(t)
	f.ganesha.stop(t)
}

// An rdmaFront is a bridge with RDMA listeners, each in front of a server on TCP.
//
// The second listener of each server is for a second client of the guest: client.sh says why.
type rdmaFront struct {
	bridge      *bridgeProcess
	ganesha     *ganesha
	knfsd, away farEnd // listeners in front of the guest's server and of ganesha
}

func (f *rdmaFront) start(t *testing.T, g *guest) {
	t.Helper()
	export := fmt.Sprintf(" SERVER=/host/ganesha EXPORT=%s MANY=names LOCKS=no", f.ganesha.dir)
	if os.Getenv("RDMABRIDGE_LAB_DIRECT") == "1" {
		f.knfsd = farEnd{nfs: 20049, mount: 20048, host: "10.0.2.15", env: "PROTO=rdma"}
		f.away = farEnd{nfs: f.ganesha.nfs, mount: f.ganesha.mount, env: export}
		return
	}
	p := freePorts(t, 7)
	f.bridge = newBridgeWith(t, p[0], p[1], fmt.Sprintf(`
listeners:
  - {name: nfs, address: "127.0.0.1:%d", transport: rdma, provider: iwarp, upstream: storage, limits: {connections: 64}}
  - {name: nfs-2, address: "127.0.0.1:%d", transport: rdma, provider: iwarp, upstream: storage, limits: {connections: 64}}
  - {name: mount, address: "127.0.0.1:%d", transport: tcp, upstream: mountd, limits: {connections: 64}}
  - {name: away, address: "127.0.0.1:%d", transport: rdma, provider: iwarp, upstream: ganesha, limits: {connections: 64}}
  - {name: away-2, address: "127.0.0.1:%d", transport: rdma, provider: iwarp, upstream: ganesha, limits: {connections: 64}}
  - {name: away-mount, address: "127.0.0.1:%d", transport: tcp, upstream: ganesha-mountd, limits: {connections: 64}}
upstreams:
  - {name: storage, transport: tcp, endpoints: ["127.0.0.1:%d"], pool: {connections: 4}}
  - {name: mountd, transport: tcp, endpoints: ["127.0.0.1:%d"]}
  - {name: ganesha, transport: tcp, endpoints: ["127.0.0.1:%d"], pool: {connections: 4}}
  - {name: ganesha-mountd, transport: tcp, endpoints: ["127.0.0.1:%d"]}
memory: {budget: 256MiB}
admin: {address: 127.0.0.1:%d}
log: {level: info, format: json}
`, p[0], p[2], p[3], p[4], p[5], p[6], g.nfs, g.mount, f.ganesha.nfs, f.ganesha.mount, p[1]))
	f.bridge.start(t)
	f.knfsd = farEnd{nfs: p[0], mount: p[3], env: fmt.Sprintf("PROTO=rdma PORT2=%d", p[2])}
	f.away = farEnd{nfs: p[4], mount: p[6], env: fmt.Sprintf("PROTO=rdma PORT2=%d", p[5]) + export}
}

// wantQuiet fails if the bridge or ganesha has logged a warning or an error. It ignores the
// loss of unused connections: knfsd closes them after 6 minutes.
func (f *rdmaFront) wantQuiet(t *testing.T, idle string) {
	t.Helper()
	f.ganesha.wantQuiet(t)
	if f.bridge == nil {
		return
	}
	for _, line := range f.bridge.news(t, "warn", "error", "fatal", "panic") {
		if !strings.Contains(line, fmt.Sprintf(`"upstream":"%s`, idle)) || !strings.Contains(line, `"error":"EOF"`) {
			t.Errorf("the bridge complained: %s", line)
		}
	}
}

// testRecall: knfsd recalls delegations from clients on RDMA, over the connections between bridge
// and server that they share.
func (f *rdmaFront) testRecall(t *testing.T, g *guest, vers string) {
	count := func() (calls, replies, carried, failed float64) {
		b := f.bridge
		for _, side := range []string{"listener", "upstream"} {
			failed += b.metric(t, side+"_reverse_refused_calls_total{") + b.metric(t, side+"_reverse_unanswered_calls_total{")
		}
		return b.metric(t, "upstream_reverse_calls_total{"), b.metric(t, "upstream_reverse_replies_total{"),
			b.metric(t, "listener_reverse_replies_total{"), failed
	}
	calls, replies, carried, failed := count()
	t.Log(g.job(t, 3*time.Minute, f.knfsd.script("IDLE=5 /lab/recall.sh", vers)))
	var calls2, replies2, carried2, failed2 float64
	testkit.Settles(10*time.Second, func() bool { // a Call may be on its way
		calls2, replies2, carried2, failed2 = count()
		return replies2-replies == calls2-calls && carried2-carried == calls2-calls
	})
	calls, replies, carried, failed = calls2-calls, replies2-replies, carried2-carried, failed2-failed
	// One recall, and one Call to each of two clients.
	if calls < 3 || replies != calls || carried != calls || failed != 0 {
		t.Errorf("%.0f Calls of the server to clients, %.0f answered to it, %.0f by clients, %.0f failed", calls, replies, carried, failed)
	}
	f.bridge.wantNoSessions(t, "storage")
	f.bridge.wantQuiet(t)
}

// testRestart: the client continues after the bridge was stopped or killed and started again.
// The client repeats unanswered Calls, and the data are right in the end.
func (f *rdmaFront) testRestart(t *testing.T, g *guest, vers string) {
	// knfsd says so when the bridge was killed while it took a Reply.
	const reset = "rpc-srv/tcp: nfsd: got error -(32|104) when sending"
	const allowed = `DMESG_ALLOW="rpcrdma: connection to|nfs: server .* (not responding|OK)|` + reset + `" `
	before := g.job(t, time.Minute, "grep ^rc /proc/net/rpc/nfsd")
	const enough = "enough"
	_ = os.Remove(filepath.Join(g.dir, enough))
	job := g.begin(t, f.knfsd.script(allowed+"UNTIL=/host/"+enough+" SIZE=2m /lab/fio.sh", vers))
	waitFor(t, time.Minute, "fio", func() bool { return job.said("fio runs") })
	for _, end := range []func(*testing.T){f.bridge.stop, f.bridge.kill, f.bridge.kill} {
		f.bridge.waitCalls(t, "nfs", 100)
		end(t)
		f.bridge.start(t)
	}
	if err := os.WriteFile(filepath.Join(g.dir, enough), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Log(job.wait(t, 6*time.Minute))
	f.bridge.wantNoErrors(t)
	t.Logf("knfsd's duplicate request cache, hits, misses and not looked for: before %safter %s", before, g.job(t, time.Minute, "grep ^rc /proc/net/rpc/nfsd"))
}

// testOnce: the bridge ends while the server has a Call that must not be executed twice. A
// bridge that drains waits for the Reply. If the bridge is killed, the client gets no Reply
// and repeats the Call to the next bridge.
func (f *rdmaFront) testOnce(t *testing.T, g *guest, vers string, drained bool) {
	const arrived = `listener_received_calls_total{listener="away"}`
	b, server := f.bridge, f.ganesha.process.cmd.Process
	signal := func(s os.Signal) {
		if err := server.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	script := "/lab/once.sh"
	if vers == "3" {
		script = "OPTS=noacl " + script // or the first Call asks what access list the directory will have
	}
	job := g.begin(t, f.away.script(script, vers))
	waitFor(t, time.Minute, "the mount", func() bool { return job.said("ready") })
	before := b.metric(t, arrived)
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	if err := os.WriteFile(filepath.Join(g.dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	waitFor(t, 20*time.Second, "the Call at the bridge", func() bool { return b.metric(t, arrived) > before })
	waitFor(t, 20*time.Second, "the Call at the server", func() bool { return notRead(t, f.ganesha.nfs) > 0 })
	again := 0
	if drained {
		if err := b.process.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		// The client of a bridge that does not wait for the Reply is closed by now, and sends the Call again.
		waitFor(t, 20*time.Second, "the drain", func() bool { return bytes.Contains(b.process.output(), []byte(`"event":"drain_begun"`)) })
		if b.metric(t, `listener_clients{listener="away"}`) == 0 {
			t.Error("the bridge has not waited for the server's Reply")
		}
		signal(syscall.SIGCONT)
		waitFor(t, 20*time.Second, "the bridge's end", func() bool { return !b.process.alive() })
		b.start(t)
	} else {
		// A server drops the retransmission of a Call that it is still executing.
		b.kill(t)
		signal(syscall.SIGCONT)
		made := filepath.Join(f.ganesha.dir, fmt.Sprintf("once-%s-%d", vers, f.away.nfs), "sub")
		waitFor(t, 20*time.Second, "the Call's execution", func() bool {
			_, err := os.Stat(made)
			return err == nil
		})
		b.start(t)
		again = 1
	}
	if out := job.wait(t, 2*time.Minute); !strings.Contains(out, fmt.Sprintf("sent again %d\n", again)) {
		t.Errorf("the client said, though %d is due:\n%s", again, out)
	}
	b.wantNoErrors(t)
	f.ganesha.wantQuiet(t)
}
