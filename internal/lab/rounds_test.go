//go:build lab

package lab

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
)

// TestLabRounds breaks things under load, round after round:
//
//	a guest's NFS client -- TCP --> rdmabridge on this host -- iWARP --> another guest's knfsd
//
// with NFSv3, NFSv4.0, NFSv4.1 and NFSv4.2 mounted at once. With each version fio writes and
// verifies, and two loops make, link, rename and remove names (guest/rounds.sh, guest/meta.c). The
// export is on a disk that survives the server. The bridge has its default timeouts.
//
// After each round all loops continue within a bound, no read returns a wrong octet, and no
// operation is executed twice. A server that dies loses its duplicate request cache and its
// NFSv4.1 sessions, which are in memory. Therefore an operation that was in progress when the
// server died may get the answer that it was done before; no other may. The effect of such an
// operation has to be that of one execution, too.
//
// The client keeps its ports when it connects again, so its connection is not forwarded by QEMU.
//
// There is one round for each fault, or four longer ones with RDMABRIDGE_LAB_FULL=1.
// RDMABRIDGE_LAB_FAULTS lists faults to run instead, in order and separated by spaces.
// RDMABRIDGE_LAB_SEED determines the order and all pauses. RDMABRIDGE_LAB_PCAP names a file for
// all packets.
func TestLabRounds(t *testing.T) {
	if os.Getenv("RDMABRIDGE_LAB") != "1" || os.Getenv("RDMABRIDGE_LAB_DIRECT") == "1" {
		t.Skip("needs the packages and the kernel of deploy/lab/install.sh, and a bridge: set RDMABRIDGE_LAB=1")
	}
	seed := time.Now().UnixNano()
	if s := os.Getenv("RDMABRIDGE_LAB_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseInt(s, 10, 64); err != nil {
			t.Fatalf("RDMABRIDGE_LAB_SEED: %v", err)
		}
	}
	t.Logf("RDMABRIDGE_LAB_SEED=%d", seed)
	r := &rounds{
		random: rand.New(rand.NewPCG(uint64(seed), 6)),
		pause:  1500 * time.Millisecond, stopped: 8 * time.Second, cut: [2]time.Duration{8 * time.Second, 10 * time.Second},
	}
	times := 1
	if labFull() {
		times, r.pause = 4, 4*time.Second
		r.stopped, r.cut = 30*time.Second, [2]time.Duration{15 * time.Second, 40 * time.Second}
	}
	r.start(t)
	order := slices.Repeat(r.faults(), times)
	r.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	if names := strings.Fields(os.Getenv("RDMABRIDGE_LAB_FAULTS")); len(names) > 0 {
		order = nil
		for _, name := range names {
			i := slices.IndexFunc(r.faults(), func(f fault) bool { return f.name == name })
			if i < 0 {
				t.Fatalf("RDMABRIDGE_LAB_FAULTS: no fault %q", name)
			}
			order = append(order, r.faults()[i])
		}
	}
	for i, f := range order {
		if !t.Run(fmt.Sprintf("%02d-%s", i+1, f.name), func(t *testing.T) { r.round(t, f) }) {
			break
		}
	}
	if t.Failed() {
		return
	}
	r.load.end(t)
	r.wantEmpty(t)
	r.bridge.wantNoErrors(t)
	r.bridge.stop(t)
	r.report(t)
}

// These bound how long a client may wait after the end of a fault. A Call that may not be
// repeated waits in the bridge for a connection and then for its Reply, as docs/faults.md says;
// then the bridge closes the client's connection.
const (
	roundsWait   = 30*time.Second + 60*time.Second // timeouts.unavailable and timeouts.call
	roundsReturn = 15 * time.Second                // until a Linux client connects again
	roundsGrace  = 10*time.Second + 15*time.Second // the grace period of guest/init, and the longest pause of a client during it
)

// rounds has the server, the bridge and the client, and records their faults.
type rounds struct {
	random         *rand.Rand
	pause          time.Duration    // before and after a fault, at most
	stopped        time.Duration    // how long the server is stopped
	cut            [2]time.Duration // how long the network is cut: minimum and maximum
	server, client *guest
	bridge         *bridgeProcess
	load           *load
	outages        []outage
	results        []roundResult
}

// An outage is the time of one fault.
type outage struct {
	broken, healed time.Time
	forget         bool      // whether the server lost its memory of executed operations
	dead           time.Time // when the server stopped executing operations
}

// A fault breaks something and repairs it.
type fault struct {
	name   string
	forget bool // whether the server loses its memory of executed operations
	run    func(*testing.T) outage
}

// A roundResult is the result of one round.
type roundResult struct {
	fault            string
	outage           time.Duration
	first, all, data []time.Duration // see goesOn
	longest          operation
	ops              int
	again            int     // operations whose answer was that they had been done before
	hits             int     // in the server's duplicate request cache
	replayed         float64 // Calls that the bridge sent again
	given            float64 // Calls that the bridge could not answer
}

func (res roundResult) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s for %.1f s", res.fault, res.outage.Seconds())
	for v, vers := range roundsVersions {
		fmt.Fprintf(&b, "; version %s: answers after %.1f s, all names after %.1f s, data after %.1f s", vers, res.first[v].Seconds(), res.all[v].Seconds(), res.data[v].Seconds())
	}
	fmt.Fprintf(&b, "; longest: %v; %d operations, %d told that they had been done; %d hits in the server's duplicate request cache; %.0f Calls sent again by the bridge, %.0f given up",
		res.longest, res.ops, res.again, res.hits, res.replayed, res.given)
	return b.String()
}

func (r *rounds) start(t *testing.T) {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 256<<20); err != nil {
		t.Fatal(err)
	}
	command(t, time.Minute, "/sbin/mkfs.ext4", "-q", disk)
	initrd := packGuest(t)
	r.server = newGuest(t, initrd, "--append", "lab.rdma=siw lab.server=1 lab.disk=1 ignore_loglevel", "--disk", disk)
	host := makeTap(t, "rounds0", "10.9.0.1/24")
	r.client = newGuest(t, initrd, "--mem", "1024", "--tap", "rounds0", "--append", "lab.tap=10.9.0.2/24")
	r.server.launch(t)
	r.client.launch(t)
	r.bridge = newBridgeProcess(t, r.server)
	r.bridge.configure(t, fmt.Sprintf("address: 127.0.0.1:%d\n    transport: tcp", r.bridge.port), fmt.Sprintf("address: %s:%d\n    transport: tcp", host, r.bridge.port))
	r.server.ready(t)
	r.client.ready(t)
	if file := os.Getenv("RDMABRIDGE_LAB_PCAP"); file != "" {
		start(t, "tcpdump", "-i", "lo", "-s", "512", "-B", "65536", "-U", "-w", file, "tcp")
	}
	r.bridge.start(t)
	r.load = startLoad(t, r.client, host, r.bridge.port, max(r.stopped, r.cut[1], 2*bootTime)+roundsWait+roundsReturn+roundsGrace)
}

// between returns a duration that depends on the seed.
func (r *rounds) between(least, most time.Duration) time.Duration {
	return least + time.Duration(r.random.Int64N(int64(most-least+1)))
}

func (r *rounds) faults() []fault {
	return []fault{
		{"server-killed", true, r.killServer},
		{"server-stopped", false, r.stopServer},
		{"network-cut", false, r.cutNetwork},
		{"nfsd-restarted", true, r.restartNFSD},
		{"bridge-killed", false, r.killBridge},
	}
}

func (r *rounds) killServer(t *testing.T) (o outage) {
	o.broken = time.Now()
	r.server.qemu.end(t, syscall.SIGKILL)
	o.dead = time.Now()
	r.server.boot(t)
	o.healed = time.Now()
	return o
}

func (r *rounds) stopServer(t *testing.T) (o outage) {
	p := r.server.qemu.cmd.Process
	o.broken = time.Now()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(r.stopped) // how long the outage lasts
	o.healed = time.Now()
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	return o
}

func (r *rounds) cutNetwork(t *testing.T) (o outage) {
	o.broken = time.Now()
	heal := cutPorts(t, r.server.rdma, r.server.nfs, r.server.mount, r.server.lockd)
	time.Sleep(r.between(r.cut[0], r.cut[1])) // how long the outage lasts
	o.healed = time.Now()
	heal()
	return o
}

func (r *rounds) restartNFSD(t *testing.T) (o outage) {
	o.broken = time.Now()
	r.server.job(t, 3*time.Minute, "/lab/knfsd.sh stop")
	o.dead = time.Now()
	time.Sleep(r.between(time.Second, 3*time.Second)) // how long the outage lasts
	r.server.job(t, time.Minute, "/lab/knfsd.sh start")
	o.healed = time.Now()
	return o
}

func (r *rounds) killBridge(t *testing.T) (o outage) {
	o.broken = time.Now()
	r.bridge.kill(t)
	r.bridge.start(t)
	o.healed = time.Now()
	return o
}

// round lets the load run for a while, breaks and repairs something, and waits until all
// loops continue.
func (r *rounds) round(t *testing.T, f fault) {
	defer func() {
		if t.Failed() {
			r.load.state(t)
		}
	}()
	res := roundResult{fault: f.name}
	r.watch(t, r.between(time.Second, r.pause), &res)
	hits, counts := r.hits(t), r.counts(t)
	o := f.run(t)
	o.forget = f.forget
	r.outages = append(r.outages, o)
	if f.forget {
		hits = 0
	}
	if f.name == "bridge-killed" {
		counts = [2]float64{}
	}
	res.outage = o.healed.Sub(o.broken)

	g := newGoesOn(o)
	if !testkit.Settles(r.bound(f.forget)-time.Since(o.healed), func() bool { return g.see(r.watch(t, 0, &res), r.load) }) {
		t.Fatalf("%v after %s was over, not everything goes on: %+v", time.Since(o.healed).Round(time.Second), f.name, g)
	}
	res.first, res.all, res.data = g.first, g.all, g.data
	r.watch(t, r.between(time.Second, r.pause), &res)
	res.hits = r.hits(t) - hits
	now := r.counts(t)
	res.replayed, res.given = now[0]-counts[0], now[1]-counts[1]
	r.bridge.wantNoErrors(t)
	r.results = append(r.results, res)
	t.Logf("%v", res)
}

// bound is how long an operation may take, not counting outages.
func (r *rounds) bound(forget bool) time.Duration {
	if forget {
		return roundsWait + roundsReturn + roundsGrace
	}
	return roundsWait + roundsReturn
}

// watch checks what the load does, for d or once, and returns it.
func (r *rounds) watch(t *testing.T, d time.Duration, res *roundResult) (ops []operation) {
	t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(50 * time.Millisecond) {
		r.load.alive(t)
		ops = append(ops, r.load.news(t)...)
		if t.Failed() {
			t.FailNow()
		}
		if !time.Now().Before(end) {
			break
		}
	}
	for _, op := range ops {
		if op.name != "look" {
			res.ops++
		}
		if res.longest.took() < op.took() {
			res.longest = op
		}
		late, forgot, died := op.took(), false, false
		for _, o := range r.outages {
			if op.begun.Before(o.healed) && op.end.After(o.broken) {
				late -= o.healed.Sub(o.broken)
			}
			forgot = forgot || o.forget && op.end.After(o.broken) && op.begun.Before(o.healed.Add(roundsGrace))
			died = died || o.forget && o.covers(op)
		}
		if late > r.bound(forgot) {
			t.Errorf("%v, %v more than what was broken", op, late)
		}
		if op.outcome == "again" {
			res.again++
			if !died {
				t.Errorf("executed twice by a server that was there all the time: %v", op)
			}
		}
	}
	return ops
}

// covers reports whether op was sent before the server died and answered after it was back.
// The guest's clock is known to within a few hundredths of a second.
func (o outage) covers(op operation) bool {
	const slack = 200 * time.Millisecond
	return op.begun.Before(o.dead.Add(slack)) && op.end.After(o.broken.Add(-slack))
}

// goesOn measures when all loops continue after an outage.
type goesOn struct {
	o        outage
	answered map[string]bool            // loops that have got an answer
	done     map[string]map[string]bool // operations that loops have begun and finished since
	before   []int64                    // octets of data at the first beat afterwards

	// Times after the outage, for each version: the first answer of the last loop; when every
	// loop has done all operations that a server refuses in its grace period; and when data
	// travel to and from the server.
	first, all, data []time.Duration
}

func newGoesOn(o outage) *goesOn {
	n := len(roundsVersions)
	return &goesOn{
		o: o, answered: make(map[string]bool), done: make(map[string]map[string]bool),
		first: make([]time.Duration, n), all: make([]time.Duration, n), data: make([]time.Duration, n),
	}
}

func (g *goesOn) see(ops []operation, l *load) (everything bool) {
	for _, op := range ops {
		v := slices.IndexFunc(roundsVersions, func(v string) bool { return strings.HasPrefix(op.loop, "meta-"+v) })
		after := op.end.Sub(g.o.healed)
		if after > 0 && !g.answered[op.loop] {
			g.answered[op.loop] = true
			g.first[v] = max(g.first[v], after)
		}
		if op.begun.Before(g.o.healed) || op.name != "create" && op.name != "rename" {
			continue
		}
		if g.done[op.loop] == nil {
			g.done[op.loop] = make(map[string]bool)
		}
		if !g.done[op.loop][op.name] {
			g.done[op.loop][op.name] = true
			g.all[v] = max(g.all[v], after)
		}
	}
	if l.beat.Before(g.o.healed) {
		return false
	}
	if g.before == nil {
		g.before = slices.Clone(l.moved)
	}
	everything = true
	for v := range roundsVersions {
		if g.data[v] == 0 {
			if l.moved[v] >= g.before[v]+roundsData {
				g.data[v] = l.beat.Sub(g.o.healed)
			} else {
				everything = false
			}
		}
	}
	for _, what := range g.done {
		everything = everything && len(what) == 2
	}
	return everything && len(g.done) == roundsLoops*len(roundsVersions)
}

// hits counts retransmissions that the server has answered from memory.
func (r *rounds) hits(t *testing.T) int {
	t.Helper()
	out := r.server.job(t, time.Minute, "grep ^rc /proc/net/rpc/nfsd")
	var n int
	if _, err := fmt.Sscanf(out, "rc %d", &n); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return n
}

// counts returns how many Calls the bridge has sent again and how many it has given up.
func (r *rounds) counts(t *testing.T) [2]float64 {
	t.Helper()
	return [2]float64{
		r.bridge.metric(t, `upstream_replays_total{upstream="storage"`),
		r.bridge.metric(t, `listener_calls_total{listener="nfs",result="abandoned"`),
	}
}

// wantEmpty fails if the server's disk has names that the loops have removed.
func (r *rounds) wantEmpty(t *testing.T) {
	t.Helper()
	if left := r.server.job(t, time.Minute, "cd /export && ls -d meta-* | wc -l && find meta-* -mindepth 1"); strings.TrimSpace(left) != strconv.Itoa(roundsLoops*len(roundsVersions)) {
		t.Errorf("directories, and what the loops have left in them:\n%s", left)
	}
}

// report logs all rounds.
func (r *rounds) report(t *testing.T) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "round\tfault\tlasted")
	for _, what := range []string{"answers", "names", "data"} {
		fmt.Fprintf(w, "\t%s v%s", what, strings.Join(roundsVersions, "\tv"))
	}
	fmt.Fprintln(w, "\tlongest\tof\toperations\tagain\tcache hits\tsent again\tgiven up\t")
	for i, res := range r.results {
		fmt.Fprintf(w, "%d\t%s\t%.1f s", i+1, res.fault, res.outage.Seconds())
		for _, d := range slices.Concat(res.first, res.all, res.data) {
			fmt.Fprintf(w, "\t%.1f s", d.Seconds())
		}
		fmt.Fprintf(w, "\t%.1f s\t%s %s\t%d\t%d\t%d\t%.0f\t%.0f\t\n", res.longest.took().Seconds(), res.longest.loop, res.longest.name,
			res.ops, res.again, res.hits, res.replayed, res.given)
	}
	_ = w.Flush()
	t.Logf("times after the end of the fault, and the longest operation:\n%s", b.String())
}
