package measure

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/bench"
	"github.com/rdmabridge/rdmabridge/internal/loop"
	"github.com/rdmabridge/rdmabridge/internal/regmem"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/nfs4test"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
	"github.com/rdmabridge/rdmabridge/rdmaside/iwarp"
	"github.com/rdmabridge/rdmabridge/tcpframe"
)

// A city is a server of NFSv4.2 sessions and its clients, in this process, and bridges between them,
// each a process.
type city struct {
	*testing.T
	bin   string
	s     *nfs4test.Server
	addr  string
	loops []loop.SocketLoop
	mode  string
}

// newCity skips the test unless it is wanted: it takes minutes.
func newCity(t *testing.T, o nfs4test.ServerOptions) (*city, int) {
	t.Helper()
	clients, _ := strconv.Atoi(os.Getenv("RDMABRIDGE_SESSIONS"))
	if clients <= 0 {
		t.Skip("RDMABRIDGE_SESSIONS=10000 measures, with so many clients")
	}
	x := &city{T: t, bin: os.Getenv("RDMABRIDGE_SESSIONS_BINARY"), s: nfs4test.NewServer(o), mode: "auto"}
	if m := os.Getenv("RDMABRIDGE_SESSIONS_MODE"); m != "" {
		x.mode = m
	}
	if x.bin == "" {
		x.bin = build(t, "rdmabridge")
	}
	engine, err := tcpframe.Start(tcpframe.EngineOptions{Loops: 2, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Stop)
	arena, err := regmem.New(regmem.Options{Budget: 512 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = arena.Close() })
	t.Cleanup(x.s.Close)
	var loops []loop.Loop
	for _, l := range engine.Loops() {
		loops, x.loops = append(loops, l), append(x.loops, l)
	}
	x.addr, err = x.s.ListenRDMA(nfs4test.RDMAOptions{
		Address: "127.0.0.1:0", Provider: proxytest.IWARP(iwarp.Options{Log: zerolog.Nop()}), Loops: loops, Arena: arena, Credits: 64,
	})
	if err != nil {
		t.Fatal(err)
	}
	return x, clients
}

// A gateway is a bridge and the clients that connect to it.
type gateway struct {
	*city
	addr, file string // where the bridge listens, and its configuration
	cmd        *exec.Cmd
	log        bytes.Buffer // read it when the bridge has ended
	cs         *nfs4test.Clients
}

// gateway starts a bridge with connections to the server for so many clients, and makes the clients.
// They think before each Call of a load.
func (x *city) gateway(prefix string, clients, connections int, think time.Duration) *gateway {
	x.Helper()
	g := &gateway{city: x, addr: testkit.FreeAddr(x), file: filepath.Join(x.TempDir(), "bridge.yaml")}
	config := fmt.Sprintf("listeners: [{name: nfs, address: %q, upstream: s, limits: {connections: %d}}]\n"+
		"upstreams: [{name: s, transport: rdma, endpoints: [%q], pool: {connections: %d, mode: %s}}]\n"+
		"memory: {budget: 128MiB}\nadmin: {address: none}\n", g.addr, clients+100, x.addr, connections, x.mode)
	if err := os.WriteFile(g.file, []byte(config), 0o600); err != nil {
		x.Fatal(err)
	}
	g.cs = nfs4test.NewClients(clients, nfs4test.ClientsOptions{
		Target: g.addr, Loops: x.loops, Prefix: prefix, Slots: 8, Think: think,
		From: func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}) }, // each is a host
	})
	x.Cleanup(func() {
		g.cs.Close()
		kill(g.cmd)
		if x.Failed() {
			b := g.log.Bytes()
			x.Logf("%s: %s", prefix, b[max(0, len(b)-8<<10):])
		}
	})
	g.start()
	return g
}

// start starts the bridge and waits until it listens.
func (g *gateway) start() {
	g.Helper()
	g.cmd = exec.Command(g.bin, "serve", "-c", g.file)
	g.cmd.Stdout, g.cmd.Stderr = &g.log, &g.log
	if err := g.cmd.Start(); err != nil {
		g.Fatal(err)
	}
	testkit.Eventually(g, "the bridge listens", func() bool { return listens(g.addr) })
}

func (g *gateway) pid() int { return g.cmd.Process.Pid }

// allUp connects the clients, waits until all have a session, and returns how long that takes.
func (g *gateway) allUp() time.Duration {
	g.Helper()
	began := time.Now()
	g.cs.Start()
	g.until(func() bool { return g.cs.Up() == g.cs.Len() })
	return time.Since(began)
}

// repair has all clients renew their leases, as they do within a minute, waits until the server
// can call each of them back, and returns how long that takes.
func (g *gateway) repair() time.Duration {
	g.Helper()
	began := time.Now()
	for i := range g.cs.Len() {
		g.cs.Renew(i)
	}
	g.until(func() bool { return g.cs.Up() == g.cs.Len() && g.s.Down() == 0 })
	return time.Since(began)
}

func (g *gateway) until(f func() bool) {
	g.Helper()
	if !testkit.Settles(5*time.Minute, f) {
		g.Fatalf("not all are up: %s; the server cannot call %d back; %v", g.cs.Counts(), g.s.Down(), g.cs.Err())
	}
}

func (g *gateway) rss() float64 { return mib(resident(g, g.pid())) }

// resident returns how many octets of a process are resident.
func resident(t testing.TB, pid int) int64 {
	t.Helper()
	n, err := testkit.ProcessMemory(pid, "VmRSS:")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// cpu returns the CPU time that the bridge uses while d passes, in percent of one core.
func (g *gateway) cpu(d time.Duration) float64 {
	before, err := bench.Processes{g.pid()}.CPU()
	if err != nil {
		g.Fatal(err)
	}
	began := time.Now()
	time.Sleep(d)
	after, err := bench.Processes{g.pid()}.CPU()
	if err != nil {
		g.Fatal(err)
	}
	return 100 * float64(after-before) / float64(time.Since(began))
}

// rate returns how many Calls a second the clients make.
func (g *gateway) rate(which []int, depth int, op nfs4test.Op, d time.Duration) float64 {
	l := g.cs.Load(which, depth, op)
	time.Sleep(d / 4)
	before, began := l.Replies.Load(), time.Now()
	time.Sleep(d)
	r := float64(l.Replies.Load()-before) / time.Since(began).Seconds()
	l.Stop()
	return r
}

// recall calls n random clients back at once, and reports how many callbacks came to their client
// and nowhere else, how many came to another client, and how many failed.
func (g *gateway) recall(n int) (right, wrong, lost int, longest time.Duration) {
	var recalls []*nfs4test.Recall
	var whom []int
	token := rand.Uint64()
	for k := range n {
		i := rand.IntN(g.cs.Len())
		whom = append(whom, i)
		recalls = append(recalls, g.s.Recall(g.cs.Owner(i), token+uint64(k)))
	}
	var last error
	for k, r := range recalls {
		<-r.Done()
		got := g.cs.Recalled(r.Token)
		switch {
		case r.Err == nil && r.Status == nfs4test.OK && len(got) == 1 && got[0] == whom[k]:
			right++
			longest = max(longest, r.Took)
		case len(got) > 0 && got[0] != whom[k]:
			wrong++
		default:
			lost++
			last = r.Err
		}
	}
	if last != nil {
		g.Logf("a callback that was lost: %v", last)
	}
	return right, wrong, lost, longest
}

// recallMany calls 500 random clients back.
func (g *gateway) recallMany(when string) {
	g.Helper()
	right, wrong, lost, longest := g.recall(500)
	g.Logf("500 callbacks %s: %d right, %d wrong, %d lost; the longest took %v", when, right, wrong, lost, longest.Round(time.Millisecond))
	if wrong > 0 {
		g.Errorf("%d callbacks came to another client than theirs", wrong)
	}
}

// number is an environment variable, or otherwise d.
func number(name string, d int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return d
}

func first(n int) (which []int) {
	for i := range n {
		which = append(which, i)
	}
	return which
}

// spread returns n of clients, from the first to the last, as many on each of two loops.
func spread(n, clients int) (which []int) {
	for i := range n {
		which = append(which, i*clients/n&^1|i&1)
	}
	return which
}

// TestSessions measures what many clients of NFSv4.2 cost that share eight connections, of which
// 64 are active: RDMABRIDGE_SESSIONS is how many.
func TestSessions(t *testing.T) {
	x, clients := newCity(t, nfs4test.ServerOptions{})
	const connections, active = 8, 64
	few := x.gateway("few", active, connections, 0)
	few.allUp()
	t.Logf("a bridge with %d clients: %.0f MiB resident", active, few.rss())

	g := x.gateway("many", clients, connections, 0)
	empty := g.rss()
	took := g.allUp()
	now, most := x.s.Connections()
	t.Logf("%d clients are in after %.1f s; %.0f MiB resident, before them %.0f; %d connections at the server, of two bridges, at most %d; %d clients cannot be called back",
		clients, took.Seconds(), g.rss(), empty, now, most, x.s.Down())
	idle := time.Duration(number("RDMABRIDGE_SESSIONS_IDLE", 60)) * time.Second
	t.Logf("all are idle: %.2f %% of a core over %v, of which a bridge with %d clients uses %.2f %%; %.0f MiB resident",
		g.cpu(idle), idle, active, few.cpu(5*time.Second), g.rss())

	g.recallMany("after the start")

	var ratios, alone, beside []float64
	spread := spread(active, clients)
	for k := range number("RDMABRIDGE_SESSIONS_ROUNDS", 9) {
		measure := []func(){
			func() { alone = append(alone, few.rate(first(active), 1, nfs4test.OpGetattr, time.Second)) },
			func() { beside = append(beside, g.rate(spread, 1, nfs4test.OpGetattr, time.Second)) },
		}
		measure[k%2]()
		measure[1-k%2]()
		ratios = append(ratios, beside[k]/alone[k])
	}
	t.Logf("%d active beside %d idle: x %s of the rate of %d alone, which is %s Calls a second",
		active, clients-active, quartiles(ratios), active, quartiles(alone))
	before := g.cs.Up()
	x.s.DropConnection(connections) // of the bridge with many: those of the other are older
	g.until(func() bool { return g.cs.Up() < before || g.cs.Lost.Load() > 0 })
	took = g.repair()
	t.Logf("a connection to the server was lost: after %.1f s all %d clients that lost theirs have another; %.0f MiB resident",
		took.Seconds(), g.cs.Lost.Load(), g.rss())
	g.recallMany("after a connection was lost")
	peak, _ := testkit.ProcessMemory(g.pid(), "VmHWM:")

	kill(g.cmd)
	g.until(func() bool { return g.cs.Up() == 0 })
	g.start()
	took = g.repair()
	t.Logf("the bridge was killed: after %.1f s from the next start all %d clients go on with their sessions; %.0f MiB resident", took.Seconds(), clients, g.rss())
	g.recallMany("after the bridge was killed")
	t.Logf("%.0f MiB resident at the end, at most %.0f", g.rss(), mib(peak))
	for _, v := range []*gateway{few, g} {
		t.Log(v.cs.Counts())
		if err := v.cs.Err(); err != nil {
			t.Error(err)
		}
	}
	if n := x.s.Created.Load(); n != int64(clients+active) {
		t.Errorf("%d sessions were created for %d clients", n, clients+active)
	}
}

// TestSessionsReconnect has 500 clients at work, of which 1 % lose their connection every second,
// and checks that nothing is lost and nothing grows. RDMABRIDGE_SESSIONS_TIME is how many seconds
// it takes, 600 if it is not set.
func TestSessionsReconnect(t *testing.T) {
	// A tenth of the clients has a Call under way when it loses its connection.
	x, clients := newCity(t, nfs4test.ServerOptions{Delay: 20 * time.Millisecond})
	clients = min(clients, 500)
	g := x.gateway("host", clients, 8, 180*time.Millisecond)
	g.allUp()
	l := g.cs.Load(first(clients), 1, nfs4test.OpGetattr)
	seconds := number("RDMABRIDGE_SESSIONS_TIME", 600)
	right, wrong, lost := 0, 0, 0
	for s := range seconds {
		for range max(1, clients/100) {
			g.cs.Reconnect(rand.IntN(clients))
		}
		before := l.Replies.Load()
		time.Sleep(time.Second)
		if l.Replies.Load() == before {
			t.Errorf("no Reply in second %d", s)
		}
		if s%30 != 0 && s != seconds-1 {
			continue
		}
		a, b, c, longest := g.recall(20)
		right, wrong, lost = right+a, wrong+b, lost+c
		t.Logf("%4d s: %.0f MiB resident; callbacks: %d right, %d wrong, %d lost, longest %v; %s",
			s, g.rss(), right, wrong, lost, longest.Round(time.Millisecond), g.cs.Counts())
	}
	l.Stop()
	if !testkit.Settles(testkit.Patience, func() bool { return x.s.Executed.Load() == g.cs.Replies.Load()+g.cs.Uncached.Load() }) {
		t.Errorf("%d COMPOUNDs were executed for %d Replies", x.s.Executed.Load(), g.cs.Replies.Load()+g.cs.Uncached.Load())
	}
	if err := g.cs.Err(); err != nil {
		t.Error(err)
	}
	if n := x.s.Created.Load(); n != int64(clients) {
		t.Errorf("%d sessions were created for %d clients", n, clients)
	}
	if wrong > 0 {
		t.Errorf("%d callbacks came to another client than theirs", wrong)
	}
	now, most := x.s.Connections()
	t.Logf("%d connections at the server, at most %d", now, most)
}
