//go:build lab

package lab

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestLabSessions has many NFSv4.1 clients behind one bridge, with one connection to each server:
//
//	three client machines of the guest --.               .-- iWARP --> the guest's knfsd
//	three others                       ---- TCP --> rdmabridge -- TCP --> the guest's knfsd
//	three others                       --'               '--- TCP --> nfs-ganesha on this host
//
// Of each three one mounts with NFSv4.1 and two with NFSv4.2, of which one has four connections
// (nconnect) and, where the server is knfsd on RDMA, one uses krb5p. While all of them write, verify and
// contend for a lock, the bridge is killed, the connections between bridge and servers are cut, and the
// servers restart. No read returns a wrong octet, no application sees an error, every client goes on, and
// knfsd grants each a delegation and recalls it, each time.
//
// With RDMABRIDGE_LAB_FULL=1 there are more rounds, and in some the network is cut. Then there are the
// three clients of ganesha, too, and clients contend for locks in every way that guest/locks.c knows.
//
// ganesha grants no delegations here: its FSAL VFS has no leases. Nor does it call clients back for
// locks. What it tests is the sessions of another server.
func TestLabSessions(t *testing.T) {
	if os.Getenv("RDMABRIDGE_LAB") != "1" || os.Getenv("RDMABRIDGE_LAB_DIRECT") == "1" {
		t.Skip("needs the packages and the kernel of deploy/lab/install.sh, and a bridge: set RDMABRIDGE_LAB=1")
	}
	s := startSessions(t)
	t.Run("trunking", func(t *testing.T) { testTrunking(t, s.guest) })
	s.each(t, "start", 2*time.Minute)
	s.check(t, soon)
	if labFull() {
		t.Run("locks", s.testLocks)
	}
	faults := []sessionsFault{
		// First, because knfsd of Linux 6.1 may not stop any more when a connection was reset while it was sending:
		// threads then wait in svc_rdma_sendto for a completion that siw owes them.
		{"servers-restarted", s.restartServers, soon},
		{"bridge-killed", s.killBridge, soon},
		{"connections-cut", s.cutConnections, soon},
	}
	if labFull() {
		faults = slices.Repeat(append(faults, sessionsFault{"network-cut", s.cutNetwork, sessionsLease + 20*time.Second}), 3)
	}
	for _, f := range faults {
		if !t.Run(f.name, func(t *testing.T) {
			s.bridge.wantNoErrors(t)
			f.run(t)
			s.check(t, f.recall)
		}) {
			return
		}
	}
	s.each(t, "stop", 3*time.Minute)
	for _, f := range s.fleets {
		if f.name != "siw" { // which has a client with krb5p
			s.bridge.wantNoSessions(t, f.name)
		}
	}
	s.bridge.wantNoErrors(t)
	s.bridge.stop(t)
}

// soon is how long a recall may take in the guest. Where the processor is not emulated it is 2 s.
const soon = 8 * time.Second

// A sessionsFault is something that breaks under the load of TestLabSessions.
type sessionsFault struct {
	name string
	run  func(*testing.T)
	// recall is how long the first recall afterwards may take. When the network loses packets, the bridge gives
	// its connections up without the server's knowing. A server on RDMA may call its clients on the
	// old connection then, and find out. It does not call again, and so it waits for the lease.
	recall time.Duration
}

// sessionsLease is the lease of both servers. It is longer than what cutNetwork takes, because a server
// drops the locks of a client whose lease has ended when another client wants them. Their grace period is as long: on
// a busy machine some client reclaims its lock only after 10 seconds, and a server refuses that after the grace period.
const sessionsLease = 30 * time.Second

// sessionsConnections is pool.connections of each upstream: as many for NFSv4.1 clients as for others.
//
// c3 signs its Calls. The connections of such a host each have one to the server, and a host is an address: the guest
// has one. So the upstream of c3 may have three more: if c3 has to connect again twice in a short time, and the bridge
// has not seen the end of the connections before, each gets one. Those that c3 has left end when pool.idle is over.
const (
	sessionsConnections = 1
	sessionsMostSigned  = 2*sessionsConnections + 3
	sessionsMost        = 2 * sessionsConnections
)

// sessions has the servers, the bridge and the clients of TestLabSessions.
type sessions struct {
	guest   *guest
	ganesha *ganesha // nil if it cannot run here
	bridge  *bridgeProcess
	fleets  []fleet
}

// A fleet is the clients of one server, as guest/sessions.sh has them.
type fleet struct {
	name    string
	far     farEnd
	recalls bool // whether the server grants delegations
}

func startSessions(t *testing.T) *sessions {
	t.Helper()
	g := newGuest(t, packGuest(t), "--mem", "5120",
		"--append", fmt.Sprintf("lab.rdma=siw lab.server=1 lab.lease=%[1]d lab.grace=%[1]d", int(sessionsLease.Seconds())))
	g.launch(t)
	s := &sessions{guest: g}
	p := freePorts(t, 4)
	upstream := func(name, rest string) string {
		return fmt.Sprintf("  - {name: %s, %s, pool: {connections: %d}}\n", name, rest, sessionsConnections)
	}
	listeners := "listeners:\n"
	upstreams := "upstreams:\n" +
		upstream("siw", fmt.Sprintf("transport: rdma, provider: iwarp, endpoints: ['127.0.0.1:%d']", g.rdma)) +
		upstream("tcp", fmt.Sprintf("transport: tcp, endpoints: ['127.0.0.1:%d']", g.nfs))
	s.fleets = []fleet{
		{name: "siw", far: farEnd{nfs: p[0], env: "CLIENTS='c1:4.1 c2:4.2:nconnect=4 c3:4.2:sec=krb5p'"}, recalls: true},
		{name: "tcp", far: farEnd{nfs: p[1], env: "CLIENTS='c4:4.1 c5:4.2:nconnect=4 c6:4.2'"}, recalls: true},
	}
	if labFull() && mayRunGanesha() {
		s.ganesha = newGanesha(t, g, fmt.Sprintf("%.0f", sessionsLease.Seconds()))
		s.ganesha.start(t)
		upstreams += upstream("ganesha", fmt.Sprintf("transport: tcp, endpoints: ['127.0.0.1:%d']", s.ganesha.nfs))
		s.fleets = append(s.fleets, fleet{name: "ganesha", far: farEnd{nfs: p[2], env: "CLIENTS='c7:4.1 c8:4.2:nconnect=4 c9:4.2' SERVER=/host/ganesha"}})
	}
	for i := range s.fleets {
		f := &s.fleets[i]
		f.far.env = fmt.Sprintf("FLEET=%s %s", f.name, f.far.env)
		listeners += fmt.Sprintf("  - {name: %s, address: '127.0.0.1:%d', transport: tcp, upstream: %s}\n", f.name, f.far.nfs, f.name)
	}
	s.bridge = newBridgeWith(t, p[0], p[3], listeners+upstreams+fmt.Sprintf(`
memory: {budget: 256MiB}
admin: {address: 127.0.0.1:%d}
log: {level: info, format: json}
`, p[3]))
	g.ready(t)
	s.bridge.start(t)
	g.job(t, time.Minute, "/lab/krb5.sh start && /lab/krb5.sh stop && /lab/client.sh c3 /lab/krb5.sh client")
	return s
}

// each runs a step of guest/sessions.sh, which may have variables behind it, in all fleets at once.
func (s *sessions) each(t *testing.T, step string, timeout time.Duration) {
	t.Helper()
	var jobs []*guestJob
	for _, f := range s.fleets {
		if !strings.HasPrefix(step, "recall") || f.recalls {
			jobs = append(jobs, s.guest.begin(t, f.far.script("STEP="+step+" /lab/sessions.sh", "4.2")))
		}
	}
	for _, j := range jobs {
		t.Log(j.wait(t, timeout))
	}
}

// check waits until every client goes on, and until the servers have recalled a delegation from each, in at
// most so much time.
func (s *sessions) check(t *testing.T, recall time.Duration) {
	t.Helper()
	s.each(t, "going", 3*time.Minute)
	if recall != soon {
		s.recall(t, recall)
	}
	s.recall(t, soon)
	if recall == soon { // otherwise knfsd does not know of the end of connections that nobody uses
		s.wantConnections(t)
	}
}

func (s *sessions) recall(t *testing.T, within time.Duration) {
	t.Helper()
	s.each(t, fmt.Sprintf("recall RECALL=%d", within.Milliseconds()), 5*time.Minute)
}

// wantConnections fails if knfsd has more connections than the bridge may have to it. A connection that
// was cut is gone a moment later.
func (s *sessions) wantConnections(t *testing.T) {
	t.Helper()
	var siw, tcp, siwHere, tcpHere int // what knfsd has, and what QEMU has from the bridge
	few := func() bool {
		out := []byte(s.guest.job(t, time.Minute, "cat /proc/net/tcp"))
		siw, tcp = len(established(out, 20049)), len(established(out, 2049))
		here, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		siwHere, tcpHere = len(established(here, s.guest.rdma)), len(established(here, s.guest.nfs))
		return siw > 0 && tcp > 0 && siw <= sessionsMostSigned && tcp <= sessionsMost
	}
	if !testkit.Settles(40*time.Second, few) {
		t.Errorf("knfsd has too many connections or none: want from 1 to %d of RDMA and %d of TCP", sessionsMostSigned, sessionsMost)
	}
	t.Logf("knfsd has %d connections of RDMA and %d of TCP; the bridge has %d and %d", siw, tcp, siwHere, tcpHere)
}

// testLocks has two clients of each server contend for locks in every way that guest/locks.c knows. It
// includes that a client that waits for a lock gets it soon: knfsd calls it back for that.
func (s *sessions) testLocks(t *testing.T) {
	for _, f := range s.fleets {
		t.Log(s.guest.job(t, 5*time.Minute, f.far.script("STEP=locks /lab/sessions.sh", "4.2")))
	}
}

func (s *sessions) killBridge(t *testing.T) {
	s.bridge.kill(t)
	s.bridge.start(t)
}

// ports returns the servers' ports.
func (s *sessions) ports() []int {
	ports := []int{s.guest.rdma, s.guest.nfs}
	if s.ganesha != nil {
		ports = append(ports, s.ganesha.nfs)
	}
	return ports
}

// cutConnections closes the connections between bridge and servers. Both sides learn of it at once.
func (s *sessions) cutConnections(t *testing.T) {
	for _, port := range s.ports() {
		out := command(t, 10*time.Second, "ss", "-HKt", fmt.Sprintf("dport = :%d", port))
		if len(out) == 0 {
			t.Errorf("no connection to port %d was closed: this needs a kernel with CONFIG_INET_DIAG_DESTROY", port)
		}
	}
}

// cutNetwork cuts the network between bridge and servers for longer than the bridge needs to see that a
// connection is dead.
func (s *sessions) cutNetwork(t *testing.T) {
	heal := cutPorts(t, s.ports()...)
	time.Sleep(8 * time.Second) // how long the fault lasts
	heal()
}

// restartServers restarts knfsd and ganesha. They forget all state, which their clients then reclaim.
func (s *sessions) restartServers(t *testing.T) {
	s.guest.job(t, 3*time.Minute, "/lab/knfsd.sh stop")
	if s.ganesha != nil {
		s.ganesha.process.end(t, syscall.SIGKILL)
		s.ganesha.start(t)
	}
	s.guest.job(t, time.Minute, "/lab/knfsd.sh start")
}
