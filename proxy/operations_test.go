package proxy

import (
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// newTestTable returns an empty table of a loop for the Calls to an upstream.
func newTestTable(m *metrics.Registry, upstreamName string) *operationTable {
	p := &Proxy{metrics: m, operations: operations{all: make(map[operationKey]*operationSeries)}}
	on := &eventLoop{due: true, metrics: m.Local(func() {})}
	on.tally.loop = on
	return &operationTable{
		listener: &listener{p: p, name: "nfs"}, up: &upstream{name: upstreamName, counts: make([]upstreamCounts, 1)}, loop: on,
	}
}

// TestFirstReplyAfterEnd: a Reply that its client takes after the upstream has ended counts, and begins no
// series.
func TestFirstReplyAfterEnd(t *testing.T) {
	m := metrics.New()
	table := newTestTable(m, "gone")
	o := table.make("nfs", 3, "READ", ulb.NoStatus)
	o.reply(classOK).Inc()
	table.listener.p.operations.forget(func(k *operationKey) bool { return k.upstream == "gone" })
	m.Forget("upstream", "gone")
	o.reply(classStale).Inc()
	if n := o.reply(classStale).Value(); n != 1 {
		t.Errorf("%d Replies, want 1", n)
	}
	all, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if strings.Contains(f.String(), "gone") {
			t.Errorf("a series of an upstream that has ended: %s", f)
		}
	}
}

// TestStrangePrograms: a client that calls any number of programs makes a bounded number of rows.
func TestStrangePrograms(t *testing.T) {
	table := newTestTable(metrics.New(), "storage")
	table.rows = make([]*operation, 1)
	seen := make(map[*operation]bool)
	for n := range uint32(1000) {
		h := &oncrpc.Call{Program: 0x20000000 + n, Version: 1}
		if o := table.row(h, 0); o != table.row(h, 0) {
			t.Errorf("program %d has two rows", n)
		} else {
			seen[o] = true
		}
	}
	if len(seen) != strangePrograms+1 {
		t.Errorf("%d rows, want %d and one for the others", len(seen), strangePrograms)
	}
}
