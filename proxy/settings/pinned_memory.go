package settings

import "github.com/rdmabridge/rdmabridge/proxy/session"

const (
	// pinnedShare is the part of the memory for Replies that idle pinned connections may
	// take together: a quarter. Shared connections may take half of the memory (package
	// configs), and Replies need the rest.
	pinnedShare = 4
	// leastReceive is the memory of a Receive in package rdmaside, at least, and headerLen
	// is the memory of a Transport header there.
	leastReceive = 16 << 10
	headerLen    = 128
)

// MostPins is how many pinned RDMA connections the upstream may have. replies is the memory for Replies, and upstreams
// is how many upstreams share the part of it that pinned connections may take.
func (o *UpstreamOptions) MostPins(replies int64, upstreams int) int64 {
	// A lease may be twice as long as what it is for.
	each := session.PinnedReceives*max(leastReceive, o.ReplyInline) + 2*headerLen*(o.Credits+2*session.PinnedReverse)
	return max(1, min(int64(o.Pinned), replies/pinnedShare/int64(upstreams)/int64(each)))
}
