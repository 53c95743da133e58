package observe

import (
	"testing"
	"unsafe"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// TestTallyGroups: Calls in a row that are alike are one group, those that differ in anything that is counted
// by itself are not, and nothing is lost either way.
func TestTallyGroups(t *testing.T) {
	table, local := newTestTable(metrics.New(), "storage")
	o := table.make("nfs", 4, "READ", ulb.FirstStatus)
	tally, n := Tally{Arrange: func() {}}, new(Client)
	times := Times{Began: 10, Asked: 20, Sent: 30, Replied: 40}
	later := times
	later.Sent = 35
	for _, p := range []Progress{
		{Times: times, Size: 100, Octets: 1000, Operations: 2, Result: ResultReplied},
		{Times: times, Size: 101, Octets: 1001, Operations: 3, Result: ResultReplied},
		{Times: later, Size: 102, Octets: 1002, Operations: 4, Result: ResultLocal},
		{Times: later, Size: 103, Octets: 1003, Operations: 5, Class: ClassIO, Result: ResultReplied},
		{Times: later, Result: ResultAbsorbed},
		{Times: later, Result: ResultGone},
	} {
		p.Begin(o)
		tally.Settled(n, &p, 7, 50)
	}
	if o.inFlight != 0 {
		t.Errorf("%d Calls in flight after the last", o.inFlight)
	}
	if tally.n != 3 {
		t.Errorf("%d groups, want 3: two of the four that were answered are alike", tally.n)
	}
	tally.Count()
	local.Publish()
	want := Client{calls: 4, failed: 1, repeats: 1, in: 406, out: 4006, phases: [Phases]uint64{40, 50, 30, 40}}
	if *n != want {
		t.Errorf("the client had %+v, want %+v", *n, want)
	}
	for _, tt := range []struct {
		name string
		n    *metrics.Counter
		want uint64
	}{
		{"OK", o.replies[ClassOK], 3},
		{"IO", o.replies[ClassIO], 1},
		{"bytes in", o.in, 406},
		{"bytes out", o.out, 4006},
		{"operations", o.operations, 14},
		{"time in admission", o.time[PhaseAdmission], 40},
		{"time for a credit", o.time[PhaseCredit], 50},
		{"time at the server", o.time[PhaseServer], 30},
		{"time for the client", o.time[PhaseClient], 40},
	} {
		if got := tt.n.Value(); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	seen := uint64(0)
	_, counts := o.Series.seconds.Buckets()
	for _, n := range counts {
		seen += n
	}
	if seen != 4 {
		t.Errorf("the histogram has %d Calls, want 4", seen)
	}
}

// TestProgressSize: a Progress fills one cache line, which the call that holds it counts with.
func TestProgressSize(t *testing.T) {
	if n := unsafe.Sizeof(Progress{}); n != 64 {
		t.Errorf("a Progress has %d octets, want 64", n)
	}
}
