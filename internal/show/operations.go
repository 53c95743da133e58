package show

import (
	"fmt"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// Operations is the table of operations.
func (p Pair) Operations() *Table {
	t := &Table{Sort: "load", Columns: []Column{
		{Key: "operation", Name: "OPERATION", Help: "program, version and operation; of an NFSv4 COMPOUND the operation that matters most", Left: true},
		{Key: "upstream", Name: "UPSTREAM", Help: "where these Calls go; - for those that the bridge answers", Left: true, Rank: 3},
		{Key: "listener", Name: "LISTENER", Help: "where they come from", Left: true, Rank: 7},
		{Key: "load", Name: "LOAD", Help: "Calls that were under way on average", Rank: 5},
		{Key: "calls", Name: p.head("CALLS"), Help: p.help("Calls answered")},
		{Key: "in", Name: p.head("IN"), Help: p.help("bytes from clients"), Rank: 1},
		{Key: "out", Name: p.head("OUT"), Help: p.help("bytes to clients"), Rank: 1},
		{Key: "size", Name: "B/OP", Help: "mean bytes of a Call and its Reply", Rank: 6},
	}}
	t.Columns = append(t.Columns, phaseColumns(8)...)
	t.Columns = append(t.Columns,
		Column{Key: "p50", Name: "P50", Help: "half of the Calls took no longer than about this", Rank: 5},
		Column{Key: "p99", Name: "P99", Help: "99 of 100 Calls took no longer than about this", Rank: 2},
		Column{Key: "flight", Name: "FLIGHT", Help: helpFlight, Rank: 2},
		Column{Key: "failed", Name: p.head("FAIL"), Help: p.help("Replies that say that something is wrong, other than that a file is or is not there"), Rank: 4},
	)
	for o, b := range status.Beside(p.Now.Operations, p.before().Operations, (*status.Operation).Key) {
		t.Rows = append(t.Rows, p.operationRow(o, b))
	}
	return t
}

func (p Pair) operationRow(o, b *status.Operation) Row {
	ph := p.phases(&o.Phases, &b.Phases)
	seconds := p.seconds()
	if seconds == 0 {
		seconds = max(1, p.Now.Time.Sub(p.Now.Started).Seconds())
	}
	load := ph.Total() / seconds
	in, out, calls := p.rate(o.BytesIn, b.BytesIn), p.rate(o.BytesOut, b.BytesOut), p.rate(o.Calls, b.Calls)
	size := 0.0
	if calls > 0 {
		size = (in + out) / calls
	}
	upstream := text(o.Upstream)
	if o.Upstream == "" {
		upstream = Cell{Text: "-", Style: Dim}
	}
	r := Row{
		text(fmt.Sprintf("%s%d %s", o.Program, o.Version, o.Operation)), upstream, text(o.Listener),
		{Text: Count(load), Number: load},
		number(calls, Count(calls)), number(in, Bytes(in)), number(out, Bytes(out)), number(size, Bytes(size)),
	}
	r = append(r, phaseCells(&ph)...)
	failed := p.rate(failures(o), failures(b))
	return append(r, p.quantileCell(o, b, 0.5), p.quantileCell(o, b, 0.99), countCell(o.InFlight), number(failed, Count(failed)))
}

// failures returns how many Replies say that something is wrong.
func failures(o *status.Operation) (n uint64) {
	for class, count := range o.Statuses {
		if status.Failure(class) {
			n += count
		}
	}
	return n
}

// quantileCell estimates the time that a part q of the Calls did not exceed.
func (p Pair) quantileCell(o, b *status.Operation, q float64) Cell {
	counts := make([]uint64, len(o.Latency.Counts))
	var total uint64
	for i, n := range o.Latency.Counts {
		if p.Before != nil && i < len(b.Latency.Counts) && n >= b.Latency.Counts[i] {
			n -= b.Latency.Counts[i]
		}
		counts[i] = n
		total += n
	}
	if total == 0 || len(o.Latency.Bounds) == 0 {
		return number(0, "-")
	}
	v, beyond := quantile(o.Latency.Bounds, counts, total, q)
	s := Duration(v)
	if beyond {
		s = ">" + s
	}
	return number(v, s)
}

// quantile interpolates within the bucket in which the quantile is. It reports whether that is beyond
// the last bound.
func quantile(bounds []float64, counts []uint64, total uint64, q float64) (v float64, beyond bool) {
	want, before := q*float64(total), 0.0
	for i, n := range counts {
		if i >= len(bounds) {
			break
		}
		if before+float64(n) >= want {
			low := 0.0
			if i > 0 {
				low = bounds[i-1]
			}
			return low + (bounds[i]-low)*(want-before)/float64(n), false
		}
		before += float64(n)
	}
	return bounds[len(bounds)-1], true
}
