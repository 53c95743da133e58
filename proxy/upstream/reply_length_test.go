package upstream

import (
	"testing"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// TestExpect: a client is charged with the bound of a Reply that has one, and otherwise with what such Replies had lately,
// within the longest Reply that there is. The cost in the queue follows, without the least charge.
func TestExpect(t *testing.T) {
	var n replyLengths
	bounded, free := &ulb.Analysis{Known: true, MaxReply: 100}, &ulb.Analysis{MaxReply: 1 << 20}
	for range 1000 {
		n.LearnLength(256 << 10)
	}
	for _, tt := range []struct {
		name string
		a    *ulb.Analysis
		own  int
		want int
	}{
		{"bounded", bounded, 1 << 19, 100},
		{"the average", free, 0, int(n.average.Load())},
		{"the client's own, which are longer", free, 1 << 19, 1 << 19},
		{"longer than there are", free, 1 << 21, 1 << 20},
	} {
		if got := n.Expect(tt.a, tt.own); got != tt.want {
			t.Errorf("%s: %d octets are expected, want %d", tt.name, got, tt.want)
		}
	}
	if a := n.average.Load(); a < 255<<10 || a > 256<<10 {
		t.Errorf("Replies of 256 KiB have %d octets on average", a)
	}
	if got := new(replyLengths).Expect(free, 0); got != leastExpected {
		t.Errorf("%d octets are expected before the first Reply", got)
	}
	if got, want := n.Cost(10, free), 10+int(n.average.Load()); got != want {
		t.Errorf("a Call costs %d, want %d", got, want)
	}
	if got := n.Cost(10, bounded); got != 110 {
		t.Errorf("a Call with a bounded Reply costs %d", got)
	}
}
