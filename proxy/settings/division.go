package settings

// replyShare is the part of the memory budget that is kept for Replies: the Receives of
// connections to upstreams, Write chunks and Reply chunks. Calls can neither use nor fragment
// it, so that a budget full of waiting Calls can always shrink: each Call that is sent finds
// memory for its Reply sooner or later.
const replyShare = 0.5

// receiveShare is the part of the budget that is kept for the Receives of RDMA clients, if there
// is an RDMA listener: thousands of idle clients must not take the memory that the Calls of the
// others need. With a budget of 256 MiB it is enough for 1,000 clients with 6 credits each, or
// for 160 with 64. A client that finds no memory left is refused.
const receiveShare = 0.1875

// A Division is how a budget is divided into accounts.
type Division struct{ Replies, Receives, Calls int64 }

// Divide divides the budget; rdma says that there are RDMA listeners.
func Divide(budget int64, rdma bool) (d Division) {
	d.Replies = int64(float64(budget) * replyShare)
	if rdma {
		d.Receives = int64(float64(budget) * receiveShare)
	}
	d.Calls = budget - d.Replies - d.Receives
	return d
}
