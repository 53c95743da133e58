package credit

// A Grantor is the Responder's side: what to put into rdma_credit of a Reply.
//
// A grant is a promise that so many Receives are posted for Calls. It cannot be
// taken back with certainty: a smaller one reaches the Requester with a Reply,
// and Calls that it sent before may be on their way. So Receives may be added at
// any time and stay as long as the connection does; lowering Limit holds back
// new Calls, and with them the memory of Calls being served.
//
// The owner posts Receives before it says so in Receives, and reposts the one a
// Call has used before it answers that Call.
//
// RFC 8166 Section 3.3.1. The zero Grantor grants one; see [NewGrantor].
type Grantor struct {
	Limit       uint32 // the most to grant from now on; 1 to Max; 0 counts as 1
	Receives    uint32 // Receives kept posted for Calls; set by the owner, never lowered
	Requested   uint32 // what the peer asked for last; 0 before the first Call
	Granted     uint32 // in the latest Reply; 1 before the first
	Outstanding uint32 // Calls received and not yet answered

	high uint32 // the largest grant the Requester has been given; 0 before the first Reply
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
	return g.Outstanding <= max(g.high, 1)
}

// Next is the grant that the next Reply would carry.
func (g *Grantor) Next() uint32 {
	// "The granted value MUST NOT be zero, since such a value would result in
	// deadlock." More than was requested is of no use to the Requester: it takes
	// the lower of the two. "The Responder MUST ensure that an increase in receive
	// resources is effected before the next RPC Reply message is sent."
	return max(1, min(g.Requested, g.Limit, g.Receives))
}

// Reply returns rdma_credit for the Reply, or RDMA_ERROR, that answers one
// outstanding Call. Nothing else may come between it and posting that Send.
func (g *Grantor) Reply() uint32 {
	g.Drop()
	g.Granted = g.Next()
	g.high = max(g.high, g.Granted)
	return g.Granted
}

// Drop ends an outstanding Call that is never answered. The Requester keeps
// waiting: its credit is gone until it reconnects.
func (g *Grantor) Drop() {
	if g.Outstanding == 0 {
		panic("BUG: credit: Reply without Call")
	}
	g.Outstanding--
}
