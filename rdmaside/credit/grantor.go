package credit

// A Grantor is the Responder's side: what to put into rdma_credit of a Reply, and
// how many Receives that takes.
//
// # Raising
//
// The owner posts Receives, then says so in Receives, then raises Limit: "The
// Responder MUST ensure that an increase in receive resources is effected before
// the next RPC Reply message is sent." It reposts the Receive that a Call has used
// before it answers that Call.
//
// # Lowering
//
// A smaller grant reaches the Requester with a Reply, and Calls that it sent
// before, under the larger one, may be on their way. How many is known from
// counting: both directions keep their order, so
//
//	who has seen r Replies, and has high credits, has sent at most r + high Calls
//
// and the Call with a number above r + high comes from a Requester that has seen
// more than r Replies. Let r be how many were sent before the first that carried
// the smaller grant. From the Call with number r + high + 1 on the Requester
// knows, and what it had outstanding when it sent that one was within what it had
// been granted since. Then, not before, high becomes the largest of those grants
// (Needed falls) and Receives beyond it may be given back.
//
// A Requester that has given up on a Call may pass over the Reply to it, and over
// its grant (Linux does when a process is killed). So the Grantor waits for a
// window more: r + 2 high. Nothing is known of a Requester that sends no more
// Calls: it keeps what it has.
//
// RFC 8166 Section 3.3.1. The zero Grantor grants one; see [NewGrantor].
type Grantor struct {
	Limit       uint32 // the most to grant from now on; 1 to Max; 0 counts as 1
	Receives    uint32 // Receives kept for Calls, posted or held by one; set by the owner, never below Needed
	Requested   uint32 // what the peer asked for last; 0 before the first Call
	Granted     uint32 // in the latest Reply; 1 before the first
	Outstanding uint32 // Calls received and not yet answered

	high    uint32 // the largest grant that the Requester may go by; 0 before the first Reply
	top     uint32 // while lowering, the largest grant since that began
	fence   uint64 // while lowering, the number of the last Call that may have been sent under high; else 0
	calls   uint64 // received
	replies uint64 // sent
}

// NewGrantor returns the Grantor of a fresh connection that grants up to limit
// (Default when limit is not positive, at most Max) and has receives Receives
// posted, at least one.
func NewGrantor(limit, receives int) Grantor {
	if limit <= 0 {
		limit = Default
	}
	return Grantor{Limit: uint32(min(limit, Max)), Receives: uint32(min(max(receives, 1), Max)), Granted: 1}
}

// Call takes a Call that arrived with rdma_credit requested. It reports whether
// the Requester kept to its grant; one that did not has already cost a Receive
// and should be disconnected.
func (g *Grantor) Call(requested uint32) (kept bool) {
	g.Requested = requested
	g.Outstanding++
	g.calls++
	if g.fence != 0 && g.calls > g.fence {
		g.high, g.fence = g.top, 0
	}
	return g.Outstanding <= g.Needed()
}

// Next is the grant that the next Reply would carry.
func (g *Grantor) Next() uint32 {
	// "The granted value MUST NOT be zero, since such a value would result in
	// deadlock." More than was requested is of no use to the Requester: it takes
	// the lower of the two.
	return max(1, min(g.Requested, g.Limit, g.Receives))
}

// Reply returns rdma_credit for the Reply, or RDMA_ERROR, that answers one
// outstanding Call. Nothing else may come between it and posting that Send.
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

// Drop ends an outstanding Call that is never answered. The Requester keeps
// waiting: its credit is gone until it reconnects.
func (g *Grantor) Drop() {
	if g.Outstanding == 0 {
		panic("BUG: credit: Reply without Call")
	}
	g.Outstanding--
}

// Needed is how many Receives the Requester may count on: the largest grant that
// it may go by. It only falls in Call, and only rises in Reply.
func (g *Grantor) Needed() uint32 { return max(g.high, 1) }

// Spent reports whether the Requester has as many Calls here as it was granted
// last. It may be held up by its grant without that: Calls and Replies on their
// way are not seen here.
func (g *Grantor) Spent() bool { return g.Outstanding >= g.Granted }
