//go:build lab

package lab

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/internal/testkit/proxytest"
)

// testTenants: a client machine asks for more than its tenant may have, and one of another tenant, behind the same
// listener and in front of the same server, does not notice.
//
//	c1 of the guest -- relay of 127.0.1.1 --.
//	                                         rdmabridge on this host -- iWARP --> the guest's knfsd
//	c2 of the guest -- relay of 127.0.9.1 --'
//
// QEMU's network has all clients come from one address. The relays give them others.
func testTenants(t *testing.T, g *guest) {
	p := freePorts(t, 2)
	b := newBridgeWith(t, p[0], p[1], fmt.Sprintf(`
listeners:
  - {name: nfs, address: "127.0.0.1:%d", transport: tcp, upstream: storage, routes: [{program: mount, upstream: mountd}]}
upstreams:
  - {name: storage, transport: rdma, provider: iwarp, endpoints: ["127.0.0.1:%d"], pool: {connections: 4, credits: 128}}
  - {name: mountd, transport: tcp, endpoints: ["127.0.0.1:%d"]}
tenants:
  - {name: calls, clients: [127.0.1.0/24], total: {calls: 2}}
  - {name: octets, clients: [127.0.2.0/24], total: {rate: {bytes: %d}}}
  - {name: few, clients: [127.0.3.0/24], total: {connections: 1}}
  - {name: calm, clients: [127.0.9.0/24], total: {calls: 1000, memory: 32MiB, connections: 100, rate: {bytes: 1GiB}}}
loops: 2
memory: {budget: 128MiB}
admin: {address: 127.0.0.1:%d}
log: {level: info, format: json}
`, p[0], g.rdma, g.mount, tenantOctets, p[1]))
	b.start(t)
	far := func(tenant int) farEnd {
		r := proxytest.NewRelayFrom(t, fmt.Sprintf("127.0.%d.1", tenant), fmt.Sprintf("127.0.0.1:%d", p[0]))
		_, port, _ := net.SplitHostPort(r.Addr())
		n, _ := strconv.Atoi(port)
		return farEnd{nfs: n, mount: n}
	}
	calm := far(9)
	for _, x := range []struct {
		name, limit, vers string // the version of the greedy client
		end               farEnd
		check             func(*testing.T, *tenantWatch)
	}{
		{"calls", "total", "4.2", far(1), wantFewCalls},
		{"octets", "total_rate", "3", far(2), wantFewOctets},
	} {
		t.Run(x.name, func(t *testing.T) {
			greedy := func(step string) string {
				return x.end.script("NAME=c1 DEPTH=16 STEP="+step+" /lab/tenants.sh", x.vers)
			}
			g.job(t, time.Minute, greedy("mount"))
			load := g.begin(t, greedy("load"))
			waits := fmt.Sprintf("tenant_waits_total{limit=%q,tenant=%q}", x.limit, x.name)
			waitFor(t, time.Minute, "the greedy client waits", func() bool { return b.metric(t, waits) > 0 })
			w := watchTenant(t, b, x.name)
			for _, v := range []string{"3", "4.2"} {
				for _, step := range []string{"mount", "work", "umount"} {
					w.during(t, g.begin(t, calm.script("NAME=c2 STEP="+step+" /lab/tenants.sh", v)))
				}
			}
			x.check(t, w)
			g.job(t, time.Minute, "touch /tmp/tenants-stop")
			t.Log(load.wait(t, time.Minute)) // its data are right
			g.job(t, time.Minute, greedy("umount"))
			b.wantCalm(t)
			b.wantQuiet(t)
		})
	}
	t.Run("connections", func(t *testing.T) {
		end := far(3)
		const vers = "4.2" // one connection for a mount
		run := func(name, step string) string {
			return end.script(fmt.Sprintf("NAME=%s STEP=%s /lab/tenants.sh", name, step), vers)
		}
		g.job(t, time.Minute, run("c1", "mount"))
		second := g.begin(t, run("c3", "mount"))
		const refused = `tenant_refused_connections_total{reason="connections",tenant="few"}`
		waitFor(t, time.Minute, "the second connection of the tenant is refused", func() bool { return b.metric(t, refused) > 0 })
		g.job(t, time.Minute, run("c1", "work"))
		if n := b.metric(t, `tenant_clients{tenant="few"}`); n != 1 {
			t.Errorf("the tenant has %.0f connections", n)
		}
		for _, step := range []string{"mount", "work", "umount"} {
			g.job(t, time.Minute, calm.script("NAME=c2 STEP="+step+" /lab/tenants.sh", vers))
		}
		if second.said("PASS") {
			t.Error("the second client has mounted beside the first")
		}
		g.job(t, time.Minute, run("c1", "umount"))
		second.wait(t, time.Minute) // its kernel tries again, and there is room now
		g.job(t, time.Minute, run("c3", "work"))
		g.job(t, time.Minute, run("c3", "umount"))
		if lines := b.news(t, "info", "warn"); !strings.Contains(strings.Join(lines, ""), `"event":"client_refused"`) {
			t.Errorf("no line says that a client was refused:\n%s", strings.Join(lines, ""))
		}
		b.wantCalm(t)
	})
	b.wantNoErrors(t)
	b.stop(t)
}

const (
	tenantOctets = 64 << 10  // a second
	tenantCall   = 256 << 10 // more than a Call with its Reply has here
)

// wantCalm fails if a client of the tenant calm has waited for a limit, or was refused. It has worked, and is gone.
func (b *bridgeProcess) wantCalm(t *testing.T) {
	t.Helper()
	for _, m := range []string{"tenant_waits_total{", "tenant_waiting_clients{", "tenant_refused_connections_total{"} {
		for _, l := range strings.Fields(limitsOf[m]) {
			if n := b.metric(t, m+l+`,tenant="calm"}`); n != 0 {
				t.Errorf("tenant calm: %s%s is %.0f", m, l, n)
			}
		}
	}
	if n := b.metric(t, `tenant_calls_total{tenant="calm"}`); n < 50 {
		t.Errorf("tenant calm has made %.0f Calls: this tests nothing", n)
	}
	if !testkit.Settles(10*time.Second, func() bool { return b.metric(t, `tenant_clients{tenant="calm"}`) == 0 }) {
		t.Error("the tenant calm has connections although nothing is mounted")
	}
}

var limitsOf = map[string]string{
	"tenant_waits_total{":               `limit="total" limit="address" limit="total_rate" limit="address_rate" limit="memory"`,
	"tenant_waiting_clients{":           `limit="total" limit="address" limit="total_rate" limit="address_rate" limit="memory"`,
	"tenant_refused_connections_total{": `reason="connections" reason="connections_per_address" reason="rate" reason="rate_per_address"`,
}

// A tenantWatch looks at a tenant while others work.
type tenantWatch struct {
	b      *bridgeProcess
	name   string
	begun  time.Time
	before float64 // octets
	most   float64 // Calls at once
	looks  int
}

func watchTenant(t *testing.T, b *bridgeProcess, name string) *tenantWatch {
	t.Helper()
	w := &tenantWatch{b: b, name: name, begun: time.Now()}
	w.before = w.octets(t)
	return w
}

// during looks at the tenant until the job has ended.
func (w *tenantWatch) during(t *testing.T, j *guestJob) {
	t.Helper()
	testkit.Settles(time.Minute, func() bool {
		w.looks++
		w.most = max(w.most, w.b.metric(t, fmt.Sprintf("tenant_outstanding_calls{tenant=%q}", w.name)))
		return j.said("PASS") || j.said("FAIL")
	})
	j.wait(t, time.Minute)
}

// octets returns how many the tenant has had since watchTenant.
func (w *tenantWatch) octets(t *testing.T) (n float64) {
	t.Helper()
	for _, d := range []string{"in", "out"} {
		n += w.b.metric(t, fmt.Sprintf("tenant_bytes_total{direction=%q,tenant=%q}", d, w.name))
	}
	return n - w.before
}

// wantFewCalls: docs/limits.md says that calls may be exceeded by one for each event loop.
func wantFewCalls(t *testing.T, w *tenantWatch) {
	t.Logf("%.0f Calls at once at most, in %d looks", w.most, w.looks)
	if w.most > 2+2 || w.most == 0 {
		t.Errorf("the tenant had %.0f Calls at once", w.most)
	}
}

// wantFewOctets: after a pause as many octets as in a second may come at once, and one Call more.
func wantFewOctets(t *testing.T, w *tenantWatch) {
	n, s := w.octets(t), time.Since(w.begun).Seconds()
	t.Logf("%.0f octets in %.1f s", n, s)
	if n > tenantOctets*(s+1)+tenantCall || n == 0 {
		t.Errorf("the tenant had %.0f octets in %.1f s", n, s)
	}
}
