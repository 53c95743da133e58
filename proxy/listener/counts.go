package listener

import (
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/admit/gates"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
	"github.com/rdmabridge/rdmabridge/proxy/upstream"
)

// Counts count the Calls of one loop's clients.
type Counts struct {
	Calls   *metrics.Counter
	Results [observe.Results]*metrics.Counter
	Waits   *gates.PauseCounts
	tables  []upstreamTable // in the order of their first Calls; the loop's
}

func newCounts(m *metrics.Registry, listener string) (c Counts) {
	c.Waits = new(gates.PauseCounts)
	c.Calls = m.Counter(metrics.ListenerReceivedCalls, listener)
	for r := range observe.Results {
		c.Results[r] = m.Counter(metrics.ListenerCalls, listener, r.String())
	}
	return c
}

// An upstreamTable counts the Calls of one loop's clients to one upstream.
type upstreamTable struct {
	up *upstream.Upstream // nil for Calls that the bridge answers itself
	*observe.Table
}
