package credit

// A Grantor does the Responder's credit arithmetic: it computes rdma_credit of
// each Reply, and how many Receives the Responder needs.
//
// # Raising
//
// The owner posts Receives, then sets Receives, then raises Limit: "The Responder
// MUST ensure that an increase in receive resources is effected before the next
// RPC Reply message is sent." It reposts the Receive that a Call has used before
// it answers that Call.
//
// # Lowering
//
// A smaller grant reaches the Requester with a Reply. Calls that the Requester
// sent earlier, under the larger grant, may still be on their way. The Grantor
// counts messages to bound the number of these Calls. Both directions keep
// their order, so
//
//	a Requester that has seen r Replies, and has high credits, has sent at most r + high Calls
//
// and the Call with a number above r + high comes from a Requester that has
// seen more than r Replies. Let r be the number of Replies before the first
// Reply with the smaller grant. From the Call with number r + high + 1 on, the
// Requester knows the smaller grant. When it sent that Call, its outstanding
// Calls were within the grants that began with the smaller one. When that Call
// arrives, and not before, the Grantor lowers high to the largest of these
// grants. Needed then falls, and the owner may release the Receives beyond it.
//
// A Requester that has given up on a Call may ignore the Reply to that Call,
// and the grant in the Reply (Linux does so when a process is killed). So the
// Grantor waits for another high Calls: r + 2 high. A Requester that sends no
// more Calls keeps its grant, because the Grantor cannot tell which grant the
// Requester knows.
//
// RFC 8166 Section 3.3.1. The zero Grantor grants one credit; see [NewGrantor].
type Grantor struct {
	Limit       uint32 // the most to grant from now on, 1 to Max; 0 counts as 1
	Receives    uint32 // Receives for Calls, posted or held by a Call; set by the owner, never below Needed
	Requested   uint32 // rdma_credit of the latest Call; 0 before the first
	Granted     uint32 // rdma_credit of the latest Reply; 1 before the first
	Outstanding uint32 // Calls received and not yet answered

	high    uint32 // the largest grant that the Requester may count on; 0 before the first Reply
	top     uint32 // while lowering, the largest grant since the lowering began
	fence   uint64 // while lowering, the number of the last Call that may have been sent under high; 0 otherwise
	calls   uint64 // Calls received
	replies uint64 // Replies sent
}

// NewGrantor returns the Grantor of a new connection that grants up to limit
// credits and has the given number of Receives posted. Both are clamped to the
// range from 1 to Max.
func NewGrantor(limit, receives int) Grantor {
	return Grantor{Limit: uint32(min(max(limit, 1), Max)), Receives: uint32(min(max(receives, 1), Max)), Granted: 1}
}

// Call counts a Call that arrived with rdma_credit requested. It reports
// whether the Requester kept to its grant. A Requester that exceeded its grant
// has used up a Receive too many. The owner may have spare ones, and close the
// connection when these are used up, too.
func (g *Grantor) Call(requested uint32) (kept bool) {
	g.Requested = requested
	g.Outstanding++
	g.calls++
	// A Requester may have given up Calls that are not answered, so that it has fewer outstanding than it seems:
	// while they do not fit, the higher grant stands.
	if g.fence != 0 && g.calls > g.fence && g.Outstanding <= g.top {
		g.high, g.fence = g.top, 0
	}
	return g.Outstanding <= g.Needed()
}

// Next returns the grant that the next Reply would carry.
func (g *Grantor) Next() uint32 {
	// "The granted value MUST NOT be zero, since such a value would result in
	// deadlock." A grant above the request is useless: the Requester uses the
	// lower of the two.
	return max(1, min(g.Requested, g.Limit, g.Receives))
}

// Reply returns rdma_credit for the Reply, or RDMA_ERROR, that answers one
// outstanding Call. The owner must post that Send before it calls any other
// method.
func (g *Grantor) Reply() uint32 {
	g.Drop()
	n := g.Next()
	switch {
	case n >= g.high:
		g.high, g.fence = n, 0
	case g.fence == 0:
		g.top, g.fence = n, g.replies+2*uint64(g.high)
	default:
		g.top = max(g.top, n)
	}
	g.replies++
	g.Granted = n
	return n
}

// Drop removes an outstanding Call that the Responder will never answer. The
// Requester keeps waiting for the Reply, and has lost the credit until it
// reconnects.
func (g *Grantor) Drop() {
	if g.Outstanding == 0 {
		panic("BUG: credit: Reply without Call")
	}
	g.Outstanding--
}

// Needed returns how many Receives the Requester may count on: the largest
// grant that it may be using. Only Call lowers it, and only Reply raises it.
func (g *Grantor) Needed() uint32 { return max(g.high, 1) }

// Full reports whether another Call would exceed every grant that the Requester
// may be using.
func (g *Grantor) Full() bool { return g.Outstanding >= g.Needed() }

// Spent reports whether the Requester has as many Calls outstanding here as it
// was granted last. Its grant may hold it up even when Spent is false: Calls and
// Replies on their way are not counted here.
func (g *Grantor) Spent() bool { return g.Outstanding >= g.Granted }
