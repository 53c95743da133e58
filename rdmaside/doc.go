// Package rdmaside carries RPC messages over RDMA: RPC-over-RDMA version 1,
// RFC 8166, in both roles. A [Requester] sends Calls on one connection and
// gives back plain Replies; a [Responder] takes connections, gives out plain
// Calls and sends the Replies. What RDMA is underneath is the business of a
// provider of package fabric; no provider is named here.
//
// # Operation
//
// A plain message is what TCP would have carried, without its record mark. The
// Requester plans with package ulb how a Call travels: inline, with one Read
// chunk, or as a Position Zero Read chunk; and what it offers for the Reply:
// nothing, one Write chunk, or a Reply chunk; one segment to a chunk, never a
// Write list beside a Reply chunk. The Responder takes whatever RFC 8166 allows,
// pulls it into one contiguous plain Call, and reduces the Reply into what was
// offered.
//
// # Ownership
//
// One [loop.Loop] owns a connection and everything that belongs to it.
// Methods are for that loop unless they say otherwise, callbacks run on it.
// Message octets live in memory of package regmem and are lent, never copied,
// except for a short inline Reply, which moves to a lease of its size so that
// it does not hold a whole Receive buffer.
//
// Work Request buffers follow four rules, each with its assertion:
//
//	B1  From post to completion the provider owns the buffer. Leases are marked
//	    posted, and regmem panics when a posted lease is released.
//	B2  From completion to repost the endpoint owns it; the Header and a payload
//	    that is delivered in place alias it. A buffer is in exactly one state,
//	    recvBuffer.state, and posting one that is not free panics.
//	B3  Every exit from the handling of a Receive hands the buffer on or reposts
//	    it. Tests assert that nothing is outstanding in the arena at the end.
//	B4  A Reply is delivered only after the handles of its Call are dead, or the
//	    connection is. Requester.finish panics when one is left.
//
// # Errors
//
// How far a Call got is its [Fate]. What a peer sends that RFC 8166 does not
// allow costs that peer its connection or its Call and nobody else anything; it
// is counted, and logged once for a connection that ends by it.
package rdmaside
