package proxy

import (
	"slices"
	"testing"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/crowd"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// TestArrivals: a host has its rate of new connections, a second's worth at once, and so have all hosts together.
// Hosts that owe nothing are forgotten.
func TestArrivals(t *testing.T) {
	var a arrivals
	count := func(h crowd.Host, all, each int, now time.Duration) (in int) {
		for range 1000 {
			if a.enter(h, all, each, int64(now)) == arrivalOK {
				in++
			}
		}
		return in
	}
	for i, step := range []struct {
		host      crowd.Host
		all, each int
		now       time.Duration
		want      int
	}{
		{1, 0, 0, 0, 1000}, // no limit
		{1, 0, 10, 0, 10},
		{1, 0, 10, 0, 0},
		{2, 0, 10, 0, 10}, // another host has its own
		{1, 0, 10, 500 * time.Millisecond, 5},
		{1, 0, 10, time.Minute, 10}, // and no more than a second's worth
		{3, 7, 0, time.Minute, 7},
		{4, 7, 0, time.Minute, 0},
		{4, 7, 5, time.Minute + time.Second, 5},
		{5, 7, 5, time.Minute + time.Second, 2}, // what the others have left
	} {
		if n := count(step.host, step.all, step.each, step.now); n != step.want {
			t.Errorf("step %d: %d connections, want %d", i, n, step.want)
		}
	}
	for i := range crowd.Host(10_000) {
		a.enter(i+100, 0, 10, int64(time.Minute)+int64(i)*int64(time.Millisecond))
	}
	if n := len(a.of); n > 2000 {
		t.Errorf("%d hosts are remembered, of which 1000 came in the last second", n)
	}
}

// fullLine makes a tenant whose memory full has, and n connections that wait for it in line. called gets the numbers of
// those that are called.
func fullLine(n int, called *[]int) (t *tenant, full *membership, in []*membership) {
	m := metrics.New()
	t = &tenant{addresses: make(map[crowd.Host]*tenantAddress)}
	t.waits[limitMemory] = m.Counter(metrics.TenantWaits, "a", "memory")
	t.quota.most = &t.total
	t.total.memory.Store(128 << 10)
	at := &tenantAddress{quota: quota{most: &t.each}}
	full = &membership{f: &front{}, tenant: t, address: at}
	full.arriving(64 << 10)
	for i := range n {
		in = append(in, &membership{f: &front{}, tenant: t, address: at})
		t.wait(in[i], 64<<10, func() { *called = append(*called, i) })
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
	in[0].leave()
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
		if tenant.line[waiting-1].m == in[i] {
			last = i
		}
	}
	in[last].leave()
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
	tenant := &tenant{}
	tenant.quota.most = &tenant.total
	tenant.total.calls.Store(10)
	tenant.total.memory.Store(1 << 30)
	at := &tenantAddress{quota: quota{most: &tenant.each}}
	m := &membership{f: &front{}, tenant: tenant, address: at}
	c := &call{perCall: perCall{size: 4096}}
	if n := testing.AllocsPerRun(1000, func() {
		if !m.enter() {
			t.Fatal("the Call may not begin")
		}
		c.charge.expected = 1 << 20
		m.begin(c)
		m.octets -= 100
		m.charge(0, -100)
		c.charge.expected -= 100
		m.arriving(64 << 10)
		m.arrived(64 << 10)
		m.settle(c)
	}); n != 0 {
		t.Errorf("%v allocations for a Call", n)
	}
	if calls, octets := tenant.quota.load(); calls != 0 || octets != 0 || m.calls != 0 || m.octets != 0 {
		t.Errorf("%d Calls and %d octets are left, %d and %d in the membership", calls, octets, m.calls, m.octets)
	}
}
