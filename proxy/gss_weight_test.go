package proxy

import (
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/proxy/admit"
	"github.com/rdmabridge/rdmabridge/proxy/listener"
)

// TestGSSContextFollowsWeight: the Calls of a context that always has some under way wait by the weight that their client
// has now.
func TestGSSContextFollowsWeight(t *testing.T) {
	hosts := admit.NewHosts()
	u := testUpstream(t, "storage", hosts)
	f := &front{listener: new(listener.Listener), peer: netip.MustParseAddrPort("192.0.2.1:1")}
	f.ledger.Open(f, hosts.Join(f.peer.Addr()), nil)
	q := &clientQueue{u: u, pool: u.PoolFor(f.addr())}
	var x *gssFlow
	for _, w := range []int{3, 3, 8, 1} {
		f.ledger.Weight = w
		c := &call{}
		c.owner.front, c.up, c.queue, c.signed, c.usesSeldom = f, u, q, true, true
		if x == nil {
			x = c.OpenFlow(nil).(*gssFlow)
		}
		if !c.Join(x) || x.flow.Weight != w || c.entry.Flow != &x.flow {
			t.Errorf("a Call of a client of weight %d waits in a flow of weight %d", w, x.flow.Weight)
		}
	}
}
