package admit

import (
	"slices"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
)

// fullLine makes a tenant whose memory full has, and n connections that wait for it in line. called gets the numbers of
// those that are called.
func fullLine(n int, called *[]int) (t *Tenant, full *membership, in []*Client) {
	m := metrics.New()
	t = &Tenant{addresses: make(map[crowd.Host]*tenantAddress)}
	t.waits[limitMemory] = m.Counter(metrics.TenantWaits, "a", "memory")
	t.quota.most = &t.total
	t.total.memory.Store(128 << 10)
	at := &tenantAddress{quota: quota{most: &t.each}}
	full = &membership{tenant: t, address: at}
	full.arriving(64 << 10)
	for i := range n {
		in = append(in, &Client{starter: starter{waiter: gates.MakeWaiter(&fakeWaiter{}, 0), host: &Host{}}, member: &membership{tenant: t, address: at}})
		t.wait(&in[i].waiter, at, 64<<10, func() { *called = append(*called, i) })
	}
	return t, full, in
}

// TestLineGoesOn: a connection in a tenant's line that ends without a use for its turn passes it on.
func TestLineGoesOn(t *testing.T) {
	var called []int
	_, full, in := fullLine(2, &called)
	if len(called) > 0 {
		t.Fatal("called while there is no memory")
	}
	full.arrived(64 << 10)
	if !slices.Equal(called, []int{0}) {
		t.Fatalf("called %v when there is memory, want the first", called)
	}
	in[0].Close()
	if !slices.Equal(called, []int{0, 1}) {
		t.Errorf("called %v after the first has ended, want both", called)
	}
}

// TestLineIsLeft: a connection that has another tenant is called at once, however many wait before it in the line of
// the old one, and they stay.
func TestLineIsLeft(t *testing.T) {
	const waiting = 3 * mostLined
	var called []int
	tenant, full, in := fullLine(waiting, &called)
	last := -1
	for i := range waiting { // the line has turned since
		if tenant.line[waiting-1].client == &in[i].waiter {
			last = i
		}
	}
	in[last].Close()
	if !slices.Equal(called, []int{last}) {
		t.Errorf("called %v, want %d, which has left", called, last)
	}
	if n := tenant.lined.Load(); n != waiting-1 || len(tenant.line) != waiting-1 {
		t.Errorf("%d connections are in line, want %d", n, waiting-1)
	}
	full.arrived(64 << 10)
	if len(called) != 2 {
		t.Errorf("called %v when there is memory, want one more", called)
	}
}

// TestMembershipAllocates: to count a Call of a tenant costs no allocation.
func TestMembershipAllocates(t *testing.T) {
	tenant := &Tenant{}
	tenant.quota.most = &tenant.total
	tenant.total.calls.Store(10)
	tenant.total.memory.Store(1 << 30)
	at := &tenantAddress{quota: quota{most: &tenant.each}}
	m := &membership{tenant: tenant, address: at}
	g := &Client{starter: starter{waiter: gates.MakeWaiter(&fakeWaiter{}, 0)}, member: m}
	var c Charge
	if n := testing.AllocsPerRun(1000, func() {
		if !g.MayBegin() {
			t.Fatal("the Call may not begin")
		}
		c.Expected = 1 << 20
		m.begin(&c, c.memory(4096))
		m.octets -= 100
		m.charge(0, -100)
		c.Expected -= 100
		m.arriving(64 << 10)
		m.arrived(64 << 10)
		m.settle(&c, c.memory(4096))
	}); n != 0 {
		t.Errorf("%v allocations for a Call", n)
	}
	if calls, octets := tenant.quota.load(); calls != 0 || octets != 0 || m.calls != 0 || m.octets != 0 {
		t.Errorf("%d Calls and %d octets are left, %d and %d in the membership", calls, octets, m.calls, m.octets)
	}
}
