package proxy

import (
	"net/netip"
	"testing"

	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/pool"
)

// TestGSSContextFollowsWeight: the Calls of a context that always has some under way wait by the weight that their client
// has now.
func TestGSSContextFollowsWeight(t *testing.T) {
	p := &Proxy{hosts: newHosts()}
	u := &upstream{p: p, isRDMA: true}
	shared, err := pool.New(pool.Options{
		Connections: 1, Loops: 1, Endpoints: []string{"storage"}, BackoffMin: 1, BackoffMax: 1, DialTimeout: 1, QueueWait: 1, QueueLimit: 1,
	}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	u.pools = []*pool.Pool{shared}
	u.contexts.init(u, metrics.New())
	f := &front{listener: &listener{p: p}, peer: netip.MustParseAddrPort("192.0.2.1:1")}
	f.ledger.front, f.ledger.host = f, p.hosts.join(f.peer.Addr())
	q := &clientQueue{u: u, pool: shared}
	for _, w := range []int{3, 3, 8, 1} {
		f.ledger.weight = w
		c := &call{}
		c.owner.front, c.up, c.queue, c.signed, c.usesSeldom = f, u, q, true, true
		c.h.Message, c.h.CredentialLen, c.h.GSS.HandleLen = make([]byte, 100), gssHandleAt+4, 4
		x := u.contexts.enter(c)
		if x.flow.Weight != w || c.entry.Flow != &x.flow {
			t.Errorf("a Call of a client of weight %d waits in a flow of weight %d", w, x.flow.Weight)
		}
	}
}
