package proxy

import "github.com/rdmabridge/rdmabridge/metrics"

// An answered is what there is to count of Calls of one client that were answered one after the other and are
// alike: they are for one operation, their Replies have one class, and they got as far at the same times.
type answered struct {
	front            *front
	op               *operation
	times            callTimes
	settled          int64
	in, out          uint64 // octets
	calls            uint32
	operations       uint32
	xid, upstreamXID uint32 // of the first Call
	class            class
}

// tallySize is how many groups of Calls a tally keeps before it counts them.
const tallySize = 32

// A tally is the Calls of a loop that were answered and are not counted yet. A Call counts in two dozen
// counters. If each Call went through them by itself, it would find them in no cache. So a loop writes the
// Calls down one after the other, and counts them together at the end of the pass. Many of them are alike:
// the Calls of a client are read together, its Replies go out together, and the clock stands still in a pass.
// A tally belongs to its loop.
type tally struct {
	loop *eventLoop // constant
	n    int
	list [tallySize]answered
	runs [phases + 1]run // of the phases, and of the whole time
}

// add adds c, a Call of f that was answered.
func (t *tally) add(f *front, c *call, now int64) {
	if t.n > 0 {
		a := &t.list[t.n-1]
		if a.front == f && a.op == c.op && a.class == c.class && a.times == c.times && a.settled == now {
			a.calls++
			a.in += uint64(c.size)
			a.out += uint64(c.octets)
			a.operations += uint32(c.operations)
			return
		}
	}
	a := t.next()
	a.front, a.op, a.class, a.times, a.settled = f, c.op, c.class, c.times, now
	a.in, a.out, a.operations, a.calls = uint64(c.size), uint64(c.octets), uint32(c.operations), 1
	a.xid, a.upstreamXID = c.clientXID, c.rdma.XID
}

// next returns a place for one more group, which the caller fills in at once.
func (t *tally) next() *answered {
	switch t.n {
	case tallySize:
		t.count()
		t.loop.arrange()
	case 0:
		t.loop.arrange()
	}
	t.n++
	return &t.list[t.n-1]
}

// count counts the Calls that were added.
func (t *tally) count() {
	if t.n == 0 {
		return
	}
	list := t.list[:t.n]
	t.n = 0
	for rest := list; len(rest) > 0; {
		k := 1
		for k < len(rest) && rest[k].op == rest[0].op && rest[k].class == rest[0].class {
			k++
		}
		t.operation(rest[:k])
		rest = rest[k:]
	}
	for i := range t.runs {
		t.runs[i].end()
	}
	for i := range list { // or a loop without Calls would keep its last clients, and their listeners
		list[i].front, list[i].op = nil, nil
	}
}

// operation counts list, Calls for one operation whose Replies have one class.
func (t *tally) operation(list []answered) {
	o := list[0].op
	var calls, in, out, operations uint64
	var sum, d [phases]uint64
	for i := range list {
		a := &list[i]
		n := uint64(a.calls)
		a.times.divide(a.settled, &d)
		a.front.totals.add(a, &d)
		calls += n
		in += a.in
		out += a.out
		operations += uint64(a.operations)
		total := uint64(0)
		for p, d := range d {
			sum[p] += d * n
			total += d
		}
		if o.counts != nil {
			for p, d := range d {
				if r, h := &t.runs[p], o.counts.phases[p]; r.h == h && r.v == d {
					r.n += n
				} else {
					r.begin(h, d, a)
				}
			}
		}
		if r := &t.runs[phases]; r.h == o.seconds && r.v == total {
			r.n += n
		} else {
			r.begin(o.seconds, total, a)
		}
	}
	o.reply(list[0].class).Add(calls)
	o.in.Add(in)
	o.out.Add(out)
	o.operations.Add(operations)
	for p, d := range sum {
		o.time[p].Add(d)
	}
}

// add counts a, Calls of the client that had the phases d.
func (n *clientTotals) add(a *answered, d *[phases]uint64) {
	calls := uint64(a.calls)
	if m := a.front.ledger.member; m != nil && m.tenant != nil {
		m.tenant.counts[a.front.loop.index].add(a)
	}
	n.calls += calls
	n.in += a.in
	n.out += a.out
	if classFails[a.class] {
		n.failed += calls
	}
	for p, d := range d {
		n.phases[p] += int64(d * calls)
	}
}

// A run is equal values, one after the other, of one histogram.
type run struct {
	h *metrics.Histogram
	v uint64
	n uint64
	a *answered // the first of the Calls
}

// begin counts the run and begins another one with v, which all Calls of a have.
func (r *run) begin(h *metrics.Histogram, v uint64, a *answered) {
	r.end()
	*r = run{h: h, v: v, n: uint64(a.calls), a: a}
}

// end counts the run.
func (r *run) end() {
	if r.a != nil {
		r.h.ObserveCalls(r.v, r.n, r.a.xid, r.a.upstreamXID)
	}
	*r = run{}
}
