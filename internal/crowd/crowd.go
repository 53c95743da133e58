// Package crowd counts connections by host, knows the host that has the most, and which networks have a host.
//
// Where the bridge bounds the connections of all hosts together, one host could otherwise use up
// the bound and keep all others out. With a [Crowd], the host with the most connections gives way
// to a host that has fewer: one of its connections is closed for the newcomer.
package crowd

import (
	"iter"
	"math"
	"net/netip"
)

// A Crowd is a set of connections. Adding and removing one take O(log n) for n hosts. The zero
// Crowd is empty. It is not safe for concurrent use.
type Crowd[T any] struct {
	hosts map[Host]*group[T]
	heap  []*group[T] // the first gives way before all others
	n     int
	last  uint64 // number of the latest Member
}

// A Member is the place of one connection in a Crowd. Its owner has it in the connection's own
// struct, so that a connection costs no allocation. The zero Member is in no Crowd.
type Member[T any] struct {
	Value T // the connection; not used here

	of     *group[T]  // nil outside a Crowd
	older  *Member[T] // nil for the oldest of the host
	new    *Member[T] // for the newest of the host, the oldest
	number uint64     // in the order of Add
}

// A group is the connections of one host. Thousands of hosts have one each: its counts have 32
// bits, so that it fills a size class of Go's heap.
type group[T any] struct {
	host   Host
	newest *Member[T]
	weight int32
	n      int32
	index  int32 // in Crowd.heap
}

func (g *group[T]) oldest() *Member[T] { return g.newest.new }

// Add adds m, a connection from a that is new. weight is the share of a's host, relative to
// others; at least 1. The latest weight of a host counts.
func (c *Crowd[T]) Add(m *Member[T], a netip.Addr, weight int) {
	if m.of != nil {
		panic("BUG: crowd: a Member was added twice")
	}
	h := HostOf(a)
	g := c.hosts[h]
	if g == nil {
		if c.hosts == nil {
			c.hosts = make(map[Host]*group[T])
		}
		g = &group[T]{host: h, index: int32(len(c.heap))}
		c.hosts[h] = g
		c.heap = append(c.heap, g)
	}
	c.last++
	m.of, m.number = g, c.last
	if m.older = g.newest; m.older != nil {
		m.new, m.older.new = m.older.new, m
	} else {
		m.new = m
	}
	g.newest = m
	g.n++
	c.n++
	c.Reweigh(m, weight)
}

// Reweigh makes weight the share of m's host. It does nothing if m is in no Crowd.
func (c *Crowd[T]) Reweigh(m *Member[T], weight int) {
	if g := m.of; g != nil {
		g.weight = int32(min(max(1, weight), math.MaxInt32))
		c.fix(g)
	}
}

// Remove removes m. It does nothing if m is in no Crowd.
func (c *Crowd[T]) Remove(m *Member[T]) {
	g := m.of
	if g == nil {
		return
	}
	if m.older != nil {
		m.older.new = m.new
	} else {
		g.newest.new = m.new
	}
	if m != g.newest {
		m.new.older = m.older
	} else {
		g.newest = m.older
	}
	m.of, m.older, m.new = nil, nil, nil
	g.n--
	c.n--
	if g.n > 0 {
		c.fix(g)
		return
	}
	delete(c.hosts, g.host)
	last := c.heap[len(c.heap)-1]
	c.heap[len(c.heap)-1] = nil
	c.heap = c.heap[:len(c.heap)-1]
	if last != g {
		c.heap[g.index], last.index = last, g.index
		c.fix(last)
	}
}

// In reports whether m is in a Crowd.
func (m *Member[T]) In() bool { return m.of != nil }

// Len returns how many connections there are.
func (c *Crowd[T]) Len() int { return c.n }

// Count returns how many connections the host of a has.
func (c *Crowd[T]) Count(a netip.Addr) int {
	if g := c.hosts[HostOf(a)]; g != nil {
		return int(g.n)
	}
	return 0
}

// Oldest returns the oldest connection of the host of a, or nil.
func (c *Crowd[T]) Oldest(a netip.Addr) *Member[T] {
	if g := c.hosts[HostOf(a)]; g != nil {
		return g.oldest()
	}
	return nil
}

// Largest returns the oldest connection of the host with the most connections for its weight,
// or nil. Of two hosts that have as many, the one with the older connection counts.
func (c *Crowd[T]) Largest() *Member[T] {
	if len(c.heap) == 0 {
		return nil
	}
	return c.heap[0].oldest()
}

// Yields returns the host that has to give way to another connection from a, whose host has a
// weight: the host with the most connections, if it has more than a's would have. ok is false
// if there is none.
func (c *Crowd[T]) Yields(a netip.Addr, weight int) (host netip.Addr, ok bool) {
	h := HostOf(a)
	if len(c.heap) == 0 || c.heap[0].host == h {
		return h.Addr(), false
	}
	g := c.heap[0]
	return g.host.Addr(), int(g.n)*max(1, weight) > (c.Count(a)+1)*int(g.weight)
}

// Newest iterates over the connections of the host of a, the newest first. The loop must not
// change the Crowd.
func (c *Crowd[T]) Newest(a netip.Addr) iter.Seq[*Member[T]] {
	return func(yield func(*Member[T]) bool) {
		g := c.hosts[HostOf(a)]
		if g == nil {
			return
		}
		for m := g.newest; m != nil && yield(m); m = m.older {
		}
	}
}

// All iterates over all connections, in no order. The loop must not change the Crowd.
func (c *Crowd[T]) All() iter.Seq[*Member[T]] {
	return func(yield func(*Member[T]) bool) {
	groups:
		for _, g := range c.heap {
			for m := g.oldest(); yield(m); m = m.new {
				if m == g.newest {
					continue groups
				}
			}
			return
		}
	}
}

// before reports whether g gives way before h.
func (g *group[T]) before(h *group[T]) bool {
	if a, b := int64(g.n)*int64(h.weight), int64(h.n)*int64(g.weight); a != b {
		return a > b
	}
	return g.oldest().number < h.oldest().number
}

// fix moves g to its place in the heap.
func (c *Crowd[T]) fix(g *group[T]) {
	i := int(g.index)
	for i > 0 && g.before(c.heap[(i-1)/2]) {
		c.put(i, c.heap[(i-1)/2])
		i = (i - 1) / 2
	}
	for {
		k := 2*i + 1
		if k+1 < len(c.heap) && c.heap[k+1].before(c.heap[k]) {
			k++
		}
		if k >= len(c.heap) || !c.heap[k].before(g) {
			break
		}
		c.put(i, c.heap[k])
		i = k
	}
	c.put(i, g)
}

func (c *Crowd[T]) put(i int, g *group[T]) { c.heap[i], g.index = g, int32(i) }
