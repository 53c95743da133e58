package proxy

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// TestTallyGroups: Calls in a row that are alike are one group, those that differ in anything that is counted
// by itself are not, and nothing is lost either way.
func TestTallyGroups(t *testing.T) {
	table := newTestTable(metrics.New(), "storage")
	on := table.loop
	o := table.make("nfs", 4, "READ", ulb.FirstStatus)
	f := &front{}
	times := callTimes{began: 10, asked: 20, sent: 30, replied: 40}
	later := times
	later.sent = 35
	for _, c := range []perCall{
		{op: o, times: times, size: 100, octets: 1000, operations: 2},
		{op: o, times: times, size: 101, octets: 1001, operations: 3},
		{op: o, times: later, size: 102, octets: 1002, operations: 4},
		{op: o, times: later, size: 103, octets: 1003, operations: 5, class: classIO},
	} {
		on.tally.add(f, &call{perCall: c}, 50)
	}
	if on.tally.n != 3 {
		t.Errorf("%d groups, want 3: two of the four Calls are alike", on.tally.n)
	}
	on.tally.count()
	on.metrics.Publish()
	want := clientTotals{calls: 4, failed: 1, in: 406, out: 4006, phases: [phases]int64{40, 50, 30, 40}}
	if f.totals != want {
		t.Errorf("the client had %+v, want %+v", f.totals, want)
	}
	for _, tt := range []struct {
		name string
		n    *metrics.Counter
		want uint64
	}{
		{"OK", o.replies[classOK], 3},
		{"IO", o.replies[classIO], 1},
		{"bytes in", o.in, 406},
		{"bytes out", o.out, 4006},
		{"operations", o.operations, 14},
		{"time in admission", o.time[phaseAdmission], 40},
		{"time for a credit", o.time[phaseCredit], 50},
		{"time at the server", o.time[phaseServer], 30},
		{"time for the client", o.time[phaseClient], 40},
	} {
		if got := tt.n.Value(); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	seen := uint64(0)
	_, counts := o.operationSeries.seconds.Buckets()
	for _, n := range counts {
		seen += n
	}
	if seen != 4 {
		t.Errorf("the histogram has %d Calls, want 4", seen)
	}
}
