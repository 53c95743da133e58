package identity

import (
	"hash/maphash"
	"net/netip"

	"github.com/rdmabridge/rdmabridge/internal/fnv"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// Order under RPCSEC_GSS
//
// Each Call of a GSS context has a sequence number, which is signed. A server keeps a window of
// the numbers up to the highest that it has seen, and silently discards a Call whose number is
// below the window: RFC 2203 Section 5.3.3.1. Linux has a window of 128, libtirpc of 32. A
// discarded Call costs its client a timeout and the bridge a credit for as long. So Calls must
// not arrive much later than those that the client sent after them. But the pool lets small
// Calls overtake large ones, connections overtake each other, and on an RDMA connection a Call
// with a Read chunk is executed when its server has fetched the chunk, while other Calls go on.
//
// So the Calls of one context keep their order:
//
//   - They go to the pool one after the other, each when the one before has been sent. While one
//     of them is outstanding, the next ones use the same connection (Flow.Follow). Calls of a
//     client that is on a lane use that, and no other Call follows them.
//   - On a TCP connection none of them goes before another that waits to be written.
//   - No more than GSSOptions.Window of them are outstanding, and the sequence number of
//     the next is less than Window above the number of the one that was sent first. After
//     gssPatience the server has seen that Call, even if it hangs, and only the first of these
//     two rules holds for it.
//
// All Calls from one address with one handle to one upstream are of one context. It is remembered
// while it has Calls under way, and no longer, so the proxy need not know when a client destroys it.
// Calls that create a context have no handle and no sequence number, and keep no order.

// KeepsOrder reports whether h has to keep its place among the Calls of a GSS context.
func KeepsOrder(h *oncrpc.Call) bool {
	if h.Flavor != oncrpc.FlavorGSS || h.Protection == oncrpc.ProtectUnknown || h.GSS.HandleLen == 0 {
		return false
	}
	return h.GSS.Procedure != oncrpc.GSSInit && h.GSS.Procedure != oncrpc.GSSContinueInit
}

// gssShards is how many locks the contexts of an upstream share. All contexts of a client have one.
const gssShards = 16

// GSSContexts are the GSS contexts that have Calls to one upstream under way. They are safe for
// concurrent use.
type GSSContexts struct {
	opts   GSSOptions
	seed   maphash.Seed
	shards [gssShards]gssShard
}

// NewGSSContexts returns the contexts of an upstream, of which there are none yet.
func NewGSSContexts(o GSSOptions) *GSSContexts {
	return &GSSContexts{opts: o, seed: maphash.MakeSeed()}
}

// shard returns the shard of the contexts of a client at a.
func (t *GSSContexts) shard(a netip.Addr) *gssShard {
	return &t.shards[fnv.Address(a)%gssShards]
}

// key hashes what tells the context of h, from a client at a, from others.
func (t *GSSContexts) key(h *oncrpc.Call, a netip.Addr) uint64 {
	handle := h.Message[oncrpc.CredentialPos:][:h.CredentialLen][gssHandleAt:][:h.GSS.HandleLen]
	return maphash.Comparable(t.seed, struct {
		addr   [16]byte
		handle uint64
	}{a.As16(), maphash.Bytes(t.seed, handle)})
}

// gssHandleAt is where the handle begins in an RPCSEC_GSS credential: behind version, procedure,
// sequence number, service, and its length.
const gssHandleAt = 20

// Enter adds the Call o, whose GSSCall is c, to its context, a new one if none of its Calls is under way. The Call
// is submitted when it is its turn. here is the number of the calling loop.
func (t *GSSContexts) Enter(c *GSSCall, o OrderedCall, here int) {
	t.enter(c, o).pump(here)
}

func (t *GSSContexts) enter(c *GSSCall, o OrderedCall) *gssContext {
	sent := o.Transmission()
	addr := sent.Origin.addr
	s, key := t.shard(addr), t.key(sent.Header, addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.all[key]
	if x == nil {
		x = s.add(&t.opts, key)
		x.flow = o.OpenFlow(x.flow)
	}
	*c = GSSCall{Owner: o, client: sent.Client, context: x, sequence: sent.Header.GSS.Sequence, inFlow: o.Join(x.flow)}
	o.Hold()
	x.arrived++
	c.number = x.arrived
	x.wait(c)
	return x
}

// Forget takes the Calls of client, whose connection from this origin has gone, from the contexts, as far as they wait
// for their turn. It returns the first of them, which the caller unlinks and ends, and the Flows in which a Call of the
// client waits.
func (t *GSSContexts) Forget(from Origin, client any) (ended *GSSCall, flows []Flow) {
	s := t.shard(from.addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		for c := x.waiting; c != nil; {
			next := c.next
			if c.client == client {
				c.remove(&x.waiting, &x.last)
				c.context = nil
				c.next, ended = ended, c
			}
			c = next
		}
		if c := x.entering; c != nil && c.client == client && c.inFlow {
			flows = append(flows, x.flow)
		}
	}
	return ended, flows
}
