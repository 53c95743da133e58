package observe

import (
	"strings"
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
	"github.com/rdmabridge/rdmabridge/metrics"
)

// newTestTable returns an empty table of a loop for the Calls to an upstream, and the loop's registry.
func newTestTable(m *metrics.Registry, upstream string) (*Table, *metrics.Registry) {
	local := m.Local(func() {})
	return NewOperations(m, make([]ulb.Operation, 1)).Table("nfs", upstream, local, NewPhaseHistograms(local, upstream)), local
}

// TestFirstReplyAfterEnd: a Reply that its client takes after the upstream has ended counts, and begins no
// series.
func TestFirstReplyAfterEnd(t *testing.T) {
	m := metrics.New()
	table, _ := newTestTable(m, "gone")
	o := table.make("nfs", 3, "READ", ulb.NoStatus)
	o.reply(ClassOK).Inc()
	table.all.Forget(func(k *Key) bool { return k.Upstream == "gone" })
	m.Forget("upstream", "gone")
	o.reply(ClassStale).Inc()
	if n := o.reply(ClassStale).Value(); n != 1 {
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
	table, _ := newTestTable(metrics.New(), "storage")
	seen := make(map[*Operation]bool)
	for n := range uint32(1000) {
		h := &oncrpc.Call{Program: 0x20000000 + n, Version: 1}
		if o := table.Row(h, 0); o != table.Row(h, 0) {
			t.Errorf("program %d has two rows", n)
		} else {
			seen[o] = true
		}
	}
	if len(seen) != strangePrograms+1 {
		t.Errorf("%d rows, want %d and one for the others", len(seen), strangePrograms)
	}
}
