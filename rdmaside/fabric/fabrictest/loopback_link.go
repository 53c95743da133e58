package fabrictest

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/rdmaside/fabric"
)

// A link is a connection with both its ends.
type link struct {
	p *Loopback
	l *loopbackListener

	// mu guards the state of both ends, and is held while octets are copied. It is
	// taken before Loopback.mu; handlers and loops are never called with it.
	mu   sync.Mutex
	ends [2]*loopbackConn
	dead bool
}

func newLink(l *loopbackListener, peer netip.AddrPort, dialOpts, acceptOpts fabric.ConnOptions) (dial, accept *loopbackConn) {
	k := &link{p: l.p, l: l}
	side := func(o, peer fabric.ConnOptions, local, remote netip.AddrPort) *loopbackConn {
		return &loopbackConn{
			link: k, opts: o, regions: make(map[fabric.Handle]region),
			info: fabric.Info{
				Provider: "loopback", Local: local, Peer: remote, PrivateData: peer.PrivateData,
				IRD: min(o.IRD, max(peer.ORD, 0)), ORD: min(max(o.ORD, 0), peer.IRD),
			},
			active: time.Now(),
		}
	}
	dial = side(dialOpts, acceptOpts, peer, l.addr)
	accept = side(acceptOpts, dialOpts, l.addr, peer)
	dial.dialed = true
	dial.peer, accept.peer = accept, dial
	k.ends = [2]*loopbackConn{dial, accept}
	return dial, accept
}

// end ends both ends of the link. dial and accept are the reasons that the two ends
// get; nil means that the other end closed.
func (k *link) end(dial, accept error) {
	k.mu.Lock()
	k.die(dial, accept)
	wake := k.wakes()
	k.mu.Unlock()
	wake.post()
}

// die does what end does. The caller holds mu.
func (k *link) die(reasons ...error) {
	if k.dead {
		return
	}
	k.dead = true
	for i, c := range k.ends {
		c.reason = reasons[i]
		if c.reason == nil && !c.closing {
			c.reason = errPeerClosed
		}
		c.graves, c.regions = c.regions, make(map[fabric.Handle]region)
		if c.state == open {
			c.state = ending
			c.due = true
		}
	}
	k.l.leave()
}

// fail ends the link because work failed. The caller holds mu.
func (k *link) fail(err error) { k.die(err, err) }

// wakes returns the ends that must run on their loops. The caller holds mu.
func (k *link) wakes() (w wakes) {
	for i, c := range k.ends {
		if c.due && !c.scheduled && c.loop != nil {
			c.scheduled = true
			w[i] = c
		}
	}
	return w
}

// wakes are ends that must be posted to their loops when no lock is held.
type wakes [2]*loopbackConn

func (w wakes) post() {
	for _, c := range w {
		if c != nil {
			c.loop.Post(c)
		}
	}
}

func newHandle(taken map[fabric.Handle]region) fabric.Handle {
	for {
		h := fabric.Handle(rand.Uint32())
		if _, ok := taken[h]; h != 0 && !ok {
			return h
		}
	}
}
