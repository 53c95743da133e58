package observe

import (
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// An answered is what there is to count of Calls of one client that were answered one after the other and are
// alike: they are for one operation, their Replies have one class, and they got as far at the same times.
type answered struct {
	client           *Client
	op               *Operation
	times            Times
	settled          int64
	in, out          uint64 // octets
	calls            uint32
	operations       uint32
	xid, upstreamXID uint32 // of the first Call
	class            Class
}

// tallySize is how many groups of Calls a tally keeps before it counts them.
const tallySize = 32

// A Tally is the Calls of a loop that were answered and are not counted yet. A Call counts in two dozen
// counters. If each Call went through them by itself, it would find them in no cache. So a loop writes the
// Calls down one after the other, and counts them together at the end of the pass. Many of them are alike:
// the Calls of a client are read together, its Replies go out together, and the clock stands still in a pass.
// A Tally belongs to its loop.
type Tally struct {
	Arrange func() // has Count called at the end of the pass; constant

	latest latestClass
	n      int
	list   [tallySize]answered
	runs   [Phases + 1]run // of the phases, and of the whole time
}

// Settled counts a Call of the client n at its end, now. The upstream has seen it under upstreamXID.
func (t *Tally) Settled(n *Client, p *Progress, upstreamXID uint32, now int64) {
	if p.op != nil {
		p.op.inFlight--
	}
	switch r := p.Result; {
	case p.Absorbed || r == ResultAbsorbed:
		n.repeats++
	case p.op != nil && (r == ResultReplied || r == ResultLocal):
		t.add(n, p, upstreamXID, now)
	}
}

// Passed does what Progress.Classify and Settled do, for a Call whose Reply m has come now and goes to the client at once.
// It leaves Status as it is.
func (t *Tally) Passed(n *Client, p *Progress, upstreamXID uint32, m []byte, protection oncrpc.Protection, now int64) {
	p.op.inFlight--
	p.Replied, p.Octets = now, int32(len(m))
	p.Class = t.latest.classOf(m, protection, p.op.status)
	t.add(n, p, upstreamXID, now)
}

// add adds a Call of n that was answered.
func (t *Tally) add(n *Client, p *Progress, upstreamXID uint32, now int64) {
	if t.n > 0 {
		a := &t.list[t.n-1]
		if a.client == n && a.op == p.op && a.class == p.Class && a.times == p.Times && a.settled == now {
			a.calls++
			a.in += uint64(p.Size)
			a.out += uint64(p.Octets)
			a.operations += uint32(p.Operations)
			return
		}
	}
	a := t.next()
	a.client, a.op, a.class, a.times, a.settled = n, p.op, p.Class, p.Times, now
	a.in, a.out, a.operations, a.calls = uint64(p.Size), uint64(p.Octets), uint32(p.Operations), 1
	a.xid, a.upstreamXID = p.ClientXID, upstreamXID
}

// next returns a place for one more group, which the caller fills in at once.
func (t *Tally) next() *answered {
	switch t.n {
	case tallySize:
		t.Count()
		t.Arrange()
	case 0:
		t.Arrange()
	}
	t.n++
	return &t.list[t.n-1]
}

// Count counts the Calls that were added.
func (t *Tally) Count() {
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
	for i := range list { // or a loop without Calls would keep its last clients
		list[i].client, list[i].op = nil, nil
	}
}

// operation counts list, Calls for one operation whose Replies have one class.
func (t *Tally) operation(list []answered) {
	o := list[0].op
	var calls, in, out, operations uint64
	var sum, d [Phases]uint64
	for i := range list {
		a := &list[i]
		n := uint64(a.calls)
		a.times.Divide(a.settled, &d)
		a.client.add(a, &d)
		calls += n
		in += a.in
		out += a.out
		operations += uint64(a.operations)
		total := uint64(0)
		for p, d := range d {
			sum[p] += d * n
			total += d
		}
		if ph := o.table.phases; ph != nil {
			for p, d := range d {
				if r, h := &t.runs[p], ph[p]; r.h == h && r.v == d {
					r.n += n
				} else {
					r.begin(h, d, a)
				}
			}
		}
		if r := &t.runs[Phases]; r.h == o.seconds && r.v == total {
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
func (n *Client) add(a *answered, d *[Phases]uint64) {
	calls := uint64(a.calls)
	if t := n.Tenant; t != nil {
		t.calls.Add(calls)
		t.in.Add(a.in)
		t.out.Add(a.out)
	}
	n.calls += calls
	n.in += a.in
	n.out += a.out
	if a.class.Fails() {
		n.failed += calls
	}
	for p, d := range d {
		n.phases[p] += d * calls
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
