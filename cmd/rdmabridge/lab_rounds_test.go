//go:build lab

package main

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
)

// TestLabRounds breaks things under load, round after round:
//
//	a guest's NFS client -- TCP --> rdmabridge on this host -- iWARP --> another guest's knfsd
//
// with NFSv3 and NFSv4.2 mounted at once. fio writes and verifies, and six loops make, link,
// rename and remove names (guest/rounds.sh, guest/meta.c). The export is on a disk that
// survives the server. The bridge has its default timeouts.
//
// After each round everything goes on within a bound; no read returns a wrong octet; and no
// operation is executed twice. A server that dies forgets what it has executed: its duplicate
// request cache and NFSv4.1 sessions are in memory. So an operation that was under way when it
// died, and only such a one, may be told that it had been done before. Its effect must be that
// of one execution then, too.
//
// A round of each fault, with RDMABRIDGE_LAB_FULL=1 four, and longer ones; or
// RDMABRIDGE_LAB_FAULTS, names with spaces between, in this order. The order and all pauses
// follow from RDMABRIDGE_LAB_SEED. RDMABRIDGE_LAB_PCAP is a file for all packets.
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
	if os.Getenv("RDMABRIDGE_LAB_FULL") == "1" {
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

// What a client may wait when everything is well again. A Call that may not be repeated waits
// in the bridge for a connection and then for its Reply, as docs/faults.md says; then its
// client's connection is closed.
const (
	roundsWait   = 30*time.Second + 60*time.Second // timeouts.unavailable and timeouts.call
	roundsReturn = 15 * time.Second                // a Linux client, to a connection that was closed on it
	roundsGrace  = 10*time.Second + 15*time.Second // guest/init's, and the longest pause of a client that met it
)

// rounds are the server, the bridge, the client, and what is known of them.
type rounds struct {
	random         *rand.Rand
	pause          time.Duration    // before and after a fault, at most
	stopped        time.Duration    // how long the server stands still
	cut            [2]time.Duration // how long the network is away, at least and at most
	server, client *guest
	bridge         *bridgeProcess
	load           *load
	outages        []outage
	results        []roundResult
}

// An outage is when something was broken.
type outage struct {
	broken, healed time.Time
	forget         bool      // what the server had executed it did not know afterwards
	dead           time.Time // from when on it executed nothing
}

// A fault breaks something and mends it.
type fault struct {
	name   string
	forget bool // the server forgets what it has executed
	run    func(*testing.T) outage
}

// A roundResult is what one round has shown.
type roundResult struct {
	fault            string
	outage           time.Duration
	first, all, data []time.Duration // goesOn's
	longest          operation
	ops              int
	again            int     // operations that were told that they had been done before
	hits             int     // in the server's duplicate request cache
	replayed         float64 // Calls that the bridge sent again
	given            float64 // Calls that it could not answer
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
	run(t, time.Minute, "/sbin/mkfs.ext4", "-q", disk)
	initrd := packGuest(t)
	r.server = newGuest(t, initrd, "--append", "lab.rdma=siw lab.server=1 lab.disk=1 ignore_loglevel", "--disk", disk)
	r.client = newGuest(t, initrd, "--mem", "1024")
	r.server.launch(t)
	r.client.launch(t)
	r.bridge = newBridgeProcess(t, r.server)
	r.server.ready(t)
	r.client.ready(t)
	if file := os.Getenv("RDMABRIDGE_LAB_PCAP"); file != "" {
		start(t, "tcpdump", "-i", "lo", "-s", "512", "-B", "65536", "-U", "-w", file, "tcp")
	}
	r.bridge.start(t)
	// Policies that drop what comes are not asked for loopback otherwise.
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/lo/disable_policy", []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r.load = startLoad(t, r.client, r.bridge, max(r.stopped, r.cut[1], 2*bootTime)+roundsWait+roundsReturn+roundsGrace)
}

// between is a time that the seed tells.
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
	time.Sleep(r.stopped)
	o.healed = time.Now()
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	return o
}

// cutNetwork drops every packet between bridge and server where it arrives, so that its sender
// hears nothing.
func (r *rounds) cutNetwork(t *testing.T) (o outage) {
	policies := func(act string, words ...string) {
		for _, port := range []int{r.server.rdma, r.server.nfs, r.server.mount, r.server.lockd} {
			for _, side := range []string{"sport", "dport"} {
				run(t, 10*time.Second, "ip", append([]string{
					"xfrm", "policy", act, "dir", "in",
					"src", "127.0.0.1/32", "dst", "127.0.0.1/32", "proto", "tcp", side, strconv.Itoa(port),
				}, words...)...)
			}
		}
	}
	o.broken = time.Now()
	policies("add", "action", "block")
	time.Sleep(r.between(r.cut[0], r.cut[1]))
	o.healed = time.Now()
	policies("delete")
	return o
}

func (r *rounds) restartNFSD(t *testing.T) (o outage) {
	o.broken = time.Now()
	r.server.job(t, time.Minute, "/lab/knfsd.sh stop")
	o.dead = time.Now()
	time.Sleep(r.between(time.Second, 3*time.Second))
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

// round lets everything run for a while, breaks and mends something, and waits until all
// goes on.
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
	for ; ; time.Sleep(50 * time.Millisecond) {
		ops := r.watch(t, 0, &res)
		if g.see(ops, r.load) {
			break
		}
		if waited := time.Since(o.healed); waited > r.bound(f.forget) {
			t.Fatalf("%v after %s was over, not everything goes on: %+v", waited.Round(time.Second), f.name, g)
		}
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

// bound is how long an operation may take besides what an outage takes.
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

// covers is whether op was sent before the server had died, and answered when it was back.
// The guest's clock is known to a few hundredths of a second.
func (o outage) covers(op operation) bool {
	const slack = 200 * time.Millisecond
	return op.begun.Before(o.dead.Add(slack)) && op.end.After(o.broken.Add(-slack))
}

// goesOn finds out, after an outage, when everything does.
type goesOn struct {
	o        outage
	answered map[string]bool            // loops that have had an answer
	done     map[string]map[string]bool // what loops have begun afterwards, and ended
	before   []int64                    // octets of data at the first beat afterwards

	// After the outage: the last loop's first answer; when every loop has done all that a
	// server in its grace period refuses; and when data go from and to the server. For each
	// version.
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

// counts are the Calls that the bridge has sent again, and those that it has given up.
func (r *rounds) counts(t *testing.T) [2]float64 {
	t.Helper()
	return [2]float64{
		r.bridge.metric(t, `upstream_replays_total{upstream="storage"`),
		r.bridge.metric(t, `client_calls_total{listener="nfs",result="abandoned"`),
	}
}

// wantEmpty: on the server's disk there is nothing that was not removed.
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
	fmt.Fprintln(w, "round\tfault\tlasted\tanswers v3\tv4.2\tnames v3\tv4.2\tdata v3\tv4.2\tlongest\tof\toperations\tagain\tcache hits\tsent again\tgiven up\t")
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
