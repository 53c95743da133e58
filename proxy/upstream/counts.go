package upstream

import (
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/settings"
	"github.com/rdmabridge/rdmabridge/rdmaside"
)

// loopCounts count the Calls on the connections of one loop.
type loopCounts struct {
	Sent      *metrics.Counter
	Replied   *metrics.Counter
	Phases    *observe.PhaseHistograms   // counted on the client's loop, of Calls that were answered
	Requester *rdmaside.RequesterMetrics // nil for TCP
}

func newLoopCounts(m *metrics.Registry, o *settings.UpstreamOptions) loopCounts {
	c := loopCounts{
		Sent:    m.Counter(metrics.UpstreamSentCalls, o.Name),
		Replied: outcome(m, o.Name, "replied"),
		Phases:  observe.NewPhaseHistograms(m, o.Name),
	}
	if o.RDMA {
		c.Requester = rdmaside.NewRequesterMetrics(m, o.Name)
	}
	return c
}

// outcome returns the counter of the Calls that ended like this at the upstream.
func outcome(m *metrics.Registry, upstream, how string) *metrics.Counter {
	return m.Counter(metrics.UpstreamCalls, upstream, how)
}

// underWay counts the Calls of clients that are under way, by the number of the client's loop. An element belongs to
// its loop.
type underWay []struct {
	n int
	_ [56]byte // loops do not share a cache line
}

// Begun counts a Call of a client on the loop with this number, which calls it.
func (all underWay) Begun(here int) { all[here].n++ }

// Settled does not count n Calls any more that Begun counted.
func (all underWay) Settled(here, n int) { all[here].n -= n }

// CallsOf is how many Calls of clients on the loop with this number are under way. For that loop.
func (all underWay) CallsOf(here int) int { return all[here].n }

// A Failure is what can become of a Call on a connection to its upstream, other than a Reply.
type Failure uint8

const (
	FailureLost     Failure = iota // the connection was lost, and the Call is not sent again
	FailureError                   // it was answered with an error of the transport, or cannot be carried
	FailureReplayed                // the connection was lost, and the Call is sent again
	FailureRetried                 // the connection did not send the Call, or not all of it, and it is sent again
	FailureCollided                // another Call on the connection has its XID
	failures
)

func newFailures(m *metrics.Registry, upstream string) [failures]*metrics.Counter {
	return [failures]*metrics.Counter{
		FailureLost:     outcome(m, upstream, "lost"),
		FailureError:    outcome(m, upstream, "error"),
		FailureReplayed: m.Counter(metrics.UpstreamReplays, upstream),
		FailureRetried:  m.Counter(metrics.UpstreamRetries, upstream),
		FailureCollided: m.Counter(metrics.UpstreamXIDCollisions, upstream),
	}
}

// newRefusedReplies returns the counters of refused Replies by their reason.
func newRefusedReplies(m *metrics.Registry, upstream string) map[string]*metrics.Counter {
	all := make(map[string]*metrics.Counter)
	for _, reason := range []string{"too_long", "too_short", "fragments", "memory", RefusedMalformed} {
		all[reason] = m.Counter(metrics.UpstreamTCPRefusedReplies, upstream, reason)
	}
	return all
}

// RefusedMalformed is the reason of a Reply whose header cannot be read. The others are those of package tcpframe.
const RefusedMalformed = "malformed"
