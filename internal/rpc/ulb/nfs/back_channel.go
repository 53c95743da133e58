package nfs

import (
	"math"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// backRequest returns the position of the back channel's ca_maxrequestsize in the Call m, in which
// the arguments of a CREATE_SESSION begin at pos.
//
//	CREATE_SESSION4args: clientid 8, sequence, flags, fore channel, back channel, ...
//	channel_attrs4: headerpadsize, maxrequestsize, maxresponsesize, maxresponsesize_cached,
//	                maxoperations, maxrequests, rdma_ird<1>
//
// RFC 8881 Section 18.36.1. A Walk has passed the arguments.
func backRequest(m []byte, pos int) int {
	ird := pos + 8 + 4 + 4 + 6*4
	return ird + 4 + 4*int(be(m, ird)) + 4
}

// BoundBackChannel lowers the longest reverse Call that the CREATE_SESSION in the Call m allows the
// server to send. It may have at most most octets, RPC header included, because the connection to
// the client carries no longer one. a is the Analysis of m. Without this, a server may send a Call
// that the bridge has to refuse. The server returns the lower value, and clients accept that.
// A Call whose arguments are signed stays as it is.
//
// The longest Reply, ca_maxresponsesize, stays: Linux clients before 6.18 end a mount when the
// server returns less than they sent, and they send no Reply of such a length.
func BoundBackChannel(m []byte, a *ulb.Analysis, most int) {
	at := uint64(a.BackRequest)
	if at == 0 || at+4 > uint64(len(m)) || most < 0 || !a.Reduce {
		return
	}
	lower(m[at:at+4], uint32(min(most, math.MaxUint32)))
}
