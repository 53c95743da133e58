package iwarp

import "slices"

// A placement says which octets of a region the peer has written. Nearly every peer writes from
// the first octet to the last, so that run says all.
type placement struct {
	run  uint32   // octets from the first on that are written
	more *islands // written octets behind a gap; nil for none
}

// islands are runs of written octets, in ascending order and with a gap before each.
type islands struct {
	runs [maxIslands + 1]island // one more than there are between two calls of wrote
	n    int
}

// An island is the octets [from, to) of a region.
type island struct{ from, to uint32 }

// maxIslands bounds what a region remembers of a peer that writes in no order.
const maxIslands = 16

// wrote records that the peer has written the n octets of r at off. When r has too many islands,
// wrote clears the smallest gap and counts it as written: no octet of an earlier user of the
// memory is left in it, and the peer may still write it. So wrote clears each octet at most once.
func (t *table) wrote(r *region, off, n uint32) {
	p, end := &r.placed, off+n
	if p.more == nil {
		if off <= p.run {
			p.run = max(p.run, end)
			return
		}
		p.more = t.newIslands()
	}
	m := p.more
	if off <= p.run {
		p.run = max(p.run, end)
	} else {
		m.add(off, end)
	}
	if m.n > maxIslands {
		gap := m.smallestGap(p.run)
		clear(r.buf[gap.from:gap.to])
		if gap.from == p.run {
			p.run = gap.to
		} else {
			m.add(gap.from, gap.to)
		}
	}
	if p.run = m.absorb(p.run); m.n == 0 {
		t.forgetIslands(p)
	}
}

// placed returns how many octets from the first on are written to the memory of stag, also when the
// connection has ended since.
func (t *table) placed(stag uint32) uint32 {
	i := t.slot(stag)
	if i < 0 || t.slots[i].region < 0 {
		return 0
	}
	return t.regions[t.slots[i].region].placed.run
}

// add adds the octets [from, to), and joins the islands that they overlap or touch.
func (m *islands) add(from, to uint32) {
	i := 0
	for i < m.n && m.runs[i].to < from {
		i++
	}
	j := i
	for ; j < m.n && m.runs[j].from <= to; j++ {
		from, to = min(from, m.runs[j].from), max(to, m.runs[j].to)
	}
	runs := slices.Replace(m.runs[:m.n], i, j, island{from, to})
	m.n = len(runs)
}

// absorb removes the islands that the octets [0, run) overlap or touch, and returns run extended
// by them.
func (m *islands) absorb(run uint32) uint32 {
	i := 0
	for ; i < m.n && m.runs[i].from <= run; i++ {
		run = max(run, m.runs[i].to)
	}
	m.n = copy(m.runs[:], m.runs[i:m.n])
	return run
}

// smallestGap returns the shortest run of octets between run and the islands, or between two of
// them.
func (m *islands) smallestGap(run uint32) island {
	best := island{run, m.runs[0].from}
	for i := 1; i < m.n; i++ {
		if g := (island{m.runs[i-1].to, m.runs[i].from}); g.to-g.from < best.to-best.from {
			best = g
		}
	}
	return best
}

// newIslands returns islands without any.
func (t *table) newIslands() *islands {
	k := len(t.islands) - 1
	if k < 0 {
		return new(islands)
	}
	m := t.islands[k]
	t.islands = t.islands[:k]
	m.n = 0
	return m
}

// forgetIslands empties p.more and keeps its memory for another region.
func (t *table) forgetIslands(p *placement) {
	if p.more != nil {
		t.islands = append(t.islands, p.more)
		p.more = nil
	}
}
