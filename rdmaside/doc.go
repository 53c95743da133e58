// Package rdmaside carries RPC messages over RDMA: RPC-over-RDMA version 1, RFC
// 8166, in both roles. A [Requester] sends Calls on one connection and returns
// plain Replies. A [Responder] accepts connections, hands plain Calls to its
// handler and sends the Replies. Package fabric defines what an RDMA provider
// must do; this package names no provider.
//
// # Operation
//
// A plain message has the octets that TCP would carry, without the record mark.
// The Requester asks package ulb how to send a Call: inline, with one Read
// chunk, or as a Position Zero Read chunk. It also asks what to offer for the
// Reply: nothing, one Write chunk, or a Reply chunk. Each chunk has one
// segment, and a Write list never comes with a Reply chunk. The Responder
// accepts everything that RFC 8166 allows. It pulls the parts of a Call into
// one contiguous plain Call, and reduces the Reply into the chunks that the
// Requester offered.
//
// # Ownership
//
// One [loop.Loop] owns a connection and everything that belongs to it. Methods
// must be called on that loop unless they say otherwise, and callbacks run on it.
// The octets of messages are in memory of package regmem. They are lent and not
// copied, with these exceptions: a short message is copied where it would
// otherwise occupy a large block (copyBelow, shrinkBelow, and the messages of the
// reverse direction), or where all that belongs to its Call is then free while it
// is in the cache (Exchange.keepCall, [fabric.CopySender]), and a Reply in parts is
// joined when its data items can only be found in one piece.
//
// Buffers of Work Requests follow four rules. Each has an assertion:
//
//	B1  From post to completion the provider owns the buffer. Leases are marked
//	    posted, and regmem panics when a posted lease is released.
//	B2  From completion to repost the endpoint owns it; the Header and a payload
//	    that is delivered in place alias it. A buffer is in exactly one state,
//	    recvBuffer.state, and posting one that is not held panics.
//	B3  Every path out of the handling of a Receive hands the buffer on or
//	    reposts it. Tests assert that no lease is outstanding at the end.
//	B4  A Reply is delivered only after the handles of its Call are invalidated,
//	    or the connection is closed. Requester.finish panics when one is left.
//
// # Errors
//
// A [Fate] says how far a Call got. A peer that sends what RFC 8166 does not
// allow loses its Call or its connection. It affects no other connection. The
// violation is counted, and logged when it closes the connection.
package rdmaside
