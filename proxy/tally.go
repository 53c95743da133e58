package proxy

import "github.com/rdmabridge/rdmabridge/metrics"

// An answered is what there is to count of one Call that was answered.
type answered struct {
	front            *front
	op               *operation
	in, out          uint32 // octets
	xid, upstreamXID uint32
	operations       uint16
	class            class
	phases           [phases]int64
}

// tallySize is how many Calls a tally keeps before it counts them.
const tallySize = 32

// A tally is the Calls of a loop that were answered and are not counted yet. A Call counts in two dozen
// counters. If each Call went through them by itself, it would find them in no cache. So a loop writes the
// Calls down one after the other, and counts them together at the end of the pass. Many of them are alike
// then: the Replies of a client go out together, and the clock stands still in a pass. Calls in a row that
// are alike are added up first. A tally belongs to its loop.
type tally struct {
	loop *eventLoop // constant
	n    int
	list [tallySize]answered
	runs [phases + 1]run // of the phases, and of the whole time
}

// next returns a place for one more Call, which the caller fills in at once.
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
	list := t.list[:t.n]
	t.n = 0
	for rest := list; len(rest) > 0; {
		k := 1
		for k < len(rest) && rest[k].front == rest[0].front {
			k++
		}
		rest[0].front.totals.add(rest[:k])
		rest = rest[k:]
	}
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
}

// operation counts list, Calls for one operation whose Replies have one class.
func (t *tally) operation(list []answered) {
	o := list[0].op
	var in, out, operations uint64
	var sum [phases]uint64
	for i := range list {
		a := &list[i]
		in += uint64(a.in)
		out += uint64(a.out)
		operations += uint64(a.operations)
		total := uint64(0)
		for p, d := range a.phases {
			sum[p] += uint64(d)
			total += uint64(d)
			if o.counts != nil {
				t.runs[p].observe(o.counts.phases[p], uint64(d), a)
			}
		}
		t.runs[phases].observe(o.seconds, total, a)
	}
	o.reply(list[0].class).Add(uint64(len(list)))
	o.in.Add(in)
	o.out.Add(out)
	o.operations.Add(operations)
	for p, d := range sum {
		o.time[p].Add(d)
	}
}

// add counts list, Calls of the client.
func (n *clientTotals) add(list []answered) {
	for i := range list {
		a := &list[i]
		n.in += uint64(a.in)
		n.out += uint64(a.out)
		if classFails[a.class] {
			n.failed++
		}
		for p, d := range a.phases {
			n.phases[p] += d
		}
	}
	n.calls += uint64(len(list))
}

// A run is equal values, one after the other, of one histogram.
type run struct {
	h *metrics.Histogram
	v uint64
	n uint64
	a *answered // the first of the Calls
}

// observe adds v to the run, or begins another one.
func (r *run) observe(h *metrics.Histogram, v uint64, a *answered) {
	if r.n > 0 && r.v == v && r.h == h {
		r.n++
		return
	}
	r.end()
	r.h, r.v, r.n, r.a = h, v, 1, a
}

// end counts the run.
func (r *run) end() {
	if r.n > 0 {
		r.h.ObserveCalls(r.v, r.n, r.a.xid, r.a.upstreamXID)
	}
	*r = run{}
}
