package crowd

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"unsafe"
)

func TestHost(t *testing.T) {
	seen := make(map[Host]string)
	for _, tt := range []struct{ a, want string }{
		{"192.0.2.7", "192.0.2.7"},
		{"::ffff:192.0.2.7", "192.0.2.7"},
		{"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"},
		{"fe80::1%eth0", "fe80::"},
		{"0.0.0.0", "0.0.0.0"},
		{"255.255.255.255", "255.255.255.255"},
		{"::1", "::"},
		{"0:0:c000:207::1", "0:0:c000:207::"},
		{"64:ff9b::192.0.2.7", "64:ff9b::"},
		{"feff:ffff:ffff:ffff::1", "feff:ffff:ffff:ffff::"},
	} {
		h := HostOf(netip.MustParseAddr(tt.a))
		if got := h.Addr(); got != netip.MustParseAddr(tt.want) {
			t.Errorf("the host of %s is %v, want %s", tt.a, got, tt.want)
		}
		if was, ok := seen[h]; ok && was != tt.want {
			t.Errorf("%s and %s are one host", was, tt.want)
		}
		seen[h] = tt.want
	}
	if got := HostOf(netip.Addr{}).Addr(); got.IsValid() {
		t.Errorf("the host of nothing is %v", got)
	}
}

func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

// A model is what a Crowd is compared with.
type model struct {
	members []*Member[int] // in the order they came
	hosts   []int          // of members
	weights map[int]int
}

func (m *model) count(host int) (n int) {
	for _, h := range m.hosts {
		if h == host {
			n++
		}
	}
	return n
}

// largest returns the index of the oldest member of the host that gives way first.
func (m *model) largest() int {
	best := -1
	for i, h := range m.hosts {
		if best < 0 || m.count(h)*m.weights[m.hosts[best]] > m.count(m.hosts[best])*m.weights[h] {
			best = i
		}
	}
	return best
}

func TestCrowd(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var c Crowd[int]
		m := &model{weights: make(map[int]int)}
		for step := range 400 {
			host := rnd.IntN(1 + rnd.IntN(12))
			if rnd.IntN(5) < 3 || len(m.members) == 0 {
				x := &Member[int]{Value: step}
				weight := 1 + rnd.IntN(1+int(seed%3))
				m.weights[host] = weight
				m.members, m.hosts = append(m.members, x), append(m.hosts, host)
				c.Add(x, addr(host), weight)
			} else if i := rnd.IntN(len(m.members)); rnd.IntN(3) == 0 {
				weight := 1 + rnd.IntN(3)
				m.weights[m.hosts[i]] = weight
				c.Reweigh(m.members[i], weight)
			} else {
				c.Remove(m.members[i])
				c.Remove(m.members[i])     // does nothing
				c.Reweigh(m.members[i], 9) // does nothing
				m.members, m.hosts = append(m.members[:i:i], m.members[i+1:]...), append(m.hosts[:i:i], m.hosts[i+1:]...)
			}
			m.check(t, &c, rnd.IntN(14))
		}
	}
}

// check compares c with m. newcomer is a host.
func (m *model) check(t *testing.T, c *Crowd[int], newcomer int) {
	t.Helper()
	if c.Len() != len(m.members) || c.Count(addr(newcomer)) != m.count(newcomer) {
		t.Fatalf("%d connections, %d of the host; want %d and %d", c.Len(), c.Count(addr(newcomer)), len(m.members), m.count(newcomer))
	}
	i := m.largest()
	if i < 0 {
		if _, ok := c.Yields(addr(newcomer), 1); ok || c.Largest() != nil {
			t.Fatal("nobody can give way")
		}
		return
	}
	if c.Largest() != m.members[i] {
		t.Fatalf("the oldest of the largest is %v, want %d", c.Largest(), m.members[i].Value)
	}
	host, ok := c.Yields(addr(newcomer), 2)
	if want := m.hosts[i] != newcomer && m.count(m.hosts[i])*2 > (m.count(newcomer)+1)*m.weights[m.hosts[i]]; ok != want || ok && host != addr(m.hosts[i]) {
		t.Fatalf("%v gives way: %v; want host %d: %v", host, ok, m.hosts[i], want)
	}
	var newest []*Member[int]
	for k := len(m.members) - 1; k >= 0; k-- {
		if m.hosts[k] == newcomer {
			newest = append(newest, m.members[k])
		}
	}
	n := 0
	for x := range c.Newest(addr(newcomer)) {
		if n >= len(newest) || x != newest[n] {
			t.Fatal("not the newest first")
		}
		n++
	}
	if n != len(newest) || n > 0 && c.Oldest(addr(newcomer)) != newest[n-1] {
		t.Fatalf("%d of %d iterated, the oldest is %v", n, len(newest), c.Oldest(addr(newcomer)))
	}
	n = 0
	for range c.All() {
		n++
	}
	if n != c.Len() {
		t.Fatalf("%d of %d iterated", n, c.Len())
	}
}

func TestAddTwice(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a Member can be added twice")
		}
	}()
	var c Crowd[int]
	var m Member[int]
	c.Add(&m, addr(1), 1)
	c.Add(&m, addr(1), 1)
}

// A host more costs an allocation; a connection more of a host that is there costs none.
func TestCrowdDoesNotAllocate(t *testing.T) {
	var c Crowd[int]
	var first, m Member[int]
	c.Add(&first, addr(1), 1)
	if n := testing.AllocsPerRun(100, func() {
		c.Add(&m, addr(1), 1)
		c.Remove(&m)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A group fills a size class of Go's heap.
func TestGroupSize(t *testing.T) {
	if n := unsafe.Sizeof(group[int]{}); n > 32 {
		t.Errorf("group has %d octets, more than 32", n)
	}
}
