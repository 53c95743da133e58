package upstream

import (
	"sync/atomic"

	"github.com/rdmabridge/rdmabridge/internal/rpc/ulb"
)

// replyLengths are how long the Replies of an upstream get. They are safe for concurrent use.
type replyLengths struct {
	average atomic.Int64 // octets that recent Replies without a bound had, on average
}

// LearnLength notes that a Reply without a bound had so many octets.
func (n *replyLengths) LearnLength(octets int) {
	old := n.average.Load()
	n.average.Store(old + (int64(octets)-old)/16) // losing another loop's update does no harm
}

// Expect is how many octets a client is charged for the Reply while its Call is under way.
// That is the Reply's bound if it has one. Otherwise it is the average of recent Replies
// without a bound, and no less than the client's own took lately. It is never below
// leastExpected, so that a client cannot ask for a thousand small Replies and then for as
// many large ones.
func (n *replyLengths) Expect(a *ulb.Analysis, lately int) int {
	if a.Known {
		return int(a.MaxReply)
	}
	return int(min(max(n.average.Load(), int64(lately), leastExpected), int64(a.MaxReply)))
}

// Cost is what a Call of so many octets and its Reply weigh in the queue.
func (n *replyLengths) Cost(octets int, a *ulb.Analysis) int {
	if a.Known {
		return octets + int(a.MaxReply)
	}
	return octets + int(n.average.Load())
}

// leastExpected is how many octets a Reply without a bound is expected to have at least.
const leastExpected = 64 << 10
