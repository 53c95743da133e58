//go:build lab

package lab

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/hapair"
)

// TestPairLab moves a guest's NFS client from one bridge to another, under a real keepalived:
//
//	a guest's client -- TCP --> floating address -- one of two bridges --> another guest's knfsd, over TCP or iWARP
//
// NFSv3, NFSv4.0, NFSv4.1 and NFSv4.2 are mounted at once, with the load of TestLabRounds: fio writes and verifies,
// and loops make, rename and remove names. No operation may be executed twice, and each goes on within the bound of
// docs/scaling.md. RDMABRIDGE_LAB_PAIR is tcp, rdma, or both with a space between them; `make pair` sets it.
func TestPairLab(t *testing.T) {
	transports := strings.Fields(os.Getenv("RDMABRIDGE_LAB_PAIR"))
	if os.Getenv("RDMABRIDGE_LAB") != "1" || len(transports) == 0 {
		t.Skip("takes ten minutes: make pair")
	}
	if missing := hapair.Missing(); missing != "" {
		t.Skipf("needs %s", missing)
	}
	initrd := packGuest(t)
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) { testPair(t, initrd, transport) })
	}
}

// The server's ports on this host, at the address where the two machines see it.
const pairNFS, pairRDMA, pairMount = 2049, 20049, 20048

func testPair(t *testing.T, initrd, transport string) {
	port := pairNFS
	if transport == "rdma" {
		port = pairRDMA
	}
	machines := hapair.New(t, bridgeBinary(t), fmt.Sprintf(`
identity: one text for the pair
listeners:
  - {name: nfs, address: "0.0.0.0:2049", upstream: storage, routes: [{program: mount, upstream: mountd}]}
upstreams:
  - name: storage
    transport: %s
    endpoints: ["%s:%d"]
    source: {address: %s}
    backoff: {min: 100ms, max: 500ms}
    timeouts: {call: 15s}
  - {name: mountd, transport: tcp, endpoints: ["%s:%d"]}
memory: {budget: 256MiB}
admin: {address: "127.0.0.1:9090"}
control: {path: none}
`, transport, hapair.Outside, port, hapair.Source, hapair.Outside, pairMount))

	// QEMU forwards a connection with its source address and port if it does not come from 127.0.0.1, so knfsd
	// sees those of the bridges.
	var forward []string
	for _, p := range []int{pairNFS, pairRDMA, pairMount} {
		forward = append(forward, "--fwd", fmt.Sprintf("%s:%d:%d", hapair.Outside, p, p))
	}
	server := newGuest(t, initrd, append(forward, "--mem", "3072", "--append", "lab.rdma=siw lab.server=1 lab.lease=90")...)
	client := newGuest(t, initrd, "--mem", "1024")
	server.launch(t)
	client.launch(t)
	server.ready(t)
	client.ready(t)

	r := &rounds{server: server, client: client}
	r.load = startLoad(t, client, hapair.Floating, 2049, 2*time.Minute)
	for _, f := range []struct {
		name        string
		fault, heal func(*hapair.Machine)
	}{
		{"bridge killed", func(m *hapair.Machine) { m.KillBridge() }, func(m *hapair.Machine) { m.StartBridge(t) }},
		{"cable taken out", func(m *hapair.Machine) { m.Unplug(t) }, func(m *hapair.Machine) { m.Plug(t) }},
		{"packets lost", func(m *hapair.Machine) { m.Isolate(t) }, func(m *hapair.Machine) { m.Join(t) }},
	} {
		on, off := machines[0], machines[1]
		if off.Active(t) {
			on, off = off, on
		}
		var res roundResult
		r.watch(t, 5*time.Second, &res)
		o := outage{broken: time.Now()}
		f.fault(on)
		testkit.Eventually(t, "the other machine has the addresses", func() bool { return off.Active(t) })
		moved := time.Since(o.broken)
		o.healed = o.broken // everything counts from the fault on
		g := newGoesOn(o)
		if !testkit.Settles(roundsWait+roundsReturn, func() bool { return g.see(r.watch(t, 0, &res), r.load) }) {
			t.Fatalf("%s: not everything goes on: %+v", f.name, g)
		}
		standby := on.Standbys() + off.Standbys()
		f.heal(on)
		testkit.Eventually(t, "a standby again", func() bool { return on.Standbys()+off.Standbys() > standby && on.Active(t) != off.Active(t) })
		r.watch(t, 15*time.Second, &res)
		t.Logf("%s (%s): the addresses moved after %.1f s; longest: %v; %d operations, %d told that they had been done; %d hits in the server's duplicate request cache",
			f.name, transport, moved.Seconds(), res.longest, res.ops, res.again, r.hits(t))
		for v, vers := range roundsVersions {
			t.Logf("  version %s: answers after %.1f s, all names after %.1f s, data after %.1f s", vers, g.first[v].Seconds(), g.all[v].Seconds(), g.data[v].Seconds())
		}
		if res.longest.took() > pairLabBound {
			t.Errorf("%s: %v took more than %v", f.name, res.longest, pairLabBound)
		}
	}
	r.load.end(t)
	r.wantEmpty(t)
}

// pairLabBound is the bound of docs/scaling.md with a mount's timeo of 60 s.
const pairLabBound = 75 * time.Second
